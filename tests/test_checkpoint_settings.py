"""What configs of others' checkpoints say: which layers they mean, how they are packed, what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import checkpoint_packers as pack
from aoext.checkpoints import WRITERS, Model, reader_for, settings_in
from aoext.checkpoints.checks import refusals
from aoext.checkpoints.compressed_tensors_groups import Targets
from aoext.checkpoints.expressions import Expression
from test_checkpoints import GPTQ, GROUP, NF4, NF4_STATE, K, N, exactly, weights

DYNAMIC = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
CHANNEL = {"num_bits": 8, "type": "int", "strategy": "channel"}


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def grouped(*groups: dict[str, Any], **settings: Any) -> dict[str, Any]:
    named = {f"group_{index}": group for index, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, **settings}


class Conv1D(nn.Module):
    """A module of a class that is none of nn.Linear's."""


MODULES: dict[str, nn.Module] = {
    "model.layers.0.mlp.down_proj": nn.Linear(K, N),
    "model.layers.10.mlp.up_proj": nn.Linear(K, N),
    "model.embed_tokens": nn.Embedding(N, K),
    "transformer.h.0.c_attn": Conv1D(),
    "lm_head": nn.Linear(K, N),
}
MODEL = Model(MODULES.get, {})


# compressed-tensors


def test_the_most_specific_target_counts_whatever_its_group():
    """A name, then a regular expression, then a class."""
    settings = grouped(
        {"targets": ["Linear"], "weights": CHANNEL, "input_activations": DYNAMIC},
        {"targets": ["re:.*down_proj$"], "weights": CHANNEL},
        {"targets": ["model.layers.1.down_proj"], "weights": CHANNEL, "input_activations": DYNAMIC},
    )
    tensors, expected = pack.int_quantized(N, K)
    for layer, quantised in (("a.up_proj", True), ("a.down_proj", False), ("model.layers.1.down_proj", True)):
        weight = reader_for(settings).weight(layer, tensors, torch.bfloat16)
        assert (weight.quantizes_input_to is torch.int8) == quantised
        assert torch.equal(exactly(weight), expected)


def test_targets_are_chosen_as_by_the_package(generator):
    match = pytest.importorskip("compressed_tensors.utils.match")
    pool = [
        "Linear",
        "Embedding",
        "Module",
        "Conv1D",
        "lm_head",
        "model.layers.0.mlp.down_proj",
        "re:.*proj$",
    ]
    pool += ["re:.*down.*", r"re:model\.layers\.\d+\.", "re:model", "down_proj", "*", "re:^(?!model).*"]
    for _ in range(60):
        order = torch.randperm(len(pool), generator=generator)[
            : 1 + int(torch.randint(5, (), generator=generator))
        ]
        targets = {pool[i]: pool[i] for i in order.tolist()}
        for name, module in MODULES.items():
            classes = [kind.__name__ for kind in type(module).__mro__ if issubclass(kind, nn.Module)]
            theirs = match.match_targets(name, module, targets)
            assert Targets("targets", targets).of(name, classes) == (theirs[0] if theirs else None)


@pytest.mark.parametrize("layer", ["model.embed_tokens", "transformer.h.0.c_attn"])
def test_linear_is_no_other_class(layer):
    reader = reader_for(weights(**CHANNEL))
    tensors, _ = pack.int_quantized(N, K)
    reader.weight(layer, tensors, torch.bfloat16)  # nothing is known of the model
    reader.model = MODEL
    reader.weight("lm_head", tensors, torch.bfloat16)
    with pytest.raises(ValueError, match=f"^{layer}: no group of the checkpoint's config has it among"):
        reader.weight(layer, tensors, torch.bfloat16)


def test_ignore_goes_before_targets():
    tensors, _ = pack.int_quantized(N, K)
    for ignored in ("lm_head", "re:.*head", "Linear"):
        reader = reader_for({**weights(**CHANNEL), "ignore": [ignored]})
        with pytest.raises(ValueError, match=r"^lm_head: no group .* for ignore names it"):
            reader.weight("lm_head", tensors, torch.bfloat16)


def test_groups_without_weights_are_passed_over_and_that_is_said():
    attention = {"targets": ["re:.*self_attn$"], "input_activations": {**DYNAMIC, "strategy": "tensor"}}
    odd = {"targets": ["Embedding"], "weights": {"num_bits": 1, "type": "int"}}
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    settings = grouped(attention, {"targets": ["Linear"], "weights": CHANNEL}, odd, kv_cache_scheme=cache)
    reader = reader_for(settings)
    reader.model = MODEL
    assert reader.notes == (
        "group_0 of config_groups quantises no weights, and is passed over",
        "keys and values stay as they are, where the checkpoint has them in 8 bits, float",
    )
    tensors, expected = pack.int_quantized(N, K)
    assert torch.equal(exactly(reader.weight("lm_head", tensors, torch.bfloat16)), expected)
    with pytest.raises(ValueError, match=r"^model\.embed_tokens: group_2: no kernel for weights of 1 bits"):
        reader.weight("model.embed_tokens", tensors, torch.bfloat16)
    with pytest.raises(ValueError, match=r"^a\.self_attn: no group of .* or none with weights"):
        reader.weight("a.self_attn", tensors, torch.bfloat16)


@pytest.mark.parametrize("form", ["pack_quantized", "pack_quantized_8"])
def test_groups_of_minus_one_are_none(form):
    tensors, expected = getattr(pack, form)(N, K, GROUP)
    bits = 8 if form.endswith("8") else 4
    settings = weights(num_bits=bits, type="int", strategy="group", group_size=GROUP)
    tensors["weight_g_idx"] = torch.full((K,), -1, dtype=torch.int32)
    assert torch.equal(exactly(reader_for(settings).weight("a", tensors, torch.bfloat16)), expected)
    tensors["weight_g_idx"][0] = 0
    with pytest.raises(ValueError, match="a: weight_g_idx must name each of the 4 groups 32 times"):
        reader_for(settings).weight("a", tensors, torch.bfloat16)


def test_older_configs_nest_what_they_say():
    inner = weights(**CHANNEL)
    tensors, expected = pack.int_quantized(N, K)
    nested = {"quant_method": "compressed-tensors", "quantization_config": inner, "sparsity_config": {}}
    first = {
        "quantization_config": {**inner, "quant_method": "sparseml"},
        "sparsity_config": {"format": "dense"},
    }
    for settings in (
        nested,
        settings_in({"compression_config": first}),
        settings_in({"compression_config": inner}),
    ):
        weight = reader_for(json.loads(json.dumps(settings))).weight("a", tensors, torch.bfloat16)
        assert torch.equal(exactly(weight), expected)
    first["sparsity_config"] = {"format": "sparse-bitmask"}
    with pytest.raises(ValueError, match="sparse weights do not run"):
        reader_for(settings_in({"compression_config": first}))
    assert settings_in({"text_config": {"quantization_config": GPTQ}}) == GPTQ
    assert settings_in({}) is None
    for config in ([], None, "x"):
        with pytest.raises(ValueError, match=r"config\.json: the settings must be a JSON object"):
            settings_in(config)


@pytest.mark.parametrize(("bits", "rows", "columns"), [(4, 27, 100), (4, 8, 6), (8, 27, 101), (8, 6, 3)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_sizes_that_fill_no_word(bits, rows, columns, symmetric):
    """They are read as the package packs them; of 4 bits the writer refuses them, of 8 it packs nothing."""
    package = pytest.importorskip("test_checkpoint_packages")
    scheme = {"num_bits": bits, "type": "int", "strategy": "channel", "symmetric": symmetric}
    compress, made = package.compressor(scheme, "pack-quantized")
    middle = 2 ** (bits - 1)
    zero = torch.zeros(rows, 1) if symmetric else torch.randint(-middle, middle, (rows, 1))
    codes, scale = torch.randint(-middle, middle, (rows, columns)), torch.rand(rows, 1).half().float()
    exact = (codes - zero).double() * scale.double()
    state = {"weight": exact.float(), "weight_scale": scale}
    if not symmetric:
        state["weight_zero_point"] = zero.to(torch.int8)
    weight = reader_for(package.settings_of(scheme)).weight(
        "q", compress.compress(state, made), torch.float32
    )
    assert torch.equal(exactly(weight), exact)
    writer = WRITERS["compressed-tensors"](symmetric=symmetric)
    if bits == 4:
        with pytest.raises(ValueError, match=f"q: K must be a multiple of 8, got {columns}"):
            writer.write("q", weight)
        return
    tensors, facts = writer.write("q", weight)
    again = reader_for(writer.settings({"q": facts}, [])).weight("q", tensors, torch.float32)
    assert torch.equal(exactly(again), exact)


def test_an_odd_number_of_columns_of_4_bits_is_refused():
    settings = weights(num_bits=4, type="int", strategy="channel")
    tensors, _ = pack.pack_quantized(N, 104, 104)
    tensors["weight_shape"] = torch.tensor([N, 103])
    with pytest.raises(ValueError, match="a: K must be even for weights of 4 bits to run on aoext, got 103"):
        reader_for(settings).weight("a", tensors, torch.bfloat16)


# GPTQ, AWQ, AutoRound


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(("columns", "group"), [(192, 128), (64, 128), (152, 96)])
def test_the_last_group_may_be_partial(bits, act_order, columns, group):
    tensors, expected = pack.gptq_partial(N, columns, group, bits, act_order=act_order)
    settings = {**GPTQ, "bits": bits, "group_size": group, "desc_act": act_order}
    weight = reader_for(settings).weight("a", tensors, torch.float16)
    assert torch.equal(exactly(weight), expected)
    x = torch.randn(3, columns, dtype=torch.float16)
    wanted = x.double() @ expected.t()
    got = nn.functional.linear(x, weight).double()
    assert (got - wanted).norm() <= 5e-3 * wanted.norm()


def test_g_idx_counts_for_nothing_where_desc_act_is_false():
    tensors, expected = pack.gptq(N, K, GROUP)
    tensors["g_idx"] = torch.zeros_like(tensors["g_idx"])
    weight = reader_for({**GPTQ, "desc_act": False}).weight("a", tensors, torch.float16)
    assert torch.equal(exactly(weight), expected)
    with pytest.raises(ValueError, match="a: g_idx must name each of the 4 groups 32 times"):
        reader_for({**GPTQ, "desc_act": True}).weight("a", tensors, torch.float16)


AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": GROUP, "sym": False, "data_type": "int"}


@pytest.mark.parametrize(
    ("said", "packing"),
    [
        ({"packing_format": "auto_round:auto_gptq"}, "gptq"),
        ({"packing_format": "auto_round:gptq"}, "gptq"),
        ({}, "gptq"),
        ({"packing_format": "auto_round"}, "gptq_v2"),
        ({"packing_format": "auto_round:auto_awq"}, "awq"),
        ({"quant_method": "intel/auto-round", "backend": "auto_round:exllamav2"}, "gptq_v2"),
        ({"quant_method": "intel/auto-round", "backend": "auto_round:gptq:exllamav2"}, "gptq"),
    ],
)
def test_auto_round_packs_as_gptq_and_awq_do(said, packing):
    """Its layers may have settings of their own, by name or by a regular expression."""

    def made(group: int) -> pack.Stored:
        tensors, expected = (
            pack.awq(N, K, group) if packing == "awq" else pack.gptq(N, K, group, form=packing)
        )
        tensors.pop("g_idx", None)
        return tensors, expected

    own = {
        "model.layers.1.mlp": {"group_size": 64},
        r".*\.layers\.2\..*": {"group_size": -1},
        "lm_head": {"bits": 16},
    }
    reader = reader_for({**AUTO_ROUND, **said, "extra_config": own, "block_name_to_quantize": "model.layers"})
    for layer, group in (("model.layers.1.mlp", 64), ("model.layers.10.mlp", GROUP), ("model.layers.2.q", K)):
        tensors, expected = made(group)
        assert torch.equal(exactly(reader.weight(layer, tensors, torch.float16)), expected)
    with pytest.raises(ValueError, match=r"^lm_head: bits must be one of .* to run on aoext, got 16"):
        reader.weight("lm_head", made(GROUP)[0], torch.float16)


# Scales of rows


@pytest.mark.parametrize("layer", ["a.gate_up_proj", "a.qkv_proj"])
def test_a_scale_for_each_part_of_a_fused_weight(layer):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 3, "hidden_size": 16}
    sizes = [12, 12] if "gate" in layer else [12, 6, 6]
    q, scale = torch.randn(N, K).to(torch.float8_e4m3fn), torch.rand(len(sizes))
    tensors = {"weight": q, "weight_scale": scale}
    expected = q.double() * scale.double().repeat_interleave(torch.tensor(sizes))[:, None]
    settings = {"quant_method": "fp8", "activation_scheme": "static"}
    per_tensor = weights(num_bits=8, type="float", strategy="tensor")
    for said in (settings, per_tensor, {"quant_method": "modelopt", "quant_algo": "FP8"}):
        reader = reader_for(said)
        reader.model = Model({}.get, heads)
        assert torch.equal(exactly(reader.weight(layer, tensors, torch.bfloat16)), expected)
    if "qkv" in layer:
        with pytest.raises(ValueError, match="config does not say how many of its 24 rows are which"):
            reader_for(settings).weight(layer, tensors, torch.bfloat16)
    with pytest.raises(ValueError, match=r"weight_scale must be a float \[24, 1\] or \[1\]"):
        reader_for(settings).weight("a.o_proj", tensors, torch.bfloat16)


@pytest.mark.parametrize("shape", [(N,), (N, 1), ()])
def test_scales_of_rows_under_blocks_that_were_left_in_the_config(shape):
    q, scale = torch.randn(N, K).to(torch.float8_e4m3fn), torch.rand(shape)
    reader = reader_for({"quant_method": "fp8", "weight_block_size": [128, 128]})
    weight = reader.weight("a", {"weight": q, "weight_scale_inv": scale}, torch.bfloat16)
    assert torch.equal(exactly(weight), q.double() * scale.double().reshape(-1, 1))


@pytest.mark.parametrize(
    ("number", "name"), [(1, "col32"), (2, "col_turing"), (3, "col_ampere"), (9, "unknown")]
)
def test_values_in_a_gpus_tiles_are_refused(number, name):
    reader = reader_for({"quant_method": "bitsandbytes", "load_in_8bit": True})
    tensors, _ = pack.bitsandbytes_int8(32, K)
    tensors["weight_format"] = torch.tensor(number, dtype=torch.uint8)
    with pytest.raises(ValueError, match=rf"^a: weight_format must be 0 \(row\) .* got {number} \({name}\)"):
        reader.weight("a", tensors, torch.float16)
    forms = {f"a.{key}": tensor.to("meta") for key, tensor in tensors.items()}
    forms["a.weight_format"] = tensors["weight_format"]
    assert "weight_format" in reader.telling
    assert len(refusals(reader, forms, torch.float16)) == 1


# Whatever a config says


def changed_state(tensors: dict[str, Tensor], **said: Any) -> dict[str, Tensor]:
    state = {**json.loads(bytes(tensors[NF4_STATE].tolist())), **said}
    return {**tensors, NF4_STATE: torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)}


def test_a_nested_block_takes_no_more_memory_than_there_are_blocks():
    tensors, _ = pack.bitsandbytes_4(16, 64, 64, nested=True)
    reader = reader_for(NF4)
    whole = reader.weight("a", tensors, torch.bfloat16)
    again = reader.weight("a", changed_state(tensors, nested_blocksize=2**40), torch.bfloat16)
    assert torch.equal(exactly(again), exactly(whole))  # of one block either way
    with pytest.raises(ValueError, match="nested_offset must be a finite number, got nan"):
        reader.weight("a", changed_state(tensors, nested_offset=float("nan")), torch.bfloat16)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": ["gptq"]}, r"quant_method must be one of gptq, .* got \['gptq'\]"),
        ({**GPTQ, "group_size": 0}, "gptq: group_size must be a positive integer, got 0"),
        ({**GPTQ, "group_size": {}}, "gptq: group_size must be a positive integer, got {}"),
        ({**GPTQ, "bits": True}, "gptq: bits must be one of 2, .*, 8 to run on aoext, got True"),
        (
            {**GPTQ, "dynamic": {"(": {}}},
            r"gptq: dynamic: \(: the regular expression '\(' is none: missing \)",
        ),
        ({**GPTQ, "dynamic": {r"(a)\1": {}}}, "references to groups"),
        ({**GPTQ, "dynamic": {"(?i)a": {}}}, "a group of a kind that is not read"),
        ({**GPTQ, "dynamic": {"a{9999}": {}}}, "the regular expression .* is too long"),
        (
            {**GPTQ, "dynamic": {"(" * 3000 + ")" * 3000: {}}},
            r"gptq: dynamic: \(+\)+: the regular expression",
        ),
        ({**GPTQ, "dynamic": {"x": []}}, r"gptq: dynamic: x: the settings must be a JSON object, got \[\]"),
        (
            {**weights(**CHANNEL), "config_groups": {"g": 1}},
            "config_groups: g: the settings must be a JSON object",
        ),
        (weights(num_bits="8"), "group_0: weights: num_bits must be a positive integer, got '8'"),
        (grouped({"targets": 1, "weights": CHANNEL}), "targets must be a list of texts, got 1"),
        ({**weights(**CHANNEL), "ignore": "lm_head"}, "ignore must be a list of texts, got 'lm_head'"),
        (
            {"quant_method": "fp8", "weight_block_size": 128},
            "weight_block_size must be two positive integers",
        ),
        (
            {"quant_method": "hqq", "quant_config": "x"},
            "hqq: quant_config: the settings must be a JSON object",
        ),
        ({"quant_method": "modelopt", "quant_algo": 8}, "modelopt: quant_algo must be a text, got 8"),
        ({**AUTO_ROUND, "data_type": "mx_fp"}, "auto-round: data_type must be one of 'int' .* got 'mx_fp'"),
        ({**AUTO_ROUND, "act_bits": 8}, "auto-round: act_bits must be one of 16, 32, None .* got 8"),
        (
            {**AUTO_ROUND, "packing_format": "auto_round:fp8"},
            "packing_format must be .* got 'auto_round:fp8'",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        reader_for(settings)


@pytest.mark.parametrize(
    "pattern", [r"([\w.]+)+!", "(a|a)*b", "a?" * 60 + "a" * 60, ".*" * 40 + "!", "(.*)*(.*)*!"]
)
def test_expressions_take_bounded_time(pattern):
    """These take Python's own matcher hours, or ages."""
    for name in ("model.layers.10.self_attn.q_proj", "a" * 59):
        assert not Expression("who", pattern).match(name)
        assert not Expression("who", pattern).search(name)


PIECES = [
    "a",
    "b.",
    r"\.",
    r"\d+",
    r"\w",
    ".*",
    "[a-c]",
    "[^.]?",
    "^",
    "$",
    r"\b",
    "(a|b)",
    "(?:mlp|attn)*",
    "(?!a)",
]
PIECES += ["(?=.*j)", "b{2}", "a{1,2}?", "(a(b|)){2,}", "proj", "-", "{", "x|", r"\x61", r"[\]a-]", "é"]


def test_expressions_fit_what_pythons_fit(generator):
    names = ["model.layers.10.mlp.up_proj", "", "a", "abb", "b.a", "aab1-", "x{a", "é.b\n"]
    for _ in range(600):
        chosen = torch.randint(
            len(PIECES), (int(torch.randint(1, 5, (), generator=generator)),), generator=generator
        )
        pattern = "".join(PIECES[i] for i in chosen.tolist())
        theirs, ours = re.compile(pattern), Expression("who", pattern)
        for name in names:
            assert ours.match(name) == bool(theirs.match(name)), (pattern, name)
            assert ours.search(name) == bool(theirs.search(name)), (pattern, name)

"""calibrate: models of blocks, experts, data in its forms, interruption, and what is refused."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")
import transformers

import aoext
from aoext.calibration import calibrate
from aoext.calibration.blocks import row_of
from aoext.calibration.data import batches_of
from aoext.calibration.pipeline import Pipeline
from aoext.calibration.settings import Settings
from aoext.configs.per_module import PerModuleConfig
from aoext.quality.evaluate import evaluate
from aoext.reference import randn
from formats import same
from models import assert_same_state, quantized_names
from moe_models import build as build_moe

DOCS = Path(__file__).parent.parent / "docs"
VOCABULARY = 96
INT4 = aoext.Int4WeightOnlyConfig(32)


def llama(generator: torch.Generator, device: torch.device | str = "cpu", **options: Any) -> Any:
    """Three layers, with columns of inputs and rows of v and up that stand out, as in trained models."""
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        initializer_range=0.1,
        **options,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.copy_(randn(generator, *parameter.shape) * 0.1)
    for layer in model.model.layers:
        layer.input_layernorm.weight.data[::17] *= 6
        layer.post_attention_layernorm.weight.data[::13] *= 6
        layer.self_attn.v_proj.weight.data[3] *= 5
        layer.mlp.up_proj.weight.data[::19] *= 5
    return model.to(device)


def tokens(generator: torch.Generator, count: int = 6) -> list[Tensor]:
    return [torch.randint(0, VOCABULARY, (2, 48), generator=generator) for _ in range(count)]


def of_letters(folder: Path, generator: torch.Generator) -> None:
    """The model, with a tokenizer that takes each letter for a token."""
    from tokenizers import Tokenizer, models

    vocabulary = {chr(32 + i): i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="?"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    llama(generator).save_pretrained(folder)


def letters(generator: torch.Generator, count: int) -> str:
    return "".join(chr(32 + i) for i in torch.randint(0, VOCABULARY, (count,), generator=generator).tolist())


def divergence(model: nn.Module, reference: nn.Module, data: Iterable[Tensor]) -> float:
    found = evaluate(model, data, reference).divergence
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("scheme", "algorithm"),
    [
        ("int4", "gptq"),
        ("mxfp4", "rotate+gptq"),
        ("int4", "awq+gptq"),
        ("int8_dynamic", "smoothquant"),
        ("int2", "signround"),
    ],
)
def test_outputs_are_nearer_than_by_rounding(scheme, algorithm, generator):
    nearer_than_by_rounding(scheme, algorithm, "cpu", generator)


def test_every_device_calibrates(device, generator):
    nearer_than_by_rounding("int4", "gptq", device, generator, samples=4)


@pytest.mark.parametrize("algorithm", ["search", "gptq"])
def test_without_data_random_tokens_serve(algorithm, generator):
    nearer_than_by_rounding("int4", algorithm, "cpu", generator, data=None, samples=8, length=48)


def test_models_without_tokens_need_data(generator):
    model = nn.Sequential(nn.Linear(64, 64))
    with pytest.raises(ValueError, match="without an embedding of tokens needs data, got None"):
        calibrate(model, None, INT4)


def nearer_than_by_rounding(
    scheme: str, algorithm: str, device: torch.device | str, generator: torch.Generator, **options: Any
) -> None:
    model, held_out = llama(generator, device), tokens(generator, 2)
    data = options.pop("data", tokens(generator))
    config = aoext.configs.schemes.as_config("test", scheme)
    rounded = copy.deepcopy(model)
    aoext.quantize_(rounded, config)

    reference = copy.deepcopy(model)
    summary = calibrate(model, data, config, algorithm=algorithm, steps=30, correction=1.0, **options)

    assert quantized_names(model) == quantized_names(rounded)
    assert divergence(model, reference, held_out) < divergence(rounded, reference, held_out)
    assert summary.error < summary.error_by_rounding
    assert "of outputs by rounding" in str(summary)


def test_a_head_that_an_embedding_shares_is_calibrated_and_stays_shared(generator):
    model, data = llama(generator, tie_word_embeddings=True), tokens(generator)
    summary = calibrate(model, data, INT4, quantize_embeddings=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert summary.errors["model.embed_tokens"].after < summary.errors["model.embed_tokens"].rounding


def test_modules_have_the_schemes_that_are_theirs(generator):
    model = llama(generator)
    config = PerModuleConfig("int4", {r"down_proj$": "int8", "lm_head": None})
    calibrate(model, tokens(generator, 2), config)
    layer = model.model.layers[1]
    assert isinstance(layer.mlp.down_proj.weight, aoext.Int8Tensor)
    assert isinstance(layer.mlp.up_proj.weight, aoext.Int4Tensor)
    assert not isinstance(model.lm_head.weight, aoext.tensors.QuantizedTensor)


def test_permuted_columns_stay_with_their_codes(generator):
    model, data, held_out = llama(generator), tokens(generator), tokens(generator, 2)
    reference, rounded = copy.deepcopy(model), copy.deepcopy(model)
    aoext.quantize_(rounded, INT4)
    calibrate(model, data, INT4, act_order="permute")
    assert model.model.layers[0].mlp.down_proj.weight.k_order is not None
    assert divergence(model, reference, held_out) < divergence(rounded, reference, held_out)


@pytest.mark.parametrize("name", ["mixtral", "qwen3", "gpt_oss"])
def test_experts_are_calibrated_by_the_tokens_that_they_get(name, generator):
    """By all at once, and by as many as fit: the same bits."""
    model = build_moe(name, generator)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3)
    data, held_out = tokens(generator), tokens(generator, 2)
    reference, rounded, in_parts = (copy.deepcopy(model) for _ in range(3))
    aoext.quantize_(rounded, INT4)
    summary = calibrate(model, data, INT4)
    experts = [name for name in summary.errors if "experts" in name]
    assert len(experts) == 4
    assert all(summary.errors[name].after < summary.errors[name].rounding for name in experts)
    assert divergence(model, reference, held_out) < divergence(rounded, reference, held_out)
    calibrate(in_parts, data, INT4, statistics_bytes=40_000)
    assert_same_state(in_parts, model)


def test_experts_without_tokens_are_rounded_and_named(generator):
    model = build_moe("mixtral", generator)
    config = aoext.Int4WeightOnlyConfig(32, algorithm="search")
    plain = model.model.layers[0].mlp.experts.gate_up_proj.detach().clone()
    batch = torch.zeros(1, 3, dtype=torch.int64)
    with pytest.warns(UserWarning, match="3 tokens are few"):
        summary = calibrate(model, [batch], config, lambda module, name: name.endswith("gate_up_proj"))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert "got no token" in summary.notes[name]
    assert summary.errors[name].tokens == batch.numel() * 2
    weight = model.model.layers[0].mlp.experts.gate_up_proj
    as_searched = [same(weight[e], config.quantize(plain[e])) for e in range(4)]
    assert 2 <= sum(as_searched) < 4


def test_padding_does_not_count(generator):
    model = llama(generator)
    ids = tokens(generator, 1)[0]
    mask = torch.ones_like(ids)
    padded = torch.cat([ids, torch.full_like(ids, 5)], 1)
    with_padding = {"input_ids": padded, "attention_mask": torch.cat([mask, 0 * mask], 1)}
    other = copy.deepcopy(model)
    options: dict[str, Any] = {"filter_fn": lambda module, name: name.endswith("layers.0.mlp.down_proj")}
    one = calibrate(model, [ids], INT4, **options).errors
    two = calibrate(other, [with_padding], INT4, **options).errors
    for name, errors in one.items():
        assert two[name].tokens == errors.tokens == ids.numel()
        assert two[name].after == pytest.approx(errors.after, rel=1e-3)


def test_data_has_many_forms(tmp_path, generator):
    ids = torch.randint(0, VOCABULARY, (40,), generator=generator)
    text = "".join(chr(int(i) + 32) for i in ids)
    (tmp_path / "text.txt").write_text(text)

    def tokenizer(text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - 32 for letter in text]}

    class Dataset:
        def __init__(self, **columns: Any) -> None:
            self.columns, self.column_names = columns, list(columns)

        def __iter__(self) -> Any:
            return (
                dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)
            )

    settings = Settings(length=8, samples=3, batch_size=2)
    forms = [
        (tmp_path / "text.txt", tokenizer),
        (str(tmp_path / "text.txt"), tokenizer),
        ([text[:11], text[11:]], tokenizer),
        (Dataset(text=[text]), tokenizer),
        (Dataset(label=[0, 0], input_ids=[ids[:9].tolist(), ids[9:]]), None),
    ]
    first, *others = [
        torch.cat([batch.kwargs["input_ids"] for batch in batches_of(data, tokenizer, settings)])
        for data, tokenizer in forms
    ]
    assert first.shape == (3, 8)
    assert all(torch.equal(first, other) for other in others)
    assert not torch.equal(
        first,
        torch.cat(
            [b.kwargs["input_ids"] for b in batches_of(*forms[0], Settings(length=8, samples=3, seed=7))]
        ),
    )
    assert [batch.rows for batch in batches_of(iter(tokens(generator)), None, settings)] == [2, 2]


def test_interrupted_the_model_is_what_it_was_and_resumed_it_has_the_same_bits(
    tmp_path, monkeypatch, generator
):
    model, data = llama(generator), tokens(generator)
    whole, before = copy.deepcopy(model), copy.deepcopy(model)
    calibrate(whole, data, INT4, algorithm="awq+gptq")

    round_stage, stages = Pipeline._round_stage, []

    def interrupted(*args: Any, **options: Any) -> None:
        stages.append(1)
        if len(stages) == 6:
            raise KeyboardInterrupt
        round_stage(*args, **options)

    options = {"algorithm": "awq+gptq", "resume_dir": tmp_path / "resume"}
    model.train()
    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "_round_stage", interrupted)
        with pytest.raises(KeyboardInterrupt):
            calibrate(model, data, INT4, **options)
    assert_same_state(model, before)
    assert model.training
    assert model.model.layers[0].mlp.training
    assert not any(module._forward_pre_hooks or "forward" in vars(module) for module in model.modules())

    with pytest.raises(FileExistsError, match=r"of another calibration, which has other seed"):
        calibrate(model, data, INT4, **options, seed=4)
    del stages[:]
    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "_round_stage", lambda *a, **o: (stages.append(1), round_stage(*a, **o)))
        calibrate(model, data, INT4, **options)
    assert len(stages) == 4 + 4 + 1  # two blocks and the output layer
    assert_same_state(model, whole)
    assert not (tmp_path / "resume").exists()


def test_a_model_without_blocks_is_one(generator):
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.Linear(64, 8, bias=False))
    data = [randn(generator, 64, 64) @ randn(generator, 64, 64) for _ in range(4)]
    assert (
        row_of(
            model, batches_of(data, None, Settings()), [p for p in model.parameters() if p.dim() > 1]
        ).hidden
        is None
    )
    reference, x = copy.deepcopy(model), data[0]
    rounded = copy.deepcopy(model)
    aoext.quantize_(rounded, INT4)
    calibrate(model, data, INT4)
    assert (model(x) - reference(x)).norm() < (rounded(x) - reference(x)).norm()


def test_layers_that_no_sample_reaches_are_rounded_and_named(generator):
    model = llama(generator)
    model.model.unused = nn.Linear(64, 32)
    model.model.layers[1].unused = nn.Linear(64, 32)
    expected = INT4.quantize(model.model.layers[1].unused.weight.detach())
    summary = calibrate(model, tokens(generator, 2), INT4)
    named = {name for name, note in summary.notes.items() if "no sample reached it" in note}
    assert named == {"model.unused", "model.layers.1.unused"}
    assert same(model.model.layers[1].unused.weight.data, expected)


def test_bad_input_leaves_the_model_as_it_was(generator):
    model, data = llama(generator), tokens(generator, 2)
    before = copy.deepcopy(model)
    for options, kind, message in [
        ({"algorithm": "gptq+awq"}, ValueError, "algorithm must be one of"),
        ({"algorithm": 3}, ValueError, "algorithm must be one of"),
        ({"act_order": "sorted"}, ValueError, "act_order must be"),
        ({"samples": 0}, ValueError, "samples must be positive"),
        ({"damping": 2.0}, ValueError, "damping must lie in"),
        ({"correction": True}, TypeError, "correction must be a float"),
        ({"seed": "x"}, TypeError, "seed must be an int"),
        ({"config": "int4"}, TypeError, "config must be one of aoext's"),
        ({"data": 3}, TypeError, "data must be batches"),
        ({"data": [3]}, TypeError, "batches must be tensors"),
        ({"data": []}, ValueError, "data has no batch"),
        ({"data": ["a text"]}, ValueError, "texts need a tokenizer"),
        ({"data": ["text"], "tokenizer": lambda text: [1, 2]}, ValueError, "too little for length = 512"),
        ({"filter_fn": lambda module, name: False}, ValueError, "no layer that the config quantises"),
    ]:
        arguments: dict[str, Any] = {"data": data, "config": INT4, **options}
        with pytest.raises(kind, match=message):
            calibrate(model, **arguments)
    model.model.layers[1].mlp.register_forward_hook(lambda module, args, output: output * float("nan"))
    said = r"layer 'model.layers.2.self_attn.q_proj': activations have NaN"
    for algorithm in ("gptq", "signround"):
        with pytest.raises(ValueError, match=said):
            calibrate(model, data, INT4, algorithm=algorithm)
        assert_same_state(model, before)


def test_snippets_and_commands_of_the_document_run(tmp_path, monkeypatch, generator):
    from click.testing import CliRunner

    from aoext.cli.commands import cli

    monkeypatch.chdir(tmp_path)
    of_letters(Path("my-model"), generator)
    Path("text.txt").write_text(letters(generator, 400))
    page = (DOCS / "calibrate.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL)
    scope: dict[str, object] = {}
    for language, block in blocks:
        if language == "python":
            exec(compile(block, "calibrate.md", "exec"), scope)
        else:
            done = CliRunner().invoke(cli, block.removeprefix("aoext ").split())
            assert done.exit_code == 0, done.output
            assert "of outputs by rounding" in done.output
    loaded = transformers.AutoModelForCausalLM.from_pretrained("my-int4-model")
    assert isinstance(loaded.model.layers[0].mlp.up_proj.weight, aoext.Int4Tensor)
    assert not isinstance(loaded.lm_head.weight, aoext.tensors.QuantizedTensor)
    assert Path("my-int4-model/tokenizer.json").is_file()
    assert not Path("my-int4-model.calibration").exists()

"""Embeddings with quantised weights: what a lookup gives and refuses, and heads that share the weight."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.functional import embedding, embedding_bag, linear

import aoext
from aoext.models.layers import QuantizedEmbedding, QuantizedLinear
from aoext.reference import assert_close, randn
from aoext.tensors import INTX_TYPES, Int4Tensor
from conftest import compiler_for
from formats import CLASSES, FORMATS, HIGH_PRECISION, meaning, quantized, same
from models import assert_same_state
from test_layers import CONFIGS, MODES

BF16 = torch.bfloat16
ROWS, K = 50, 64


class TiedModel(nn.Module):
    """An embedding, a layer, and a head with the embedding's weight, as small language models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, K, padding_idx=0)
        self.layer = nn.Linear(K, K)
        self.head = nn.Linear(K, ROWS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(tokens)))


class FunctionalModel(TiedModel):
    """The same with functions that take the weight."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weight = self.embedding.weight
        return linear(self.layer(embedding(tokens, weight)), weight)


def tied(device, config, kind=TiedModel) -> TiedModel:
    model = kind().to(device, BF16).eval()
    aoext.quantize_(model, config, quantize_embeddings=True)
    return model


def tokens(generator, device, *shape, dtype=torch.int64) -> torch.Tensor:
    return torch.randint(0, ROWS, shape, generator=generator).to(device, dtype)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("format", FORMATS)
def test_a_lookup_gives_the_rows_of_the_dequantised_weight(format, dtype, device, generator):
    weight = quantized(format, ROWS, K, dtype, device, generator)
    layer = nn.Embedding(ROWS, K, device=device)
    aoext.models.layers.set_weight(layer, nn.Parameter(weight, requires_grad=False))
    for shape in ((), (1,), (7,), (2, 3), (2, 1, 3), (0,), (2, 0)):
        for index_dtype in (torch.int64, torch.int32):
            at = tokens(generator, device, *shape, dtype=index_dtype)
            rows = layer(at)
            assert (rows.shape, rows.dtype, rows.device) == ((*shape, K), dtype, weight.device)
            assert torch.equal(rows, embedding(at, weight.dequantize()))
            assert_close(rows, meaning(weight)[at.cpu().long()])
            for mode in MODES.values():
                with mode():
                    assert torch.equal(embedding(at, weight, 3, sparse=True), rows)
                    assert torch.equal(torch.embedding(weight, at), rows)
                    assert torch.equal(torch.ops.aten.embedding(weight, at), rows)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
def test_int4_rows_follow_the_columns_order_and_the_weights_dtype(dtype, device, generator):
    fields = quantized("int4", ROWS, K, torch.float32, device, generator)
    order = torch.randperm(K, generator=generator).to(device)
    weight = Int4Tensor(
        fields.qdata, fields.scale, fields.zero_point, [1, 16], (ROWS, K), k_order=order, dtype=dtype
    )
    at = tokens(generator, device, 2, 3)
    rows = embedding(at, weight)
    assert rows.dtype is dtype
    assert torch.equal(rows, embedding(at, weight.dequantize()))
    assert torch.equal(rows[..., order], embedding(at, fields.dequantize().to(dtype)))


@pytest.mark.parametrize("format", FORMATS)
def test_views_and_strided_indices_are_looked_up(format, device, generator):
    whole = quantized(format, ROWS + 14, K, BF16, device, generator)
    weight, at = whole[14:], tokens(generator, device, 6, 4).t()[::2]
    assert torch.equal(embedding(at, weight), embedding(at + 14, whole.dequantize()))
    half = whole[:, : K // 2]
    assert torch.equal(embedding(at, half), embedding(at, half.dequantize()))


@pytest.mark.parametrize("format", [*CLASSES, "int2", "int3", "int6_int8"])
def test_a_lookup_reads_no_other_rows(format, device, generator):
    """Fields of 1000 rows are gathered and then dequantised: no result is larger than what is asked for."""
    weight = quantized(format, 1000, K, BF16, device, generator)
    sizes = []

    class Record(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if not func.is_view:
                sizes.append(result.numel())
            return result

    layer = nn.Embedding(1000, K, device=device)
    aoext.models.layers.set_weight(layer, nn.Parameter(weight, requires_grad=False))
    with torch.no_grad(), Record():
        layer(tokens(generator, device, 5))
        weight[7], weight[tokens(generator, device, 5)]
    assert max(sizes) == 5 * K


@pytest.mark.parametrize("format", [*CLASSES, "int2", "int3", "int6_int8"])
def test_rows_are_named_by_their_numbers(format, device, generator):
    weight = quantized(format, ROWS, K, BF16, device, generator)
    plain, at = weight.dequantize(), tokens(generator, device, 2, 3)
    for i in (0, 7, -1, ROWS - 1, -ROWS):
        assert torch.equal(weight[i], plain[i])
        assert torch.equal(weight[i, :], plain[i])
        assert torch.equal(weight.t()[:, i], plain[i])
    assert torch.equal(weight[at], plain[at])
    assert torch.equal(weight[at - ROWS], plain[at])
    chosen = torch.arange(ROWS, device=device) % 3 == 1
    assert torch.equal(weight[chosen], plain[chosen])
    assert torch.equal(weight.index_select(0, at[0]), plain[at[0]])
    assert torch.equal(weight.t().index_select(1, at[0]), plain.t()[:, at[0]])
    assert torch.equal(weight[:, 3], plain[:, 3])
    assert torch.equal(weight.t()[at[0]], plain.t()[at[0]])
    for wrong in (ROWS, -ROWS - 1):
        with pytest.raises(IndexError, match=f"there are {ROWS} rows, got the index {wrong}"):
            weight.select(0, wrong)


def test_what_is_no_lookup_is_refused(generator):
    weight = quantized("int4", ROWS, K, BF16, torch.device("cpu"), generator)
    plain, at = weight.dequantize(), torch.tensor([1])
    for wrong in (torch.tensor([ROWS]), torch.tensor([[3, -1]])):
        for table in (plain, weight):
            with pytest.raises(IndexError, match="index out of range in self"):
                embedding(wrong, table)
    for wrong in (torch.tensor([1.0]), torch.tensor([True]), torch.tensor([1], dtype=torch.uint8)):
        with pytest.raises(RuntimeError, match="int32 or int64"):
            embedding(wrong, weight)
    with pytest.raises(TypeError, match="indices must be a Tensor, got a list"):
        embedding([1], weight)
    for call, message in (
        (lambda: embedding(at, weight, max_norm=1.0), "embedding with a quantised weight takes no max_norm"),
        (lambda: embedding(at, weight.t()), "embedding takes no transposed view"),
        (lambda: embedding(weight, plain), "got Int4Tensor as indices of a Tensor"),
        (lambda: embedding_bag(at[None], weight), "aten._embedding_bag.* is not implemented; dequantize"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            call()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_quantize_keeps_the_tie_of_embedding_and_head(config, device, generator):
    model = TiedModel().to(device, BF16)
    plain = model.embedding.weight.detach().clone()
    kept = copy.deepcopy(model)
    summary = aoext.quantize_(model, config, quantize_embeddings=True)
    assert [(layer.name, layer.tied) for layer in summary.layers] == [("embedding", ("head",)), ("layer", ())]
    assert summary.skipped == {}
    assert [type(m) for m in model.children()] == [QuantizedEmbedding, QuantizedLinear, QuantizedLinear]
    assert model.head.weight is model.embedding.weight
    assert same(model.head.weight, config.quantize(plain))
    assert len(list(model.parameters())) == 3
    assert summary.model_bytes_after == sum(
        p.stored_bytes if p.dim() == 2 else p.nbytes for p in model.parameters()
    )
    assert "weight=" in repr(model.embedding)
    at = tokens(generator, device, 2, 9)
    error = (model(at) - kept(at)).float().norm() / kept(at).float().norm()
    assert error < 0.25
    assert isinstance(model.embedding, nn.Embedding)
    assert sorted(model.state_dict()) == ["embedding.weight", "head.weight", "layer.bias", "layer.weight"]


def test_embeddings_are_left_alone_unless_asked_for(device):
    model = TiedModel().to(device)
    summary = aoext.quantize_(model, aoext.Int8WeightOnlyConfig())
    assert [layer.name for layer in summary.layers] == ["layer"]
    assert summary.skipped == {"head": "its weight is shared with embedding, not to be quantised"}
    named = aoext.quantize_(
        model, aoext.Int8WeightOnlyConfig(), lambda _, name: name in ("embedding", "head")
    )
    assert named.layers == []
    assert named.skipped == {
        "embedding": "embeddings are quantised with quantize_embeddings=True",
        "head": "its weight is shared with embedding, not to be quantised",
    }
    with pytest.raises(TypeError, match="quantize_embeddings must be a bool, got 1"):
        aoext.quantize_(model, aoext.Int8WeightOnlyConfig(), quantize_embeddings=1)


def test_embeddings_that_cannot_be_quantised_are_skipped_with_the_reason():
    model = nn.ModuleDict({"norm": nn.Embedding(8, 64, max_norm=1.0), "odd": nn.Embedding(8, 63)})
    model["chosen"], model["other"] = nn.Embedding(8, 64), nn.Embedding(8, 64)
    summary = aoext.quantize_(
        model,
        aoext.Int4WeightOnlyConfig(32),
        lambda _, name: name in ("norm", "odd", "chosen"),
        quantize_embeddings=True,
    )
    assert [layer.name for layer in summary.layers] == ["chosen"]
    assert summary.skipped == {
        "norm": "its max_norm changes its weight at every call",
        "odd": "K = 63 is odd",
    }
    assert type(model["other"]) is nn.Embedding
    assert model["norm"](torch.tensor([1])).shape == (1, 64)


def test_subclasses_of_embedding_keep_their_class(generator):
    class Scaled(nn.Embedding):
        def forward(self, input):
            return 3 * super().forward(input)

    model = nn.Sequential(Scaled(ROWS, K))
    at = tokens(generator, "cpu", 5)
    aoext.quantize_(model, aoext.Int8WeightOnlyConfig(), quantize_embeddings=True)
    assert type(model[0]) is Scaled
    assert torch.equal(model(at), 3 * embedding(at, model[0].weight.dequantize()))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_copies_pickles_and_files_keep_the_tie(config, device, generator, tmp_path):
    model, at = tied(device, config), tokens(generator, device, 3, 4)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), torch.load(file, weights_only=False)]
    pytest.importorskip("safetensors")
    aoext.save_model(model, tmp_path / "model.safetensors")
    for target in (TiedModel().to(device, BF16), tied(device, aoext.Int4WeightOnlyConfig(16))):
        aoext.load_model(target, tmp_path / "model.safetensors")
        copies.append(target)
    assert (tmp_path / "model.safetensors").stat().st_size < 2 * 2 * ROWS * K
    assigned = TiedModel().to(device, BF16)
    assigned.load_state_dict(model.state_dict(), assign=True)
    for other in copies:
        assert type(other.embedding) is QuantizedEmbedding
        assert other.head.weight is other.embedding.weight
    for other in (*copies, assigned):
        assert same(other.embedding.weight, model.embedding.weight)
        assert torch.equal(other(at), model(at))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_moving_a_model_keeps_the_tie_and_converts_the_rows(config, device, generator):
    model, at = tied("cpu", config), tokens(generator, device, 3)
    weight = model.embedding.weight.dequantize()
    model.to(device).float()
    assert model.head.weight is model.embedding.weight
    rows = model.embedding(at)
    assert rows.dtype is torch.float32
    torch.testing.assert_close(rows.cpu(), embedding(at.cpu(), weight).float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("format", CLASSES)
def test_weights_of_float64_give_rows_of_float64(format, device, generator):
    weight = quantized(format, ROWS, K, torch.float32, device, generator)
    at = tokens(generator, device, 3)
    rows = embedding(at, weight.double())
    assert rows.dtype is torch.float64
    assert torch.equal(rows, embedding(at, weight).double())


def test_torchscript_refuses_the_layer(generator):
    model, at = tied("cpu", aoext.Int8WeightOnlyConfig()), tokens(generator, "cpu", 3)
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace of a module with quantised weights"):
        torch.jit.trace(model.embedding, at)
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.script of a module with quantised weights"):
        torch.jit.script(model.embedding)


def test_gradients_flow_past_the_embedding_to_what_trains(device, generator):
    model, at = tied(device, aoext.Int8WeightOnlyConfig()), tokens(generator, device, 3, 4)
    model.embedding.register_forward_hook(lambda module, inputs, output: output.requires_grad_())
    model(at).float().square().sum().backward()
    assert model.layer.bias.grad.float().norm() > 0
    assert model.embedding.weight.grad is None


@pytest.mark.parametrize("kind", [TiedModel, FunctionalModel])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_one_graph_serves_every_number_of_tokens(config, kind, device, generator):
    model = tied(device, config, kind).requires_grad_(False)
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend(compiler_for(device))(graph, example_inputs)

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for shape in ((2, 5), (3, 7), (4, 2)):
        at = tokens(generator, device, *shape)
        expected = model(at)
        torch.testing.assert_close(compiled(at), expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))
    assert len(graphs) == 1


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", [TiedModel, FunctionalModel])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_export_serves_every_number_of_tokens(config, kind, strict, device, generator):
    model = tied(device, config, kind)
    free = torch.export.Dim.AUTO
    program = torch.export.export(
        model, (tokens(generator, device, 2, 5),), dynamic_shapes=((free, free),), strict=strict
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    at = tokens(generator, device, 3, 7)
    for exported in (program, loaded):
        assert torch.equal(exported.module()(at), model(at))


def test_meta_models_and_transforms_see_the_lookup(device, generator):
    with torch.device("meta"):
        empty = TiedModel()
    aoext.quantize_(empty, aoext.Int4WeightOnlyConfig(32), quantize_embeddings=True)
    assert empty(torch.empty(2, 3, dtype=torch.int64, device="meta")).shape == (2, 3, ROWS)
    model, at = tied(device, aoext.Int4WeightOnlyConfig(32)), tokens(generator, device, 3, 4)
    with torch.no_grad():
        expected = model.embedding(at)
        assert torch.equal(torch.func.vmap(model.embedding)(at), expected)
        called = torch.func.functional_call(model.embedding, dict(model.embedding.named_parameters()), (at,))
        assert torch.equal(called, expected)
        plain = randn(generator, ROWS, K).to(device)
        model.embedding._parameters["weight"] = nn.Parameter(plain)  # as accelerate does
        assert torch.equal(model.embedding(at), embedding(at, plain))


def _llama(transformers, tied=True):
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=300, tie_word_embeddings=tied, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _gpt2(transformers):
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=300, n_positions=64, bos_token_id=1, eos_token_id=2,
        pad_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _bert(transformers):
    config = transformers.BertConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=300
    )
    return transformers.BertForMaskedLM(config)


@pytest.mark.parametrize("config", [CONFIGS["int4"], CONFIGS["int8 dynamic"]], ids=["int4", "int8 dynamic"])
@pytest.mark.parametrize("build", [_llama, _gpt2, _bert])
def test_models_of_transformers_run_with_one_weight_for_both(build, config, generator):
    transformers = pytest.importorskip("transformers")
    model = build(transformers).to(BF16).eval()
    at = torch.randint(3, 300, (2, 9), generator=generator)
    mask = torch.ones_like(at)
    with torch.no_grad():
        expected = model(at, attention_mask=mask).logits.float()
        summary = aoext.quantize_(model, config, quantize_embeddings=True)
        result = model(at, attention_mask=mask).logits.float()
    weight = model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight is weight
    assert isinstance(weight, aoext.tensors.QuantizedTensor)
    assert any(layer.shape == (300, 64) and layer.tied for layer in summary.layers)
    assert summary.bits_per_weight < 9
    assert (result - expected).norm() / expected.norm() < 0.3
    if hasattr(model, "generate") and build is not _bert:
        written = model.generate(at, attention_mask=mask, max_new_tokens=4, do_sample=False)
        assert written.shape[1] > at.shape[1]
        assert torch.equal(written[:, :9], at)


@pytest.mark.parametrize("bits", [2, 3, 5, 6])
def test_one_table_of_any_width_serves_embedding_and_head(bits, tmp_path, generator):
    transformers = pytest.importorskip("transformers")
    runner = pytest.importorskip("click.testing").CliRunner()
    from aoext.cli.commands import cli

    torch.manual_seed(generator.initial_seed())
    _llama(transformers).to(BF16).save_pretrained(tmp_path / "plain")
    load = transformers.AutoModelForCausalLM.from_pretrained
    config = aoext.AoextConfig(f"int{bits}", quantize_embeddings=True)
    model = load(tmp_path / "plain", quantization_config=config)
    weight = model.lm_head.weight
    assert model.get_input_embeddings().weight is weight
    assert (type(weight), weight.block_size) == (INTX_TYPES[bits], [1, 64])
    in_place = load(tmp_path / "plain")
    aoext.quantize_(in_place, config.scheme, quantize_embeddings=True)
    model.save_pretrained(tmp_path / "saved")
    arguments = (
        tmp_path / "plain",
        tmp_path / "converted",
        "--scheme",
        f"int{bits}",
        "--quantize-embeddings",
    )
    done = runner.invoke(cli, ["convert", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    at = torch.randint(3, 300, (2, 9), generator=generator)
    with torch.no_grad():
        logits = model(at).logits
        for other in (in_place, load(tmp_path / "saved"), load(tmp_path / "converted")):
            assert_same_state(other, model)
            assert other.lm_head.weight is other.get_input_embeddings().weight
            assert torch.equal(other(at).logits, logits)


def test_a_table_may_have_another_scheme_than_the_layers(tmp_path):
    transformers = pytest.importorskip("transformers")
    _llama(transformers).to(BF16).save_pretrained(tmp_path)
    load = transformers.AutoModelForCausalLM.from_pretrained
    layers, table = aoext.Int4WeightOnlyConfig(32), aoext.IntxWeightOnlyConfig(32, bits=6)
    model = load(tmp_path)
    aoext.quantize_(model, layers)
    summary = aoext.quantize_(model, table, quantize_embeddings=True)
    assert [(layer.name, layer.tied) for layer in summary.layers] == [("model.embed_tokens", ("lm_head",))]
    assert isinstance(model.lm_head.weight, INTX_TYPES[6])
    assert isinstance(model.model.layers[0].mlp.up_proj.weight, Int4Tensor)
    options = {"per_module": {"embed_tokens$": table}, "quantize_embeddings": True}
    assert_same_state(load(tmp_path, quantization_config=aoext.AoextConfig(layers, **options)), model)


def test_a_small_model_with_a_large_table_takes_a_third_of_its_bytes():
    """The shape is that of Gemma 3 with 270 million parameters, two thirds of them in the table."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Gemma3TextConfig(
        vocab_size=262144, hidden_size=640, intermediate_size=2048, num_hidden_layers=18,
        num_attention_heads=4, num_key_value_heads=1, head_dim=256,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.Gemma3ForCausalLM(config).to(BF16)
    summary = aoext.quantize_(model, aoext.Int4WeightOnlyConfig("auto"), quantize_embeddings=True)
    assert summary.skipped == {}
    assert summary.model_values == 268_098_176
    assert summary.model_bytes_after < 0.27 * summary.model_bytes_before


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("tied", [True, False])
def test_resized_embeddings_keep_their_rows_and_scheme(config, tied, generator):
    transformers = pytest.importorskip("transformers")
    model = _llama(transformers, tied).to(BF16).eval()
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        layer.weight.data[3, 0] = 1  # new rows have no larger value, which would scale all of nvfp4 anew
    aoext.quantize_(model, config, lambda *_: True, quantize_embeddings=True)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    kind = type(embedding.weight), embedding.weight.named_attributes()
    block = kind[1]["block_size"][0]  # a block with new rows is quantised anew
    rows, head_rows = embedding.weight.dequantize().clone(), head.weight.dequantize().clone()
    for size in (310, 290, 300):
        model.resize_token_embeddings(size)
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        assert (type(embedding), type(head)) == (QuantizedEmbedding, QuantizedLinear)
        assert (type(embedding.weight), embedding.weight.named_attributes()) == kind
        assert (embedding.weight is head.weight) == tied
        assert (embedding.num_embeddings, head.out_features, model.config.vocab_size) == (size, size, size)
        kept = (290 if size < 310 else 300) // block * block
        for weight, before in ((embedding.weight, rows), (head.weight, head_rows)):
            assert torch.equal(weight.dequantize()[:kept], before[:kept])
            assert_close(weight.dequantize(), meaning(weight))
    at = torch.randint(3, 300, (2, 9), generator=generator)
    assert model(at).logits.shape == (2, 9, 300)


def test_embeddings_stay_as_they_were_where_resizing_fails(monkeypatch):
    transformers = pytest.importorskip("transformers")
    model = _llama(transformers)
    aoext.quantize_(model, CONFIGS["int4"], lambda *_: True, quantize_embeddings=True)
    embedding = model.get_input_embeddings()
    weight = embedding.weight

    def broken(*_):
        raise RuntimeError("no rows")

    monkeypatch.setattr(type(model), "_init_added_embeddings_weights_with_mean", broken)
    with pytest.raises(RuntimeError, match="no rows"):
        model.resize_token_embeddings(310)
    assert model.get_input_embeddings() is embedding
    assert embedding.weight is weight
    assert (len(weight), embedding.num_embeddings, model.config.vocab_size) == (300, 300, 300)


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("format", FORMATS)
def test_lookups_over_a_batch_of_indices(format, batch, device, generator):
    weight = quantized(format, ROWS, K, BF16, device, generator)
    at = tokens(generator, device, batch, 5)
    assert torch.equal(torch.vmap(lambda at: embedding(at, weight))(at), embedding(at, weight))
    assert torch.equal(torch.vmap(lambda at: embedding(at, weight), 1)(at), embedding(at.t(), weight))

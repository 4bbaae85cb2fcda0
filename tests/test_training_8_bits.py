"""Training by products of 8 bits, and weights that train in int8."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import aoext
from aoext.reference import randn
from aoext.tensors.int8_training import round_rows
from conftest import compiler_for
from ranks import BACKENDS, Ranks

N, K, M = 130, 200, 37
BF16, FP32 = torch.bfloat16, torch.float32

PRODUCTS = {
    "int8": aoext.Int8MixedPrecisionTrainingConfig(),
    "int8, output": aoext.Int8MixedPrecisionTrainingConfig(grad_input=False, grad_weight=False),
    "rowwise": aoext.Float8LinearConfig("rowwise"),
    "rowwise_with_gw_hp": aoext.Float8LinearConfig.from_recipe_name("rowwise_with_gw_hp"),
    "blockwise": aoext.Float8BlockwiseLinearConfig(),
}
CONFIGS = {**PRODUCTS, "int8 weights": aoext.int8_weight_only_quantized_training()}
# What rounding both operands of normal numbers costs at most.
LARGEST_ERROR = {"int8": 0.02, "float8": 0.06}


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())
    torch._dynamo.reset()


def off_by(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.double().cpu() - expected.cpu()).norm() / expected.norm().cpu())


@pytest.mark.parametrize("dtype", [FP32, BF16, torch.float16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_gradients_are_near_float64s(name, dtype, device, generator):
    layer = nn.Linear(K, N).to(device, dtype)
    plain = copy.deepcopy(layer).double()
    aoext.quantize_(layer, PRODUCTS[name])
    x = randn(generator, 3, M, K, dtype=dtype).to(device).requires_grad_()
    wide = x.detach().double().requires_grad_()
    grad = randn(generator, 3, M, N, dtype=dtype).to(device)
    y, expected = layer(x), plain(wide)
    y.backward(grad)
    expected.backward(grad.double())
    how = layer.products
    bound = LARGEST_ERROR["int8" if how.dtype is torch.int8 else "float8"]
    for made, result, wanted in (
        (how.output, y, expected),
        (how.grad_input, x.grad, wide.grad),
        (how.grad_weight, layer.weight.grad, plain.weight.grad),
        (False, layer.bias.grad, plain.bias.grad),
    ):
        assert result.dtype is dtype
        error = off_by(result.detach(), wanted.detach())
        assert (bound / 20 < error < bound) if made else error < 5e-3


@pytest.mark.parametrize("eight_bits", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", [FP32, BF16, torch.float16])
@pytest.mark.parametrize("size", [(1, 8), (37, 64), (128, 72), (513, 200), (300, 131), (2050, 136)])
def test_a_transposed_matrix_is_quantised_as_its_copy(size, dtype, eight_bits, device, generator):
    rows = randn(generator, *size, dtype=dtype).to(device)
    rows[:, 3] = 0
    rows[-1, 1], rows[0, 2] = torch.nan, torch.inf
    for x in (rows, rows[:, : size[1] // 2]):
        for block in (None, [1, 128], [1, 32]):
            for power_of_two in (False, True):
                made, copied = (
                    torch.ops.ao.quantize(t, eight_bits, block, power_of_two=power_of_two)
                    for t in (x.t(), x.t().contiguous())
                )
                assert made[0].is_contiguous()
                assert torch.equal(made[0].view(torch.uint8), copied[0].view(torch.uint8))
                torch.testing.assert_close(made[1], copied[1], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", PRODUCTS)
def test_rows_with_nan_or_inf_make_nan_and_no_others(name, device, generator):
    layer = nn.Linear(64, 32, device=device)
    aoext.quantize_(layer, PRODUCTS[name])
    x = randn(generator, 4, 64).to(device)
    x[1, 3] = float("nan")
    x.requires_grad_()
    y = layer(x)
    assert y[1].isnan().all()
    assert y[[0, 2, 3]].isfinite().all()
    y[[0, 1]].sum().backward()
    assert layer.weight.grad[:, 3].isnan().all()
    if layer.products.second_block == 1:  # else columns of x share scales
        assert layer.weight.grad[:, :3].isfinite().all()


@pytest.mark.parametrize("name", CONFIGS)
def test_an_empty_batch_gives_zeros(name, device):
    layer = nn.Linear(64, 32, device=device)
    aoext.quantize_(layer, CONFIGS[name])
    x = torch.zeros(0, 64, device=device, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == (0, 32)
    assert x.grad.shape == (0, 64)
    assert layer.weight.grad.shape == (32, 64)
    assert not layer.weight.grad.any()


def test_gradients_of_more_rows_than_int32_sums(generator):
    layer = nn.Linear(4, 3, bias=False)
    aoext.quantize_(layer, PRODUCTS["int8"])
    x, grad = randn(generator, 150_000, 4).abs(), randn(generator, 150_000, 3).abs()
    layer(x).backward(grad)
    assert off_by(layer.weight.grad, grad.double().t() @ x.double()) < 1e-3


def model(name: str, device: torch.device | str = "cpu", dtype: torch.dtype = FP32) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 32)).to(device, dtype)
    aoext.quantize_(made, CONFIGS[name])
    return made


def train(made: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 12) -> list[float]:
    parameter = next(made.parameters())
    x = torch.randn(32, 64, device=parameter.device, dtype=parameter.dtype)
    target = torch.randn(32, 32, device=parameter.device, dtype=parameter.dtype)
    losses = []
    for _ in range(steps):
        loss = mse_loss(made(x).float(), target.float())  # bfloat16 takes steps like these for none
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


OPTIMIZERS = ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "Adamax", "Rprop", "Adadelta"]
FUSED = ["SGD", "Adam", "AdamW", "Adagrad"]
STEPS = [(name, {}) for name in OPTIMIZERS] + [(name, {"foreach": True}) for name in OPTIMIZERS]
STEPS += [(name, {"fused": True}) for name in FUSED]


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize(("optimizer", "options"), STEPS)
def test_optimizers_train_int8_weights_in_place(optimizer, options, dtype, device):
    made = model("int8 weights", device, dtype)
    places = [p.data_ptr() for layer in (made[0], made[2]) for p in (layer.weight.qdata, layer.weight.scale)]
    rate = 1.0 if optimizer == "Adadelta" else 1e-2  # it divides by what parameters moved, at first nothing
    step = getattr(torch.optim, optimizer)(made.parameters(), lr=rate, **options)
    before = made[0].weight.dequantize().detach()
    try:
        losses = train(made, step)
    except RuntimeError as error:
        if "`fused=True` requires" not in str(error):
            raise
        pytest.skip(f"{optimizer} of this torch has no kernel for {device.type}")
    assert losses[-1] < losses[0]
    assert not torch.equal(made[0].weight.dequantize(), before)
    after = [p.data_ptr() for layer in (made[0], made[2]) for p in (layer.weight.qdata, layer.weight.scale)]
    assert after == places
    for state in step.state.values():
        assert all(type(value) is torch.Tensor for value in state.values() if isinstance(value, torch.Tensor))


def test_an_8_bit_optimizer_of_torchao_trains_int8_weights():
    optim = pytest.importorskip("torchao.optim")
    made = model("int8 weights")
    losses = train(made, optim.AdamW8bit(made.parameters(), lr=1e-2), 4)
    assert losses[-1] < losses[0]


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch.compile recurses in older releases")
def test_a_compiled_step_trains_int8_weights(device):
    made = model("int8 weights", device)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2)
    optimizer.step = torch.compile(optimizer.step, backend=compiler_for(device))
    places = made[0].weight.qdata.data_ptr()
    losses = train(made, optimizer, 6)
    assert losses[-1] < losses[0]
    assert made[0].weight.qdata.data_ptr() == places


def test_steps_smaller_than_one_of_int8_add_up(device):
    weight = aoext.Int8TrainingTensor.from_hp(torch.full((16, 512), 0.5, device=device))
    weight[:, :1].qdata.fill_(127)
    step = float(weight.scale[0]) / 10
    for _ in range(100):
        weight.sub_(torch.full_like(weight, step))
    assert float(weight.dequantize()[:, 1:].mean()) == pytest.approx(0.5 - 100 * step, rel=0.02)


def test_rounding_follows_the_seed_and_keeps_the_mean(device, generator):
    w = randn(generator, 8, 256).to(device)
    rounded = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        rounded.append(round_rows(w)[0])
    assert torch.equal(rounded[0], rounded[1])
    assert not torch.equal(rounded[0], rounded[2])
    values = torch.stack([q * scale for q, scale in (round_rows(w) for _ in range(300))])
    scale = round_rows(w)[1]
    assert ((values - w).abs() <= 1.001 * scale).all()
    assert ((values.mean(0) - w) / scale).abs().max() < 0.5 / 300**0.5 * 6
    w[2, 5] = float("inf")
    scale = round_rows(w)[1]
    assert scale[2].isnan()
    assert scale.isnan().sum() == 1


def test_a_factor_changes_scales_alone(device, generator):
    weight = aoext.Int8TrainingTensor.from_hp(randn(generator, 8, 64).to(device))
    before = weight.qdata.clone()
    expected = weight.dequantize() * 0.99
    weight.mul_(0.99)
    assert torch.equal(weight.qdata, before)
    torch.testing.assert_close(weight.dequantize(), expected)


READS = {
    "power": lambda w, x: (w**2).sum(),
    "abs": lambda w, x: w.abs().sum(),
    "matmul": lambda w, x: (x @ w.t()).square().sum(),
    "rows": lambda w, x: w[2:4].square().sum(),
    "einsum": lambda w, x: torch.einsum("ij,kj->ik", x, w).square().sum(),
    "embedding": lambda w, x: nn.functional.embedding(torch.tensor([1, 2, 1]), w).square().sum(),
    "sum": lambda w, x: (w + x.mean()).square().sum(),
    "times": lambda w, x: (x[:, :8] @ w).square().sum(),
}


@pytest.mark.parametrize("read", READS)
def test_whatever_reads_a_weight_that_trains_passes_its_gradient_on(read, generator):
    weight = nn.Parameter(aoext.Int8TrainingTensor.from_hp(randn(generator, 8, 16)))
    plain = weight.dequantize().detach().clone().requires_grad_()
    x = randn(generator, 3, 16)
    for w in (weight, plain):
        READS[read](w, x).backward()
    torch.testing.assert_close(weight.grad, plain.grad)


@pytest.mark.parametrize("name", CONFIGS)
def test_compiled_autocast_and_checkpointed_steps_are_eager_ones(name, device):
    made = model(name, device)
    x = torch.randn(16, 64, device=device)

    def gradients(call):
        made.zero_grad()
        call(x).float().square().mean().backward()
        return [p.grad.clone() for p in made.parameters()]

    eager = gradients(made)
    compiled = gradients(torch.compile(made, fullgraph=True, backend=compiler_for(device)))
    checkpointed = gradients(lambda x: torch.utils.checkpoint.checkpoint(made, x, use_reentrant=False))
    for given in (compiled, checkpointed):
        for result, expected in zip(given, eager, strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    with torch.autocast(device.type, dtype=BF16):
        assert made(x).dtype is BF16
        cast = gradients(made)
    for result, expected in zip(cast, eager, strict=True):
        assert result.dtype is FP32
        assert off_by(result, expected.double()) < 0.15


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_add_up_over_batches_and_layers_that_share_a_weight(name):
    made = model(name)
    other = copy.deepcopy(made)
    made[2] = nn.Linear(128, 64, bias=False)
    tied = nn.Sequential(made[0], nn.SiLU(), made[2], made[0])
    aoext.quantize_(made[2], CONFIGS[name])
    x = torch.randn(8, 64)
    for _ in range(2):
        tied(x).sum().backward()
    once = copy.deepcopy(tied)
    once.zero_grad()
    once(x).sum().backward()
    torch.testing.assert_close(made[0].weight.grad, 2 * once[0].weight.grad)
    assert other[0].weight is not made[0].weight


def test_int8_weights_are_copied_saved_and_frozen(tmp_path, generator):
    made = model("int8 weights")
    twin = copy.deepcopy(made)
    assert twin[0].weight.requires_grad
    assert isinstance(twin[0].weight, nn.Parameter)
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    train(made, torch.optim.SGD(made.parameters(), 0.1), 2)
    assert not torch.equal(made[0].weight.qdata, twin[0].weight.qdata)
    file.seek(0)
    made.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(made[0].weight.qdata, twin[0].weight.qdata)
    aoext.save_model(made, tmp_path / "model.aoext")
    loaded = model("int8 weights")
    aoext.load_model(loaded, tmp_path / "model.aoext")
    assert torch.equal(loaded[0].weight.qdata, twin[0].weight.qdata)
    assert loaded[0].weight.requires_grad
    expected = made[0].weight.dequantize().detach()
    aoext.quantize_(made, aoext.Int8WeightOnlyConfig())
    assert type(made[0].weight) is aoext.Int8Tensor
    assert not made[0].weight.requires_grad
    torch.testing.assert_close(made[0].weight.dequantize(), expected)


def test_layers_that_have_trained_are_quantised():
    made = model("rowwise")
    aoext.quantize_(made, aoext.Int8WeightOnlyConfig())
    assert type(made[0]) is aoext.models.layers.QuantizedLinear


def test_what_stays_in_high_precision_is_told():
    class Own(nn.Linear):
        def forward(self, input):
            return super().forward(input)

    made = nn.Sequential(Own(64, 64), nn.Linear(64, 64).double(), nn.Linear(64, 64), nn.ReLU())
    summary = aoext.quantize_(made, PRODUCTS["int8"])
    assert summary.layers == ["2"]
    assert summary.skipped.keys() == {"0", "1"}
    assert "1 layers train by products of 8 bits" in str(summary)
    assert aoext.convert_to_float8_training(made, module_filter_fn=lambda layer, name: name == "2") is made
    assert "float8_e4m3fn" in repr(made[2])
    with pytest.raises(ValueError, match="recipe must be one of rowwise"):
        aoext.Float8LinearConfig("tensorwise")
    with pytest.raises(TypeError, match="output must be a bool"):
        aoext.Int8MixedPrecisionTrainingConfig(output=1)
    with pytest.raises(TypeError, match="must be a Float8LinearConfig"):
        aoext.convert_to_float8_training(made, config=PRODUCTS["int8"])
    with pytest.raises(RuntimeError, match="input must have the weight's dtype float32, got bfloat16"):
        made[2](torch.zeros(1, 64, dtype=BF16))


@pytest.fixture(scope="module", params=[d for d in BACKENDS if d == "cpu" or torch.cuda.device_count() > 1])
def ranks(request) -> Iterator[Ranks]:
    made = Ranks(request.param, 2)
    yield made
    made.close()


def _train_on_ranks(mesh, name: str, how: str, seed: int) -> tuple[list[float], float]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    device, rank = mesh.device_type, mesh.get_local_rank()
    made = model(name, device)
    if how == "ddp":
        if rank == 1:  # it gets the first rank's
            with torch.no_grad():
                made[0].weight.mul_(2.0)
        wrapped: nn.Module = nn.parallel.DistributedDataParallel(made)
    else:
        for layer in (made[0], made[2]):
            fully_shard(layer, mesh=mesh)
        wrapped = fully_shard(made, mesh=mesh)
    optimizer = torch.optim.AdamW(wrapped.parameters(), 1e-2, fused=how == "fused")
    x, target = torch.randn(8, 64, device=device), torch.randn(8, 32, device=device)
    part = slice(4 * rank, 4 * rank + 4)
    losses = []
    for _ in range(6):
        loss = mse_loss(wrapped(x[part]), target[part])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, float(made[0].weight.detach().sum()) if how == "ddp" else 0.0


@pytest.mark.parametrize("how", ["ddp", "fully_shard", "fused"])
@pytest.mark.parametrize("name", ["int8", "blockwise", "int8 weights"])
def test_ranks_train_together(name, how, ranks, generator):
    results = ranks(_train_on_ranks, name, how, generator.initial_seed() % 2**31)
    for losses, _ in results:
        assert losses[-1] < losses[0]
    assert results[0][1] == results[1][1]

"""8-bit weights with integer zero points, and with groups whose columns lie apart, against float64."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import aoext
from aoext.packing.blockwise import blockwise_quantize_zp
from aoext.tensors import BlockwiseTensor
from conftest import compiler_for
from formats import same

N, K = 24, 160
BOUNDS = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 2e-5}
# Groups, rows, and blocks of several rows of which the last ones are partial.
BLOCKS = {"groups": [1, 32], "rows": [1, K], "blocks": [16, 48]}
KINDS = [*BLOCKS, "act-order", "act-order without zeros"]


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def made(
    kind: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    input_block: list[int] | None = None,
    rows: int = N,
) -> BlockwiseTensor:
    """A random weight; its zeros take its values out of int8."""
    block_n, block_k = BLOCKS.get(kind, [1, 32])
    shape = (-(-rows // block_n), -(-K // block_k))
    qdata = torch.randint(-128, 128, (rows, K), dtype=torch.int8)
    zero_point = torch.randint(-128, 128, shape, dtype=torch.int8)
    zeros = None if "without" in kind else zero_point.to(device)
    scale = (torch.rand(shape) * 0.01 + 0.001).half().to(device)
    order = torch.randperm(K).to(device) if "act-order" in kind else None
    block_size = [block_n, block_k]
    return BlockwiseTensor(
        qdata.to(device), scale, block_size, dtype, input_block, zero_point=zeros, k_order=order
    )


def exact(weight: BlockwiseTensor) -> Tensor:
    """(q − z)·s in float64, value by value, on the CPU."""
    rows, columns = weight.shape
    block_n, block_k = weight.block_size
    fields = {name: tensor.cpu() for name, tensor in weight.named_fields()}
    order = fields.get("k_order", torch.arange(columns)).tolist()
    zeros = fields.get("zero_point", torch.zeros(fields["scale"].shape))
    result = torch.empty(rows, columns, dtype=torch.float64)
    for j, k in enumerate(order):
        at = torch.arange(rows) // block_n, j // block_k
        result[:, k] = (fields["qdata"][:, j].double() - zeros[at].double()) * fields["scale"][at].double()
    return result


def activations(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows without a mean, rows that are little beside theirs, and one with an outlier."""
    x = torch.randn(6, K)
    x[2:4] = x[2:4] / 10 + 20
    x[4, 7] = 1000
    x[5] = x[5].abs()
    return x.to(device, dtype)


def check_rows(y: Tensor, wanted: Tensor, bound: float) -> None:
    error = (y.detach().double().cpu() - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert bool((error <= bound).all()), error


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_products_keep_the_bound_in_every_row(kind, dtype, bias, device):
    weight, x = made(kind, device, dtype), activations(dtype, device).requires_grad_()
    b = torch.randn(N).to(device, dtype) if bias else None
    y = F.linear(x, weight, b)
    assert y.dtype is dtype
    wanted = x.detach().double().cpu() @ exact(weight).t()
    check_rows(y, wanted if b is None else wanted + b.double().cpu(), BOUNDS[dtype])
    one = F.linear(x[3], weight, b)
    torch.testing.assert_close(
        one, y[3], rtol=2 * BOUNDS[dtype], atol=BOUNDS[dtype] * y[3].abs().max().item()
    )

    grad = torch.randn(6, N).to(device, dtype)
    y.backward(grad)
    check_rows(x.grad, grad.double().cpu() @ exact(weight), 2 * BOUNDS[dtype])


@pytest.mark.parametrize("bias", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("kind", BLOCKS)
def test_many_rows_of_many_channels_keep_it_too(kind, dtype, bias, device):
    """What devices without a kernel of their own multiply by weights of the activation's dtype."""
    weight = made(kind, device, dtype, rows=91)
    x = torch.cat([activations(dtype, device) for _ in range(7)])
    b = None if bias is None else torch.randn(91).to(device, bias)
    y = F.linear(x.unflatten(0, (6, 7)), weight, b).flatten(0, 1)
    wanted = x.double().cpu() @ exact(weight).t()
    check_rows(y, wanted if b is None else wanted + b.double().cpu(), BOUNDS[dtype])


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_weight_is_rounded_once_from_float32(kind, dtype, device):
    weight = made(kind, device, dtype)
    wanted = exact(weight).float().to(dtype)
    assert torch.equal(weight.dequantize().cpu(), wanted)
    at = torch.tensor([3, 17, 3, 0], device=device)
    assert torch.equal(F.embedding(at, weight).cpu(), wanted[at.cpu()])


@pytest.mark.parametrize("input_block", [[1, 32], [1, K]])
@pytest.mark.parametrize("kind", BLOCKS)
def test_under_activations_of_8_bits(kind, input_block, device):
    """y = Σ s_x·q_x·(q − z)·s; a gradient passes the rounding of the activation unchanged."""
    weight, x = made(kind, device, input_block=input_block), activations(torch.float32, device)
    q, scale = torch.ops.ao.quantize(x, torch.int8, input_block)
    spread = scale.double().repeat_interleave(input_block[1], -1)[:, :K]
    wanted = (q.double() * spread).cpu() @ exact(weight).t()
    check_rows(F.linear(x, weight), wanted, 2e-5)
    x.requires_grad_()
    grad = torch.randn(6, N, device=device)
    F.linear(x, weight).backward(grad)
    check_rows(x.grad, grad.double().cpu() @ exact(weight), 2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_protocols_keep_zeros_and_order(kind, device, tmp_path):
    weight = made(kind, device, torch.bfloat16)
    for alike in (weight.clone(), copy.deepcopy(weight), weight.detach(), weight.t().t(), weight.to(device)):
        assert same(alike, weight)
    rows = weight.block_size[0]
    assert torch.equal(exact(weight[rows:]), exact(weight)[rows:])
    assert same(torch.cat([weight[:rows], weight[rows:]]), weight)
    target = made(kind, device, torch.bfloat16)
    target.copy_(weight)
    assert same(target, weight)
    if weight.k_order is not None:
        with pytest.raises(NotImplementedError, match="no parts along K of a weight with k_order"):
            weight[:, :32]
    elif kind != "rows":
        columns = weight.block_size[1]
        assert torch.equal(exact(weight[:, columns:]), exact(weight)[:, columns:])
        assert same(torch.cat([weight[:, :columns], weight[:, columns:]], 1), weight)
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    assert same(torch.load(file), weight)

    model = nn.Sequential(nn.Linear(K, N, dtype=torch.bfloat16, device=device))
    model[0].weight = nn.Parameter(weight, requires_grad=False)
    aoext.save_model(model, tmp_path / "model.safetensors")
    other = nn.Sequential(nn.Linear(K, N, dtype=torch.bfloat16, device=device))
    aoext.load_model(other, tmp_path / "model.safetensors")
    assert same(other[0].weight, weight)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("kind", ["groups", "act-order", "rows under 8 bits"])
def test_graphs_give_what_eager_gives(kind, compiles, device):
    backend = compiler_for(device) if compiles else "aot_eager"
    torch._dynamo.reset()
    dynamic = kind.endswith(" under 8 bits")
    weights = [
        made(kind.removesuffix(" under 8 bits"), device, torch.bfloat16, [1, K] if dynamic else None)
        for _ in range(2)
    ]
    model = nn.Module()
    model.first, model.second = (nn.Linear(K, N, device=device, dtype=torch.bfloat16) for _ in range(2))
    model.first.weight, model.second.weight = (nn.Parameter(w, requires_grad=False) for w in weights)
    model.forward = lambda x: model.first(x).sigmoid() + model.second(x)
    compiled = torch.compile(model.forward, fullgraph=True, dynamic=True, backend=backend)
    for rows in (1, 5):
        x = activations(torch.bfloat16, device)[:rows]
        with torch.no_grad():
            wanted, got = model.forward(x).double(), compiled(x).double()
        assert (got - wanted).norm() <= 1e-2 * wanted.norm()


@pytest.mark.parametrize("kind", ["groups", "act-order"])
def test_an_exported_product_gives_what_eager_gives(kind, device):
    layer = nn.Sequential(nn.Linear(K, N, device=device))
    layer[0].weight = nn.Parameter(made(kind, device), requires_grad=False)
    x = activations(torch.float32, device)
    batch = torch.export.Dim("batch", max=64)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: batch},)).run_decompositions()
    for rows in (1, 6):
        torch.testing.assert_close(program.module()(x[:rows]), layer(x[:rows]), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_weights_that_are_quantised_with_zeros(dtype, block, device):
    """Each value is half a step from what it was, and 0 is 0; a block of zeros, one far from 0."""
    w = torch.randn(N, K).to(device, dtype)
    w[:16, : block[1]] = 0
    w[16:, :48] = w[16:, :48] / 16 + 3
    w[17, 100] = 0
    q, scale, zero_point = blockwise_quantize_zp(w, block, scale_dtype=torch.float32)
    weight = BlockwiseTensor(q, scale, block, torch.float32, zero_point=zero_point)
    steps = torch.ones(N, K, dtype=torch.float64)
    for i in range(N):
        for j in range(0, K, block[1]):
            steps[i, j : j + block[1]] = scale[i // block[0], j // block[1]].item()
    difference = (exact(weight) - w.double().cpu()).abs()
    assert bool((difference <= 0.5001 * steps).all())
    assert not exact(weight)[(w == 0).cpu()].any()

    again = weight.requantized(weight.dequantize())
    assert bool(((exact(again) - exact(weight)).abs() <= 0.5001 * steps).all())
    half = BlockwiseTensor.from_hp(w, block, torch.int8, symmetric=False, scale_dtype=torch.bfloat16)
    assert (half.scale.dtype, half.zero_point.dtype, half.dtype) == (torch.bfloat16, torch.int8, dtype)
    for spoilt in (torch.nan, torch.inf, -torch.inf):
        w[5, 5] = spoilt
        with pytest.raises(ValueError, match="blockwise_quantize_zp: w must be finite"):
            blockwise_quantize_zp(w, block)


def test_a_weight_in_another_order_is_requantised_in_it(device):
    weight = made("act-order", device)
    again = weight.requantized(weight.dequantize() + 0.001)
    assert torch.equal(again.k_order, weight.k_order)
    largest = float(again.scale.max()) * (0.5 + 255 * 2**-11)  # the step, which rounds to float16 last
    assert (exact(again) - exact(weight) - 0.001).abs().max() <= largest


def test_what_does_not_fit_is_refused():
    weight = made("act-order", torch.device("cpu"))
    parts = dict(weight.named_fields())
    others = {"block_size": [1, 32], "dtype": torch.float32}
    with pytest.raises(ValueError, match=r"k_order must be a permutation of 0\.\.159"):
        BlockwiseTensor(**{**parts, "k_order": parts["k_order"] // 2}, **others)
    with pytest.raises(ValueError, match="input_block is for columns in the activation's order, got k_order"):
        BlockwiseTensor(**parts, **others, input_block=[1, 32])
    with pytest.raises(TypeError, match="zero_point must be int8 with 2 dimension"):
        BlockwiseTensor(**{**parts, "zero_point": parts["zero_point"].float()}, **others)
    with pytest.raises(ValueError, match=r"zero_point must be \[24, 5\] for a weight"):
        BlockwiseTensor(**{**parts, "zero_point": parts["zero_point"][:, 1:]}, **others)
    with pytest.raises(TypeError, match="zero_point needs a qdata of int8"):
        BlockwiseTensor(**{**parts, "qdata": parts["qdata"].to(torch.float8_e5m2)}, **others)
    with pytest.raises(TypeError, match="and a scale of bfloat16, float16 or float32"):
        BlockwiseTensor(**{**parts, "scale": parts["scale"].to(torch.float8_e4m3fn)}, **others)
    with pytest.raises(ValueError, match=r"dtype must be torch\.int8 for zero points"):
        BlockwiseTensor.from_hp(torch.randn(N, K), symmetric=False)
    with pytest.raises(
        ValueError, match=r"scale_dtype must be bfloat16, float16 or float32, got torch\.uint8"
    ):
        blockwise_quantize_zp(torch.randn(N, K), [1, 32], scale_dtype=torch.uint8)

"""What is CUDA's own: streams, graphs, compilers, devices, memory. Tests of operators are every device's."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aoext
from aoext import packing, reference
from aoext.formats.table import Code
from aoext.library.info import build_config
from aoext.reference import ALL_CALLS, TINYGEMM_CALLS, Problem, assert_close, randn, without_bias
from folded import CODES

BF16, FP16, FP32 = reference.HIGH_PRECISION
GB = 10**9

HERE = torch.cuda.is_available()
OWN = build_config()["cuda"] == "ON"
pytestmark = pytest.mark.skipif(not HERE, reason="there is no CUDA device")
needs_own_kernels = pytest.mark.skipif(not OWN, reason="aoext was built without CUDA")

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def in_format(operator: str, eight_bit: torch.dtype) -> Callable[[Problem, torch.Generator], reference.Call]:
    return lambda p, g: ALL_CALLS[operator](dataclasses.replace(p, eight_bit=eight_bit), g)


# Products by what they are of, and the calls beside them.
INT4 = {
    name: ALL_CALLS[name] for name in ("bf16i4bf16_rowwise", "bf16i4bf16_rowwise_bias", "weight_int4pack_mm")
}
EIGHT_BIT = {
    "int8_mm": ALL_CALLS["int8_mm"],
    "weight_only_linear int8": ALL_CALLS["weight_only_linear int8"],
    "weight_only_linear float8, no bias": lambda p, g: without_bias(
        ALL_CALLS["weight_only_linear float8"](p, g)
    ),
    "weight_only_linear float8, e5m2": in_format("weight_only_linear float8", E5M2),
    "scaled_mm_rowwise, int8": ALL_CALLS["scaled_mm_rowwise"],
    "scaled_mm_rowwise, e4m3": in_format("scaled_mm_rowwise", E4M3),
    "scaled_mm_rowwise, e5m2": in_format("scaled_mm_rowwise", E5M2),
    "scaled_linear rows, int8": ALL_CALLS["scaled_linear rows"],
    "scaled_linear rows, e4m3": in_format("scaled_linear rows", E4M3),
}
PRODUCTS = {**INT4, **EIGHT_BIT}
# Under inputs of 8 bits: blocks as long as the problem's groups, and of 1 or 128 rows.
SCALED = {
    "scaled_mm blocks, int8": ALL_CALLS["scaled_mm blocks"],
    "scaled_linear blocks, e4m3": in_format("scaled_linear blocks", E4M3),
    "scaled_linear blocks, 128x128": lambda p, g: ALL_CALLS["scaled_linear blocks"](
        dataclasses.replace(p, eight_bit=E4M3, block_n=128), g
    ),
    "scaled_mm int4, int8": ALL_CALLS["scaled_mm int4"],
    "scaled_linear int4, e4m3": in_format("scaled_linear int4", E4M3),
}
EVERYTHING = {**PRODUCTS, **SCALED, "dequantize int4": ALL_CALLS["dequantize int4"], **TINYGEMM_CALLS}
ROWS = [1, 3, 8, 16, 33, 70, 130, 300]  # decode, middle and prefill, with tails

# Tails in every direction, group sizes with and without kernels of their own, split and unsplit K.
ODD = [
    Problem(1, 32, 64, 32),
    Problem(1, 7, 2, 2),
    Problem(1, 4097, 128, 128),
    Problem(1, 33, 8192, 128),
    Problem(2, 257, 1056, 32, FP16, FP16),
    Problem(3, 31, 1000, 250),
    Problem(4, 640, 4096, 64, BF16, FP32),
    Problem(5, 130, 384, 384),
    Problem(9, 1000, 2048, 256),
    Problem(15, 72, 96, 6, FP16, BF16),
    Problem(16, 515, 320, 32),
    Problem(17, 200, 4096, 128),
    Problem(33, 136, 640, 128, FP16, FP32),
    Problem(64, 100, 512, 64),
    Problem(65, 1032, 1024, 128),
    Problem(129, 260, 2048, 32),
    Problem(255, 129, 256, 256),
    Problem(257, 513, 768, 128, FP16, FP16),
    Problem(520, 384, 1152, 128),
    Problem(70, 48, 256, 64, FP32, FP32),
]
# Rows of 8-bit weights that do not begin at multiples of 16 bytes, and such as do.
ODD_ROWS = [
    Problem(1, 3, 1, 1),
    Problem(2, 1000, 4097, 4097),
    Problem(7, 63, 777, 777, FP16, FP32),
    Problem(13, 514, 1040, 1040),
    Problem(16, 1, 48, 48),
    Problem(31, 65, 333, 333),
    Problem(45, 129, 2064, 2064, FP16, FP16),
    Problem(130, 77, 4112, 4112),
    Problem(300, 515, 35, 35),
    Problem(64, 2, 16400, 16400),
    Problem(20, 40, 131056, 131056),
]


def on_cuda(call: reference.Call) -> list[Any]:
    return call.on("cuda")


def has_wgmma() -> bool:
    """Whether kernels of compute capability 9.0 serve here, and no older family is forced."""
    return torch.cuda.get_device_capability() == (9, 0) and "AOEXT_CUDA_FAMILY" not in os.environ


def operator_of(name: str):
    return getattr(torch.ops.ao, name)


def in_a_process(code: str, **environment: str) -> str:
    """The output of code with torch, aoext and ao at hand."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch, aoext\nao = torch.ops.ao\n" + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        cwd=os.path.dirname(__file__),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- own kernels ----------------------------------------------------------------------------------------


@needs_own_kernels
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
@pytest.mark.parametrize("M", ROWS)
def test_no_common_call_gets_the_generic_kernel(M, group_size, dtype, generator):
    call = ALL_CALLS["bf16i4bf16_rowwise"](Problem(M, 256, 512, group_size, dtype, dtype), generator)
    assert aoext.explain(call.operator, *on_cuda(call)).device == "cuda"


@needs_own_kernels
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("product", EIGHT_BIT)
@pytest.mark.parametrize("M", ROWS)
def test_no_common_call_gets_a_slow_kernel(M, product, dtype, generator):
    call = EIGHT_BIT[product](Problem(M, 256, 512, 512, dtype, FP32), generator)
    plan = aoext.explain(call.operator, *on_cuda(call))
    assert plan.device == "cuda"
    assert "any" not in plan.kernel


@pytest.mark.parametrize("M", ROWS)
@pytest.mark.parametrize("product", EVERYTHING)
def test_no_call_waits_for_the_device(product, M, generator):
    call = EVERYTHING[product](Problem(M, 96, 256, 128), generator)
    args = on_cuda(call)
    operator_of(call.operator)(*args, **call.kwargs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        operator_of(call.operator)(*args, **call.kwargs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ---- values ---------------------------------------------------------------------------------------------


@needs_own_kernels
@pytest.mark.parametrize("dtypes", [(BF16, BF16), (FP16, FP16), (BF16, FP32), (FP16, FP32)], ids=str)
@pytest.mark.parametrize("group_size", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("N", [520, 100, 77])  # rows of scales begin at multiples of 16, 4 and 2 bytes
@pytest.mark.parametrize("M", [1, 2, 3, 5, 8, 13])
def test_few_rows(M, N, group_size, dtypes, generator):
    call = ALL_CALLS["bf16i4bf16_rowwise_bias"](Problem(M, N, 2304, group_size, *dtypes), generator)
    args = on_cuda(call)
    result = operator_of(call.operator)(*args)
    assert_close(result, call.reference)
    for _ in range(2):
        assert torch.equal(operator_of(call.operator)(*args), result)


@needs_own_kernels
@pytest.mark.parametrize("M", [1, 2, 3, 8])
@pytest.mark.parametrize(("N", "group_size"), [(256, 32), (256, 64), (256, 128), (257, 128)])
def test_few_rows_get_a_kernel_for_few(M, N, group_size, generator):
    call = ALL_CALLS["bf16i4bf16_rowwise"](Problem(M, N, 512, group_size), generator)
    plan = aoext.explain(call.operator, *on_cuda(call))
    registers = M > 2 and N % 2 == 0 and group_size >= 64
    assert plan.kernel == "int4_ring" or (registers and plan.kernel == "int4_decode")


@pytest.mark.parametrize("dtypes", [(BF16, BF16), (FP16, FP16), (BF16, FP32), (FP16, FP32)], ids=str)
@pytest.mark.parametrize("group_size", [32, 64, 128, 256, 384])
@pytest.mark.parametrize("N", [40, 1000, 4104])
@pytest.mark.parametrize("M", [9, 16, 17, 40, 64])
def test_a_batch_of_rows(M, N, group_size, dtypes, generator):
    K = 1280 if group_size == 256 else 1152  # whole groups, an even and an odd number of 128 k
    call = ALL_CALLS["bf16i4bf16_rowwise_bias"](Problem(M, N, K, group_size, *dtypes), generator)
    assert_close(operator_of(call.operator)(*on_cuda(call)), call.reference)


def x_weight_of_rows(M: int, generator: torch.Generator) -> tuple[Tensor, list[Any]]:
    call = ALL_CALLS["bf16i4bf16_rowwise"](Problem(M, 264, 1152, 128), generator)
    x, *weight = on_cuda(call)
    return x, weight


def exact(x: Tensor, weight: list[Tensor]) -> Tensor:
    return (
        x.double()
        @ torch.ops.ao.dequantize(*weight[:2], zero_point=weight[2], code=Code.INT4, dtype=FP32).double().t()
    )


@needs_own_kernels
@pytest.mark.parametrize("M", [1, 40, 200])
def test_an_input_that_starts_anywhere_is_explained_as_what_runs(M, generator):
    """It is copied to where the kernels of aligned inputs read it."""
    call = reference.bf16i4bf16_rowwise(Problem(M, 256, 1024, 128), generator)
    x, *operands = on_cuda(call)
    anywhere = torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape)
    assert anywhere.data_ptr() % 16
    plan = aoext.explain(call.operator, x, *operands)
    assert aoext.explain(call.operator, anywhere, *operands) == plan
    assert torch.equal(
        torch.ops.ao.bf16i4bf16_rowwise(anywhere, *operands), torch.ops.ao.bf16i4bf16_rowwise(x, *operands)
    )


@needs_own_kernels
@pytest.mark.parametrize(("N", "K"), [(40, 1152), (1001, 4112), (4104, 1024), (256, 12288), (8448, 640)])
@pytest.mark.parametrize("M", [2, 9, 16, 17, 40, 64, 100, 128, 300])
@pytest.mark.parametrize("product", EIGHT_BIT)
def test_products_of_8_bits(product, M, N, K, generator):
    """Tiles that do and do not come out even over the multiprocessors, K in one piece and shared."""
    dtypes = ((BF16, FP32), (FP16, FP16), (FP32, BF16))[(M + N) % 3]
    call = EIGHT_BIT[product](Problem(M, N, K, K, *dtypes), generator)
    args = on_cuda(call)
    result = operator_of(call.operator)(*args, **call.kwargs)
    assert_close(result, call.reference)
    for _ in range(2):
        assert torch.equal(operator_of(call.operator)(*args, **call.kwargs), result)


DYNAMIC_SIZES = [(1, 33, 48), (1, 4096, 4096), (1, 40, 8192), (2, 515, 1040), (3, 72, 2064), (7, 130, 1024)]
DYNAMIC_SIZES += [(1, 300, 14336), (8, 4096, 4096), (8, 40, 16), (16, 515, 320), (2, 257, 777), (40, 96, 64)]


@needs_own_kernels
@pytest.mark.parametrize("eight_bit", reference.EIGHT_BIT, ids=str)
@pytest.mark.parametrize("dtype", reference.HIGH_PRECISION, ids=str)
@pytest.mark.parametrize(("M", "N", "K"), DYNAMIC_SIZES)
def test_a_dynamic_product_has_the_bits_of_its_two_operators(M, N, K, dtype, eight_bit, generator):
    """In one launch or two: rows of zeros, beyond the range, tiny ones, and inputs of any strides."""
    w, scale = torch.ops.ao.quantize(torch.randn(N, K, generator=generator).to("cuda"), eight_bit)
    sizes = 10.0 ** torch.randint(-6, 4, (M, 1), generator=generator)
    rows = (torch.randn(M, 2 * K, generator=generator) * sizes).to("cuda", dtype)
    special = [rows[:, :K].clone() for _ in range(4)]
    special[0][0], special[1][-1, K // 2], special[2][M // 2, 0] = 0, torch.nan, -torch.inf
    special[3][:] = torch.finfo(dtype).smallest_normal / 4
    for x in (*special, rows[:, ::2], rows[:, 1 : K + 1], rows[:, :K].t().contiguous().t()):
        values, row_scale = torch.ops.ao.quantize(x, eight_bit)
        expected = torch.ops.ao.scaled_mm_rowwise(values, w, row_scale, scale, out_dtype=dtype)
        result = torch.ops.ao.scaled_linear(x, w, scale, code=CODES[eight_bit])
        assert torch.equal(result.isnan(), expected.isnan())
        assert torch.equal(result.nan_to_num(), expected.nan_to_num())


@needs_own_kernels
@pytest.mark.parametrize("signs", ["positive", "mixed"])
@pytest.mark.parametrize("M", [1, 16, 64, 256, 1024])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_float8_keeps_its_bound_over_a_long_K(dtype, M, signs, generator):
    """Tensor cores of Hopper and Ada keep fewer bits of float8 sums than of others."""
    N, K = 192, 57344
    limit = torch.finfo(dtype).max
    x, w = (torch.randn(rows, K, generator=generator) * limit / 6 for rows in (M, N))
    if signs == "positive":
        x, w = x.abs(), w.abs()
    x, w = (t.clamp(-limit, limit).to("cuda", dtype) for t in (x, w))
    x_scale, w_scale = (torch.rand(rows, 1, generator=generator).to("cuda") / K for rows in (M, N))
    expected = (x.double() * x_scale.double()) @ (w.double() * w_scale.double()).t()
    for out_dtype in (BF16, FP32):
        result = torch.ops.ao.scaled_mm_rowwise(x, w, x_scale, w_scale, out_dtype=out_dtype)
        assert_close(result, expected.cpu())


@needs_own_kernels
@pytest.mark.parametrize("N", [1, 16, 31])
@pytest.mark.parametrize("M", [9, 64, 300])
def test_few_columns_of_float8_keep_their_bound(M, N, generator):
    """A row of few outputs may be small beside what it was added up from: then lost bits would show."""
    x, w = (torch.randn(rows, 4096, generator=generator).to("cuda", E4M3) for rows in (M, N))
    w[:, 1::2] = (-w[:, ::2].float()).to(E4M3)
    x[:, 1::2] = (x[:, ::2].float() * 1.0625).to(E4M3)
    scales = (torch.ones(rows, 1, device="cuda") for rows in (M, N))
    result = torch.ops.ao.scaled_mm_rowwise(x, w, *scales)
    assert_close(result, (x.double() @ w.double().t()).cpu())


@pytest.mark.parametrize("M", ROWS)
def test_rows_of_very_different_size(M, generator):
    x, weight = x_weight_of_rows(M, generator)
    x *= 2.0 ** torch.linspace(-45, 45, M, device="cuda").round()[:, None]
    assert_close(torch.ops.ao.bf16i4bf16_rowwise(x, *weight), exact(x, weight).cpu())


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, 3e38])
@pytest.mark.parametrize("M", [m for m in ROWS if m > 1])
def test_a_row_beyond_the_range_leaves_others_alone(M, poison, generator):
    x, weight = x_weight_of_rows(M, generator)
    others = torch.arange(M) != 1
    expected = exact(x, weight).cpu()
    x[1, 77] = poison
    result = torch.ops.ao.bf16i4bf16_rowwise(x, *weight).cpu()
    assert_close(result[others], expected[others])
    if not torch.tensor(poison).isfinite():
        assert not result[1].isfinite().any()


# ---- memory ---------------------------------------------------------------------------------------------


@pytest.fixture
def poisoned() -> Iterator[None]:
    """All memory that the allocator hands out next is NaN, whatever it is read as."""
    torch.cuda.empty_cache()
    blocks = [
        torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda")
        for size in (1 << shift for shift in range(9, 26))
        for _ in range(4)
    ]
    del blocks
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize(
    ("product", "problem"),
    [
        *((product, problem) for product in EVERYTHING for problem in ODD),
        *((product, problem) for product in EIGHT_BIT for problem in ODD_ROWS),
    ],
    ids=str,
)
def test_every_element_of_the_result_is_written(product, problem, generator, request):
    call = EVERYTHING[product](problem, generator)
    args = on_cuda(call)
    request.getfixturevalue("poisoned")
    for _ in range(3):  # the first call's scratch memory comes back with what it wrote
        assert_close(operator_of(call.operator)(*args, **call.kwargs), call.reference)


@pytest.mark.parametrize("M", ROWS)
@pytest.mark.parametrize("offset", [1, 2, 4, 8])
@pytest.mark.parametrize("product", PRODUCTS)
def test_operands_may_start_anywhere(product, offset, M, generator):
    """Contiguous views that begin `offset` elements into their storage: 16-byte loads would fault."""

    def shifted(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        storage = torch.zeros(t.numel() + offset, dtype=t.dtype, device="cuda")
        view = storage[offset:].view(t.shape)
        view.copy_(t)
        return view

    call = PRODUCTS[product](Problem(M, 96, 512, 128), generator)
    args = [shifted(a) for a in call.args]
    assert_close(operator_of(call.operator)(*args, **call.kwargs), call.reference)


QUANTISED = {
    "int4": lambda w: aoext.Int4Tensor.from_hp(w, [1, 32]),
    "int8": aoext.Int8Tensor.from_hp,
    "float8": lambda w: aoext.Float8Tensor.from_hp(w, E4M3),
}


@pytest.mark.parametrize("format", QUANTISED)
@pytest.mark.parametrize("M", [1, 40])
def test_a_slice_of_a_weight_serves(M, format, generator):
    """Rows and columns from where no 16 bytes begin, by the tensor that slices them."""
    weight = QUANTISED[format](randn(generator, 200, 1024, dtype=BF16).to("cuda"))
    begin = 32 if format == "int4" else 33
    x = randn(generator, M, 1024 - begin, dtype=BF16).to("cuda")
    part = weight[7:123, begin:]
    result = torch.nn.functional.linear(x, part)
    assert_close(result, x.cpu().double() @ part.dequantize().cpu().double().t())


def needs_memory(size: int) -> None:
    free = torch.cuda.mem_get_info()[0]
    if free < size:
        pytest.skip(f"needs {size / GB:.0f} GB of GPU memory, {free / GB:.0f} are free")


@pytest.mark.parametrize("product", ["bf16i4bf16_rowwise", *EIGHT_BIT])
def test_a_result_of_more_than_2_31_elements(product, generator):
    needs_memory(24 * GB)
    N, K, copies = 57344, 128, 293
    call = PRODUCTS[product](Problem(128, N, K, 128), generator)
    args = on_cuda(call)
    for i, a in enumerate(args):
        if isinstance(a, Tensor) and a.shape[0] == 128:  # the input and its scales
            args[i] = a.repeat(copies, 1)
    result = operator_of(call.operator)(*args, **call.kwargs)
    assert result.numel() > 2**31
    for i in (0, copies // 2, copies - 1):
        assert_close(result[128 * i : 128 * (i + 1)], call.reference)


@pytest.mark.parametrize("M", [1, 16, 40, 130, 300])
@pytest.mark.parametrize("product", ["bf16i4bf16_rowwise", *EIGHT_BIT])
def test_a_weight_of_more_than_2_31_bytes_at_every_kernel(product, M, generator):
    needs_memory(16 * GB)
    K, base = 8192, 2048
    call = PRODUCTS[product](Problem(M, base, K, 128), generator)
    args = on_cuda(call)
    copies = 2**31 // args[1].numel() + 1
    along = {base: 0, K // 128: 1}  # the dimension that is N: the first, but of int4's scales
    args[1:] = [
        a.repeat(*(copies if d == along.get(a.shape[0]) else 1 for d in range(a.dim())))
        if isinstance(a, Tensor)
        else a
        for a in args[1:]
    ]
    assert args[1].numel() > 2**31
    result = operator_of(call.operator)(*args, **call.kwargs)
    for i in (0, copies - 1):
        assert_close(result[:, base * i : base * (i + 1)], call.reference)


@pytest.mark.parametrize("product", ["bf16i4bf16_rowwise", *EIGHT_BIT])
def test_an_input_of_more_than_2_31_elements(product, generator):
    needs_memory(16 * GB)
    K, M, N = 8192, 128, 64
    call = PRODUCTS[product](Problem(M, N, K, 128), generator)
    args = on_cuda(call)
    copies = 2**31 // args[0].numel() + 1
    for i, a in enumerate(args):
        if isinstance(a, Tensor) and a.shape[0] == M:
            args[i] = a.repeat(copies, 1)
    result = operator_of(call.operator)(*args, **call.kwargs)
    for i in (0, copies - 1):
        assert_close(result[M * i : M * (i + 1)], call.reference)


# ---- order ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("M", ROWS)
@pytest.mark.parametrize("N", [96, 1536])
@pytest.mark.parametrize("product", ["bf16i4bf16_rowwise", *EIGHT_BIT])
def test_twenty_runs_give_the_same_bits(product, N, M, generator):
    """While another stream keeps some of the GPU busy, so that blocks come in another order each time."""
    call = PRODUCTS[product](Problem(M, N, 4096, 128), generator)
    args = on_cuda(call)
    first = operator_of(call.operator)(*args, **call.kwargs)
    noise = torch.randn(512, 512, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for i in range(20):
        with torch.cuda.stream(side):
            for _ in range(i % 5):
                noise.matmul(noise)
        assert torch.equal(operator_of(call.operator)(*args, **call.kwargs), first)
    side.synchronize()


@pytest.mark.parametrize("M", ROWS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_two_streams_at_once_give_the_same_bits(product, M, generator):
    """They would not if they shared scratch memory."""
    calls = [PRODUCTS[product](Problem(M, 200, 4096, 128), generator) for _ in range(2)]
    run = operator_of(calls[0].operator)
    args = [on_cuda(call) for call in calls]
    expected = [run(*a) for a in args]
    streams = [torch.cuda.Stream() for _ in args]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    results: list[list[Tensor]] = [[], []]
    for _ in range(30):
        for stream, a, into in zip(streams, args, results, strict=True):
            with torch.cuda.stream(stream):
                into.append(run(*a))
    torch.cuda.synchronize()
    for same, of_stream in zip(expected, results, strict=True):
        assert all(torch.equal(same, result) for result in of_stream)


@pytest.mark.parametrize("product", EVERYTHING)
def test_work_goes_to_the_current_stream(product, generator):
    """The operands arrive late on a side stream: a kernel on any other would read them too early."""
    call = EVERYTHING[product](Problem(3, 96, 256, 128), generator)
    ready = on_cuda(call)
    expected = operator_of(call.operator)(*ready, **call.kwargs)
    late = [torch.zeros_like(a) if isinstance(a, Tensor) else a for a in ready]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)
        for a, b in zip(late, ready, strict=True):
            if isinstance(a, Tensor):
                a.copy_(b)
        result = operator_of(call.operator)(*late, **call.kwargs)
    stream.synchronize()
    assert torch.equal(result, expected)


def at_once(calls: list[reference.Call], rounds: int) -> None:
    """Each call by a thread and on a stream of its own."""
    failures: list[BaseException] = []

    def work(call: reference.Call) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                args, run = on_cuda(call), operator_of(call.operator)
                results = [run(*args, **call.kwargs) for _ in range(rounds)]
                assert_close(results[0], call.reference)
                assert all(torch.equal(result, results[0]) for result in results)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_threads_may_call_at_once(generator):
    """All from the start, when kernels are being loaded."""
    at_once(
        [make(Problem(M, 96, 512, 128), generator) for make in {**PRODUCTS, **SCALED}.values() for M in ROWS],
        10,
    )


@pytest.mark.parametrize("M", [1, 2, 8, 12, 40])
@pytest.mark.parametrize("product", EVERYTHING)
def test_threads_may_call_one_kernel_for_unlike_sizes(product, M, generator):
    """Which need unlike amounts of shared memory."""
    at_once([EVERYTHING[product](Problem(M, 96, K, 128), generator) for K in (512, 2048, 6144, 16384)], 100)


# ---- graphs and compilers -------------------------------------------------------------------------------


@pytest.mark.parametrize("M", ROWS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_captured_graph_replays_with_new_inputs(product, M, generator):
    call = PRODUCTS[product](Problem(M, 200, 4096, 128), generator)
    args, run = on_cuda(call), operator_of(call.operator)
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        run(*args)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(*args)
        again = run(*args)
    for _ in range(3):
        fresh = PRODUCTS[product](Problem(M, 200, 4096, 128), generator)
        for into, new in zip(args, fresh.args, strict=True):
            if isinstance(into, Tensor):
                into.copy_(new)
        expected = run(*args)  # its scratch memory is not the graph's
        graph.replay()
        assert torch.equal(result, expected)
        assert torch.equal(again, expected)


def assert_replays_alike(
    run: Callable[[Tensor], Tensor], M: int, width: int, generator: torch.Generator
) -> None:
    x = torch.randn(M, width, generator=generator).to("cuda", BF16)
    run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x)
    for _ in range(20):
        x.copy_(torch.randn(M, width, generator=generator))
        graph.replay()
        assert torch.equal(y, run(x))


@needs_own_kernels
@pytest.mark.parametrize("width", [2048, 5120])  # on an H200 tiles come out even, or some are shared
@pytest.mark.parametrize("M", [1, 8, 16, 40, 64, 128, 300])
def test_layers_of_a_graph_wait_for_each_other(M, width, generator):
    """In a graph our kernels start before the last one is over: none reads what is not yet there."""
    operator, layers = torch.ops.ao.bf16i4bf16_rowwise, []
    for _ in range(6):
        w = torch.randn(width, width, generator=generator) / width**0.5
        q, scale, zero_point = packing.int4_row_quantize_zp(w.to(BF16))
        layers.append([t.to("cuda") for t in (packing.pack_int4(q), scale, zero_point)])

    def run(x: Tensor) -> Tensor:
        for i, (q, scale, zero_point) in enumerate(layers):
            if i == 2:
                scale = scale * 2  # a weight that the call before it has just made
            x = operator(x, q, scale, zero_point)
            if i == 3:
                x = x / x.abs().amax()
        return x

    assert_replays_alike(run, M, width, generator)


@needs_own_kernels
@pytest.mark.parametrize("dtype", [torch.int8, E4M3], ids=str)
@pytest.mark.parametrize("M", [1, 8, 16, 40, 128, 300])
def test_dynamic_layers_of_a_graph_wait_for_each_other(M, dtype, generator):
    """Quantisation and product in turns, each reading what the kernel before it has just written."""
    width, layers = 2048, []
    for _ in range(6):
        w = torch.randn(width, width, generator=generator).to("cuda") / width**0.5
        layers.append(torch.ops.ao.quantize(w, dtype))

    def run(x: Tensor) -> Tensor:
        for w, scale in layers:
            x = torch.ops.ao.scaled_linear(x, w, scale, code=CODES[dtype])
        return x

    assert_replays_alike(run, M, width, generator)


CONFIGS = {
    "int4": aoext.Int4WeightOnlyConfig(group_size=64),
    "int8": aoext.Int8DynamicActivationInt8WeightConfig(),
    "float8": aoext.Float8DynamicActivationFloat8WeightConfig(),
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_a_quantised_model_compiles(mode, config, generator):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(256, 512), nn.SiLU(), nn.Linear(512, 128, bias=False)).to("cuda", BF16)
    aoext.quantize_(model, CONFIGS[config])
    compiled = torch.compile(model, mode=mode, fullgraph=True, dynamic=False)
    with torch.inference_mode():
        for M in (1, 40):
            for _ in range(4):  # the third call and later ones replay graphs
                x = randn(generator, M, 256, dtype=BF16).to("cuda")
                torch.testing.assert_close(compiled(x).clone(), model(x), rtol=2e-2, atol=2e-2)
    torch._dynamo.reset()


# ---- devices --------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("M", ROWS)
@pytest.mark.parametrize("product", EVERYTHING)
def test_work_goes_to_the_device_of_the_tensors(product, M, generator):
    call = EVERYTHING[product](Problem(M, 96, 512, 128), generator)
    for current, other in ((0, 1), (1, 0)):
        where = torch.device("cuda", other)
        with torch.cuda.device(current):
            result = call.run(where, operator_of(call.operator))
            assert torch.cuda.current_device() == current
        assert result.device == where
        assert_close(result, call.reference)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_operands_on_two_devices_are_refused(generator):
    x, *weight = ALL_CALLS["bf16i4bf16_rowwise"](Problem(3, 96, 512, 128), generator).args
    with pytest.raises(RuntimeError, match=r"ao::bf16i4bf16_rowwise: .*device"):
        torch.ops.ao.bf16i4bf16_rowwise(x.to("cuda:0"), *(t.to("cuda:1") for t in weight))


# ---- many rows ------------------------------------------------------------------------------------------


@needs_own_kernels
@pytest.mark.parametrize("with_bias", [False, True])
def test_many_rows_of_e4m3(with_bias, generator):
    """On compute capability 9.0 a kernel of ours multiplies them: a call of PyTorch's costs the host more."""
    problem = Problem(600, 2048, 512, 512, BF16, BF16, leading=(3, 200))
    call = EIGHT_BIT["scaled_mm_rowwise, e4m3"](problem, generator)
    args, expected = on_cuda(call), call.reference
    if not with_bias:
        expected = expected - args.pop().cpu().double()
    if has_wgmma():
        assert aoext.explain(call.operator, *args).kernel == "rowwise_wgmma"
    assert_close(torch.ops.ao.scaled_mm_rowwise(*args, **call.kwargs), expected)


# ---- older architectures --------------------------------------------------------------------------------

EXPLAINED = """
from aoext import reference
for operator in ("bf16i4bf16_rowwise", "weight_only_linear int8", "scaled_linear rows"):
    for M in (1, 16, 64, 300):
        call = reference.CALLS[operator](reference.Problem(M, 256, 1024, 128), torch.Generator())
        args = call.on("cuda")
        reference.assert_close(getattr(ao, call.operator)(*args, **call.kwargs), call.reference)
        print(aoext.explain(call.operator, *args, **call.kwargs))
"""

needs_newer = pytest.mark.skipif(
    not HERE or torch.cuda.get_device_capability() < (9, 0) or "AOEXT_CUDA_FAMILY" in os.environ,
    reason="this GPU runs no newer family, or is not to",
)


@needs_own_kernels
@needs_newer
def test_an_older_family_can_be_forced():
    newest = in_a_process(EXPLAINED).splitlines()
    older = in_a_process(EXPLAINED, AOEXT_CUDA_FAMILY="sm80").splitlines()
    assert len(newest) == len(older) == 12
    assert newest != older
    assert sum("wgmma" in plan for plan in newest) >= 3, newest
    assert not any("wgmma" in plan for plan in older), older


@needs_own_kernels
def test_an_unknown_family_is_named():
    output = in_a_process(
        """
x = torch.ones(1, 64, dtype=torch.bfloat16, device="cuda")
w, s = torch.ones(32, 32, dtype=torch.int8, device="cuda"), torch.ones(2, 32, device="cuda")
try:
    ao.bf16i4bf16_rowwise(x, w, s, s)
except RuntimeError as error:
    print(error)
""",
        AOEXT_CUDA_FAMILY="sm12",
    )
    assert "AOEXT_CUDA_FAMILY" in output
    assert "sm12" in output


@needs_own_kernels
@needs_newer
def test_operators_are_right_with_an_older_family():
    tests = os.path.join(os.path.dirname(__file__), "test_operators.py")
    select = "cuda and own and not 2_31"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, "-k", select],
        env={**os.environ, "AOEXT_CUDA_FAMILY": "sm80"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout

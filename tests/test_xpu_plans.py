"""Plans of XPUs: those on file, of GPUs that need not be at hand, and tile kernels of this device, forced.

python tests/test_xpu_plans.py > tests/plans_xpu.txt writes them anew for a choice changed on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import aoext
from aoext.library.info import build_config
from aoext.ops import ao, plan, with_plan

BF16, FP32, INT8, E4M3, LUT4 = torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn, torch.uint8
GPUS = ("Arc B580", "Arc 140V", "Arc A770", "Max 1550")
PLANS = Path(__file__).parent / "plans_xpu.txt"

pytestmark = pytest.mark.skipif(build_config()["sycl"] != "ON", reason="aoext was built without SYCL")


def empty(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


def calls(M: int, N: int, K: int) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    row_scale, x = empty(FP32, N, 1), empty(BF16, M, K)
    for group in (32, 128):
        if K % group == 0:
            w, groups = empty(INT8, N, K // 2), empty(BF16, K // group, N)
            yield f"int4 by {group}", ("weight_only_linear", x, w, groups), {"code": 0, "zero_point": groups}
            for dtype in (INT8, E4M3):
                operands = empty(dtype, M, K), w, empty(FP32, M, 1), groups
                yield f"{dtype} int4 by {group}", ("scaled_mm", *operands), {"code": 0, "zero_point": groups}
    for dtype, code in ((INT8, 1), (E4M3, 2)):
        w, block = empty(dtype, N, K), empty(FP32, N, -(-K // 32))
        yield f"{dtype} by rows", ("weight_only_linear", x, w, row_scale), {"code": code}
        yield f"{dtype} by 32", ("weight_only_linear", x, w, block), {"code": code, "block_size": [1, 32]}
        yield f"{dtype} dynamic", ("scaled_linear", x, w, row_scale), {"code": code}
        blocks = {"input_block": [1, 32], "block_size": [1, 32]}
        yield f"{dtype} dynamic by 32", ("scaled_linear", x, w, block), {"code": code, **blocks}
    w, block, table = empty(LUT4, N, K // 2), empty(FP32, N, -(-K // 16)), empty(FP32, 16)
    options = {"code": 4, "block_size": [1, 16], "table": table}
    yield "lut4 by 16", ("weight_only_linear", x, w, block), options
    yield "int8_mm", ("int8_mm", empty(INT8, M, K), empty(INT8, N, K)), {}
    packed, pairs = empty(torch.int32, N // 8, K // 32, 32, 1), empty(BF16, K // 32, N, 2)
    yield "int4pack", ("weight_int4pack_mm", x, packed, 32, pairs), {}


def lines() -> Iterator[str]:
    for gpu in GPUS:
        for N, K in ((4096, 4096), (28672, 4096), (520, 640), (72, 1056)):
            for M in (1, 4, 9, 33, 100, 600):
                for name, arguments, options in calls(M, N, K):
                    yield f"{gpu} {M} {N}x{K} {name}: {plan(gpu, *arguments, **options)}"


def test_plans_are_those_on_file() -> None:
    assert list(lines()) == PLANS.read_text().splitlines()


# Code, its dtype, and the lengths of groups that its kernels are for; None: one scale a row.
FORMATS = {"int4": (0, (32, 128)), "int8": (1, (None,)), "e4m3": (2, (None,)), "e5m2": (3, (None,))}
DTYPES = {"int8": INT8, "e4m3": E4M3, "e5m2": torch.float8_e5m2}


@pytest.mark.skipif(not torch.xpu.is_available(), reason="there is no XPU, real or simulated")
@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("input_type", [BF16, torch.float16, FP32])
@pytest.mark.parametrize("name", FORMATS)
def test_every_tile_by_lanes_is_right(name, input_type, rows, generator):
    """Forced, over fewer rows than the tile has and more: float64 of the same codes is the reference."""
    code, group_sizes = FORMATS[name]
    x_name = {BF16: "bf16", torch.float16: "fp16", FP32: "fp32"}[input_type]
    kernel = f"int4_tile.lanes_{x_name}" if name == "int4" else f"rowwise_tile.lanes_{name}_{x_name}"
    N, K = 40, 256
    for group in group_sizes:
        for M in (3, 11):
            x = torch.randn(M, K, generator=generator).to(input_type)
            if name == "int4":
                q = torch.randint(-8, 8, (N, K), generator=generator)
                weight = ((q[:, ::2] & 15) | (q[:, 1::2] << 4)).to(INT8)
                scale, zero = (torch.rand(K // group, N, generator=generator) + 0.1 for _ in range(2))
                spread = (
                    scale.double().T.repeat_interleave(group, 1),
                    zero.double().T.repeat_interleave(group, 1),
                )
                w = q.double() * spread[0] + spread[1]
                arguments = [x, weight, scale, None, zero]
            else:
                codes = torch.randn(N, K, generator=generator) * (30 if name == "int8" else 1)
                weight, scale = codes.to(DTYPES[name]), torch.rand(N, 1, generator=generator) + 0.1
                w = weight.double() * scale.double()
                arguments = [x, weight, scale]
            arguments = [a.to("xpu") if isinstance(a, torch.Tensor) else a for a in arguments]
            config = {"rows": rows, "sub_groups": 2, **({} if group is None else {"group": group})}
            with with_plan(kernel, **config):
                explained = aoext.explain("weight_only_linear", *arguments, code=code)
                y = ao.weight_only_linear(*arguments, code=code).cpu().double()
            assert (explained.kernel, explained.choices) == (kernel, config)
            expected = x.double() @ w.T
            bound = {BF16: 5e-3, torch.float16: 1e-3, FP32: 2e-5}[input_type]
            assert (y - expected).norm() <= bound * expected.norm()


@pytest.mark.skipif(not torch.xpu.is_available(), reason="there is no XPU, real or simulated")
def test_what_does_not_fit_is_named() -> None:
    x, w, scale = (torch.ones(3, 64, dtype=BF16), torch.ones(8, 64, dtype=INT8), torch.ones(8, 1))
    operands = [t.to("xpu") for t in (x, w, scale)]
    with (
        with_plan("rowwise_tile.lanes_int8_bf16", rows=5),
        pytest.raises(RuntimeError, match="rows = 5 must fit M = 3, "),
    ):
        ao.weight_only_linear(*operands, code=1)


if __name__ == "__main__":
    print(*lines(), sep="\n")

"""Choices of the CPU are those on file; every kernel of this instruction set is right where it is forced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import aoext
from aoext import ops
from aoext.formats.lookup_tables import NF4
from aoext.formats.table import FORMATS, Code
from aoext.library.info import build_config
from aoext.ops import ao, with_plan
from aoext.reference import assert_close, randn
from aoext.reference.ggml import blocks_float64, random_blocks
from aoext.reference.values import (
    blockwise_float64,
    int4_float64,
    int4_weight,
    lut4_float64,
    quantized_blocks,
    rowwise_values,
    scales_float64,
    tinygemm_float64,
    unpack_planes,
)
from conftest import script_of_benchmarks

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
INT8, E4M3 = torch.int8, torch.float8_e4m3fn
FILE = Path(__file__).parent / "plans_cpu.txt"
ISA = build_config()["cpu instruction set"]


@pytest.fixture(scope="module")
def plans_cpu() -> ModuleType:
    return script_of_benchmarks("plans_cpu.py")


def kernels(isa: str) -> set[str]:
    return set(ao._cpu_kernels(isa).split())


def test_plans_are_those_on_file(plans_cpu: ModuleType) -> None:
    """A choice that is changed on purpose is written anew: benchmarks/plans_cpu.py says how."""
    assert list(plans_cpu.plans()) == FILE.read_text(encoding="utf-8").splitlines()


def test_every_kernel_is_chosen_by_an_instruction_set_that_has_it(plans_cpu: ModuleType) -> None:
    chosen: dict[str, set[str]] = {isa: set() for isa in plans_cpu.ISAS}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        isas, colon, plans = line.partition(": ")
        if colon and line.startswith("    "):
            for isa in isas.split():
                chosen[isa] |= {plan.split()[1] for plan in plans.split(", ")}
    for isa, names in chosen.items():
        nowhere = {"gemv_8bit_f32"} if isa == "portable" else set()  # a gemm is as fast from one row on
        assert names == kernels(isa) - nowhere


# ---- every kernel, forced ------------------------------------------------------------------------------

M, N, K = 5, 72, 640  # a panel that is not whole, and more than a block along k
Case = tuple[
    str, tuple[Any, ...], dict[str, Any], Tensor
]  # an operator, its arguments, and the result in float64


def high_precision(x: torch.dtype, g: Generator) -> Tensor:
    return randn(g, M, K, dtype=x)


def int4(g: Generator, *, x: torch.dtype = BF16, group: int = 32) -> Case:
    weight, scale, zero_point = int4_weight(N, K, group, x, g)
    input = high_precision(x, g)
    expected = input.double() @ int4_float64(weight, scale, zero_point).T
    return (
        "weight_only_linear",
        (input, weight, scale),
        {"zero_point": zero_point, "code": Code.INT4},
        expected,
    )


def int4_scaled(g: Generator, *, x: torch.dtype = INT8, group: int = 32) -> Case:
    weight, scale, zero_point = int4_weight(N, K, group, BF16, g)
    input, input_scale = rowwise_values((M,), K, x, g)
    expected = (input.double() * input_scale.double()) @ int4_float64(weight, scale, zero_point).T
    options = {"zero_point": zero_point, "code": Code.INT4, "out_dtype": FP32}
    return "scaled_mm", (input, weight, input_scale, scale), options, expected


def rows(g: Generator, *, x: torch.dtype = BF16, dtype: torch.dtype = INT8) -> Case:
    weight, scale = rowwise_values((N,), K, dtype, g)
    input = high_precision(x, g)
    expected = input.double() @ (weight.double() * scale.double()).T
    return "weight_only_linear", (input, weight, scale), {"code": code_of(dtype)}, expected


def int8_mm(g: Generator) -> Case:
    input, _ = rowwise_values((M,), K, INT8, g)
    weight, _ = rowwise_values((N,), K, INT8, g)
    return "int8_mm", (input, weight), {}, (input.double() @ weight.double().T).int()


def blocks(g: Generator, *, x: torch.dtype = BF16, dtype: torch.dtype = INT8, block: int = 32) -> Case:
    values, scale = quantized_blocks(randn(g, N, K), dtype, block)
    input = high_precision(x, g)
    expected = input.double() @ blockwise_float64(values.double(), scale, [1, block], slice(None)).T
    options = {"block_size": [1, block], "code": code_of(dtype)}
    return "weight_only_linear", (input, values, scale), options, expected


def lut4(g: Generator, *, x: torch.dtype = BF16, table: str = "e2m1", block: int = 32) -> Case:
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = {
        "e2m1": torch.cat([magnitudes, -magnitudes]),
        "nf4": torch.tensor(NF4),
        "others": randn(g, 16).to(BF16).float(),
    }[table]
    codes = torch.randint(256, (N, K // 2), generator=g, dtype=torch.uint8)
    scale = torch.rand(N, K // block, generator=g) + 0.5
    input = high_precision(x, g)
    input[0, 70] = 100  # far above its neighbours
    spread = scales_float64(scale).repeat_interleave(block, 1)
    expected = input.double() @ (lut4_float64(codes, values) * spread).T
    options = {"block_size": [1, block], "table": values, "code": Code.LUT4}
    return "weight_only_linear", (input, codes, scale), options, expected


def both_blocks(g: Generator, *, dtype: torch.dtype = INT8, power_of_two: bool = False) -> Case:
    """8 bits by 8 bits with a scale a block on both sides."""
    block = 32
    x, x_scale = quantized_blocks(randn(g, M, K), dtype, block)
    w, w_scale = quantized_blocks(randn(g, N, K), dtype, block)
    expected = blockwise_float64(x.double(), x_scale, [1, block], slice(None))
    expected = expected @ blockwise_float64(w.double(), w_scale, [1, block], slice(None)).T
    options = {"input_block": [1, block], "block_size": [1, block], "code": code_of(dtype), "out_dtype": FP32}
    return "scaled_mm", (x, w, x_scale, w_scale), options, expected


def planes(g: Generator, *, x: torch.dtype = BF16, code: Code = Code.Q4_K) -> Case:
    """Codes in planes whose blocks hold their scales."""
    wide = 2 * K if code == Code.Q4_K else K
    weight = random_blocks(code, N, wide, g)
    rows = blocks_float64(code, weight)
    options: dict[str, Any] = {"code": code}
    if x is not INT8:
        input = randn(g, M, wide, dtype=x)
        return "weight_only_linear", (input, weight, torch.ones(1)), options, input.double() @ rows.T
    values, scale = quantized_blocks(randn(g, M, wide), INT8, 32)
    expected = blockwise_float64(values.double(), scale, [1, 32], slice(None)) @ rows.T
    options |= {"input_block": [1, 32], "out_dtype": FP32}
    return "scaled_mm", (values, weight, scale, torch.ones(1)), options, expected


def code_of(dtype: torch.dtype) -> Code:
    return Code.INT8 if dtype is INT8 else Code.E4M3


CASES: dict[str, Callable[[Generator], Case]] = {
    "gemm_f32": rows,
    "gemm_bf16": rows,
    "gemm_bf16_limbs": lambda g: rows(g, x=FP16),
    "gemm_i8": int8_mm,
    "gemv_8bit_f32": lambda g: rows(g, dtype=E4M3),
    "gemv_8bit_bf16": rows,
    "gemv_i8": int8_mm,
    "gemm_int4_f32": lambda g: int4(g, x=FP32),
    "gemm_int4_bf16": int4,
    "gemm_int4_bf16_columns": int4,
    "gemm_int4_codes": int4,
    "gemm_int4_codes_f32": int4_scaled,
    "gemm_int4_codes_limbs": lambda g: int4(g, x=FP16),
    "gemm_int4_i8": int4_scaled,
    "gemv_int4": lambda g: int4(g, x=FP16, group=128),
    "gemv_limb": int4_scaled,
    "gemv_limb_staged": int4_scaled,
    "gemv_limbs2": int4,
    "gemv_limbs3": lambda g: int4(g, x=FP32),
    "gemv_limbs2_staged": int4,
    "gemv_limbs3_staged": lambda g: int4(g, x=FP32),
    "gemv_limbs2_packed": lambda g: int4(g, group=128),
    "gemm_blockwise_f32": lambda g: blocks(g, x=FP32),
    "gemm_8bit_bf16": blocks,
    "gemm_8bit_bf16_columns": planes,
    "gemm_lut4_bf16": lut4,
    "gemm_lut4_bf16_columns": lut4,
    "gemm_8bit_groups": lambda g: blocks(g, dtype=E4M3),
    "gemm_8bit_groups_limbs": lambda g: blocks(g, x=FP16),
    "gemm_lut4_groups": lut4,
    "gemm_lut4_groups_limbs": lambda g: lut4(g, x=FP16),
    "gemv_blockwise_f32": lambda g: blocks(g, x=FP32),
    "gemv_blockwise_bf16": blocks,
    "gemv_lut4_f32": lambda g: lut4(g, x=FP32, table="others"),
    "gemv_lut4_bf16": lambda g: lut4(g, table="others"),
    "gemv_lut4_i16": lambda g: lut4(g, table="nf4", block=64),
    "gemv_e2m1_limbs2": lut4,
    "gemv_e2m1_limbs3": lambda g: lut4(g, x=FP32),
    "gemv_e2m1_limbs2_staged": lut4,
    "gemv_e2m1_limbs3_staged": lambda g: lut4(g, x=FP32),
    "gemv_row_limb": lambda g: planes(g, x=INT8, code=Code.Q5_0),
    "gemv_row_limbs2": planes,
    "gemv_row_limbs3": lambda g: planes(g, x=FP32),
    "gemv_planes_limb": lambda g: planes(g, x=INT8),
    "gemv_planes_limbs2": lambda g: planes(g, code=Code.Q8_0),
    "gemv_planes_limbs3": lambda g: planes(g, x=FP32),
    "gemm_segments_f32": both_blocks,
    "gemm_segments_bf16": lambda g: both_blocks(g, dtype=E4M3),
    "gemm_segments_i8": both_blocks,
}


def test_every_kernel_has_a_case(plans_cpu: ModuleType) -> None:
    assert set().union(*map(kernels, plans_cpu.ISAS)) == set(CASES)


@pytest.mark.parametrize("kernel", sorted(kernels(ISA)))
def test_a_forced_kernel_runs_and_is_right(kernel: str, generator: Generator) -> None:
    operator, arguments, options, expected = CASES[kernel](generator)
    with with_plan(kernel):
        assert aoext.explain(operator, *arguments, **options).kernel == kernel
        assert ops.plan(ISA, operator, *arguments, **options) == kernel
        assert_close(getattr(ao, operator)(*arguments, **options), expected)


@pytest.mark.parametrize("zero_over_scale", [16, 32, 50, 1000])
def test_far_zero_points_of_planes_keep_the_bound(zero_over_scale: int, generator: Generator) -> None:
    """Every other row of x sums to 0 in each group: its result owes nothing to zero points, however large."""
    rows, group = 65, 32
    weight = torch.randint(256, FORMATS[Code.INT5].stored_shape(N, K), generator=generator, dtype=torch.uint8)
    scale = (torch.rand(K // group, N, generator=generator) + 0.5).to(BF16)
    signs = torch.randint(0, 2, scale.shape, generator=generator) * 2 - 1
    zero_point = (zero_over_scale * signs * scale.float()).to(BF16)
    x = randn(generator, rows, K // group, group, dtype=BF16)
    x[::2, :, group // 2 :] = -x[::2, :, : group // 2].flip(-1)
    x = x.flatten(1)
    spread = [t.double().t().repeat_interleave(group, 1) for t in (scale, zero_point)]
    expected = x.double() @ (unpack_planes(weight, 5).double() * spread[0] + spread[1]).T
    y = ao.weight_only_linear(x, weight, scale, Code.INT5, zero_point=zero_point)
    assert_close(y, expected)


def test_a_weight_in_the_tinygemm_layout_takes_forced_kernels(generator: Generator) -> None:
    weight = torch.randint(256, (N, K // 2), generator=generator, dtype=torch.uint8)
    packed = ao.convert_weight_to_int4pack(weight, 2)
    pairs = randn(generator, K // 32, N, 2, dtype=BF16)
    input = high_precision(BF16, generator)
    expected = input.double() @ tinygemm_float64(weight, pairs).T
    for kernel in sorted({"gemm_int4_codes", "gemm_int4_bf16", "gemm_int4_f32"} & kernels(ISA)):
        with with_plan(kernel):
            assert aoext.explain("weight_int4pack_mm", input, packed, 32, pairs).kernel == kernel
            assert_close(ao.weight_int4pack_mm(input, packed, 32, pairs), expected)


def test_a_kernel_that_does_not_take_the_problem_is_named(generator: Generator) -> None:
    operator, arguments, options, _ = int4(generator, group=K // 5)
    with with_plan("gemm_int4_codes_limbs"), pytest.raises(RuntimeError, match=f"takes M = {M}, .*{ISA}"):
        getattr(ao, operator)(*arguments, **options)
    with with_plan("gemm_segments_f32"):  # of another product
        getattr(ao, operator)(*arguments, **options)
    with (
        pytest.raises(RuntimeError, match=r"kernel must be one of .*gemv_int4, .*got gemv_int5"),
        with_plan("gemv_int5"),
    ):
        pass

"""Plans of XPUs: those on file, of GPUs that need not be at hand, and tile kernels of this device, forced.

python tests/test_xpu_plans.py > tests/plans_xpu.txt writes them anew for a choice changed on purpose.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator

import aoext
from aoext import reference
from aoext.formats.table import FORMATS, Code, code_of
from aoext.library.info import build_config
from aoext.ops import ao, plan, with_plan
from aoext.reference import (
    ALL_CALLS,
    HIGH_PRECISION,
    Problem,
    Stored,
    assert_close,
    call_of,
    op,
    quantized_blocks,
    randn,
    subjects,
)
from aoext.reference.stored import GGML, GROUPS, INT4, NESTED, by_rows
from aoext.reference.subject import Subject

BF16, FP16, FP32 = HIGH_PRECISION
INT8, E4M3, E5M2, LUT4 = torch.int8, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8
HAS_SYCL = build_config()["sycl"] == "ON"
GPUS = ("Arc B580", "Arc 140V", "Arc A770", "Max 1550")
PLANS = Path(__file__).parent / "plans_xpu.txt"

pytestmark = pytest.mark.skipif(not HAS_SYCL, reason="aoext was built without SYCL")


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
    if K % 256 == 0:
        w, one = empty(LUT4, N, K // 256, 210), empty(FP32, 1)
        yield "q6_k", ("weight_only_linear", x, w, one), {"code": int(Code.Q6_K)}
        block = {"code": int(Code.Q6_K), "input_block": [1, 32]}
        yield "q6_k dynamic", ("scaled_linear", x, w, one), {**block, "input_dtype": E4M3}
        w, groups = empty(LUT4, N, K // 32, 20), empty(BF16, K // 128, N)
        zeros = {"code": int(Code.INT5), "zero_point": groups}
        yield "int5 by 128", ("weight_only_linear", x, w, groups), zeros
        yield "int5 dynamic", ("scaled_linear", x, w, groups), {**zeros, "input_dtype": INT8}
    yield "int8_mm", ("int8_mm", empty(INT8, M, K), empty(INT8, N, K)), {}
    packed, pairs = empty(torch.int32, N // 8, K // 32, 32, 1), empty(BF16, K // 32, N, 2)
    yield "int4pack", ("weight_int4pack_mm", x, packed, 32, pairs), {}


def calls_of_experts(M: int, experts: int) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    N, K = 1536, 2048
    x, offsets = empty(BF16, M, K), {"offsets": empty(torch.int32, experts)}
    w, groups = empty(INT8, experts, N, K // 2), empty(BF16, experts, K // 128, N)
    zeros = {"code": 0, "zero_point": groups, **offsets}
    yield "int4", ("weight_only_linear", x, w, groups), zeros
    yield "int4 dynamic", ("scaled_linear", x, w, groups), zeros
    for dtype, code in ((INT8, 1), (E4M3, 2)):
        w, row_scale = empty(dtype, experts, N, K), empty(FP32, experts, N, 1)
        yield f"{dtype} by rows", ("weight_only_linear", x, w, row_scale), {"code": code, **offsets}
        yield f"{dtype} dynamic", ("scaled_linear", x, w, row_scale), {"code": code, **offsets}
    blocks = empty(FP32, experts, N // 128, K // 128)
    options = {"code": 2, "block_size": [128, 128], **offsets}
    yield f"{E4M3} by 128x128", ("weight_only_linear", x, w, blocks), options
    w, block, table = empty(LUT4, experts, N, K // 2), empty(E4M3, experts, N, K // 16), empty(FP32, 16)
    options = {"code": 4, "block_size": [1, 16], "table": table, **offsets}
    yield "lut4 by 16", ("weight_only_linear", x, w, block), options
    w, one = empty(LUT4, experts, N, K // 256, 144), empty(FP32, experts, 1)
    yield "q4_k", ("weight_only_linear", x, w, one), {"code": int(Code.Q4_K), **offsets}
    w, block = empty(INT8, experts, N, K), empty(FP32, experts, N, K // 32)
    zeros = {"code": 1, "block_size": [1, 32], "zero_point": empty(INT8, *block.shape), **offsets}
    yield "int8 with zero points", ("weight_only_linear", x, w, block), zeros


def lines() -> Iterator[str]:
    for gpu in GPUS:
        for N, K in ((4096, 4096), (28672, 4096), (520, 640), (72, 1056)):
            for M in (1, 4, 9, 33, 100, 600):
                for name, arguments, options in calls(M, N, K):
                    yield f"{gpu} {M} {N}x{K} {name}: {plan(gpu, *arguments, **options)}"
        for M, experts in itertools.product((8, 64, 512, 4096), (8, 128)):
            for name, arguments, options in calls_of_experts(M, experts):
                yield f"{gpu} {M} {experts} experts {name}: {plan(gpu, *arguments, **options)}"


def test_plans_are_those_on_file() -> None:
    assert list(lines()) == PLANS.read_text().splitlines()


# ---- every kernel, run -----------------------------------------------------------------------------------

TYPES = {"bf16": BF16, "fp16": FP16, "fp32": FP32, "int8": INT8, "e4m3": E4M3, "e5m2": E5M2}
# Those with lanes in place of the matrix engine run in a process of their own (test_xpu.py).
ENGINE = "emulated" if os.environ.get("AOEXT_XPU_PRETEND") == "matrix" else "lanes"
KERNELS = [line.partition(" ")[0] for line in ao._xpu_kernels().splitlines()] if HAS_SYCL else []
TILES = [kernel for kernel in KERNELS if f"_tile.{ENGINE}_" in kernel]
# Images that no other device than a GPU with a matrix engine runs: others' bodies with other types.
ONLY_DPAS = {
    *(f"blocks_tile.dpas_{types}" for types in ("int8_fp16", "e4m3_fp16", "e5m2_bf16", "e5m2_e5m2")),
    *(f"rowwise_tile.dpas_{types}" for types in ("int8_fp16", "e4m3_bf16", "e4m3_fp16")),
    *(f"rowwise_tile.dpas_e5m2_{types}" for types in ("bf16", "fp16", "e5m2")),
    "int4_tile.dpas_fp16",
    "planes_tile.dpas_fp16",
}

needs_xpu = pytest.mark.skipif(
    not torch.xpu.is_available(), reason="there is no XPU, real or simulated (xpu_sim)"
)


def built() -> set[str]:
    """The kernels that this process has run."""
    return {line.partition(" ")[0] for line in ao._xpu_kernels().splitlines() if line.endswith(" built")}


# What planes_tile's kernels multiply, by the type of their operation: any code by any of these inputs.
INPUTS_OF = {"bf16": [BF16, E4M3], "fp16": [FP16], "int8": [INT8], "fp32": [*HIGH_PRECISION, INT8, E4M3]}
OF_PLANES = [*GROUPS[1:], *GGML]


def product_of(
    source: str, types: str, group: int, generator: Generator
) -> tuple[Stored, Subject, torch.dtype]:
    """A weight that an image's kernels multiply, the product, and the dtype of its result."""

    def any_of(choices: list[Any]) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    weight, _, input = types.rpartition("_")
    x = any_of(INPUTS_OF[input]) if source == "planes_tile" else TYPES[input]
    if source.startswith("int4"):
        stored = INT4
    elif source == "planes_tile":
        stored = any_of([w for w in OF_PLANES if FORMATS[w.code].group % group == 0])
    elif source == "rowwise_tile":
        stored = by_rows(TYPES[weight], FP32)
    else:
        code = Code.LUT4 if weight == "lut4" else code_of(TYPES[weight])
        stored = Stored(types, code, has_global_scale=weight == "lut4")
    if x in HIGH_PRECISION:
        return stored, subjects.weight_only_linear(stored, ""), x
    return stored, subjects.scaled_mm(stored, "", x), BF16


@needs_xpu
@pytest.mark.parametrize("kernel", TILES)
def test_a_forced_tile_is_right(kernel: str, generator: Generator) -> None:
    """Over whole tiles and others, of one weight, of several experts and of nobody."""
    image, _, name = kernel.partition("/")
    source, _, types = image.replace(f".{ENGINE}_", ".").partition(".")
    rows, group = (int(digits) for digits in (*re.findall(r"_[mg](\d+)", name), 32)[:2])
    config = {"rows": rows, "sub_groups": 2} | ({"group": group} if "_g" in name else {})
    stored, dense, dtype = product_of(source, types, group, generator)
    ends = (rows + 1, rows + 1, rows + 3, 2 * rows + 4)
    for product, M in ((dense, rows + 3), (subjects.experts(dense, stored), 2 * rows + 5)):
        problem = Problem(M, 40, 256, group, dtype, BF16, offsets=ends)
        call = call_of(product, problem, generator)
        operands = call.on("xpu")
        with with_plan(image, **config):
            explained = aoext.explain(call.operator, *operands, **call.kwargs)
            result = getattr(ao, call.operator)(*operands, **call.kwargs)
        assert (explained.kernel, explained.choices) == (image, config)
        assert_close(result, call.reference, call.terms)
    assert kernel in built()


@needs_xpu
@pytest.mark.parametrize("weight", OF_PLANES, ids=lambda w: w.name)
def test_every_code_of_planes_is_multiplied_by_the_tile(weight: Stored, generator: Generator) -> None:
    """By an input of every type, in groups of both lengths where the code has no other."""
    for x in (*HIGH_PRECISION, INT8, E4M3):
        float_input = x in HIGH_PRECISION
        product = (
            subjects.weight_only_linear(weight, "") if float_input else subjects.scaled_mm(weight, "", x)
        )
        for group in (16, 64):
            problem = Problem(3, 40, 768, group, x if float_input else BF16, FP16)
            call = call_of(product, problem, generator)
            operands = call.on("xpu")
            assert aoext.explain(call.operator, *operands, **call.kwargs).kernel.startswith("planes_tile")
            assert_close(getattr(ao, call.operator)(*operands, **call.kwargs), call.reference, call.terms)


@needs_xpu
@pytest.mark.skipif(ENGINE != "lanes", reason="another process runs them")
def test_every_kernel_without_tiles_runs(generator: Generator) -> None:
    """What is not here is no kernel that a test has run. arrange_input runs with tiles of many rows."""
    kinds = [
        "weight_only_linear int4",
        "weight_only_linear int8 blocks",
        "scaled_mm rows",
        "weight_int4pack_mm",
    ]
    kinds += [
        "weight_only_linear int2",
        "dequantize int4",
        "dequantize blocks",
        "dequantize int2",
        "dequantize q4_k",
    ]
    problems = [Problem(M, 96, 192, 96, BF16, BF16) for M in (1, 3, 9)]
    problems += [Problem(4, 64, 256, 128, BF16, BF16)]
    problems += [Problem(M, 37, 150, 6, FP32, FP32) for M in (2, 5)]
    for kind, problem in itertools.product(kinds, problems):
        call = ALL_CALLS[kind](problem, generator)
        assert_close(call.run(torch.device("xpu"), op(kind)), call.reference, call.terms)
    nested = call_of(subjects.dequantize(NESTED, ""), problems[0], generator)
    assert_close(nested.run(torch.device("xpu"), getattr(ao, nested.operator)), nested.reference)
    for columns, block in ((256, None), (37, None), (256, [1, 32])):
        x = randn(generator, 5, columns)
        values, scales = ao.quantize(x.to("xpu"), INT8, block)
        expected, of_blocks = quantized_blocks(x, INT8, block[1] if block else columns)
        assert torch.equal(values.cpu(), expected)
        assert torch.equal(scales.cpu(), of_blocks)
    for dtype in (torch.int32, torch.int64):
        expert = reference.routed(9, 2, 5, generator).to(dtype)
        results = ao.sort_by_expert(expert.to("xpu"), 5)
        assert tuple(result.tolist() for result in results) == reference.sorted_by_expert(expert, 5)
    others = {kernel for kernel in KERNELS if "_tile." not in kernel}
    elsewhere = {"arrange_input.lanes/arrange_input"}
    scaled = ALL_CALLS["scaled_mm rows"](problems[1], generator)
    if "amx" in str(aoext.explain(scaled.operator, *scaled.on(torch.device("xpu")), **scaled.kwargs)):
        elsewhere.add("scale_rows.lanes/scale_rows")  # by AMX oneDNN scales rows itself
    assert others - built() == elsewhere - built()


def test_every_tile_of_a_matrix_engine_has_a_twin_or_is_named() -> None:
    """What a matrix engine runs, a test runs with lanes in its place, but for ONLY_DPAS."""
    images = {kernel.partition("/")[0] for kernel in KERNELS}
    assert {i for i in images if ".dpas_" in i and i.replace("dpas", "emulated") not in images} == ONLY_DPAS
    for kernel in KERNELS:
        if ".emulated_" in kernel:
            assert kernel.replace("emulated", "dpas") in KERNELS


@needs_xpu
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

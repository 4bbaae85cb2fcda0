"""Draws calls of the Python helpers and tensors by the thousand; run by test_bad_helper_calls.

Each call must raise a TypeError or ValueError that says what must be, or give results of the right
shape. A crash ends the process, which the caller sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from aoext import packing
from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor
from draw_calls import DTYPES, SEED, SIZES, tensors

counts = {"calls": 0, "raised": 0, "ran": 0}


def shapes(*results: Any) -> list[list[int]]:
    return [list(result.shape) for result in results]


def with_groups(K: int, rows: int, group_size: int) -> list[int]:
    return [K // group_size, rows]


# Each helper, and what the shapes of its results must be for its arguments.
HELPERS: dict[Callable[..., Any], Callable[..., list[list[int]]]] = {
    packing.pack_int4: lambda q: [[q.shape[0], q.shape[1] // 2]],
    packing.unpack_int4: lambda p: [[p.shape[0], 2 * p.shape[1]]],
    packing.int4_row_quantize_zp: lambda x, g: [
        list(x.shape),
        *2 * [with_groups(x.shape[1], x.shape[0], g)],
    ],
    packing.int4_row_quantize: lambda x, g: [
        list(x.shape),
        with_groups(x.shape[1], x.shape[0], g),
    ],
    packing.int8_row_quantize: lambda w: [list(w.shape), [w.shape[0], 1]],
    packing.float8_row_quantize: lambda w, dtype: [list(w.shape), [w.shape[0], 1]],
    packing.dequantize: lambda q, scale, zero=None: [[q.shape[0], q.shape[1] * (1 if zero is None else 2)]],
    Int4Tensor: lambda q, s, z, block_size, shape, act=None: [[q.shape[0], 2 * q.shape[1]]],
    Int8Tensor: lambda q, *_: [list(q.shape)],
    Float8Tensor: lambda q, *_: [list(q.shape)],
    Int4Tensor.from_hp: lambda w, block_size: [list(w.shape)],
    Int8Tensor.from_hp: lambda w: [list(w.shape)],
    Float8Tensor.from_hp: lambda w, dtype: [list(w.shape)],
}


@st.composite
def calls(draw: st.DrawFn) -> tuple[Callable[..., Any], list[Any]]:
    """A good call with none, one or two arguments replaced."""
    rows, groups = draw(st.sampled_from(SIZES)), draw(st.integers(1, 4))
    group_size = draw(st.sampled_from([2, 3, 6, 16]))
    columns = groups * group_size * (2 if group_size % 2 else 1)
    dtype = draw(st.sampled_from(packing.FLOAT_DTYPES))
    float8 = draw(st.sampled_from(packing.FLOAT8_DTYPES))
    w = torch.randn(rows, columns, dtype=dtype)
    q = torch.randint(-8, 8, (rows, columns), dtype=torch.int8)
    packed, row_scale = q[:, ::2].contiguous(), torch.ones(rows, 1)
    scale = torch.ones(columns // group_size, rows, dtype=dtype)
    block_size = [1, group_size]
    good: dict[Callable[..., Any], list[Any]] = {
        packing.pack_int4: [q],
        packing.unpack_int4: [packed],
        packing.int4_row_quantize_zp: [w, group_size],
        packing.int4_row_quantize: [w, group_size],
        packing.int8_row_quantize: [w],
        packing.float8_row_quantize: [w, float8],
        packing.dequantize: draw(st.sampled_from([[packed, scale, scale], [q, row_scale]])),
        Int4Tensor: [packed, scale, scale, block_size, [rows, columns], scale.new_ones(columns)],
        Int8Tensor: [q, row_scale, [1, columns], dtype, draw(st.booleans())],
        Float8Tensor: [q.to(float8), row_scale, [1, columns], dtype, draw(st.booleans())],
        Int4Tensor.from_hp: [w, block_size],
        Int8Tensor.from_hp: [w],
        Float8Tensor.from_hp: [w, float8],
    }
    helper = draw(st.sampled_from(list(HELPERS)))
    arguments = good[helper]
    anything = st.one_of(
        tensors,
        st.none(),
        st.sampled_from(DTYPES),
        st.integers(-2, 70),
        st.lists(st.integers(-1, 70), max_size=3),
        st.text(max_size=2),
    )
    for _ in range(draw(st.integers(0, 2))):
        position = draw(st.integers(0, len(arguments) - 1))
        argument = arguments[position]
        is_matrix = isinstance(argument, Tensor) and argument.layout is torch.strided and argument.dim() == 2
        if is_matrix and draw(st.booleans()):
            shorter = argument[:, : draw(st.integers(0, argument.shape[1]))]
            arguments[position] = draw(st.sampled_from([shorter, argument.t(), argument[0:0]]))
        else:
            arguments[position] = draw(anything)
    return helper, arguments


@seed(SEED)
@settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(calls())
def draw_helper_calls(call: tuple[Callable[..., Any], list[Any]]) -> None:
    helper, arguments = call
    counts["calls"] += 1
    try:
        results = helper(*arguments)
    except (TypeError, ValueError) as error:
        counts["raised"] += 1
        text = str(error)
        assert " must " in text, text
        return
    counts["ran"] += 1
    results = results if isinstance(results, tuple) else (results,)
    assert shapes(*results) == HELPERS[helper](*arguments)


if __name__ == "__main__":
    print(f"AOEXT_TEST_SEED={SEED}", flush=True)
    draw_helper_calls()
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))

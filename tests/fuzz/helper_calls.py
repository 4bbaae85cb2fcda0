"""Calls, good and bad, of the Python helpers and of the tensors' constructors.

Each raises a TypeError or ValueError that says what must be, or gives results of the right shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aoext import packing
from aoext.formats.dtypes import FLOAT8_DTYPES, FLOAT_DTYPES
from aoext.packing.groups import WHOLE_ROW
from aoext.tensors import Float8Tensor, Int4Tensor, Int8Tensor
from fuzz.draws import DTYPES, SIZES, Answer, Draw, freed, is_changeable, told_call

Helper = Callable[..., Any]


def shapes(*results: Any) -> list[list[int]]:
    return [list(result.shape) for result in results]


def with_groups(K: int, rows: int, group_size: int) -> list[int]:
    return [1 if group_size == WHOLE_ROW else K // group_size, rows]


# Each helper, and what the shapes of its results must be for its arguments.
HELPERS: dict[Helper, Callable[..., list[list[int]]]] = {
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


def good_arguments(draw: Draw) -> dict[Helper, list[Any]]:
    rows, group_size = draw.choice(SIZES), draw.choice([2, 3, 6, 16])
    columns = draw.randint(1, 4) * group_size * (2 if group_size % 2 else 1)
    dtype, float8 = draw.choice(FLOAT_DTYPES), draw.choice(FLOAT8_DTYPES)
    w = torch.randn(rows, columns, generator=draw.generator()).to(dtype)
    q = torch.randint(-8, 8, (rows, columns), generator=draw.generator(), dtype=torch.int8)
    packed, row_scale = q[:, ::2].contiguous(), torch.ones(rows, 1)
    scale = torch.ones(columns // group_size, rows, dtype=dtype)
    block_size = [1, group_size]
    return {
        packing.pack_int4: [q],
        packing.unpack_int4: [packed],
        packing.int4_row_quantize_zp: [w, group_size],
        packing.int4_row_quantize: [w, group_size],
        packing.int8_row_quantize: [w],
        packing.float8_row_quantize: [w, float8],
        packing.dequantize: draw.choice([[packed, scale, scale], [q, row_scale]]),
        Int4Tensor: [packed, scale, scale, block_size, [rows, columns], scale.new_ones(columns)],
        Int8Tensor: [q, row_scale, [1, columns], dtype, draw.chance(0.5)],
        Float8Tensor: [q.to(float8), row_scale, [1, columns], dtype, draw.chance(0.5)],
        Int4Tensor.from_hp: [w, block_size],
        Int8Tensor.from_hp: [w],
        Float8Tensor.from_hp: [w, float8],
    }


def changed(draw: Draw, argument: Any) -> Any:
    if is_changeable(argument) and argument.dim() == 2 and draw.chance(0.5):
        shorter = argument[:, : draw.randint(0, argument.shape[1])]
        return draw.choice([shorter, argument.t(), argument[0:0], freed(argument)])
    return draw.choice(
        [
            draw.tensor(),
            None,
            draw.choice(DTYPES),
            draw.randint(-2, 70),
            [draw.randint(-1, 70) for _ in range(draw.randint(0, 3))],
            draw.choice(["", "x", 0.5, object()]),
        ]
    )


def helper_call(draw: Draw) -> tuple[str, Callable[[], Answer]]:
    """A good call with none, one or two arguments replaced."""
    helper = draw.choice(list(HELPERS))
    arguments = good_arguments(draw)[helper]
    for _ in range(draw.randint(0, 2)):
        position = draw.randrange(len(arguments))
        arguments[position] = changed(draw, arguments[position])

    def attempt() -> Answer:
        try:
            results = helper(*arguments)
        except (TypeError, ValueError) as error:
            text = str(error)
            assert " must " in text, text
            return "raised"
        except RuntimeError as error:
            if "2^48 elements" not in str(error):  # sizes that no memory has are left to the operators
                raise
            return "raised"
        results = results if isinstance(results, tuple) else (results,)
        assert shapes(*results) == HELPERS[helper](*arguments)
        return "ran"

    return told_call(helper.__qualname__, arguments), attempt

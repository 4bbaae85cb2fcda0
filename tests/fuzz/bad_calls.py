"""Calls of every operator with arguments that do not fit, and some that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import aoext
from aoext.formats.table import FORMATS, TABLE_SIZE, Code, Format
from aoext.reference import (
    ALL_CALLS,
    BIAS_CALLS,
    DEQUANTIZE_CALLS,
    EIGHT_BIT,
    HIGH_PRECISION,
    INT4_CALLS,
    QUANTIZE,
    Problem,
    op,
    operator_of,
)
from fuzz.draws import (
    DTYPES,
    INTEGERS,
    SIZES,
    Answer,
    Draw,
    freed,
    is_changeable,
    is_freed,
    refusal,
    sized,
    told_call,
)

# Operators whose result has the leading dimensions of the first argument.
OF_NO_INPUT = (*map(operator_of, DEQUANTIZE_CALLS), "convert_weight_to_int4pack")


def near_good_arguments(draw: Draw, operator: str) -> tuple[list[Any], dict[str, Any]]:
    """A good call with none, one or two arguments replaced or changed."""
    group_size = draw.choice([2, 3, 6, 16, 32, 64])
    K = draw.randint(1, 4) * group_size * (2 if group_size % 2 else 1)
    problem = Problem(
        draw.choice(SIZES),
        draw.choice(SIZES),
        K,
        group_size,
        draw.choice(HIGH_PRECISION),
        draw.choice(HIGH_PRECISION),
        draw.choice(EIGHT_BIT),
    )
    options: dict[str, Any] = {}
    if operator in QUANTIZE:
        x = torch.randn(problem.M, K, generator=draw.generator()).to(problem.dtype)
        arguments: list[Any] = [x, problem.eight_bit]
        if operator != "quantize_rowwise":
            arguments.append([1, group_size])
    else:
        cases = [case for case in ALL_CALLS if operator_of(case) == operator]
        call = ALL_CALLS[draw.choice(cases)](problem, draw.generator())
        arguments, options = list(call.args), dict(call.kwargs)
    good = tuple(arguments)
    for _ in range(draw.randint(0, 2)):
        i = draw.randrange(len(arguments))
        arguments[i] = changed(draw, arguments[i], type(good[i]))
    return arguments, options


def huge_arguments(draw: Draw, operator: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments that fit each other, with sizes that no memory holds: N is 0, and mostly so is M."""
    K = draw.choice([2**20, 2**31, 2**32, 2**48, 2**57, 2**58, 2**59, 2**60, 2**61, 2**62])
    K += draw.choice([0, 0, 128])
    groups = draw.choice([1, 2, 2**20, K // 64, K // 32, K // 2, K])
    leading = draw.choice([[0], [2**40, 0], [0, 2**40, 2**40], [2**62, 0], [0, 0], [2, 0]])
    high, float8 = draw.choice(HIGH_PRECISION), draw.choice(EIGHT_BIT[1:])
    eight_bit = torch.int8 if "i8" in operator or "int8" in operator else float8
    floats = draw.choice(HIGH_PRECISION)

    def parts(*parts: tuple[list[int], torch.dtype]) -> list[Any]:
        return [sized(shape, dtype) for shape, dtype in parts]

    x, bias = ([*leading, K], high), ([0], floats)
    int4 = ([0, K // 2], torch.int8), ([groups, 0], floats), ([groups, 0], floats)
    rows = ([0, K], eight_bit), ([0, 1], floats if operator.startswith("bf16") else torch.float32)
    inner = draw.choice([2, 4, 8])
    packed = ([0, K // (16 * inner), 32, inner // 2], torch.int32)
    block = [draw.choice([1, 7, 128, 2**40]), draw.choice([1, 32, 128, K // 2, K, 2**60])]
    scales = ([0, -(-K // block[1])], floats)
    codes = ([0, K // 2], torch.uint8), ([16], torch.float32), scales
    blocks_of_input = ([*leading, -(-K // block[1])], torch.float32)
    if operator == "quantize":
        return [*parts(x), eight_bit, [1, block[1]]], {}
    schema = op(operator)._schema.arguments
    if "code" in [argument.name for argument in schema]:
        code, of_input = draw.choice(list(Code)), ([*leading, K], eight_bit) if operator == "scaled_mm" else x
        given = {"input": of_input, "bias": bias, "input_block": [1, block[1]]}
        given |= weight_of(draw, FORMATS[code], K, groups, block, floats)
        given["input_scale"] = ([*leading, -(-K // block[1])], torch.float32)
        values = [given.get(argument.name) for argument in schema if not argument.kwarg_only]
        return [sized(*a) if isinstance(a, tuple) else a for a in values], {"code": int(code)}
    arguments = {
        "dequantize_blockwise": lambda: [*parts(rows[0], scales), block],
        "dequantize_lut4": lambda: [*parts(*codes), block],
        "bf16i8bf16_blockwise": lambda: [*parts(x, ([0, K], torch.int8), scales), block],
        "bf16i8bf16_blockwise_zp": lambda: [
            *parts(x, ([0, K], torch.int8), scales, (scales[0], torch.int8)),
            block,
        ],
        "bf16f8bf16_blockwise": lambda: [*parts(x, ([0, K], float8), scales), block],
        "bf16lut4bf16_blockwise": lambda: [*parts(x, *codes), block],
        "quantize_blockwise": lambda: [*parts(x), eight_bit, [1, block[1]]],
        "scaled_mm_blockwise": lambda: [
            *parts(([*leading, K], eight_bit), rows[0], blocks_of_input, scales),
            [1, block[1]],
            block,
        ],
        "scaled_linear_blockwise": lambda: [*parts(x, rows[0], scales), [1, block[1]], block],
        "scaled_mm_int4": lambda: parts(
            ([*leading, K], torch.int8), int4[0], ([*leading, 1], torch.float32), *int4[1:], bias
        ),
        "scaled_linear_int4": lambda: parts(x, *int4, bias),
        "bf16i4bf16_rowwise_grouped": lambda: parts(
            ([0, K], high),
            *(([3, *shape], dtype) for shape, dtype in int4),
            ([3], torch.int32),
            ([3, 0], floats),
        ),
        "dequantize_int4": lambda: parts(*int4),
        "dequantize_rowwise": lambda: parts(*rows),
        "int8_mm": lambda: parts(([*leading, K], torch.int8), rows[0]),
        "scaled_mm_rowwise": lambda: parts(
            ([*leading, K], eight_bit), rows[0], ([*leading, 1], torch.float32), rows[1], bias
        ),
        "scaled_linear_rowwise": lambda: parts(x, *rows, bias),
        "quantize_rowwise": lambda: [*parts(x), eight_bit],
        "convert_weight_to_int4pack": lambda: [*parts(([0, K // 2], torch.uint8)), inner],
        "weight_int4pack_mm": lambda: [
            *parts(([0, K], torch.bfloat16), packed),
            draw.choice([32, 64, 128, 256]),
            *parts(([groups, 0, 2], torch.bfloat16)),
        ],
    }
    if operator in arguments:
        return arguments[operator](), {}
    weight = int4 if operator in INT4_CALLS else rows
    return parts(x, *weight, *([bias] if operator in BIAS_CALLS else [])), {}


def weight_of(
    draw: Draw, format: Format, K: int, groups: int, block: list[int], floats: torch.dtype
) -> dict[str, Any]:
    """Shapes and dtypes of the arguments of a weight [0, K] in a format, by name, and its block size."""
    by_groups = format.scales == "groups"
    scale = [groups, 0] if by_groups else format.scale_shape(0, K, block)
    has_zero = format.zero == "added" or (format.zero == "subtracted" and draw.chance(0.5))
    return {
        "weight": (format.stored_shape(0, K), format.storage),
        "scale": (scale, floats),
        "block_size": None if by_groups else block,
        "zero_point": (scale, floats if format.zero == "added" else format.storage) if has_zero else None,
        "table": ([TABLE_SIZE], torch.float32) if format.has_table else None,
        "global_scale": ([1], torch.float32) if format.has_table and draw.chance(0.5) else None,
    }


def changed(draw: Draw, argument: Any, good_type: type) -> Any:
    """An argument in the place of a good one of that type."""
    kind = draw.choice(["tensor", "narrow", "none", "dtype", "transpose", "freed", "huge", "odd"])
    if kind == "none":
        return None
    if kind == "odd":
        # PyTorch writes what is no tensor into its error, and dies of writing one whose memory is gone.
        listed = [] if is_freed(argument) else [argument]
        return draw.choice(["text", listed, 1.5, True, object()])
    # PyTorch takes a number for a dtype and a tensor for a number, for its own operators too, and crashes on
    # numbers out of range and tensors without memory.
    if good_type is torch.dtype:
        return draw.choice(DTYPES)
    if good_type is int:
        return draw.choice(INTEGERS)
    if good_type is list:
        return [draw.choice(INTEGERS) for _ in range(draw.choice([0, 1, 2, 2, 2, 3]))]
    if kind == "tensor" or not is_changeable(argument):
        return draw.tensor()
    if kind == "dtype":
        return argument.to(draw.choice(DTYPES))
    if kind == "huge":
        return draw.huge(argument.dtype, argument.dim())
    if kind == "freed":
        return freed(argument)
    if kind == "narrow" and argument.dim() and argument.shape[-1]:
        return argument.narrow(-1, 0, argument.shape[-1] - 1)
    if kind == "transpose" and argument.dim():
        return argument.transpose(0, -1)
    return draw.tensor()


def bad_call(draw: Draw) -> tuple[str, Callable[[], Answer]]:
    operator = draw.choice(aoext.ops.operators())
    make = huge_arguments if draw.chance(0.1) else near_good_arguments
    arguments, options = make(draw, operator)
    # The generic twin is asked of dense CPU tensors alone: it is called past the dispatcher.
    generic = draw.chance(0.5) and type(arguments[0]) is Tensor
    generic &= all(
        a is None
        or type(a) in (torch.dtype, int, list)
        or (type(a) is Tensor and a.device.type == "cpu" and a.layout is not torch.jagged)
        for a in arguments
    )
    kernel = aoext.ops.generic(operator) if generic else getattr(torch.ops.ao, operator)
    words = told_call(f"{'generic ' if generic else ''}{operator}", arguments, options)

    def attempt() -> Answer:
        try:
            result = kernel(*arguments, **options)
        except (RuntimeError, TypeError, ValueError) as error:  # ValueError: PyTorch's own argument parser
            refusal(error, operator)
            return "raised"
        first = result[0] if isinstance(result, tuple) else result
        assert not (first.numel() and any(map(is_freed, arguments))), "it ran on memory that was freed"
        if operator not in OF_NO_INPUT:
            assert first.shape[:-1] == arguments[0].shape[:-1]
        return "ran"

    return words, attempt

"""Calls of every operator with arguments that do not fit, and some that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import aoext
from aoext.formats.table import FORMATS, Code
from aoext.reference import (
    ALL_CALLS,
    EIGHT_BIT,
    HIGH_PRECISION,
    QUANTIZE,
    Problem,
    operator_of,
    routed,
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

KINDS = [*ALL_CALLS, *QUANTIZE, "sort_by_expert"]
FOLDED = ("weight_only_linear", "scaled_linear", "scaled_mm", "dequantize")
# Operators whose result has the leading dimensions of the first argument.
OF_NO_INPUT = ("dequantize", "convert_weight_to_int4pack", "sort_by_expert")


def near_good_arguments(draw: Draw, kind: str) -> tuple[list[Any], dict[str, Any]]:
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
    if kind == "sort_by_expert":
        arguments: list[Any] = [routed(problem.M, 2, problem.experts, draw.generator()), problem.experts]
    elif kind in QUANTIZE:
        x = torch.randn(problem.M, K, generator=draw.generator()).to(problem.dtype)
        arguments = [x, problem.eight_bit]
        if kind == "quantize blocks":
            arguments.append([1, group_size])
    else:
        call = ALL_CALLS[kind](problem, draw.generator())
        arguments, options = list(call.args), dict(call.kwargs)
    good = tuple(arguments)
    for _ in range(draw.randint(0, 2)):
        i = draw.randrange(len(arguments))
        arguments[i] = changed(draw, arguments[i], type(good[i]))
    return arguments, options


def huge_arguments(draw: Draw, kind: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments that fit each other, with sizes that no memory holds: N is 0, and mostly so is M."""
    K = draw.choice([2**20, 2**31, 2**32, 2**48, 2**57, 2**58, 2**59, 2**60, 2**61, 2**62])
    K += draw.choice([0, 0, 128])
    groups = draw.choice([1, 2, 2**20, K // 64, K // 32, K // 2, K])
    leading = draw.choice([[0], [2**40, 0], [0, 2**40, 2**40], [2**62, 0], [0, 0], [2, 0]])
    high, floats = draw.choice(HIGH_PRECISION), draw.choice(HIGH_PRECISION)
    operator, inner = operator_of(kind), draw.choice([2, 4, 8])
    block = [draw.choice([1, 7, 128, 2**40]), draw.choice([1, 32, 128, K // 2, K, 2**60])]
    x, bias = sized([*leading, K], high), sized([0], floats)
    if operator == "sort_by_expert":
        return [sized(leading, torch.int64), draw.choice(INTEGERS)], {}
    if operator == "convert_weight_to_int4pack":
        return [sized([0, K // 2], torch.uint8), inner], {}
    if operator == "weight_int4pack_mm":
        packed = sized([0, K // (16 * inner), 32, inner // 2], torch.int32)
        pairs = sized([groups, 0, 2], torch.bfloat16)
        return [sized([0, K], torch.bfloat16), packed, draw.choice([32, 64, 128, 256]), pairs], {}

    code = draw.choice(list(Code)) if operator in FOLDED else Code.INT4 if "i4" in kind else Code.INT8
    format = FORMATS[code]
    experts = [3] if operator == "weight_only_linear" and draw.chance(0.3) else []
    by_rows = draw.chance(0.3) and not format.has_table
    scales = [groups, 0] if format.scales == "groups" else [0, 1 if by_rows else -(-K // block[1])]
    of_block = None if format.scales == "groups" or by_rows else block
    weight = sized([*experts, *format.stored_shape(0, K)], format.storage)
    scale = sized([*experts, *scales], torch.float32 if by_rows else floats)
    has_zero = format.zero == "added" or (format.zero == "subtracted" and draw.chance(0.5))
    zero = sized([*experts, *scales], scale.dtype if format.zero == "added" else format.storage)
    input_dtype = torch.int8 if format.scales == "groups" else format.storage
    narrow = sized([*leading, K], input_dtype)
    input_block = [1, block[1]] if of_block else None
    input_scale = sized([*leading, -(-K // block[1]) if of_block else 1], torch.float32)
    extra = {"zero_point": zero} if has_zero else {}
    if operator == "quantize":
        return [x, torch.int8, *([[1, block[1]]] if draw.chance(0.5) else [])], {}
    if operator == "int8_mm":
        return [sized([*leading, K], torch.int8), weight], {}
    if operator == "scaled_mm_rowwise":
        scales_of_rows = sized([*leading, 1], torch.float32), sized([0, 1], torch.float32)
        return [sized([*leading, K], torch.int8), sized([0, K], torch.int8), *scales_of_rows, bias], {}
    if operator == "scaled_mm":
        return [narrow, weight, input_scale, scale, code, bias, input_block, of_block], extra
    if operator == "scaled_linear":
        return [x, weight, scale, code, bias, input_block, of_block], extra
    if format.has_table:
        extra["table"] = sized([16], torch.float32)
    if operator == "dequantize":
        return [weight, scale, code, of_block], extra
    if operator == "weight_only_linear":
        if experts:
            x, bias = sized([0, K], high), sized([3, 0], floats)
            extra["offsets"] = sized([3], torch.int32)
        return [x, weight, scale, code, bias, of_block], extra
    return [x, weight, scale, zero, *([bias] if operator.endswith("_bias") else [])], {}


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
    kind = draw.choice(KINDS)
    operator = operator_of(kind)
    make = huge_arguments if draw.chance(0.1) else near_good_arguments
    arguments, options = make(draw, kind)
    schema = getattr(torch.ops.ao, operator).default._schema.arguments
    wants_tensor = ["Tensor" in str(argument.type) for argument in schema]
    misplaced = [
        i for i, a in enumerate(arguments[: len(schema)]) if isinstance(a, Tensor) and not wants_tensor[i]
    ]
    if misplaced:
        # PyTorch writes arguments into its own error then, and fails at one without memory or too large.
        small = torch.ones(2)
        arguments = [small if i in misplaced or is_freed(a) else a for i, a in enumerate(arguments)]
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

"""Whole calls: the arguments of one with all of its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.formats.dtypes import dtype_name

from .blockwise import Blockwise, weight_only_blockwise
from .subject import ALL, Problem, Subject
from .subjects import SUBJECTS, tinygemm_mm
from .values import inner_k_tiles


@dataclasses.dataclass(frozen=True)
class Call:
    operator: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reference: Tensor  # float64, or int32 where the result is exact
    terms: Tensor | None = None  # Σ|x·w| + |bias|, of products that are rounded
    weight: Tensor | None = None  # what the weight stands for, float64 [N, K]

    def on(self, device: torch.device | str) -> list[Any]:
        """The positional arguments there."""
        return [moved(argument, device) for argument in self.args]

    def named(self) -> dict[str, Any]:
        """The positional arguments by name."""
        names = (argument.name for argument in op(self.operator)._schema.arguments)
        return dict(zip(names, self.args, strict=False))

    def run(self, device: torch.device, kernel: Callable[..., Any]) -> Any:
        return kernel(*self.on(device), **self.kwargs)


def moved(argument: Any, device: torch.device | str) -> Any:
    """An argument of a call on a device; what is no tensor stays."""
    return argument.to(device) if isinstance(argument, Tensor) else argument


MakeCall = Callable[[Problem, Generator], Call]


def op(name: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.ao, name).default


def _call(subject: Subject, p: Problem, g: Generator) -> Call:
    x, w = subject.inputs(p, g), subject.rotated(p, g)
    args, kwargs = subject.call(lambda *args, **kwargs: (args, kwargs), p, x, w)
    reference, terms = subject.expected(p, x, w, ALL, ALL)
    if subject.exact:
        return Call(subject.operator, args, kwargs, reference.to(torch.int32))
    weight = None if subject.weight is None else subject.weight.rows(p, w, ALL)
    return Call(subject.operator, args, kwargs, reference, terms, weight)


def _of_operator(operator: str) -> MakeCall:
    """Makes calls in the format that a problem names, or in the operator's first where it lacks that."""
    formats = {subject.format: subject for subject in SUBJECTS if subject.operator == operator}

    def make(p: Problem, g: Generator) -> Call:
        subject = formats.get(dtype_name(p.eight_bit)) or next(iter(formats.values()))
        return _call(subject, p, g)

    return make


def blockwise_weight_only(format: Blockwise, p: Problem, g: Generator) -> Call:
    """A weight-only product in a format that need not be one of SUBJECTS."""
    return _call(weight_only_blockwise(format), p, g)


_TINYGEMM = ("convert_weight_to_int4pack", "weight_int4pack_mm")

# These have results of two tensors, and tests of their own.
QUANTIZE = ("quantize_rowwise", "quantize_blockwise")

# Their rows have a weight each expert: test_grouped.py tests them.
GROUPED = ("bf16i4bf16_rowwise_grouped",)

# Every other operator with a floating point or int32 result.
CALLS: dict[str, MakeCall] = {
    operator: _of_operator(operator)
    for operator in dict.fromkeys(subject.operator for subject in SUBJECTS)
    if operator not in (*_TINYGEMM, *QUANTIZE, *GROUPED)
}


def _grouped(operator: str) -> MakeCall:
    """Inputs have no leading dimensions."""
    return lambda p, g: _of_operator(operator)(dataclasses.replace(p, leading=None), g)


GROUPED_CALLS: dict[str, MakeCall] = {operator: _grouped(operator) for operator in GROUPED}
bf16i4bf16_rowwise = CALLS["bf16i4bf16_rowwise"]


def tinygemm_problem(p: Problem) -> Problem:
    """The nearest smaller problem that the tinygemm layout can hold, or the smallest."""
    group_size = max((G for G in (32, 64, 128, 256) if p.group_size >= G), default=32)
    K = max(p.K // group_size, 1) * group_size
    sizes = {"N": p.N // 8 * 8, "K": K, "group_size": group_size}
    return dataclasses.replace(p, **sizes, dtype=torch.bfloat16, leading=None)  # type: ignore[arg-type]


def convert_weight_to_int4pack(p: Problem, g: Generator) -> Call:
    return _of_operator("convert_weight_to_int4pack")(tinygemm_problem(p), g)


def weight_int4pack_mm(p: Problem, g: Generator, inner: int | None = None) -> Call:
    """inner: the layout's inner_k_tiles, the widest that divides K if none is given."""
    return _call(tinygemm_mm(lambda K: inner or inner_k_tiles(K)), tinygemm_problem(p), g)


# The operators of the tinygemm layout, which holds few shapes and one dtype: test_tinygemm.py tests them.
TINYGEMM_CALLS: dict[str, MakeCall] = {
    make.__name__: make for make in (convert_weight_to_int4pack, weight_int4pack_mm)
}
ALL_CALLS = {**CALLS, **TINYGEMM_CALLS, **GROUPED_CALLS}

# Operators whose input is a high-precision activation, and those that have any input.
ACTIVATION_CALLS = [name for name in CALLS if name.startswith(("bf16", "scaled_linear"))]
DEQUANTIZE_CALLS = [name for name in CALLS if name.startswith("dequantize")]
INPUT_CALLS = [name for name in CALLS if name not in DEQUANTIZE_CALLS]
INT4_CALLS = ["bf16i4bf16_rowwise", "bf16i4bf16_rowwise_bias", "dequantize_int4"]
# Operators whose weights have two codes to a byte, so that K is even.
FOUR_BIT_CALLS = [name for name in CALLS if "i4" in name or "int4" in name or "lut4" in name]
BLOCKWISE_CALLS = [name for name in CALLS if "blockwise" in name or "lut4" in name]
# Operators whose last argument is a bias, and those that can do without one.
BIAS_CALLS = [name for name in INPUT_CALLS if name not in ("bf16i4bf16_rowwise", "int8_mm")]
OPTIONAL_BIAS_CALLS = [name for name in BIAS_CALLS if name not in INT4_CALLS]


def without_bias(call: Call) -> Call:
    """A call without its bias, if it has one of OPTIONAL_BIAS_CALLS; its `terms` go then."""
    if call.operator not in OPTIONAL_BIAS_CALLS:
        return call
    *args, bias = call.args
    return dataclasses.replace(call, args=tuple(args), reference=call.reference - bias.double(), terms=None)

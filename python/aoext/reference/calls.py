"""Whole calls: the arguments of one with all of its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.formats.dtypes import dtype_name
from aoext.formats.table import FORMATS, Format

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


def operator_of(case: str) -> str:
    """The operator of a case, whose name may say a kind of arguments behind it."""
    return case.split()[0]


def op(case: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.ao, operator_of(case)).default


def _call(subject: Subject, p: Problem, g: Generator) -> Call:
    x, w = subject.inputs(p, g), subject.rotated(p, g)
    args, kwargs = subject.call(lambda *args, **kwargs: (args, kwargs), p, x, w)
    reference, terms = subject.expected(p, x, w, ALL, ALL)
    if subject.exact:
        return Call(subject.operator, args, kwargs, reference.to(torch.int32))
    weight = None if subject.weight is None else subject.weight.rows(p, w, ALL)
    return Call(subject.operator, args, kwargs, reference, terms, weight)


def _of_case(case: str) -> MakeCall:
    """Makes calls in the format that a problem names, or in the case's first where it lacks that."""
    formats = {subject.format: subject for subject in SUBJECTS if subject.case == case}

    def make(p: Problem, g: Generator) -> Call:
        subject = formats.get(dtype_name(p.eight_bit)) or next(iter(formats.values()))
        return _call(subject, p, g)

    return make


def blockwise_weight_only(format: Blockwise, p: Problem, g: Generator) -> Call:
    """A weight-only product in a format that need not be one of SUBJECTS."""
    return _call(weight_only_blockwise(format), p, g)


_TINYGEMM = ("convert_weight_to_int4pack", "weight_int4pack_mm")

# These have results of two tensors, and tests of their own.
QUANTIZE = ("quantize", "quantize_rowwise", "quantize_blockwise")

# Their rows have a weight each expert: test_grouped.py tests them.
GROUPED = tuple(subject.case for subject in SUBJECTS if subject.by_expert)

# Every other operator with a floating point or int32 result, in each kind of its arguments.
CALLS: dict[str, MakeCall] = {
    case: _of_case(case)
    for case in dict.fromkeys(subject.case for subject in SUBJECTS)
    if operator_of(case) not in (*_TINYGEMM, *QUANTIZE) and case not in GROUPED
}


def _grouped(operator: str) -> MakeCall:
    """Inputs have no leading dimensions."""
    return lambda p, g: _of_case(operator)(dataclasses.replace(p, leading=None), g)


GROUPED_CALLS: dict[str, MakeCall] = {operator: _grouped(operator) for operator in GROUPED}
bf16i4bf16_rowwise = CALLS["bf16i4bf16_rowwise"]


def tinygemm_problem(p: Problem) -> Problem:
    """The nearest smaller problem that the tinygemm layout can hold, or the smallest."""
    group_size = max((G for G in (32, 64, 128, 256) if p.group_size >= G), default=32)
    K = max(p.K // group_size, 1) * group_size
    sizes = {"N": p.N // 8 * 8, "K": K, "group_size": group_size}
    return dataclasses.replace(p, **sizes, dtype=torch.bfloat16, leading=None)  # type: ignore[arg-type]


def convert_weight_to_int4pack(p: Problem, g: Generator) -> Call:
    return _of_case("convert_weight_to_int4pack")(tinygemm_problem(p), g)


def weight_int4pack_mm(p: Problem, g: Generator, inner: int | None = None) -> Call:
    """inner: the layout's inner_k_tiles, the widest that divides K if none is given."""
    return _call(tinygemm_mm(lambda K: inner or inner_k_tiles(K)), tinygemm_problem(p), g)


# The operators of the tinygemm layout, which holds few shapes and one dtype: test_tinygemm.py tests them.
TINYGEMM_CALLS: dict[str, MakeCall] = {
    make.__name__: make for make in (convert_weight_to_int4pack, weight_int4pack_mm)
}
# Operators that have several kinds of arguments are there by their names too, with the first.
_OPERATORS = {operator_of(case): make for case, make in reversed(CALLS.items())}
ALL_CALLS = {**_OPERATORS, **CALLS, **TINYGEMM_CALLS, **GROUPED_CALLS}


def _cases(fits: Callable[[Subject], bool]) -> list[str]:
    return [case for case in CALLS if all(fits(s) for s in SUBJECTS if s.case == case)]


def _has_code(subject: Subject, fits: Callable[[Format], bool]) -> bool:
    return subject.weight is not None and fits(FORMATS[subject.weight.code])


# Cases whose input is a high-precision activation, and those that have any input.
ACTIVATION_CALLS = _cases(lambda s: s.takes_activations)
DEQUANTIZE_CALLS = _cases(lambda s: s.is_dequantization)
INPUT_CALLS = [name for name in CALLS if name not in DEQUANTIZE_CALLS]
INT4_CALLS = ["bf16i4bf16_rowwise", "bf16i4bf16_rowwise_bias", "dequantize_int4"]
# Cases whose weights have several codes to a byte, so that K is even.
FOUR_BIT_CALLS = _cases(lambda s: _has_code(s, lambda format: format.codes_a_byte > 1))
BLOCKWISE_CALLS = _cases(lambda s: s.weight is not None and s.weight.by_blocks)
# Cases whose last argument is a bias, and those that can do without one.
BIAS_CALLS = _cases(lambda s: "bias" in s.arguments_by_name)
OPTIONAL_BIAS_CALLS = _cases(lambda s: "bias" in s.arguments_by_name and not s.requires_bias)


def without_bias(call: Call) -> Call:
    """A call without its bias, if that is optional; its `terms` go then."""
    if call.operator not in map(operator_of, OPTIONAL_BIAS_CALLS):
        return call
    *args, bias = call.args
    return dataclasses.replace(call, args=tuple(args), reference=call.reference - bias.double(), terms=None)

"""Whole calls: the arguments of one with all of its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from aoext.formats.dtypes import dtype_name
from aoext.formats.table import FORMATS, Code

from .subject import ALL, Problem, Subject
from .subjects import SUBJECTS, tinygemm_mm
from .values import inner_k_tiles


@dataclasses.dataclass(frozen=True)
class Call:
    operator: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reference: Tensor  # float64, or int32 where the result is exact
    terms: Tensor | None = None  # Σ|x·w| + |bias|, of products that are rounded; w as it is added up
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


def op(kind: str) -> torch._ops.OpOverload:
    """The operator of a kind of calls."""
    return getattr(torch.ops.ao, operator_of(kind)).default


def operator_of(kind: str) -> str:
    return kind.partition(" ")[0]


def call_of(subject: Subject, p: Problem, g: Generator) -> Call:
    x, w = subject.inputs(p, g), subject.rotated(p, g)
    args, kwargs = subject.arguments(p, x, w)
    reference, terms = subject.expected(p, x, w, ALL, ALL)
    if subject.exact:
        return Call(subject.operator, args, kwargs, reference.to(torch.int32))
    weight = None if subject.weight is None else subject.weight.rows(p, w, ALL)
    return Call(subject.operator, args, kwargs, reference, terms, weight)


def _codes(kind: str) -> list[Code]:
    """The codes that a kind of calls names; int8's where it names none."""
    named = [code for code in Code if code.name.lower() in kind.split()]
    return named or [Code.INT4 if "i4" in kind or "int4" in kind else Code.INT8]


def _of_kind(kind: str) -> MakeCall:
    """Makes calls in the format of the dtype that a problem names, or in the first that the kind has."""
    own = [subject for subject in SUBJECTS if subject.kind == kind]
    together = max(FORMATS[code].values for code in _codes(kind))

    def make(p: Problem, g: Generator) -> Call:
        if together > 2 and p.K % together:  # as many groups, each of them whole blocks
            group_size = -(-p.group_size // together) * together
            p = dataclasses.replace(p, K=-(-p.K // p.group_size) * group_size, group_size=group_size)
        named = (subject for subject in own if dtype_name(p.eight_bit) in subject.format.split())
        return call_of(next(named, own[0]), p, g)

    return make


_TINYGEMM = ("convert_weight_to_int4pack", "weight_int4pack_mm")

# These have results of two tensors, and tests of their own.
QUANTIZE = ("quantize rows", "quantize blocks")

# Their rows have a weight each expert: test_grouped.py tests them.
GROUPED = tuple(dict.fromkeys(s.kind for s in SUBJECTS if s.kind.endswith(" experts")))

# Every other kind of call, with a floating point or int32 result.
CALLS: dict[str, MakeCall] = {
    kind: _of_kind(kind)
    for kind in dict.fromkeys(subject.kind for subject in SUBJECTS)
    if kind not in (*_TINYGEMM, *QUANTIZE, *GROUPED)
}


def _grouped(kind: str) -> MakeCall:
    """Inputs have no leading dimensions."""
    return lambda p, g: _of_kind(kind)(dataclasses.replace(p, leading=None), g)


GROUPED_CALLS: dict[str, MakeCall] = {kind: _grouped(kind) for kind in GROUPED}
bf16i4bf16_rowwise = CALLS["bf16i4bf16_rowwise"]


def tinygemm_problem(p: Problem) -> Problem:
    """The nearest smaller problem that the tinygemm layout can hold, or the smallest."""
    group_size = max((G for G in (32, 64, 128, 256) if p.group_size >= G), default=32)
    K = max(p.K // group_size, 1) * group_size
    sizes = {"N": p.N // 8 * 8, "K": K, "group_size": group_size}
    return dataclasses.replace(p, **sizes, dtype=torch.bfloat16, leading=None)  # type: ignore[arg-type]


def convert_weight_to_int4pack(p: Problem, g: Generator) -> Call:
    return _of_kind("convert_weight_to_int4pack")(tinygemm_problem(p), g)


def weight_int4pack_mm(p: Problem, g: Generator, inner: int | None = None) -> Call:
    """inner: the layout's inner_k_tiles, the widest that divides K if none is given."""
    return call_of(tinygemm_mm(lambda K: inner or inner_k_tiles(K)), tinygemm_problem(p), g)


# The operators of the tinygemm layout, which holds few shapes and one dtype: test_tinygemm.py tests them.
TINYGEMM_CALLS: dict[str, MakeCall] = {
    make.__name__: make for make in (convert_weight_to_int4pack, weight_int4pack_mm)
}
ALL_CALLS = {**CALLS, **TINYGEMM_CALLS, **GROUPED_CALLS}

# Kinds whose input is a high-precision activation, and those that have any input.
ACTIVATION_CALLS = [kind for kind in CALLS if kind.startswith(("bf16", "weight_only", "scaled_linear"))]
DEQUANTIZE_CALLS = [kind for kind in CALLS if kind.startswith("dequantize")]
INPUT_CALLS = [kind for kind in CALLS if kind not in DEQUANTIZE_CALLS]
INT4_CALLS = ["bf16i4bf16_rowwise", "bf16i4bf16_rowwise_bias", "weight_only_linear int4", "dequantize int4"]
# Kinds whose weights have several codes to a byte, so that not every K will do.
PACKED_CALLS = [kind for kind in CALLS if any(FORMATS[code].is_packed for code in _codes(kind))]
BLOCKWISE_CALLS = [kind for kind in CALLS if kind.endswith((" blocks", " zeros", " lut4"))]
# Kinds with a bias, and those that can do without one.
BIAS_CALLS = [kind for kind in INPUT_CALLS if kind not in ("bf16i4bf16_rowwise", "int8_mm")]
OPTIONAL_BIAS_CALLS = [kind for kind in BIAS_CALLS if kind != "bf16i4bf16_rowwise_bias"]
_MAY_LACK_BIAS = {operator_of(kind) for kind in OPTIONAL_BIAS_CALLS}


def without_bias(call: Call) -> Call:
    """A call without its bias, and what is None at the end then, if its operator takes one or none.

    Its `terms` go then.
    """
    if call.operator not in _MAY_LACK_BIAS:
        return call
    named = call.named()
    bias = named["bias"]
    args = list({**named, "bias": None}.values())
    while args[-1] is None:
        args.pop()
    return dataclasses.replace(call, args=tuple(args), reference=call.reference - bias.double(), terms=None)

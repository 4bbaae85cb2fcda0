"""`torch.ops.ao.<operator>.out`: each operator with its results written into given tensors.

What torch.export's users look up by an operator's schema, as ExecuTorch does, whose runtime plans memory and
brings kernels of its own. Here a result is computed and copied: `out` may share memory with any argument, is
resized as PyTorch resizes it (with a warning where it had elements), and must have the result's dtype and
device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aoext.formats.dtypes import dtype_name
from aoext.operators.calls import ao, operators

# The overloads live as long as this object.
_library = torch.library.Library("ao", "FRAGMENT")


def _out_names(schema: Any) -> list[str]:
    """`out`, or `out0`, `out1` and so on where an operator has several results."""
    count = len(schema.returns)
    return ["out"] if count == 1 else [f"out{i}" for i in range(count)]


def _out_schema(schema: Any) -> str:
    """A functional operator's schema with an argument for each result."""
    aliases = [f"Tensor({chr(ord('a') + i)}!)" for i in range(len(schema.returns))]
    outs = [f"{alias} {name}" for alias, name in zip(aliases, _out_names(schema), strict=True)]
    if not any(argument.kwarg_only for argument in schema.arguments):
        outs.insert(0, "*")
    name, _, arguments = str(schema).removeprefix("ao::").rpartition(" -> ")[0].partition("(")
    results = aliases[0] if len(aliases) == 1 else f"({', '.join(aliases)})"
    return f"{name}.out({arguments.removesuffix(')')}, {', '.join(outs)}) -> {results}"


def _kernel(operator: str) -> Callable[..., Any]:
    """What the overload `out` of an operator does, on every device and for fake tensors."""
    functional = getattr(ao, operator).default
    names = _out_names(functional._schema)

    def into_out(*args: Any, **kwargs: Any) -> Any:
        outs = {name: kwargs.pop(name) for name in names}
        tensors = [a for a in (*args, *kwargs.values(), *outs.values()) if isinstance(a, Tensor)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise RuntimeError(
                f"ao::{operator}.out: no argument may require gradients, which out= does not support"
            )
        result = functional(*args, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        for (name, out), value in zip(outs.items(), results, strict=True):
            _check(operator, name, out, value)
        for (name, out), value in zip(outs.items(), results, strict=True):
            _warn_of_resizing(operator, name, out, value)
            torch.ops.aten.clone.out(value, out=out)  # which resizes out
        return outs[names[0]] if len(names) == 1 else tuple(outs.values())

    return into_out


def _check(operator: str, name: str, out: Tensor, result: Tensor) -> None:
    if (out.dtype, out.device) != (result.dtype, result.device):
        raise RuntimeError(
            f"ao::{operator}.out: {name} must be {dtype_name(result.dtype)} on {result.device}, "
            f"got {dtype_name(out.dtype)} on {out.device}"
        )


def _warn_of_resizing(operator: str, name: str, out: Tensor, result: Tensor) -> None:
    if out.shape != result.shape and out.numel() != 0:
        warnings.warn(
            f"ao::{operator}.out: {name} was resized, because it had elements and another shape "
            f"{list(out.shape)} than the result's {list(result.shape)}; give an empty tensor",
            stacklevel=2,
        )


def _define(operator: str) -> None:
    packet = getattr(ao, operator)
    call = packet._op
    _library.define(_out_schema(packet.default._schema))
    _library.impl(f"{operator}.out", _kernel(operator), "CompositeImplicitAutograd")
    # torch.ops.ao.<operator>(...) goes on without a choice of overloads, in its time, errors and hash.
    packet._op = call


for _operator in operators():
    _define(_operator)

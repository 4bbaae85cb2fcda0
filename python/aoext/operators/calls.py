"""The operators of `torch.ops.ao` by name, and the arguments of their calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ao = torch.ops.ao


def operators() -> list[str]:
    """The names of aoext's public operators; torchao has some of its own in the namespace ao."""
    return sorted(ao._operators().split()) if hasattr(ao, "_operators") else []


def bound(operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names in the operator's schema, in its order; None where left out."""
    names = [a.name for a in getattr(ao, operator).default._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: given.get(name) for name in names}


def described(
    operator: str, arguments: dict[str, Any]
) -> tuple[list[Tensor | None], list[int], torch.dtype | None]:
    """The arguments of a call, as `bound` gives them, by kind, each kind in order: what `_explain` takes.

    A list of numbers has its length first, −1 for None; what is left out and has a default of its own takes
    that.
    """
    tensors: list[Tensor | None] = []
    numbers: list[int] = []
    dtype = None
    for argument in getattr(ao, operator).default._schema.arguments:
        value = arguments[argument.name]
        if value is None:
            value = argument.default_value
        kind = argument.real_type
        if isinstance(kind, torch.OptionalType):
            kind = kind.getElementType()
        if isinstance(kind, torch.TensorType):
            tensors.append(value)
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (list, tuple)):
            numbers += [len(value), *value]
        elif value is not None:
            numbers.append(int(value))
        elif isinstance(kind, torch.ListType):
            numbers.append(-1)
    return tensors, numbers, dtype

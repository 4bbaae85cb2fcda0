"""Weights of experts with low-rank changes beside them, W + Σ s·L·R, in the products of their modules.

Neither the sum nor L·R is ever there: a product is that with W, plus two thin ones for each change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aoext.tensors.base import QuantizedTensor
from aoext.tensors.low_rank_experts import adapted_experts, added, takes
from aoext.tensors.products import linear


class Change(NamedTuple):
    """What is added to a weight [E, A, B], or to one expert's [A, B]: scale · left · right.

    left: [E, A, r] or [A, r]; right: [E, r, B] or [r, B]
    """

    left: Tensor
    right: Tensor
    scale: float

    def of(self, expert: Any) -> Change:
        return Change(self.left[expert], self.right[expert], self.scale)

    def dense(self) -> Tensor:
        """As a plain tensor of float32."""
        return self.scale * (self.left.float() @ self.right.float())


@dataclass(frozen=True)
class AdaptedWeight:
    """A quantised weight [E, A, B], or one expert's [A, B], and its changes, where a module reads its weight.

    It is no tensor, and answers for what forwards of experts ask of theirs: sizes, an expert by its number,
    torch.bmm and F.linear.
    """

    weight: Any
    changes: Sequence[Change]

    @property
    def shape(self) -> torch.Size:
        return self.weight.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.weight.device

    def __len__(self) -> int:
        return len(self.weight)

    def __getitem__(self, expert: Any) -> AdaptedWeight:
        return AdaptedWeight(self.weight[expert], [change.of(expert) for change in self.changes])

    def times(self, rows: Tensor, bias: Tensor | None, transposed: bool, offsets: Tensor | None) -> Tensor:
        """rows [T, A] times the weights of their experts, or [T, B] unless `transposed`, plus bias.

        offsets: where the rows of each expert end; None beside one expert's weight
        """
        if offsets is not None and takes(rows, self.weight, self.changes):
            return adapted_experts(rows, self.weight, bias, transposed, offsets, self.changes)
        return self._changed(linear(rows, self.weight, bias, transposed, offsets), rows, transposed, offsets)

    def _changed(
        self, product: Tensor, rows: Tensor, transposed: bool, offsets: Tensor | None = None
    ) -> Tensor:
        for change in self.changes:
            product = added(product, rows, change, transposed, offsets)
        return product

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is torch.bmm and not kwargs and len(args) == 2 and isinstance(args[1], cls):
            rows, weight = args
            return weight._changed(torch.bmm(rows, weight.weight), rows, True)
        if function is torch.nn.functional.linear and isinstance(args[1], cls):
            return _linear(*args, **(kwargs or {}))
        raise NotImplementedError(
            f"{getattr(function, '__name__', function)} with a quantised weight of experts that has "
            "adapters: set_experts_implementation('aoext') of the model chooses a function that takes them"
        )


def _linear(input: Tensor, weight: AdaptedWeight, bias: Tensor | None = None) -> Tensor:
    return weight.times(input, bias, False, None)


def quantized(weight: Any) -> QuantizedTensor | None:
    """A quantised weight, with its changes or without; None for others."""
    weight = weight.weight if isinstance(weight, AdaptedWeight) else weight
    return weight if isinstance(weight, QuantizedTensor) else None

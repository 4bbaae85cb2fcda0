"""A quantised weight as a backward pass keeps it, without a tensor to save for each of its fields."""

from __future__ import annotations

from torch import Tensor

from aoext.tensors.base import QuantizedTensor


class KeptWeight:
    """A weight as it is now. It knows of writes into it as autograd does of those into tensors it has saved.

    What autograd saves goes through hooks, field by field: for gradient checkpointing and offloading, which
    have nothing to gain from a frozen weight.
    """

    def __init__(self, weight: QuantizedTensor) -> None:
        self._weight = weight
        self._fields = dict(weight.named_fields())
        self._versions = _versions(self._fields)

    def get(self) -> QuantizedTensor:
        """The weight; RuntimeError if it has been overwritten."""
        if _versions(self._fields) != self._versions:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: a {type(self._weight).__name__} {list(self._weight.shape)} was overwritten "
                "between the forward and the backward pass"
            )
        own = self._weight.__dict__
        if all(own[name] is field for name, field in self._fields.items()):
            return self._weight
        return self._weight.remade(self._fields)


def _versions(fields: dict[str, Tensor]) -> list[int]:
    return [field._version for field in fields.values() if not field.is_inference()]

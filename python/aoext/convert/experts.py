"""The plain experts of a checkpoint as the model has them: those of a layer in one tensor.

Files of most models have each expert's matrices apart. They are quantised one by one where no more than
joining rows makes a weight of them, else a layer's at a time, put together by transformers' conversions.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from aoext.checkpoints.experts import check_numbers, put_together
from aoext.checkpoints.settings import named
from aoext.configs import QuantizationConfig
from aoext.convert.source import Checkpoint
from aoext.tensors import QuantizedTensor


class PlainExperts:
    """Which tensors of a checkpoint make up each weight of experts.

    modules: those that have the weights, by the weights' names in the model
    """

    def __init__(self, source: Checkpoint, modules: Mapping[str, nn.Module]) -> None:
        self.modules = modules
        # By weights: their keys, in the order of experts, and as what part of the conversion each counts.
        self.parts: dict[str, dict[str, int]] = {}
        self._conversion: dict[str, Any] = {}  # of each weight; None where it is one tensor already
        if modules:
            self._find(source.model, source.places)
        self.one_by_one = source.experts_one_by_one() if modules else {}

    def _find(self, model: Any, keys: Iterable[str]) -> None:
        from aoext.integrations.transformers import candidates, conversions_of

        self.model = model
        conversions = conversions_of(model)
        for key in sorted(keys, key=_numbers_as_such):
            converted, conversion, part = conversions.converted(conversions.renamed(key))
            name = next((name for name in candidates(model, converted) if name in self.modules), None)
            if name is not None:
                self.parts.setdefault(name, {})[key] = part
                self._conversion[name] = conversion

    def quantized(
        self, name: str, config: QuantizationConfig, read: Callable[[str], Tensor]
    ) -> QuantizedTensor | None:
        """A weight [E, N, K], quantised expert by expert; None where the files have it in one tensor."""
        experts = self.one_by_one.get(name)
        if experts is None:
            return None

        def of_expert(e: int) -> Tensor:
            rows = [read(f"{part.layers[e]}.weight") for part in experts.parts]
            return torch.stack(rows, 1).flatten(0, 1) if experts.interleaved else torch.cat(rows)

        with named(f"convert: {name}"):
            check_numbers(experts)
            return put_together(
                (config.quantize(of_expert(e)) for e in range(experts.shape[0])), experts.shape
            )

    def tensor(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        """A plain weight of experts, of what `read` gives of the files; ValueError where that makes none."""
        parts = self.parts[name]
        conversion = copy.deepcopy(self._conversion[name])
        if conversion is None:
            tensor = read(next(iter(parts)))
        else:
            for key, part in parts.items():
                conversion.add_tensor(name, key, conversion.source_patterns[part], read(key))
            tensor = conversion.convert(name, model=self.model, config=self.model.config)[name]
        tensor = tensor[0] if isinstance(tensor, list) else tensor
        wanted = self.model.get_parameter(name).shape
        if tensor.shape != wanted:
            raise ValueError(
                f"convert: {name} must be {list(wanted)}, and the files have {list(tensor.shape)} of it"
            )
        return tensor


def _numbers_as_such(name: str) -> list[Any]:
    """A key to sort names by: experts.2 before experts.10."""
    return [(1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name) if part]

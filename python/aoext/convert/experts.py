"""The plain experts of a checkpoint as the model has them: those of a layer in one tensor.

Files of most models have each expert's matrices apart. They are quantised one by one where no more than
joining rows makes a weight of them, else a layer's at a time, put together by transformers' conversions.
"""

from __future__ import annotations

import copy
import itertools
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
        # By weights: their keys, in the order of experts, and which pattern of a converter each fits.
        self.parts: dict[str, dict[str, str | None]] = {}
        if modules:
            self._find(source.model, source.places)
        self.one_by_one = source.experts_one_by_one() if modules else {}
        self.weight_of = {key: name for name, parts in self.parts.items() for key in parts}

    def _find(self, model: Any, keys: Iterable[str]) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

        self.model = model
        conversions = get_model_conversion_mapping(model)
        renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
        converters = [each for each in conversions if isinstance(each, WeightConverter)]
        self._converter_of = {pattern: each for each in converters for pattern in each.source_patterns}
        state = model.state_dict()
        for key in sorted(keys, key=_numbers_as_such):
            name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, state)
            if name in self.modules:
                self.parts.setdefault(name, {})[key] = pattern

    def quantized(
        self, name: str, config: QuantizationConfig, read: Callable[[str], Tensor]
    ) -> QuantizedTensor | None:
        """A weight [E, N, K], quantised expert by expert; None where it takes all of them at once."""
        experts = self.one_by_one.get(name)
        if experts is None:
            return None

        def of_expert(e: int) -> Tensor:
            rows = [read(f"{part.layers[e]}.weight") for part in experts.parts]
            return torch.stack(rows, 1).flatten(0, 1) if experts.interleaved else torch.cat(rows)

        with named(f"convert: {name}"):
            check_numbers(experts)
            first = config.quantize(of_expert(0))
            if first.global_scale is not None:  # which follows from all experts
                return None
            others = (config.quantize(of_expert(e)) for e in range(1, experts.shape[0]))
            return put_together(itertools.chain([first], others), experts.shape)

    def tensor(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        """A plain weight of experts, of what `read` gives of the files; ValueError where that makes none."""
        parts = self.parts[name]
        (first, pattern), *_ = parts.items()
        if pattern is None:
            tensor = read(first)
        else:
            converter = copy.deepcopy(self._converter_of[pattern])
            for key, fits in parts.items():
                converter.add_tensor(name, key, fits, read(key))
            tensor = converter.convert(name, model=self.model, config=self.model.config)[name]
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

"""Linear layers of vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import LinearMethodBase

from aoext.integrations.vllm.fields import GLOBAL_SCALE, Fields
from aoext.tensors.fields import K, N
from aoext.tensors.products import linear


class AoextLinearMethod(LinearMethodBase):
    """A linear layer whose weight has the fields of one of aoext's tensors.

    While the checkpoint loads, these are parameters `weight.qdata` and the like, which vLLM cuts and merges
    along N and K; then they become one quantised weight.
    """

    def __init__(self, description: Mapping[str, Any], prefix: str) -> None:
        self.description = description
        self.prefix = prefix

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        whole = (output_size == output_partition_sizes[0], input_size == input_size_per_partition)
        self.fields = Fields(
            self.prefix, self.description, output_partition_sizes, input_size_per_partition, whole
        )
        attributes = {}
        for name in self.description["fields"]:
            loader = {"weight_loader": self.fields.load_shared} if self.fields.is_shared(name) else {}
            attributes[name] = {**self._sides(name), **extra_weight_attrs, **loader}
        layer.weight = self.fields.parameters(attributes)
        self.dtype = params_dtype

    def _sides(self, name: str) -> dict[str, Any]:
        """Where ranks and merged layers have their shares of a field, as vLLM's loaders want to know it."""
        if name == GLOBAL_SCALE:
            return {"needs_scalar_to_array": True}
        dims = len(self.fields.kind.fields[name].axes)
        positions = {"output_dim": self.fields.position(name, N), "input_dim": self.fields.position(name, K)}
        sides = {side: dims + at for side, at in positions.items() if at is not None}
        rows = self.fields.rows_of_entry(name)
        return {**sides, "packed_dim": sides["output_dim"], "packed_factor": rows} if rows > 1 else sides

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Makes one weight of its fields."""
        weight = self.fields.weight(layer.get_submodule("weight"), self.dtype)
        del layer.weight
        layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x, layer.weight, bias)

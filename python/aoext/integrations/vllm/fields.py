"""A quantised weight while vLLM loads it: parameters of its fields, as large as a rank has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from vllm.model_executor.utils import set_weight_attrs

from aoext import serialization
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.fields import K, N, ceil_div
from aoext.tensors.nested import NestedLut4Tensor
from aoext.tensors.ranges import RANGES

# The one that each of several merged weights has for itself.
GLOBAL_SCALE = "global_scale"

# Fields that belong to columns as a whole, which merged weights and shards would have to share.
_OF_ALL_COLUMNS = ("act_pre_scale", "k_order", *RANGES)

# What a description says of its fields' dtypes here, beside what the file has.
_DTYPES = "dtypes"


def note_dtypes(name: str, description: dict[str, Any], forms: Mapping[str, Tensor]) -> None:
    """Has the description of a weight say what dtypes its fields have in the file."""
    description[_DTYPES] = {field: forms[f"{name}.{field}"].dtype for field in description["fields"]}


def kind_of(layer: str, description: Mapping[str, Any] | None) -> Any:
    """What must be equal in weights that are merged; None of plain ones."""
    if description is None:
        return None
    if description["type"] == NestedLut4Tensor.__name__:
        raise ValueError(f"aoext: {layer}: a weight whose scales are quantised too does not run in vLLM yet")
    for field in _OF_ALL_COLUMNS:
        if field in description["fields"]:
            raise ValueError(f"aoext: {layer}: a weight with {field} does not run in vLLM yet")
    return {key: value for key, value in description.items() if key != "shape"}


class Fields:
    """What a weight [N, K], or one of experts [E, N, K], is made of.

    description: what the checkpoint says of it, or of each weight that is merged to it
    rows: how many rows each of these has on this rank
    whole: whether this rank has all rows of the one that there is, and whether it has all columns
    experts: [E], or nothing
    """

    def __init__(
        self,
        layer: str,
        description: Mapping[str, Any],
        rows: Sequence[int],
        columns: int,
        whole: tuple[bool, bool],
        experts: Sequence[int] = (),
    ) -> None:
        self.layer = layer
        self.description = description
        self.kind = serialization.TENSOR_TYPES[description["type"]]
        self.block_size = [1, columns] if self.kind.blocks_are_rows else list(description["block_size"])
        self.rows = rows
        self.experts = list(experts)
        self.shape = [*experts, sum(rows), columns]
        for dim, sizes, is_whole in ((N, rows, whole[0]), (K, [columns], whole[1])):
            step = self.block_size[dim]
            if any(size % step for size in sizes) and not (self.kind.any_blocks and is_whole):
                raise ValueError(
                    f"aoext: {layer}: block_size = {self.block_size} does not divide the "
                    f"{', '.join(map(str, sizes))} {'rows' if dim == N else 'columns'} of a rank, each part "
                    "by itself"
                )

    # Parameters

    def parameters(self, attributes: Mapping[str, Mapping[str, Any]]) -> nn.Module:
        """A module with a parameter for each field, which has the attributes of its name."""
        module = nn.Module()
        for name in self.description["fields"]:
            field = self.kind.fields[name]
            # What follows the activations' dtype comes in float32, which holds all of them.
            dtype = torch.float32 if field.follows_dtype else self.description[_DTYPES][name]
            shape = field.shape(self.shape, self.block_size)
            if name == GLOBAL_SCALE:
                shape = [*self.experts, len(self.rows)]
            parameter = nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
            set_weight_attrs(parameter, dict(attributes[name]))
            module.register_parameter(name, parameter)
        return module

    def is_shared(self, name: str) -> bool:
        """Whether a field is the same for all rows and columns, as a table is."""
        return name != GLOBAL_SCALE and not self.kind.fields[name].follows_experts

    def position(self, name: str, dim: int) -> int | None:
        """The dimension of a field along which ranks share the weight's N or K; None where all have all."""
        field = self.kind.fields[name]
        if dim == K and self.kind.blocks_are_rows and field.per_block:
            return None  # all ranks have the scale of a whole row
        return field.position(dim)

    def rows_of_entry(self, name: str) -> int:
        """How many rows of the weight share an entry of a field."""
        axes = self.kind.fields[name].axes
        return next((axis.elements(self.shape, self.block_size) for axis in axes if axis.dim == N), 1)

    def of_part(self, name: str, data: Tensor, part: int) -> Tensor:
        """Where one of the merged weights has its entries in a field's `data`, [E] before it or not."""
        if name == GLOBAL_SCALE:
            return data.narrow(-1, part, 1)
        at = self.kind.fields[name].position(N)
        if at is None or len(self.rows) == 1:
            return data
        step = self.rows_of_entry(name)
        return data.narrow(at, sum(self.rows[:part]) // step, ceil_div(self.rows[part], step))

    def load_shared(self, parameter: nn.Parameter, loaded: Tensor, *shard: Any) -> None:
        """Takes what all parts and ranks have alike; ValueError where they differ."""
        if getattr(parameter, "is_loaded", False) and not torch.equal(parameter.data, loaded):
            raise ValueError(f"aoext: {self.layer}: vLLM merges layers whose weights have different tables")
        parameter.data.copy_(loaded)
        cast(Any, parameter).is_loaded = True

    # The weight

    def weight(self, module: nn.Module, dtype: torch.dtype) -> QuantizedTensor:
        """What loaded parameters make; scales go back to the activations' dtype where that is exact."""
        fields = {name: parameter.data for name, parameter in module.named_parameters()}
        follow = [name for name in fields if self.kind.fields[name].follows_dtype]
        narrow = {name: fields[name].to(dtype) for name in follow}
        if all(torch.equal(tensor.float(), fields[name]) for name, tensor in narrow.items()):
            fields.update(narrow)
        if GLOBAL_SCALE in fields:
            self._share_global_scale(fields)
        attributes = serialization.described_attributes(self.kind, self.description)
        every = {**dict.fromkeys(self.kind.fields), **fields}
        return self.kind.from_fields(every, dtype, **{**attributes, "block_size": self.block_size})

    def _share_global_scale(self, fields: dict[str, Tensor]) -> None:
        """Gives the scales of blocks what each part has for itself, unless all parts have the same."""
        whole = fields.pop(GLOBAL_SCALE)
        whole = torch.where(whole == 0, whole[..., :1], whole)  # parts that come as one have one
        first = whole[..., :1]
        if bool((whole == first).all()):
            fields[GLOBAL_SCALE] = first.clone()
            return
        of_rows = whole.repeat_interleave(torch.tensor(self.rows, device=whole.device), dim=-1)
        scale = fields["scale"]
        scale = (scale.view(torch.float8_e8m0fnu) if scale.dtype is torch.uint8 else scale).float()
        fields["scale"] = scale * of_rows[..., :: self.block_size[N], None]

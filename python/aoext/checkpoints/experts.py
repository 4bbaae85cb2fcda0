"""Weights of experts: layers of a checkpoint, one for each expert or one for all, as one weight [E, N, K]."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from aoext.checkpoints.settings import named
from aoext.formats.checks import describe, has_values
from aoext.formats.dtypes import dtype_name
from aoext.tensors import BlockwiseTensor, Lut4Tensor, QuantizedTensor
from aoext.tensors.each_expert import collected, neutral_field
from aoext.tensors.fields import N
from aoext.tensors.nested import with_float_scales
from aoext.tensors.rows import in_order
from aoext.tensors.views import concatenated

if TYPE_CHECKING:
    from aoext.checkpoints.base import Reader


class Part(NamedTuple):
    """Rows of a weight of experts: the layers of a checkpoint that have them."""

    layers: list[str]  # one for each expert, or one alone
    stacked: bool = False  # whether there is one layer for all experts, whose tensors are 3-D


class Experts(NamedTuple):
    """What a model's weight of experts is made of."""

    shape: list[int]  # [E, N, K]
    parts: list[Part]  # which lie behind each other along N: gate and up, or one
    interleaved: bool = False  # whether rows of the parts take turns

    @property
    def layers(self) -> list[str]:
        return [layer for part in self.parts for layer in part.layers]


Tensors = Callable[[str], Mapping[str, Tensor]]


def read_experts(
    reader: Reader, name: str, experts: Experts, tensors: Tensors, dtype: torch.dtype
) -> QuantizedTensor:
    """The weight that experts have together. ValueError, which names it or a layer.

    tensors: those of a layer, by their names behind it; every layer is asked for once, expert by expert
    """
    stacked = {part.layers[0]: tensors(part.layers[0]) for part in experts.parts if part.stacked}

    def layer_of(part: Part, e: int) -> QuantizedTensor:
        if not part.stacked:
            return reader.weight(part.layers[e], tensors(part.layers[e]), dtype)
        layer = part.layers[0]
        own = {leaf: _of_expert(t, e, experts.shape[0]) for leaf, t in stacked[layer].items()}
        return reader.weight(layer, own, dtype)

    with named(name):
        check_numbers(experts)
        of_expert = (
            joined([layer_of(part, e) for part in experts.parts], experts.interleaved)
            for e in range(experts.shape[0])
        )
        return put_together(of_expert, experts.shape)


def check_numbers(experts: Experts) -> None:
    """ValueError unless there is a layer for each expert."""
    count = experts.shape[0]
    for part in experts.parts:
        if not part.stacked and len(part.layers) != count:
            raise ValueError(
                f"the model has {count} experts, and the checkpoint {len(part.layers)} layers such as "
                f"{part.layers[0]}"
            )


def _of_expert(tensor: Tensor, e: int, count: int) -> Tensor:
    """The part of an expert; of what all experts share, all."""
    if tensor.dim() == 3 and tensor.shape[0] != count:
        raise ValueError(f"the model has {count} experts, and the checkpoint {tensor.shape[0]}")
    return tensor[e] if tensor.dim() and tensor.shape[0] == count else tensor


def put_together(weights: Iterator[QuantizedTensor], shape: Sequence[int]) -> QuantizedTensor:
    """The weights [N, K] of experts as one [E, N, K] of this shape; ValueError unless they have one form."""
    return collected(_of_one_form(weights, list(shape[1:])), shape[0])


def _of_one_form(weights: Iterator[QuantizedTensor], shape: list[int]) -> Iterator[QuantizedTensor]:
    first: tuple[Any, ...] | None = None
    table: Tensor | None = None
    for e, weight in enumerate(weights):
        if list(weight.shape) != shape:
            raise ValueError(f"expert {e}: the checkpoint has {list(weight.shape)}, and the model {shape}")
        form = _form(weight)
        first, table = first or form, weight.table if table is None else table
        same = table is None or not has_values(table) or torch.equal(table, weight.table)  # type: ignore[arg-type]
        if form != first or not same:
            raise ValueError(f"expert {e} is quantised otherwise than expert 0: {form}, not {first}")
        yield weight


def _form(weight: QuantizedTensor) -> tuple[Any, ...]:
    dtypes = [dtype_name(tensor.dtype) for tensor in (weight.qdata, weight.scale)]
    if isinstance(weight, Lut4Tensor) and weight.scale.dtype in (torch.float8_e4m3fn, torch.float32):
        dtypes[1] = "float8_e4m3fn or float32"  # what nvfp4 has, as `joined` says
    return type(weight).__name__, *dtypes, weight.named_attributes()


def joined(parts: Sequence[QuantizedTensor], interleaved: bool = False) -> QuantizedTensor:
    """The rows of the parts behind each other, or in turns: the weight [N, K] of one expert."""
    if len(parts) > 1:
        parts = [with_float_scales(part) for part in parts]  # each part's scales have an offset of their own
    if not _share_global_scale(parts):
        parts = [_without_global_scale(part) for part in parts]
    if len(parts) == 1:
        return parts[0]
    names = {name for part in parts for name, _ in part.named_fields()}
    parts = [_with_fields(_in_whole_blocks(part), names) for part in parts]
    whole = concatenated(list(parts))
    if not interleaved:
        return whole
    rows = torch.arange(whole.shape[0], device=whole.device)
    return in_order(whole, rows.view(len(parts), -1).t().flatten())


def _share_global_scale(parts: Sequence[QuantizedTensor]) -> bool:
    """Whether the parts have none, or the same one, as gate and up have where they were quantised as one."""
    scales = [part.global_scale for part in parts]
    first = scales[0]
    if first is None or not has_values(first):
        return all((scale is None) == (first is None) for scale in scales)
    return all(scale is not None and torch.equal(scale, first) for scale in scales)


def _without_global_scale(weight: QuantizedTensor) -> QuantizedTensor:
    """A weight whose scales have been multiplied by its global one, in float32."""
    if not isinstance(weight, Lut4Tensor) or weight.global_scale is None:
        return weight
    fields = dict(weight.named_fields())
    factor = fields.pop("global_scale")
    return weight.remade({**fields, "scale": fields["scale"].float() * factor})


def _with_fields(weight: QuantizedTensor, names: set[str]) -> QuantizedTensor:
    """A weight that has these fields, too."""
    fields = dict(weight.named_fields())
    lacking = {name: neutral_field(weight, name) for name in names - fields.keys()}
    return weight.remade({**fields, **lacking}) if lacking else weight


def _in_whole_blocks(weight: QuantizedTensor) -> QuantizedTensor:
    """A weight whose blocks divide its rows: parts of those that do not."""
    rows, (block_n, block_k) = weight.shape[N], weight.block_size
    if rows % block_n == 0 or not isinstance(weight, (BlockwiseTensor, Lut4Tensor)):
        return weight
    size = math.gcd(rows, block_n)
    at = torch.arange(0, rows, size, device=weight.device) // block_n
    fields = dict(weight.named_fields())
    for name, field in fields.items():
        if weight.fields[name].per_block:
            fields[name] = field[at] if field.itemsize > 1 else field.view(torch.int8)[at].view(field.dtype)
    return weight.remade(fields, block_size=[size, block_k])


def distinct(experts: Experts, tensors: Tensors) -> Experts:
    """Those experts whose tensors differ in kind from all before them, as far as each has its own layers."""
    if any(part.stacked for part in experts.parts):
        return experts
    found: dict[str, int] = {}
    for e in range(experts.shape[0]):
        layers = [tensors(part.layers[e]) for part in experts.parts]
        kinds = [sorted((leaf, describe(t)) for leaf, t in own.items()) for own in layers]
        found.setdefault(repr(kinds), e)
    parts = [Part([part.layers[e] for e in found.values()]) for part in experts.parts]
    return Experts([len(found), *experts.shape[1:]], parts, experts.interleaved)

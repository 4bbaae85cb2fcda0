"""Copies of quantised weights, and new ones of their form: field by field, as the tables of fields say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aoext.formats.checks import describe, has_values, is_dense, is_freed
from aoext.formats.dtypes import dtype_name, one_of
from aoext.tensors import in_place
from aoext.tensors.base import QuantizedTensor, implements
from aoext.tensors.fields import ACTIVATION_DTYPES, Field, K, N, as_stored
from aoext.tensors.outer import counted_versions
from aoext.tensors.views import is_spanned, refuse_write_into_copy

aten = torch.ops.aten

# How many roundings may lie between the values of a weight and their average with themselves.
ROUNDINGS = 4


@implements(aten.clone.default)
def _clone(self: QuantizedTensor, *, memory_format: torch.memory_format | None = None) -> QuantizedTensor:
    """A copy whose fields are contiguous, whatever the format."""
    return self.mapped(lambda tensor: tensor.clone(memory_format=torch.contiguous_format))


@implements(aten._to_copy.default)
def _to_copy(
    self: QuantizedTensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    non_blocking: bool = False,
    **formats: Any,  # layout, pin_memory and memory_format: the fields keep theirs
) -> QuantizedTensor:
    def copy(field: Field, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.to(device=device, dtype=dtype, non_blocking=non_blocking, copy=True)

    return _converted(self, dtype, copy)


@implements(aten._assert_tensor_metadata.default)  # what torch.export puts before a conversion
def _assert_tensor_metadata(
    self: QuantizedTensor,
    size: list[int] | None = None,
    stride: list[int] | None = None,
    dtype: torch.dtype | None = None,
    *,
    device: torch.device | None = None,
    layout: torch.layout | None = None,
) -> None:
    expected = {"size": size, "stride": stride, "dtype": dtype, "device": device, "layout": layout}
    found = {
        "size": list(self.shape),
        "stride": list(self.stride()),
        "dtype": self.dtype,
        "device": self.device,
        "layout": self.layout,
    }
    for name, value in expected.items():
        if value is not None and value != found[name]:
            raise RuntimeError(f"{type(self).__name__}: {name} must be {value}, got {found[name]}")


@implements(aten.empty_like.default)  # what Module.to_empty calls
def _empty_like(
    self: QuantizedTensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **formats: Any,
) -> QuantizedTensor:
    """A weight of the same form whose fields hold whatever was in their memory."""

    def empty(field: Field, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.empty_like(tensor, dtype=dtype, device=device, memory_format=torch.contiguous_format)

    return _converted(self, dtype, empty)


@implements(aten.zeros_like.default)
def _zeros_like(self: QuantizedTensor, **options: Any) -> Tensor:
    return _new_zeros(self, list(self.shape), **options)


@implements(aten.full_like.default)  # what Adagrad calls of every parameter, frozen ones too
def _full_like(
    self: QuantizedTensor,
    fill_value: float,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **formats: Any,
) -> Tensor:
    """A plain tensor of one value, expanded, so that it takes no memory."""
    value = torch.full((), fill_value, dtype=dtype or self.dtype, device=device or self.device)
    return value.expand(self.shape)


@implements(aten.new_zeros.default)
def _new_zeros(self: QuantizedTensor, size: list[int], **options: Any) -> Tensor:
    """A weight of zeros; what else is to be said of it is said at _new."""
    return _new(self, "new_zeros", size, torch.zeros, **options)


@implements(aten.new_empty.default)
def _new_empty(self: QuantizedTensor, size: list[int], **options: Any) -> Tensor:
    """A weight whose fields hold whatever was in their memory; see _new."""
    return _new(self, "new_empty", size, torch.empty, **options)


@implements(aten.new_empty_strided.default)
def _new_empty_strided(self: QuantizedTensor, size: list[int], stride: list[int], **options: Any) -> Tensor:
    """new_empty, for a weight has no strides to choose."""
    return _new_empty(self, size, **options)


def _new(
    self: QuantizedTensor,
    name: str,
    size: list[int],
    make: Callable[..., Tensor],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **formats: Any,
) -> Tensor:
    """A weight in this one's form, of [N, K], or [K, N] where this is a transposed view, and of any experts.

    A plain tensor where there is no such weight: of another number of dimensions or another kind of dtype.
    """
    if len(size) != self.dim() or (dtype or self.dtype) not in ACTIVATION_DTYPES:
        return make(size, dtype=dtype or self.dtype, device=device or self.device)
    shape = as_stored(size, self.transposed)
    for dim in (N, K):
        if shape[dim] != self.weight_shape[dim]:
            self = self._divisible(dim, shape[dim])
    block_size = [1, shape[K]] if self.blocks_are_rows else self.block_size
    if shape[K] == 0 or (shape[K] % block_size[K] and not self.any_blocks):
        raise ValueError(
            f"{type(self).__name__}: {name} needs a K of whole groups of {block_size[K]}, got {shape[K]}"
        )
    together = next(axis.step for axis in self.fields["qdata"].axes if axis.dim == K)
    if shape[K] % together:
        raise ValueError(
            f"{type(self).__name__}: {name} needs a K that is a multiple of {together}, got {shape[K]}"
        )

    def field(field: Field, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return make(field.shape(shape, block_size), dtype=dtype, device=device or tensor.device)

    return _converted(self, dtype, field, shape=shape, block_size=block_size)


def _converted(
    self: QuantizedTensor,
    dtype: torch.dtype | None,
    convert: Callable[[Field, Tensor, torch.dtype], Tensor],
    **other: Any,
) -> QuantizedTensor:
    """This weight in another dtype, of fields converted to what each then has; `other` as for remade.

    Fields that are more exact than this weight stay so.
    """
    dtype = self.dtype if dtype is None else dtype
    if dtype not in ACTIVATION_DTYPES:
        raise TypeError(
            f"{type(self).__name__}: dtype must be {one_of(ACTIVATION_DTYPES)}, got {dtype_name(dtype)}"
        )
    following = torch.float32 if dtype is torch.float64 else dtype

    def follows(name: str, tensor: Tensor) -> bool:
        return self.fields[name].follows_dtype and tensor.dtype == self.dtype

    tensors = {
        name: convert(self.fields[name], tensor, following if follows(name, tensor) else tensor.dtype)
        for name, tensor in self.named_fields()
    }
    return self.remade(tensors, dtype=dtype, **other)


@implements(aten.copy_.default)
def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy all fields, converting scales to this tensor's dtype; a plain source is quantised in this scheme.

    Where a plain source holds the values of this weight, as an average of equal weights does, the weight
    keeps its bits. NaN, Inf, or more than the scales' dtype holds raises ValueError, for which the host
    waits, and the weight stays as it was. With `non_blocking`, and where a graph is captured, nobody waits
    where a kernel writes the weight: blocks that have NaN or Inf become NaN, all of a weight with a global
    scale, and scales that their dtype cannot hold become Inf.
    """
    if not isinstance(self, QuantizedTensor):
        raise NotImplementedError(
            f"aten.copy_.default from {type(src).__name__} into {type(self).__name__} is not implemented: "
            "dequantize() first, or load with load_state_dict(..., assign=True); "
            "aoext.flatten_state_dict gives plain tensors"
        )
    if isinstance(src, QuantizedTensor):
        return _copy_fields(self, src, non_blocking)
    refuse_gradient(self, aten.copy_.default, src)
    refuse_write_into_copy(self)
    asks_first = self.device.type == "cpu"  # elsewhere the answer would have to be waited for
    if asks_first and _are_values_of(self, src):
        return self
    if self.shape == src.shape:
        never_waits = non_blocking or _is_captured(self)
        told = in_place.write(
            self, src, keep=None if asks_first else _tolerance(self, src), check=not never_waits
        )
        if told is not None and (never_waits or not in_place.is_refused(told)):
            return self
    if not asks_first and _are_values_of(self, src):
        return self
    return requantize_into(self, src)


def _is_captured(weight: QuantizedTensor) -> bool:
    """Whether what runs on the weight's device goes into a graph, so that the host cannot wait for it."""
    return weight.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _tolerance(weight: QuantizedTensor, plain: Tensor) -> in_place.Tolerance | None:
    """How near a matrix must be to a weight to be its values, but for the rounding of a few operations."""
    if plain.dtype not in ACTIVATION_DTYPES:
        return None
    info = max((torch.finfo(dtype) for dtype in (plain.dtype, weight.dtype)), key=lambda info: info.eps)
    return in_place.Tolerance(ROUNDINGS * info.eps, ROUNDINGS * info.smallest_normal * info.eps)


def requantize_into(weight: QuantizedTensor, plain: Tensor) -> QuantizedTensor:
    """Have a weight, and all that shares its memory, become a plain one, quantised in its scheme.

    NaN or Inf raises ValueError, as another shape does, and so does a part of a weight whose scales would
    change for the rest of it.
    """
    if weight.shape != plain.shape:
        raise ValueError(
            f"{type(weight).__name__}: copy_ needs a source {list(weight.shape)}, got {describe(plain)}"
        )
    return _copy_fields(weight, weight.requantized(plain.to(weight.device)))


def _copy_fields(self: QuantizedTensor, src: QuantizedTensor, non_blocking: bool = False) -> QuantizedTensor:
    if type(self) is not type(src):
        raise NotImplementedError(
            f"aten.copy_.default from {type(src).__name__} into {type(self).__name__} is not implemented: "
            "dequantize() first, or load with load_state_dict(..., assign=True)"
        )
    refuse_write_into_copy(self)
    _check_alike(self, src)
    ours, theirs = dict(self.named_fields()), dict(src.named_fields())
    _check_shared_scales(self, ours, theirs)
    with counted_versions():
        for name, tensor in ours.items():
            tensor.copy_(theirs[name], non_blocking)
    return self


def keep_values(weight: QuantizedTensor, plain: Tensor) -> QuantizedTensor:
    """The weight as it is, which an average must give that walks over frozen weights; another raises."""
    refuse_gradient(weight, aten.lerp_.Scalar, plain)
    if not _are_values_of(weight, plain):
        raise NotImplementedError(
            f"an average of unlike weights in place of a {type(weight).__name__} is not implemented: "
            "copy_ takes one that has been made of dequantize()"
        )
    return weight


@implements(aten._foreach_copy_.default)
def _foreach_copy_(self: Sequence[Tensor], src: Sequence[Tensor], non_blocking: bool = False) -> None:
    for own, other in zip(self, src, strict=True):
        own.copy_(other, non_blocking)


def wants_gradient(value: object) -> bool:
    """Whether autograd will have what is made of this take gradients."""
    return isinstance(value, Tensor) and torch.is_grad_enabled() and value.requires_grad


def refuse_gradient(weight: QuantizedTensor, function: Any, value: object) -> None:
    """RuntimeError if `function` would write into a weight what wants a gradient."""
    if wants_gradient(value):
        raise RuntimeError(
            f"{type(weight).__name__}: {function} needs a matrix that requires no gradient, which a "
            "quantised weight cannot pass on; detach() it, or call it under torch.no_grad()"
        )


def _are_values_of(weight: QuantizedTensor, plain: Tensor) -> bool:
    """Whether a plain tensor is what `weight` stands for, but for the rounding of a few operations."""
    if type(plain) not in (Tensor, torch.nn.Parameter) or plain.dtype not in ACTIVATION_DTYPES:
        return False
    if not is_dense(plain) or is_freed(plain):
        return False
    if plain.shape != weight.shape or not has_values(plain) or not has_values(weight.qdata):
        return False
    tolerance = _tolerance(weight, plain)
    assert tolerance is not None
    common = torch.promote_types(plain.dtype, weight.dtype)

    def equal(own: Tensor, given: Tensor) -> bool:
        return torch.allclose(
            own.to(common), given.to(weight.device, common), **tolerance._asdict(), equal_nan=True
        )

    if weight.dim() == 2 and not weight.transposed and len(weight):  # a row tells of most that are others
        first = torch.zeros(1, dtype=torch.int64, device=weight.device)
        if not equal(type(weight)._rows(weight, first), plain[:1]):
            return False
    return equal(weight.dequantize(), plain)


def _check_alike(self: QuantizedTensor, src: QuantizedTensor) -> None:
    def form(tensor: QuantizedTensor) -> tuple[Any, ...]:
        fields = [(name, field.shape) for name, field in tensor.named_fields()]
        return (tensor.shape, tensor.transposed, tensor.block_size, tensor.qdata.dtype, fields)

    if form(self) != form(src):
        raise ValueError(
            f"{type(self).__name__}: copy_ needs a source with the same shape, block_size, fields "
            f"and stored dtype as {self}, got {src}"
        )


def _check_shared_scales(self: QuantizedTensor, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """A part shares with the rest what is FIXED, but for whole experts what each has, and one along K the
    scales of whole rows.

    What is FIXED may change where it is still zeros, as in the padded shards that FSDP fills.
    """
    if has_values(self.qdata) and self.qdata.untyped_storage().nbytes() > self.qdata.nbytes:
        for name, tensor in ours.items():
            if not self.fields[name].follows_experts or _is_of_more(self, name, tensor):
                what = f"a part of a weight cannot change its {name}, which serves all of it"
                _check_equal(type(self).__name__, tensor, theirs[name], what, or_zero=True)
    if not is_spanned(self, K) or self.qdata.stride(-2) <= self.qdata.shape[-1]:
        return
    for name, tensor in ours.items():
        if self.fields[name].per_block:
            what = f"a slice along K cannot change its {name}, which serves whole rows"
            _check_equal(type(self).__name__, tensor, theirs[name], what)


def _is_of_more(self: QuantizedTensor, name: str, tensor: Tensor) -> bool:
    """Whether what each expert has one of belongs to experts of which this part has not all."""
    if not self.fields[name].each_expert:
        return False
    parts = (self.qdata, tensor)
    (own, all_codes), (scales, all_scales) = ((t.nbytes, t.untyped_storage().nbytes()) for t in parts)
    return own * all_scales != scales * all_codes


def _check_equal(who: str, tensor: Tensor, source: Tensor, what: str, or_zero: bool = False) -> None:
    message = f"{who}: copy_ into {what}; the source's must be equal"
    if torch.compiler.is_compiling():
        equal = (tensor == source.to(tensor)).all()
        torch._assert_async(equal | ~tensor.any() if or_zero else equal, message)
    elif not torch.equal(tensor, source.to(tensor)) and not (or_zero and not tensor.any()):
        raise ValueError(message)

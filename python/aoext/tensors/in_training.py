"""What PyTorch's functions do with weights that train in int8: changes in place, optimizers' states."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from aoext.tensors.base import Operation, QuantizedTensor
from aoext.tensors.int8 import Int8Tensor
from aoext.tensors.int8_training import Int8TrainingTensor
from aoext.tensors.outer import counted_versions
from aoext.tensors.pickles import rebuild

aten = torch.ops.aten


def _plain(value: Any) -> Any:
    """A structure of arguments, of which each quantised weight is dequantised."""
    return tree_map_only(QuantizedTensor, lambda weight: weight.dequantize(), value)


def _in_float32(value: Any) -> Any:
    """Arguments in the dtype that the weight is changed in."""

    def wide(t: Tensor) -> Tensor:
        if isinstance(t, Int8TrainingTensor):
            return t.in_float32()
        return t.float() if t.is_floating_point() else t

    return tree_map_only(Tensor, wide, value)


def _in_place(func: Any) -> Operation:
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(self, Int8TrainingTensor):
            return func(self, *_plain(args), **_plain(kwargs))
        plain = self.in_float32()
        func(plain, *_in_float32(args), **_in_float32(kwargs))
        return self.become_rounded(plain)

    return call


def _scaled(func: Any) -> Operation:
    """weight.mul_(number) multiplies the scales alone and rounds nothing."""
    otherwise = _in_place(func)

    def call(self: Tensor, other: Any) -> Tensor:
        number = not isinstance(other, Tensor) or other.dim() == 0
        if not isinstance(self, Int8TrainingTensor) or not number:
            return otherwise(self, other)
        with counted_versions():
            func(self.scale, other)
        return self

    return call


def _copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Fields where the source has such, else its values, rounded at random."""
    if not isinstance(self, Int8TrainingTensor):
        if isinstance(self, Int8Tensor):
            return self.copy_(cast(Int8TrainingTensor, src).frozen(), non_blocking)
        return self.copy_(_plain(src), non_blocking)
    if isinstance(src, Int8Tensor) and src.transposed == self.transposed and src.shape == self.shape:
        with counted_versions():
            for name, tensor in self.named_fields():
                tensor.copy_(getattr(src, name), non_blocking)
        return self
    return self.become_rounded(_plain(src).to(self.device, non_blocking=non_blocking).expand(self.shape))


def _for_each(func: Any) -> Operation:
    """A function of lists: each weight that trains alone, so that one is plain at a time; others at once."""
    names = [argument.name for argument in func._schema.arguments]

    def call(*args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        own = given["self"]
        if not any(isinstance(t, Int8TrainingTensor) for t in own):
            func(**_plain(given))
            return
        others = [i for i, t in enumerate(own) if not isinstance(t, Int8TrainingTensor)]
        if others:
            func(**_plain(_at(given, others)))
        for i, weight in enumerate(own):
            if isinstance(weight, Int8TrainingTensor):
                _change_one(func, weight, _at(given, [i]))

    return call


def _at(arguments: dict[str, Any], indices: list[int]) -> dict[str, Any]:
    """Arguments of a function of lists, of these entries; lists that are empty stay so."""

    def part(value: Any) -> Any:
        return [value[i] for i in indices] if isinstance(value, (list, tuple)) and value else value

    return {name: part(value) for name, value in arguments.items()}


def _change_one(func: Any, weight: Int8TrainingTensor, given: dict[str, Any]) -> None:
    """Changes a weight, and what optimizers keep beside it, in float32."""
    wide = {name: _in_float32(value) for name, value in given.items()}
    func(**wide)
    for name, value in given.items():
        for old, new in zip(value, wide[name], strict=True) if isinstance(value, list) else ():
            if old is not weight and isinstance(old, Tensor) and new is not old and _writes(func, name):
                old.copy_(new)
    weight.become_rounded(wide["self"][0])


def _writes(func: Any, name: str) -> bool:
    return any(
        a.name == name and a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments
    )


def _multiply_each(func: Any) -> Operation:
    otherwise = _for_each(func)

    def call(self: Sequence[Tensor], factor: Any) -> None:
        if isinstance(factor, (list, tuple)) or not all(isinstance(t, Int8TrainingTensor) for t in self):
            otherwise(self, factor)
            return
        for weight in self:
            weight.mul_(factor)

    return call


# New plain tensors, which optimizers keep beside weights


def _new_plain(make: Callable[..., Tensor]) -> Operation:
    def call(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, **formats: Any) -> Tensor:
        return make(self.shape, *args, dtype=dtype or self.dtype, device=device or self.device)

    return call


IN_PLACE = """
    add_ sub_ div_ addcmul_ addcdiv_ lerp_ zero_ fill_ clamp_ clamp_min_ clamp_max_ addmm_ pow_ sqrt_
    normal_ uniform_ sign_ neg_ abs_ masked_fill_ where_
"""
OF_LISTS = """
    _foreach_add_ _foreach_sub_ _foreach_div_ _foreach_addcmul_ _foreach_addcdiv_ _foreach_lerp_
    _foreach_zero_
    _foreach_copy_ _foreach_neg_ _foreach_sign_ _foreach_clamp_min_ _foreach_clamp_max_
    _fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_
"""
# Functions of lists that give new plain ones.
READING_LISTS = """
    _foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_addcmul _foreach_addcdiv _foreach_lerp
    _foreach_norm _foreach_abs _foreach_neg _foreach_sign _foreach_maximum _foreach_pow
"""


def _overloads(names: str) -> list[Any]:
    packets = [getattr(aten, name) for name in names.split() if hasattr(aten, name)]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads()]


def _mutable(names: str) -> list[Any]:
    return [func for func in _overloads(names) if func._schema.is_mutable and func._overloadname != "out"]


def _reading(func: Any) -> Operation:
    return lambda *args, **kwargs: func(*_plain(args), **_plain(kwargs))


Int8TrainingTensor.own_overloads.update(
    {
        **{func: _in_place(func) for func in _mutable(IN_PLACE)},
        **{func: _scaled(func) for func in _mutable("mul_")},
        **{func: _for_each(func) for func in _mutable(OF_LISTS)},
        **{func: _multiply_each(func) for func in _mutable("_foreach_mul_")},
        **{func: _reading(func) for func in _overloads(READING_LISTS) if not func._schema.is_mutable},
        aten.copy_.default: _copy_,
        aten.zeros_like.default: _new_plain(torch.zeros),
        aten.ones_like.default: _new_plain(torch.ones),
        aten.full_like.default: _new_plain(torch.full),
        aten.rand_like.default: _new_plain(torch.rand),
        aten.randn_like.default: _new_plain(torch.randn),
    }
)


# Functions that frozen weights answer above autograd


def _deepcopy(self: Int8TrainingTensor, memo: dict[int, Any]) -> Any:
    if id(self) in memo:
        return memo[id(self)]
    with torch.no_grad():
        twin = self.mapped(lambda t: t.clone(memory_format=torch.contiguous_format))
    memo[id(self)] = torch.Tensor.requires_grad_(twin, self.requires_grad)
    twin.__dict__.update(copy.deepcopy(self.remarks(), memo))
    return twin


def rebuild_training(requires_grad: bool, *parts: Any) -> Any:
    """The weight that was saved; files call this by its name."""
    return torch.Tensor.requires_grad_(rebuild(*parts), requires_grad)


def _reduce_ex(self: Int8TrainingTensor, protocol: int) -> tuple[Any, ...]:
    fields, attributes = dict(self.named_fields()), self.named_attributes()
    parts = (type(self), fields, self.dtype, attributes, self.transposed, self.remarks())
    return rebuild_training, (self.requires_grad, *parts)


# As autograd has them of plain tensors, which the overloads below it then read the weight for.
_AS_PLAIN = (
    *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
    *(torch.sub, torch.subtract, Tensor.sub, Tensor.subtract, Tensor.__sub__),
    *(torch.nn.functional.embedding, torch.embedding),
)

Int8TrainingTensor.own_functions.update(
    {
        **{func: func for func in _AS_PLAIN},
        Tensor.requires_grad_: Tensor.requires_grad_,
        Tensor.requires_grad.__set__: Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
        Tensor.__deepcopy__: _deepcopy,
        Tensor.__reduce_ex__: _reduce_ex,
    }
)
torch.serialization.add_safe_globals([rebuild_training])  # for torch.load(weights_only=True)

"""How tensors get into a model: all of them, or none.

First a slot is found and checked for every tensor. Then new tensors are put in place, which can be undone.
Last come copies into tensors that the model keeps, which cannot: everything that makes a copy fail has been
checked by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from aoext.formats.checks import describe, is_memory_gone
from aoext.formats.dtypes import FLOAT_DTYPES
from aoext.models.layers import quantizable, set_weight, why_never_quantized
from aoext.tensors import QuantizedTensor

# New tensors of the model, by what they are made of and what they become, so that ties stay ties.
_Made = dict[tuple[int, torch.device, torch.dtype, bool], Tensor]


@dataclass
class Slot:
    """A place in a model, and the form on the meta device of the tensor that goes there."""

    name: str
    module: nn.Module
    leaf: str
    current: Tensor
    form: Tensor

    @property
    def is_replaced(self) -> bool:
        """Whether the model gets a new tensor here; else its own is filled."""
        return isinstance(self.form, QuantizedTensor) or self.current.is_meta

    def obstacle(self, cast: bool) -> str | None:
        """Why the tensor cannot go here, as a sentence that begins with the name; None if it can."""
        name, current, form = self.name, self.current, self.form
        if getattr(self.module, self.leaf, None) is not current:
            return f"{name} is no parameter or buffer of the model by that name"
        castable = cast and {current.dtype, form.dtype} <= _castable(form)
        if current.shape != form.shape or (current.dtype != form.dtype and not castable):
            return f"{name} must be {describe(current)}, got {describe(form)}"
        if isinstance(current, QuantizedTensor) and not isinstance(form, QuantizedTensor):
            return f"{name} is quantised in the model, but not in the file"
        if isinstance(form, QuantizedTensor):
            known = self.leaf in ("weight", *quantizable(self.module))
            reason = why_never_quantized(self.module) if known else "only weights can be quantised"
            if reason is not None:
                return f"{name} is quantised in the file, but {reason}"
        if self.is_replaced:
            return None
        if is_memory_gone(current):
            return f"{name} has no memory in the model: its storage was freed"
        if torch._debug_has_internal_overlap(current) == 1:
            return f"{name} cannot be filled: elements of the model's tensor share memory (expand)"
        return None

    def made(self, tensor: Tensor, made: _Made) -> Tensor:
        """The model's new tensor, on the device and in the dtype of the current one."""
        current = self.current
        device = torch.device("cpu") if current.is_meta else current.device
        is_parameter = self.leaf in self.module._parameters
        key = (id(tensor), device, current.dtype, is_parameter)
        if key not in made:
            new = tensor.to(device=device, dtype=current.dtype)
            if is_parameter:
                trains = not isinstance(tensor, QuantizedTensor) or tensor.trains
                requires_grad = current.requires_grad and trains
                new = nn.Parameter(new, requires_grad=requires_grad)
            made[key] = new
        return made[key]

    def put(self, new: Tensor) -> None:
        """Put a new tensor in its place; RuntimeError where the module keeps another."""
        setattr(self.module, self.leaf, new)
        if getattr(self.module, self.leaf) is not new:
            raise RuntimeError(f"load_model: {type(self.module).__name__} does not take a new {self.leaf}")
        if isinstance(new, QuantizedTensor):
            set_weight(self.module, cast(nn.Parameter, new), self.leaf)

    def copy(self, tensor: Tensor) -> None:
        """Fill the model's own tensor; in inference mode if it was made there, else out of it."""
        with torch.inference_mode(self.current.is_inference()), torch.no_grad():
            self.current.copy_(tensor)

    def undo(self) -> Callable[[], None]:
        """A function that puts the current tensor back, past whatever __setattr__ the module has."""
        module, leaf, current, layer_class = self.module, self.leaf, self.current, self.module.__class__
        tables = (module._parameters, module._buffers, module.__dict__)
        holders = [cast(dict[str, object], table) for table in tables if leaf in table]

        def restore() -> None:
            module.__class__ = layer_class
            for holder in holders:
                holder[leaf] = current

        return restore


def _castable(form: Tensor) -> set[torch.dtype]:
    """The dtypes between which a tensor of this form can be converted."""
    return {*FLOAT_DTYPES} if isinstance(form, QuantizedTensor) else {*FLOAT_DTYPES, torch.float64}


def place(slots: Iterable[Slot], tensors: Mapping[str, Tensor]) -> None:
    """Put tensors, by the names of their slots, into the model; an exception leaves it as it was.

    Memory is needed for all new tensors beside those that they replace.
    """
    slots = list(slots)
    made: _Made = {}
    new = {slot.name: slot.made(tensors[slot.name], made) for slot in slots if slot.is_replaced}
    undo: list[Callable[[], None]] = []
    try:
        for slot in slots:
            if slot.is_replaced:
                undo.append(slot.undo())
                slot.put(new[slot.name])
    except BaseException:
        for restore in reversed(undo):
            restore()
        raise
    _copy_all([(slot, tensors[slot.name]) for slot in slots if not slot.is_replaced])


def _copy_all(copies: list[tuple[Slot, Tensor]]) -> None:
    try:
        while copies:
            slot, tensor = copies[-1]
            slot.copy(tensor)
            copies.pop()
    except KeyboardInterrupt:
        _copy_all(copies)  # half of the copies would be worse than a short wait
        raise

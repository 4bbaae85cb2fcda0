"""PEFT: adapters on quantised weights, and what they need of these.

PEFT's own layers train on any weight that F.linear takes. What they cannot do is to change one: merging is
peft_merging's, and initialisations that take something off the weight (PiSSA, OLoRA, CorDA) get a plain weight,
which is quantised again by its own scheme. What PEFT copies to train it in full becomes plain. Imported once
PEFT is.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any, cast

import torch
from peft.tuners.lora import layer as lora
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils import integrations as peft_integrations
from peft.utils import other as peft_other
from torch import Tensor, nn

from aoext.integrations.peft_merging import Method, merging, quantized_weight, reporting, unmerging
from aoext.layers import set_plain_weight
from aoext.tensors import QuantizedTensor

# Initialisations that leave the weight alone.
_LEAVE_THE_WEIGHT = (True, False, "gaussian", "orthogonal", "eva", "lora_ga")


@contextlib.contextmanager
def _plain_weight(base: nn.Module) -> Iterator[None]:
    """Gives a layer a plain weight meanwhile; if that changes, the layer's becomes it, quantised anew."""
    quantized = base.weight
    assert isinstance(quantized, QuantizedTensor)
    after = cast(nn.Parameter, quantized)
    base.weight = nn.Parameter(quantized.dequantize(), requires_grad=False)
    try:
        yield
        changed = base.weight.data
        if not torch.equal(changed, quantized.dequantize()):  # they may have written into it
            after = nn.Parameter(quantized.requantized(changed), requires_grad=False)
    finally:
        base.weight = after


def _initialising(update_layer: Method) -> Method:
    """update_layer of LoRA's layers, of which some initialisations change the weight."""

    @functools.wraps(update_layer)
    def updated(self: Any, *args: Any, **kwargs: Any) -> Any:
        config, base = kwargs.get("config"), self.get_base_layer()
        start = getattr(config, "init_lora_weights", kwargs.get("init_lora_weights", True))
        changes = start not in _LEAVE_THE_WEIGHT or getattr(config, "kasa_config", None) is not None
        plain = _plain_weight(base) if changes and quantized_weight(base) is not None else contextlib.nullcontext()
        with plain:
            return update_layer(self, *args, **kwargs)

    return updated


def _reporting(merge: Method) -> Method:
    @functools.wraps(merge)
    def merged(self: Any, *args: Any, **kwargs: Any) -> Any:
        with reporting(self.model):
            return merge(self, *args, **kwargs)

    return merged


def _wrap(cls: type, wrappers: dict[str, Any]) -> None:
    """Replace methods that a class, or one derived from it, defines by itself; later ones too."""
    for name, wrapper in wrappers.items():
        method = vars(cls).get(name)
        if method is not None and not hasattr(method, "_aoext"):
            wrapped = wrapper(method)
            wrapped._aoext = True
            setattr(cls, name, wrapped)
    for derived in cls.__subclasses__():
        _wrap(derived, wrappers)


def _install() -> None:
    dequantize: Any = peft_integrations.dequantize_module_weight
    prepare: Any = peft_other.prepare_model_for_kbit_training

    def dequantized(module: nn.Module) -> Tensor:
        weight = getattr(module, "weight", None)
        if not isinstance(weight, QuantizedTensor):
            return dequantize(module)
        return nn.Parameter(weight.dequantize(), requires_grad=False)

    def prepared(model: Any, *args: Any, **kwargs: Any) -> Any:
        ours = any(isinstance(parameter, QuantizedTensor) for parameter in model.parameters())
        if not ours or hasattr(model, "is_loaded_in_8bit"):
            return prepare(model, *args, **kwargs)
        model.is_loaded_in_8bit = True  # what PEFT asks before it turns checkpointing on
        try:
            return prepare(model, *args, **kwargs)
        finally:
            del model.is_loaded_in_8bit

    _wrap(BaseTunerLayer, {"merge": merging, "unmerge": unmerging})
    _wrap(lora.LoraLayer, {"update_layer": _initialising})
    _wrap(BaseTuner, {"merge_adapter": _reporting, "_unload_and_optionally_merge": _reporting})
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").partition(".")[0] != "peft":
            continue
        for name, function, replacement in (
            ("dequantize_module_weight", dequantize, dequantized),
            ("prepare_model_for_kbit_training", prepare, prepared),
        ):
            if getattr(module, name, None) is function:
                setattr(module, name, replacement)


_install()

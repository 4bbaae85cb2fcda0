"""PEFT: adapters on quantised weights, and what they need of these.

PEFT's own layers train on any weight that F.linear takes. What they cannot do is to change one: merging is
peft_merging's, and where an initialisation takes something off the weight (PiSSA, OLoRA, CorDA) or a forward
makes another one of it, they get a plain one. What PEFT copies to train it in full becomes plain. Imported
once PEFT is.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from peft.tuners.lora import layer as lora
from peft.tuners.lora import variants
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils import integrations as peft_integrations
from peft.utils import other as peft_other
from peft.utils import save_and_load as peft_save_and_load
from torch import Tensor, nn

from aoext.integrations.peft_experts import beside, merging_experts, unmerging_experts, wrapping
from aoext.integrations.peft_fused import fused
from aoext.integrations.peft_merging import Method, merging, quantized_weight, reporting, unmerging
from aoext.models.layers import set_plain_weight
from aoext.other_packages import when_imported
from aoext.tensors import QuantizedTensor
from aoext.tensors.rows import with_rows

# Initialisations that leave the weight alone.
_LEAVE_THE_WEIGHT = (True, False, "gaussian", "orthogonal", "eva", "lora_ga")

# Methods that read the weight in ways that want a plain one.
_READING_A_PLAIN_WEIGHT = {
    "peft.tuners.adamss.layer": "update_layer",
    "peft.tuners.shira.layer": "forward",
    "peft.tuners.supertuning.layer": "forward",
}

# What ParamWrapper, whose layers take parameters for weights, does with those of quantised experts.
_OF_PARAMETERS = {
    "__init__": wrapping,
    "forward": beside,
    "merge": merging_experts,
    "unmerge": unmerging_experts,
}


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
    signature = inspect.signature(update_layer)

    @functools.wraps(update_layer)
    def updated(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(self, *args, **kwargs).arguments
        config = arguments.get("config")
        start = getattr(config, "init_lora_weights", arguments.get("init_lora_weights", True))
        changes = start not in _LEAVE_THE_WEIGHT or getattr(config, "kasa_config", None) is not None
        base = self.get_base_layer()
        plain = changes and quantized_weight(base) is not None
        with _plain_weight(base) if plain else contextlib.nullcontext():
            return update_layer(self, *args, **kwargs)

    return updated


def _reading_a_plain_weight(method: Method) -> Method:
    @functools.wraps(method)
    def reading(self: Any, *args: Any, **kwargs: Any) -> Any:
        base = self.get_base_layer()
        quantized = quantized_weight(base)
        as_it_is = method.__name__ == "forward" and (self.disable_adapters or self.merged)
        if quantized is None or as_it_is:
            return method(self, *args, **kwargs)
        base.weight = nn.Parameter(quantized.dequantize(), requires_grad=False)
        try:
            return method(self, *args, **kwargs)
        finally:
            base.weight = quantized

    return reading


def _copying_plain(update: Method) -> Method:
    """`update` trains a copy of a module in full: the copy has plain weights."""

    @functools.wraps(update)
    def updated(self: Any, adapter_name: str, *args: Any, **kwargs: Any) -> None:
        known = adapter_name in self.modules_to_save
        update(self, adapter_name, *args, **kwargs)
        if not known:
            trains = adapter_name == self.active_adapter
            for module in self.modules_to_save[adapter_name].modules():
                quantized = quantized_weight(module)
                if quantized is not None:
                    set_plain_weight(module, nn.Parameter(quantized.dequantize(), requires_grad=trains))

    return updated


def _reporting(merge: Method) -> Method:
    """`merge` merges all layers of a tuner, or of a model of diffusers."""

    @functools.wraps(merge)
    def merged(self: Any, *args: Any, **kwargs: Any) -> Any:
        with reporting(self.model if isinstance(self, BaseTuner) else self):
            return merge(self, *args, **kwargs)

    return merged


def _dequantizing_module(dequantize: Method) -> Method:
    def dequantized(module: nn.Module) -> Tensor:
        weight = getattr(module, "weight", None)
        if not isinstance(weight, QuantizedTensor):
            return dequantize(module)
        return nn.Parameter(weight.dequantize(), requires_grad=False)

    return dequantized


def _preparing(prepare: Method) -> Method:
    @functools.wraps(prepare)
    def prepared(model: Any, *args: Any, **kwargs: Any) -> Any:
        ours = any(isinstance(parameter, QuantizedTensor) for parameter in model.parameters())
        if not ours or hasattr(model, "is_loaded_in_8bit"):
            return prepare(model, *args, **kwargs)
        model.is_loaded_in_8bit = True  # what PEFT asks before it turns checkpointing on
        try:
            return prepare(model, *args, **kwargs)
        finally:
            del model.is_loaded_in_8bit

    return prepared


def _saving_plain(get_state_dict: Method) -> Method:
    """An adapter's state, to which PEFT adds embeddings of the base that have adapters: these are plain."""

    @functools.wraps(get_state_dict)
    def state_dict(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
        state = get_state_dict(*args, **kwargs)
        return {
            name: tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
            for name, tensor in state.items()
        }

    return state_dict


def _loading_plain(set_state_dict: Method) -> Method:
    """The way back: rows that are the model's already keep their bits."""

    @functools.wraps(set_state_dict)
    def loaded(model: nn.Module, state: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        weights = {n: p for n, p in model.named_parameters() if isinstance(p, QuantizedTensor) and n in state}
        state = dict(state)
        for name, weight in weights.items():
            plain = state[name]
            if not isinstance(plain, QuantizedTensor) and plain.shape == weight.shape:
                plain = plain.to(weight.device)
                state[name] = with_rows(weight, plain, (plain == weight.dequantize().to(plain.dtype)).all(1))
        return set_state_dict(model, state, *args, **kwargs)

    return loaded


def _subclasses(cls: type) -> set[type]:
    return {cls}.union(*map(_subclasses, cls.__subclasses__()))


def _wrap(
    cls: type,
    name: str,
    wrapper: Callable[[Method], Method],
    module: str = "",
    but: type | None = None,
) -> None:
    """Replace a method of a class, and of those derived from it, `but` one; of one module, if it is named."""
    for each in _subclasses(cls) - {but}:
        if name in vars(each) and module in ("", each.__module__):
            setattr(each, name, wrapper(vars(each)[name]))


def _wrap_function(home: Any, name: str, wrapper: Callable[[Method], Method]) -> None:
    """Replace a function of PEFT's wherever one of its modules has it."""
    function = getattr(home, name)
    wrapped = wrapper(function)
    for module in list(sys.modules.values()):
        ours = getattr(module, "__name__", "").partition(".")[0] == "peft"
        if ours and getattr(module, name, None) is function:
            setattr(module, name, wrapped)


def _merging() -> Callable[[Method], Method]:
    """How layers merge; with releases that know adapters by groups, these without loss."""
    if not hasattr(variants, "QALoraLinearVariant"):
        return merging
    from aoext.integrations.peft_groups import choosing, without_loss

    _wrap(lora.LoraLayer, "resolve_lora_variant", choosing)
    return functools.partial(merging, without_loss=without_loss)


def _install() -> None:
    of_parameters = getattr(lora, "ParamWrapper", None)
    _wrap(BaseTunerLayer, "merge", _merging(), but=of_parameters)
    _wrap(BaseTunerLayer, "unmerge", unmerging, but=of_parameters)
    for home, name in _READING_A_PLAIN_WEIGHT.items():
        _wrap(BaseTunerLayer, name, _reading_a_plain_weight, home)
    _wrap(lora.LoraLayer, "update_layer", _initialising)
    lora.Linear.forward = fused(lora.Linear.forward)
    if of_parameters is not None:
        for name, wrapper in _OF_PARAMETERS.items():
            _wrap(of_parameters, name, wrapper)
    _wrap(peft_other.ModulesToSaveWrapper, "update", _copying_plain)
    for name in ("merge_adapter", "_unload_and_optionally_merge"):
        _wrap(BaseTuner, name, _reporting)
    when_imported("diffusers.loaders.peft", lambda m: _wrap(m.PeftAdapterMixin, "fuse_lora", _reporting))
    _wrap_function(peft_integrations, "dequantize_module_weight", _dequantizing_module)
    _wrap_function(peft_other, "prepare_model_for_kbit_training", _preparing)
    _wrap_function(peft_save_and_load, "get_peft_model_state_dict", _saving_plain)
    _wrap_function(peft_save_and_load, "set_peft_model_state_dict", _loading_plain)


_install()

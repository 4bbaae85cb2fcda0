"""PEFT: LoRA layers on quantised weights, and what they need of these.

PEFT's own layers train on any weight that F.linear takes. What they cannot do is to change one: here merging
and initialisations that take something off the weight (PiSSA, OLoRA, CorDA) dequantise it, change it and
quantise it again by its own scheme. Imported once PEFT's LoRA is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, cast

import torch
from peft.tuners.lora import layer as lora
from peft.tuners.lora import model as lora_model
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from peft.utils import integrations as peft_integrations
from peft.utils import other as peft_other
from torch import Tensor, nn

from aoext.layers import has_transposed_weight
from aoext.tensors import QuantizedTensor

# Initialisations that leave the weight alone.
_LEAVE_THE_WEIGHT = (True, False, "gaussian", "orthogonal", "eva", "lora_ga")


class QuantizedLoraLinear(lora.Linear):
    """LoRA on a linear layer with a quantised weight.

    merge adds all adapters to the dequantised weight in float32 and quantises once; unmerge gives back the
    weight as it was, to the bit.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # What the base layer had before something was merged into it.
        self._unmerged: dict[str, nn.Parameter | None] = {}
        super().__init__(*args, **kwargs)

    def update_layer(self, adapter_name: str, r: int, lora_alpha: int, config: Any, **kwargs: Any) -> None:
        plain = config.init_lora_weights not in _LEAVE_THE_WEIGHT
        with _plain_weight(self.get_base_layer()) if plain else contextlib.nullcontext():
            super().update_layer(adapter_name, r, lora_alpha, config=config, **kwargs)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Merge adapters, the active ones if none are named; NaN or Inf raises ValueError if safe_merge."""
        names = [name for name in check_adapters_to_merge(self, adapter_names) if name in self.lora_A]
        if not names:
            return
        base = self.get_base_layer()
        before = self._unmerged or {"weight": base.weight, "bias": base.bias}
        all_names = [*self.merged_adapters, *names]
        weight = self._merged_weight(before["weight"], all_names)
        bias = before["bias"]
        for name in all_names:
            if self.lora_bias[name]:
                if bias is None:
                    raise RuntimeError("merge: an adapter has a bias, and the layer it is on has none")
                bias = bias + self.lora_B[name].bias * self.scaling[name]
        if safe_merge and not all(bool(t.isfinite().all()) for t in (weight, bias) if t is not None):
            raise ValueError(f"merge: NaN or Inf in the weight with {', '.join(all_names)} merged into it")
        quantized = before["weight"]
        assert isinstance(quantized, QuantizedTensor)
        base.weight = nn.Parameter(quantized.requantized(weight), requires_grad=False)
        if bias is not before["bias"]:
            base.bias = nn.Parameter(bias.detach(), requires_grad=before["bias"].requires_grad)
        self._unmerged = before
        self.merged_adapters.extend(names)

    @torch.no_grad()
    def _merged_weight(self, quantized: Any, names: list[str]) -> Tensor:
        weight = quantized.to(torch.float32).dequantize()
        pre_scale = getattr(quantized, "act_pre_scale", None)  # what the activation is multiplied with
        if pre_scale is not None and quantized.transposed:
            pre_scale = pre_scale.unsqueeze(-1)
        for name in names:
            if name in self.lora_variant:
                weight = self.lora_variant[name].merge_safe(self, name, weight)
            else:
                delta = self.get_delta_weight(name).float()
                weight = weight + (delta if pre_scale is None else delta / pre_scale)
        return weight

    def unmerge(self) -> None:
        """The base layer as it was before the first merge."""
        base = self.get_base_layer()
        for name, parameter in self._unmerged.items():
            setattr(base, name, parameter)
        self._unmerged = {}
        self.merged_adapters.clear()


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


def _install() -> None:
    """Our layer comes before PEFT's for weights of ours, which PEFT learns to dequantise and to prepare."""
    dispatch: Any = lora_model.dispatch_default
    dequantize: Any = peft_integrations.dequantize_module_weight
    prepare: Any = peft_other.prepare_model_for_kbit_training

    def dispatched(target: nn.Module, adapter_name: str, config: Any, **kwargs: Any) -> nn.Module | None:
        base = target.get_base_layer() if isinstance(target, BaseTunerLayer) else target
        quantized = isinstance(getattr(base, "weight", None), QuantizedTensor)
        known = isinstance(base, nn.Linear) or has_transposed_weight(base)
        if not quantized or not known or kwargs.get("parameter_name") is not None:
            return dispatch(target, adapter_name, config, **kwargs)
        kwargs.pop("parameter_name", None)
        config.fan_in_fan_out = has_transposed_weight(base)
        return QuantizedLoraLinear(
            target, adapter_name, config=config, is_target_conv_1d_layer=config.fan_in_fan_out, **kwargs
        )

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

    lora_model.dispatch_default = dispatched
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

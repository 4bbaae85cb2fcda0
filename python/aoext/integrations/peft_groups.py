"""LoRA by groups of K, which merges without loss: QA-LoRA (arXiv 2309.14717), PEFT's `use_qalora`.

The adapter sees the mean of the activation in each group of G columns, so A is [r, K/G], and what it adds to
a weight [N, K] is the same for all columns of a group:

    D[n, k] = s · (K/G)/G · (B·A)[n, ⌊k/G⌋]

A weight of integers has a zero point for each row and group, to which D is added: no code changes. The zero
points, and the scales, which have one dtype, are then float32; nothing else rounds. PEFT has the adapter for
layers of GPTQ, without merging; its configuration, formula and files are these.
"""

from __future__ import annotations

import functools
from typing import Any

from peft.tuners.lora import variants
from torch import Tensor, nn

from aoext.formats.table import FORMATS, Code
from aoext.integrations.peft_merging import Method, quantized_weight
from aoext.tensors import QuantizedTensor
from aoext.tensors.groups import GroupsTensor


class GroupsVariant(variants.QALoraLinearVariant):
    """What PEFT's layer of a quantised nn.Linear asks of an adapter by groups."""

    @staticmethod
    def init(module: Any, adapter_name: str, config: Any, **options: Any) -> None:
        _check(module, config)
        variants.QALoraLinearVariant.init(module, adapter_name=adapter_name, config=config, **options)

    @staticmethod
    def forward(module: Any, active_adapter: str, x: Tensor, result: Tensor, **_: Any) -> Tensor:
        group = module.qalora_group_size[active_adapter]
        x = module.lora_dropout[active_adapter](x)
        pooled = x.unflatten(-1, (-1, group)).mean(-1) * (module.in_features // group)
        low = module.lora_A[active_adapter](pooled)
        return result + module.lora_B[active_adapter](low) * module.scaling[active_adapter]

    @staticmethod
    def merge_safe(module: Any, active_adapter: str, orig_weight: Tensor) -> Tensor:
        return orig_weight + _dense(module, active_adapter)

    @staticmethod
    def merge_unsafe(module: Any, active_adapter: str, orig_weight: Tensor) -> None:
        orig_weight.data += _dense(module, active_adapter)

    @staticmethod
    def unmerge(module: Any, active_adapter: str, orig_weight: Tensor) -> Tensor:
        return orig_weight - _dense(module, active_adapter)

    def supports_lora_conversion(self) -> bool:
        return False


def choosing(resolve: Method) -> Method:
    """LoraLayer's choice of what kind of adapter a configuration asks for."""

    @functools.wraps(resolve)
    def resolved(self: Any, **options: Any) -> Any:
        config = options.get("config")
        if not getattr(config, "use_qalora", False):
            return resolve(self, **options)
        parameter = self.get_base_layer()._parameters.get(getattr(self, "parameter_name", "weight"))
        if not isinstance(parameter, QuantizedTensor) or isinstance(self.get_base_layer(), nn.Embedding):
            return resolve(self, **options)
        if parameter.dim() != 2:
            raise ValueError(
                "use_qalora: adapters by groups are for layers, which target_modules names; the experts that "
                "target_parameters names take plain LoRA"
            )
        if resolve(self, **options) is not None:
            raise ValueError("use_qalora: an adapter by groups is no other kind, as DoRA, at the same time")
        return GroupsVariant()

    return resolved


def without_loss(layer: Any, weight: Any, names: list[str]) -> Any:
    """A weight with adapters of a tuner layer in its zero points; None if they are not all by its groups."""
    kinds = getattr(layer, "lora_variant", {})
    mine = [name for name in names if name in getattr(layer, "lora_A", ())]
    if not mine or not all(isinstance(kinds.get(name), GroupsVariant) for name in mine):
        return None
    scale, zero_point = weight.scale.float(), weight.zero_point.float()
    for name in mine:
        change = _by_group(layer, name).to(scale.device)
        zero_point = zero_point + change.repeat_interleave(len(scale) // change.shape[1], 1).t()
    if not zero_point.isfinite().all():
        raise ValueError(f"merge: NaN or Inf in the weight with {', '.join(mine)} merged into it")
    fields = {**dict(weight.named_fields()), "scale": scale, "zero_point": zero_point.contiguous()}
    return weight.remade(fields)


def _by_group(module: Any, adapter: str) -> Tensor:
    """What an adapter adds to all columns of each group, float32 [N, K/G]."""
    group = module.qalora_group_size[adapter]
    a, b = module.lora_A[adapter].weight, module.lora_B[adapter].weight
    return b.float() @ a.float() * (module.scaling[adapter] * (module.in_features // group) / group)


def _dense(module: Any, adapter: str) -> Tensor:
    """The same for each column, as the layer keeps its weight."""
    change = _by_group(module, adapter).repeat_interleave(module.qalora_group_size[adapter], 1)
    return change.t() if module.fan_in_fan_out else change


def _check(module: Any, config: Any) -> None:
    weight: Any = quantized_weight(module.get_base_layer())
    if not isinstance(weight, GroupsTensor):
        format = FORMATS[Code(weight.code)].name
        raise ValueError(
            "use_qalora: an adapter by groups merges into the zero points of weights of 2 to 7 bits in "
            f"groups, and this one is {format}: quantise it as int4, or use plain LoRA"
        )
    for field in ("act_pre_scale", "k_order"):
        if getattr(weight, field) is not None:
            raise ValueError(
                f"use_qalora: this weight has {field}, so that no change is the same for all columns of a "
                "group: use plain LoRA"
            )
    group = module.in_features // len(weight.scale)
    if config.qalora_group_size % group:
        raise ValueError(
            f"use_qalora: qalora_group_size must be a multiple of the weight's group_size, {group}, got "
            f"{config.qalora_group_size}"
        )

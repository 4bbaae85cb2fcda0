"""LoRA on the quantised weights of experts, which PEFT's `target_parameters` names.

PEFT's ParamWrapper makes W + s·L·R of all experts in each forward. Here the module of experts finds the
weight with its factors beside it, and multiplies by these; adapters, their names and files are PEFT's.
Merging takes one expert after the other, so that no more than one is plain at a time.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, cast

import torch
from torch import Tensor, nn

from aoext.integrations.peft_merging import Method, report, requantized
from aoext.models.adapted import AdaptedWeight, Change
from aoext.models.experts import run_by_aoext
from aoext.tensors import QuantizedTensor
from aoext.tensors.each_expert import collected, has_experts


def quantized_parameter(wrapper: Any) -> QuantizedTensor | None:
    """The quantised weight of experts to which a ParamWrapper belongs, or None."""
    parameter = wrapper.get_base_layer()._parameters.get(wrapper.parameter_name)
    return parameter if isinstance(parameter, QuantizedTensor) else None


def wrapping(init: Method) -> Method:
    """The constructor of ParamWrapper, for quantised weights of experts too; others it refuses."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        from peft.tuners.tuners_utils import BaseTunerLayer

        arguments = signature.bind(self, *args, **kwargs).arguments
        layer, name = arguments["base_layer"], arguments["parameter_name"]
        while isinstance(layer, BaseTunerLayer):
            layer = layer.get_base_layer()
        weight = getattr(layer, name, None)
        if isinstance(weight, QuantizedTensor):
            if not has_experts(weight):
                raise TypeError(
                    f"target_parameters: the {name} of a {type(layer).__name__} is quantised, and of such "
                    "only those of experts, of three dimensions, take adapters as parameters: name the layer "
                    "in target_modules, or leave it unquantised"
                )
            run_by_aoext(layer)
        init(self, *args, **kwargs)

    return wrapped


def beside(forward: Method) -> Method:
    """The forward of ParamWrapper."""

    @functools.wraps(forward)
    def adapted(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        weight = quantized_parameter(self)
        mixed = kwargs.get("adapter_names") is not None  # which PEFT refuses
        if weight is None or self.disable_adapters or self.merged or mixed:
            return forward(self, x, *args, **kwargs)
        self._check_forward_args(x, *args, **kwargs)
        kwargs.pop("adapter_names", None)
        changes = [change_of(self, name) for name in self.active_adapters if name in self.lora_A]
        if not changes:
            return self.base_layer(x, *args, **kwargs)
        shown = self.get_base_layer().__dict__  # before the parameters, which stay what they are
        shown[self.parameter_name] = AdaptedWeight(weight, changes)
        try:
            return self.base_layer(x, *args, **kwargs)
        finally:
            shown.pop(self.parameter_name, None)

    return adapted


def change_of(wrapper: Any, adapter: str) -> Change:
    """What an adapter adds to the weight [E, A, B] as its module has it."""
    E = wrapper.num_experts
    a, b = wrapper.lora_A[adapter].weight, wrapper.lora_B[adapter].weight
    a = a.unflatten(0, (E, -1))  # [E, r, in]
    b = b.unflatten(1, (-1, E)).permute(2, 1, 0).contiguous()  # [E, r, out]
    scale = wrapper.scaling[adapter]
    # Later releases know modules that keep [E, out, in]; these only seem to swap sizes.
    if getattr(wrapper, "_did_swap_in_out_features", False):
        return Change(b.mT, a, scale)
    return Change(a.mT, b, scale)


def merging_experts(merge: Method) -> Method:
    """The merge of ParamWrapper."""
    signature = inspect.signature(merge)

    @functools.wraps(merge)
    def merged(self: Any, *args: Any, **kwargs: Any) -> None:
        current = quantized_parameter(self)
        if current is None:
            merge(self, *args, **kwargs)
            return
        from peft.tuners.tuners_utils import check_adapters_to_merge

        wanted = signature.bind(self, *args, **kwargs).arguments.get("adapter_names")
        names = [name for name in check_adapters_to_merge(self, wanted) if name in self.lora_A]
        if not names:
            return
        # All adapters at once, so that no rounding adds up.
        names = [*self.merged_adapters, *names]
        weight = cast(Any, self._buffers.get("unmerged_weight", current))
        new, sums = _with_changes(weight, [change_of(self, name) for name in names], names)
        # A buffer moves, is cast and copied with the model, and no state_dict has this one.
        self.register_buffer("unmerged_weight", weight, persistent=False)
        _replace(self, new)
        self.merged_adapters[:] = names
        report(self, sums)

    return merged


def unmerging_experts(unmerge: Method) -> Method:
    """The unmerge of ParamWrapper, which gives back what was there before, to the bit."""

    @functools.wraps(unmerge)
    def unmerged(self: Any, *args: Any, **kwargs: Any) -> None:
        if quantized_parameter(self) is None or "unmerged_weight" not in self._buffers:
            unmerge(self, *args, **kwargs)
            return
        _replace(self, self.unmerged_weight)
        del self.unmerged_weight
        self.merged_adapters.clear()

    return unmerged


def _replace(wrapper: Any, weight: Tensor) -> None:
    layer = wrapper.get_base_layer()
    layer._parameters[wrapper.parameter_name] = nn.Parameter(weight, requires_grad=False)


@torch.no_grad()
def _with_changes(
    weight: Any, changes: list[Change], names: list[str]
) -> tuple[QuantizedTensor, tuple[float, float]]:
    """The weight with its changes, quantised again; Σ R·D and Σ D·D."""
    kept = whole = 0.0

    def each() -> Any:
        nonlocal kept, whole
        for e in range(len(weight)):
            change = sum((change.of(e).dense() for change in changes), torch.zeros((), device=weight.device))
            new, sums = requantized(weight[e], change, names)
            kept, whole = kept + sums[0], whole + sums[1]
            yield new

    return collected(each(), len(weight)), (kept, whole)

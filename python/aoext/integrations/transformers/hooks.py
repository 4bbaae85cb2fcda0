"""What has transformers take others' checkpoints for keep(), and save and offload what is quantised."""

from __future__ import annotations

import functools
import json
from typing import Any, cast

from torch import Tensor
from transformers import core_model_loading
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, AutoHfQuantizer

from aoext import serialization
from aoext.integrations.transformers.config import METHOD, AoextConfig
from aoext.other_packages import when_imported
from aoext.tensors import QuantizedTensor

# Methods of checkpoints.READERS.
_UNKNOWN_TO_TRANSFORMERS = {
    "modelopt",
    "intel/auto-round",
    "sparseml",
    "gemma",
} - AUTO_QUANTIZER_MAPPING.keys()


def keep_foreign_checkpoints() -> None:
    """Have AutoHfQuantizer take AoextConfig.keep() for others' checkpoints, which it would refuse.

    Methods that it does not know count as such, where it would load random weights in place of the quantised.
    """
    merge = AutoHfQuantizer.merge_quantization_configs.__func__
    supports = AutoHfQuantizer.supports_quant_method

    @functools.wraps(merge)
    def merged(cls: Any, quantization_config: Any, quantization_config_from_args: Any) -> Any:
        given, stored = quantization_config_from_args, quantization_config
        method = stored.get("quant_method") if isinstance(stored, dict) else stored.quant_method
        if given is None and isinstance(stored, dict) and method in _UNKNOWN_TO_TRANSFORMERS:
            raise ValueError(
                f"transformers has no quantiser for {method}: quantization_config=aoext.AoextConfig.keep() "
                "runs the checkpoint on aoext's kernels"
            )
        if not isinstance(given, AoextConfig) or method == METHOD:
            return merge(cls, stored, given)
        return given.for_checkpoint_of(stored if isinstance(stored, dict) else stored.to_dict())

    def supported(stored: Any) -> bool:
        method = stored.get("quant_method") if isinstance(stored, dict) else stored.quant_method
        return method in _UNKNOWN_TO_TRANSFORMERS or supports(stored)

    AutoHfQuantizer.merge_quantization_configs = classmethod(merged)
    AutoHfQuantizer.supports_quant_method = staticmethod(supported)


def save_experts_as_they_are() -> None:
    """Have save_pretrained write the fields of quantised experts, and not take them apart as plain ones.

    What it does to names holds for theirs too, and for what the files' metadata says of all weights.
    """
    when_imported("transformers.modeling_utils", _save_experts_as_they_are)


def _save_experts_as_they_are(saving: Any) -> None:
    if not hasattr(saving, "revert_weight_conversion"):
        return
    revert = saving.revert_weight_conversion

    @functools.wraps(revert)
    def reverted(model: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        quantizer = getattr(model, "hf_quantizer", None)
        experts = {name for name, weight in _described(quantizer).items() if len(weight["shape"]) == 3}
        fields = [name for name in state_dict if name.rpartition(".")[0] in experts]
        leaves = [".".join(name.split(".")[-2:]) for name in fields]
        # No conversion knows these names.
        hidden = {
            name: f"{name.removesuffix(leaf)}aoext_{i}"
            for i, (name, leaf) in enumerate(zip(fields, leaves, strict=True))
        }
        renamed = revert(model, {hidden.get(name, name): value for name, value in state_dict.items()})
        result = {}
        for name, value in renamed.items():
            path, _, mark = name.rpartition("aoext_")
            result[path + leaves[int(mark)] if path and mark.isdigit() else name] = value
        _describe_as_named(quantizer, state_dict, result)
        return result

    saving.revert_weight_conversion = reverted


def _describe_as_named(quantizer: Any, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Gives weights the names in the metadata that their codes have got in the file."""
    if not (weights := _described(quantizer)):
        return
    now = {id(value): name.removesuffix(".qdata") for name, value in after.items()}
    renamed = {now.get(id(before.get(f"{name}.qdata")), name): weights[name] for name in weights}
    quantizer.metadata[serialization.WEIGHTS_KEY] = json.dumps(renamed)


def _described(quantizer: Any) -> dict[str, Any]:
    """What the metadata of files being saved say of weights, by their names; nothing of other libraries."""
    metadata = getattr(quantizer, "metadata", None) or {}
    return cast(dict[str, Any], json.loads(metadata.get(serialization.WEIGHTS_KEY, "{}")))


def offload_quantized_weights() -> None:
    """Have transformers write what is quantised to the disk, not refer to plain weights of the checkpoint."""
    loading: Any = core_model_loading
    offload = loading.offload_and_maybe_resave_param

    @functools.wraps(offload)
    def offloaded(target_name: str, param: Tensor, missing: Any, folder: Any, index: Any, ops: Any) -> Any:
        if not isinstance(param, QuantizedTensor):
            return offload(target_name, param, missing, folder, index, ops)
        from aoext.integrations.accelerate import offload_quantized

        getattr(missing, "missing_keys", missing).discard(target_name)  # a set in older releases
        index = offload_quantized(param, target_name, folder, index)
        operations = [ops.quantization_operation, *getattr(ops, "operations", ())]
        operation = next(each for each in operations if hasattr(each, "hf_quantizer"))
        for alias, name in operation.hf_quantizer.tied.items():
            if name == target_name:
                index[alias] = index[name]
        return index

    loading.offload_and_maybe_resave_param = offloaded

"""diffusers: `from_pretrained(..., quantization_config=AoextConfig("int8"))` of a transformer or UNet.

Imported as soon as a program has imported both aoext and diffusers, in whatever order.
PipelineQuantizationConfig takes the same config for parts of a pipeline, or "aoext" as its quant_backend.
AoextConfig.keep() runs a model that another library has quantised, as bitsandbytes' nf4, on aoext's kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers.quantizers import auto
from diffusers.quantizers.base import DiffusersQuantizer
from torch import Tensor, nn

from aoext import checkpoints, serialization
from aoext.integrations.transformers import METHOD, AoextConfig, AoextQuantizer
from aoext.models.layers import set_weight
from aoext.tensors import QuantizedTensor


class AoextDiffusersQuantizer(DiffusersQuantizer):
    """What diffusers asks while it loads and saves a model. The choice of layers is AoextQuantizer's.

    Files are those of save_model: fields of weights, and the metadata that describes them.
    """

    use_keep_in_fp32_modules = True
    is_serializable = True
    is_trainable = True  # adapters beside the weights
    is_compileable = True

    def __init__(self, quantization_config: AoextConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        if quantization_config.scheme is None and not self.pre_quantized:
            raise ValueError(
                "AoextConfig.keep() is for models that are quantised already; this one is not. "
                'AoextConfig("int4") quantises it'
            )
        self.chooser = AoextQuantizer(quantization_config, pre_quantized=True)
        self.reader = self.chooser.reader  # of another library's checkpoint
        self.dtype = torch.float32
        self.descriptions: dict[str, Any] = {}
        # What another library calls the tensors of each weight, by the names behind the layer's.
        self.parts: dict[str, dict[str, str]] = {}
        # Tensors whose weight has others in the next file.
        self.pending: dict[str, Tensor] = {}

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        if not hasattr(DiffusersQuantizer, "maybe_update_state_dict"):
            raise ImportError("AoextConfig: this release of diffusers is too old: pip install -U diffusers")

    # Loading

    def update_torch_dtype(self, torch_dtype: torch.dtype | None) -> torch.dtype | None:
        self.dtype = torch_dtype or self.dtype
        return torch_dtype

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: Sequence[Any]) -> list[str]:
        """The names of the weights instead of those of their fields."""
        files = [file for file in checkpoint_files if str(file).endswith(".safetensors")]
        if self.reader is None:
            for file in files:
                self.descriptions.update(serialization.descriptions_in(file))
        else:
            for file in files:
                self.reader.read_metadata(serialization.metadata_of(file))
            checkpoints.check_files(self.reader, files, self.dtype)
            layers = self.reader.layers(loaded_keys)
            self.parts = {f"{layer}.weight": parts for layer, parts in layers.items()}
        weights = self._keys()
        fields = {key for keys in weights.values() for key in keys}
        return [*weights, *(key for key in loaded_keys if key not in fields)]

    def _keys(self) -> dict[str, list[str]]:
        """What the files call the tensors of each quantised weight."""
        own = {
            name: [f"{name}.{part}" for part in what["fields"]] for name, what in self.descriptions.items()
        }
        return {**own, **{name: list(parts.values()) for name, parts in self.parts.items()}}

    @property
    def supports_parallel_loading(self) -> bool:
        return not self._keys()  # whose tensors may lie in two files

    def maybe_update_state_dict(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """A file's tensors with weights in the place of fields, as far as all of them have been read."""
        stored = {**self.pending, **state_dict}
        weights: dict[str, Tensor] = {}
        self.pending = {}
        for name, keys in self._keys().items():
            fields = {key: stored.pop(key) for key in keys if key in stored}
            if len(fields) == len(keys):
                weights[name] = self._weight(name, fields)
            else:
                self.pending.update(fields)
        return {**stored, **weights}

    def _weight(self, name: str, fields: dict[str, Tensor]) -> QuantizedTensor:
        if self.reader is None:
            return serialization.assembled(name, self.descriptions[name], fields)
        tensors = {leaf: fields[key] for leaf, key in self.parts[name].items()}
        return self.reader.weight(name.removesuffix(".weight"), tensors, self.dtype)

    def _process_model_before_weight_loading(
        self, model: nn.Module, keep_in_fp32_modules: Sequence[str] = (), **_: Any
    ) -> None:
        chosen = self.quantization_config.modules_to_not_convert
        self.chooser.left_alone = [*(chosen or ()), *keep_in_fp32_modules]
        if not self.pre_quantized:
            self.chooser.warn(model)

    def check_if_quantized_param(
        self,
        model: nn.Module,
        param_value: Tensor,
        param_name: str,
        state_dict: Mapping[str, Any],
        **_: Any,
    ) -> bool:
        if self.pre_quantized:
            return isinstance(param_value, QuantizedTensor)
        return self.chooser.config_for(model, param_name) is not None

    def create_quantized_param(
        self,
        model: nn.Module,
        param_value: Tensor,
        param_name: str,
        target_device: Any,
        state_dict: Mapping[str, Any],
        unexpected_keys: list[str],
        **_: Any,
    ) -> None:
        weight = param_value.to(target_device)
        if not isinstance(weight, QuantizedTensor):
            config = self.chooser.config_for(model, param_name)
            assert config is not None
            try:
                weight = config.quantize(weight)
            except ValueError as error:
                raise ValueError(f"{param_name}: {error}") from error
        layer = model.get_submodule(param_name.rpartition(".")[0])
        set_weight(layer, nn.Parameter(weight, requires_grad=False))

    def _process_model_after_weight_loading(self, model: nn.Module, **_: Any) -> nn.Module:
        if self.pending:
            raise ValueError(f"from_pretrained: the files lack fields beside {', '.join(self.pending)}")
        return model

    # Saving, and the way back

    def get_state_dict_and_metadata(
        self, state_dict: dict[str, Tensor], safe_serialization: bool = False
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Fields and their description; where tensors are pickled, as they are."""
        if not safe_serialization:
            return state_dict, {}
        return serialization.flattened(state_dict)

    def _dequantize(self, model: nn.Module) -> nn.Module:
        return self.chooser._dequantize(model)


def adopt(model: nn.Module) -> None:
    """Have save_pretrained know models, or parts of `model`, whose weights were quantised in place."""
    from diffusers.models.modeling_utils import ModelMixin

    for part in model.modules():
        if not isinstance(part, ModelMixin) or getattr(part, "hf_quantizer", None) is not None:
            continue
        if any(isinstance(p, QuantizedTensor) for p in part.parameters()):
            kept = AoextConfig.keep()
            part.hf_quantizer = AoextDiffusersQuantizer(kept, pre_quantized=True)
            part.register_to_config(quantization_config=kept)
            part.quantization_method, part.is_quantized = METHOD, True


def _keep_foreign_checkpoints() -> None:
    """Have diffusers take AoextConfig.keep() for others' checkpoints, where it would leave it aside."""
    merge = auto.DiffusersAutoQuantizer.merge_quantization_configs.__func__

    @functools.wraps(merge)
    def merged(cls: Any, quantization_config: Any, quantization_config_from_args: Any) -> Any:
        given, stored = quantization_config_from_args, quantization_config
        if not isinstance(given, AoextConfig) or stored.get("quant_method") == METHOD:
            return merge(cls, stored, given)
        return given.for_checkpoint_of(stored)

    auto.DiffusersAutoQuantizer.merge_quantization_configs = classmethod(merged)


_keep_foreign_checkpoints()
auto.AUTO_QUANTIZER_MAPPING[METHOD] = AoextDiffusersQuantizer
auto.AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = AoextConfig

"""What vLLM asks about a checkpoint of aoext."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase

from aoext import serialization
from aoext.integrations.vllm.fields import kind_of, note_dtypes
from aoext.integrations.vllm.linear import AoextLinearMethod

METHOD = "aoext"


@register_quantization_config(METHOD)
class AoextVllmConfig(QuantizationConfig):
    """What vLLM asks about a checkpoint whose config.json says "quant_method": "aoext"."""

    def __init__(self) -> None:
        super().__init__()
        self.descriptions: dict[str, Any] = {}  # of quantised weights, by their names

    @classmethod
    def get_name(cls) -> Any:
        return METHOD

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AoextVllmConfig:
        return cls()

    def maybe_update_config(
        self, model_name: str, *args: Any, revision: str | None = None, **kwargs: Any
    ) -> None:
        """Reads the metadata of the checkpoint's files."""
        folder = Path(model_name)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            patterns = ["*.safetensors", "*.safetensors.index.json"]
            folder = Path(snapshot_download(model_name, revision=revision, allow_patterns=patterns))
        forms: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            self.descriptions.update(serialization.descriptions_in(file))
            forms.update(serialization.forms_in(file))
        for name, description in self.descriptions.items():
            note_dtypes(name, description, forms)
        if not self.descriptions:
            raise ValueError(f"aoext: {model_name} has no weights that aoext has quantised")

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        self.descriptions = hf_to_vllm_mapper.apply_dict(self.descriptions)

    def get_quant_method(self, layer: nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """ValueError, which names the layer, for what cannot be served."""
        if isinstance(layer, LinearBase):
            return self._of_linear(prefix)
        below = self._below(prefix)
        if "weight" in below:
            raise ValueError(
                f"aoext: {prefix}: vLLM serves quantised weights of linear layers and experts alone"
            )
        if not below:
            return None
        # Here, for experts move between releases of vLLM more than linear layers do, which need none.
        from aoext.integrations.vllm.experts import RoutedExperts, method_of

        return method_of(layer, prefix, below) if isinstance(layer, RoutedExperts) else None

    def _of_linear(self, prefix: str) -> QuantizeMethodBase:
        described = self._described(prefix)
        if not any(described.values()):
            return UnquantizedLinearMethod()
        alike = {name: kind_of(prefix, description) for name, description in described.items()}
        first = next(iter(alike.values()))
        if any(kind != first for kind in alike.values()):
            raise ValueError(
                f"aoext: {prefix}: vLLM merges {', '.join(described)}, which must be quantised alike"
            )
        return AoextLinearMethod(next(iter(described.values())), prefix)

    def _described(self, prefix: str) -> dict[str, Any]:
        """What the checkpoint says of the layers that vLLM merges to the one of this name; None for plain."""
        path, _, leaf = prefix.rpartition(".")
        parts = self.packed_modules_mapping.get(leaf, [leaf])
        names = [f"{path}.{part}" if path else part for part in parts]
        return {name: self.descriptions.get(f"{name}.weight") for name in names}

    def _below(self, prefix: str) -> dict[str, Any]:
        """What the checkpoint says of a module's quantised weights, by their names in it."""
        start = f"{prefix}."
        return {
            name.removeprefix(start): description
            for name, description in self.descriptions.items()
            if name.startswith(start)
        }

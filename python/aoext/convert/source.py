"""The checkpoint that is converted: its config, its files, and the model that they belong to."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aoext import checkpoints, serialization
from aoext.checkpoints.experts import Experts
from aoext.configs import QuantizationConfig
from aoext.configs.per_module import AnyConfig
from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name
from aoext.models.layers import has_transposed_weight
from aoext.serialization.container import DamagedFileError, Source

CONFIG = "config.json"


class Checkpoint:
    """A folder of transformers.

    FileNotFoundError for one without a config.json or safetensors files, ValueError, which names the file,
    for what is wrong in them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_file = Source("convert", folder / CONFIG)
        if not self.config_file.path.is_file():
            raise FileNotFoundError(f"convert: {folder} must be a folder with a {CONFIG}")
        with self.config_file.named():
            settings = json.loads(self.config_file.path.read_bytes())
        if not isinstance(settings, dict):
            raise self.config_file.error(f"it must be a JSON object, got {reprlib.repr(settings)}")
        self.settings: dict[str, Any] = settings
        with self.config_file.named():
            self.foreign = foreign = checkpoints.settings_in(settings)
        self.method: str | None = foreign.get("quant_method") if foreign is not None else None

    @cached_property
    def places(self) -> dict[str, str]:
        """The file's name of each tensor."""
        return serialization.files_in("convert", self.folder)

    @property
    def files(self) -> list[str]:
        return sorted(set(self.places.values()))

    def tensor(self, key: str) -> Tensor:
        return serialization.tensor_in(self.folder / self.places[key], key)

    @property
    def dtype(self) -> torch.dtype:
        """What the config says of the activations' dtype."""
        name = self.settings.get("dtype") or self.settings.get("torch_dtype")
        return {dtype_name(dtype): dtype for dtype in FLOAT_DTYPES}.get(str(name), torch.bfloat16)

    # The model, without values. Its names may have a prefix that the checkpoint's lack, or the other way.

    @property
    def _model_type(self) -> Any:
        """The class of transformers that the config names; None where it names none."""
        import transformers

        named = self.settings.get("architectures")
        name = named[0] if isinstance(named, list) and named else named
        found = getattr(transformers, name, None) if isinstance(name, str) else None
        is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
        return found if is_model else None

    @cached_property
    def model(self) -> Any:
        import transformers

        if self._model_type is None:
            named = reprlib.repr(self.settings.get("architectures"))
            raise self.config_file.error(f"architectures must name a model of transformers, got {named}")
        try:
            described = transformers.AutoConfig.from_pretrained(self.folder)
            layers = getattr(described.get_text_config(), "num_hidden_layers", 0)
            if layers > len(self.places):
                count = len(self.places)
                raise self.config_file.error(
                    f"num_hidden_layers must be at most {count}, the number of tensors, got {layers}"
                )
            with torch.device("meta"):
                return self._model_type._from_config(described)
        except (OSError, ImportError, DamagedFileError):
            raise
        except Exception as error:  # whatever a model's code makes of the settings
            raise self.config_file.error(f"{type(error).__name__}: {error}") from error

    @cached_property
    def _modules(self) -> dict[str, nn.Module]:
        """The model's modules by their names in the checkpoint."""
        from aoext.integrations.transformers import candidates

        parts = (key.split(".") for key in self.places)
        here = {".".join(part[:end]) for part in parts for end in range(1, len(part))}
        return {
            next((each for each in candidates(self.model, name) if each in here), name): module
            for name, module in self.model.named_modules()
        }

    @cached_property
    def linear_layers(self) -> set[str]:
        """Names of linear layers."""
        return {name for name, module in self._modules.items() if isinstance(module, nn.Linear)}

    @cached_property
    def transposed_layers(self) -> Mapping[str, nn.Module]:
        """Layers that keep their weight as [K, N], as far as transformers knows the model."""
        if self._model_type is None:
            return {}
        return {name: module for name, module in self._modules.items() if has_transposed_weight(module)}

    @property
    def known_model(self) -> checkpoints.Model | None:
        """What readers may ask of the model; None where transformers does not have it."""
        if self._model_type is None:
            return None
        settings = self.settings.get("text_config") or self.settings
        return checkpoints.Model(self._modules.get, settings, self._experts)

    def _experts(self, layers: Iterable[str]) -> tuple[dict[str, Experts], dict[str, str]]:
        from aoext.integrations.transformers.experts import experts_of

        return experts_of(self.model, layers)

    def experts_one_by_one(self) -> dict[str, Experts]:
        """The weights of experts, by the model's names, that files have as a matrix for each expert."""
        layers = (key.removesuffix(".weight") for key in self.places if key.endswith(".weight"))
        found, _ = self._experts(layers)
        return {
            name: experts
            for name, experts in found.items()
            if not any(part.stacked for part in experts.parts)
        }

    def module_of(self, name: str) -> nn.Module:
        """The module that has the weight of this name in the model."""
        module: nn.Module = self.model.get_submodule(name.rpartition(".")[0])
        return module

    def to_quantise(
        self, config: AnyConfig, embeddings: bool
    ) -> tuple[dict[str, nn.Module], dict[str, nn.Module], dict[str, QuantizationConfig]]:
        """What from_pretrained would quantise.

        The layers, by the names of their weights in the checkpoint; modules of experts, by the names of
        weights in the model; and the configs of both, by these names.
        """
        from aoext.integrations.transformers import AoextConfig, AoextQuantizer, candidates, conversions_of

        quantizer = AoextQuantizer(AoextConfig(config, quantize_embeddings=embeddings), pre_quantized=False)
        quantizer._process_model_before_weight_loading(self.model)
        layers: dict[str, nn.Module] = {}
        experts: dict[str, nn.Module] = {}
        configs: dict[str, QuantizationConfig] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if (own := quantizer.config_for(self.model, name)) is not None:
                found = layers if parameter.dim() == 2 else experts
                found[name], configs[name] = self.module_of(name), own
        in_model = conversions_of(self.model).renamed
        named = {key: candidates(self.model, in_model(key)) for key in self.places}
        in_files = {key: name for key, names in named.items() for name in names if name in layers}
        by_key = {key: layers[name] for key, name in in_files.items()}
        configs |= {key: configs[name] for key, name in in_files.items()}
        return by_key, experts, configs

    def others(self) -> Iterator[tuple[Path, str | None]]:
        """Files beside the weights and the config, and why one of them is not to be copied."""
        for file in sorted(self.folder.iterdir()):
            written = file.name in (CONFIG, serialization.DEFAULT_INDEX)
            if not written and file.suffix not in (".safetensors", ".bin", ".pt") and not file.is_dir():
                yield file, self._obstacle(file)

    def _obstacle(self, file: Path) -> str | None:
        """Why a file is not to be copied: a stranger's link may lead to any file of this machine."""
        if not file.is_file():
            return "no regular file"
        folder = self.folder.resolve()
        # The cache of huggingface_hub: snapshots/<revision> has links into blobs.
        homes = [folder, folder.parent.parent / "blobs"] if folder.parent.name == "snapshots" else [folder]
        inside = any(file.resolve().is_relative_to(home) for home in homes)
        return None if inside else "a link that leads out of the folder"

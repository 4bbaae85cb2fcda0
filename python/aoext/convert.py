"""Checkpoints of transformers from one form to another, file by file.

No more than one file's tensors are in memory. A conversion that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aoext import checkpoints, schemes, serialization
from aoext.checkpoints.base import Reader
from aoext.configs import QuantizationConfig
from aoext.layers import as_rows, as_weight
from aoext.packing import FLOAT_DTYPES, dtype_name
from aoext.serialization import DEFAULT_INDEX
from aoext.tensors import QuantizedTensor

# In the target until the conversion is complete: what is converted, and how.
MARKER = "aoext_conversion.json"


@dataclass
class Conversion:
    """What a checkpoint has become."""

    method: str | None  # that had quantised it; None: nobody
    quantised: list[str] = field(default_factory=list)  # names of weights
    others: list[str] = field(default_factory=list)
    bytes_before: int = 0
    bytes_after: int = 0

    def __str__(self) -> str:
        return (
            f"{self.method or 'not quantised'}: {len(self.quantised)} weights quantised by aoext, "
            f"{len(self.others)} tensors as they were, {self.bytes_before / 1e6:.1f} -> "
            f"{self.bytes_after / 1e6:.1f} MB"
        )


def convert_checkpoint(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    config: QuantizationConfig | None = None,
    *,
    each: Callable[[list[str]], Iterable[str]] = list,
) -> Conversion:
    """Write a checkpoint of transformers, a folder, as one of aoext's, which from_pretrained loads.

    config: how to quantise a checkpoint that is not quantised: its linear layers but the output layer and
        what is tied to it. None for one that GPTQ, AWQ, compressed-tensors, bitsandbytes, HQQ or torchao has
        quantised: its weights come onto aoext's layouts without loss.
    each: goes through the names of the files, as tqdm does.

    FileExistsError for a target that is there and is no unfinished conversion of the same; FileNotFoundError
    and ValueError, which name the file or layer, for a source that cannot be converted.
    """
    job = _Job(Path(source), Path(target), config)
    job.begin()
    for name in each(job.files):
        job.convert(name)
    return job.end()


class _Job:
    def __init__(self, source: Path, target: Path, config: QuantizationConfig | None) -> None:
        self.source, self.target, self.config = source, target, config
        if not (source / "config.json").is_file():
            raise FileNotFoundError(f"convert: {source} must be a folder with a config.json")
        self.settings: dict[str, Any] = json.loads((source / "config.json").read_text())
        self.places = serialization.files_in("convert", source)
        self.files = sorted(set(self.places.values()))
        foreign = self.settings.get("quantization_config")
        self.method = foreign.get("quant_method") if foreign else None
        self.reader: Reader | None = None
        if foreign is None and config is None:
            raise ValueError(f"convert: {source} is not quantised: name a scheme for it")
        if foreign is not None:
            if config is not None:
                raise ValueError(
                    f"convert: {source} is quantised by {self.method} already: leave out the scheme"
                )
            self.reader = checkpoints.reader_for(foreign)
            for name in self.files:
                self.reader.read_metadata(serialization.metadata_of(source / name))
        self.dtype = _dtype(self.settings)
        self.chosen = _linear_layers(source, config)
        self.result = Conversion(self.method)

    def begin(self) -> None:
        """Claims the target, or finds it claimed for the same."""
        scheme = None if self.config is None else schemes.to_dict(self.config)
        claim = {"source": str(self.source.resolve()), "scheme": scheme}
        marker = self.target / MARKER
        claimed = marker.is_file() and json.loads(marker.read_text()) == claim
        if not claimed and self.target.exists() and any(self.target.iterdir()):
            raise FileExistsError(
                f"convert: {self.target} is there already, and is no part of this conversion"
            )
        self.target.mkdir(parents=True, exist_ok=True)
        marker.write_text(json.dumps(claim))

    def convert(self, name: str) -> None:
        """Writes one file, unless a run before has."""
        done = self.target / name
        if not done.exists():
            tensors, metadata = serialization.flattened(dict(self._state(name)))
            serialization.write_file(done, tensors, {"format": "pt", **metadata})
        described = serialization.descriptions_in(done)
        self.result.quantised += described
        fields = {f"{weight}.{part}" for weight, what in described.items() for part in what["fields"]}
        self.result.others += [key for key in serialization.names_in(done) if key not in fields]
        self.result.bytes_before += (self.source / name).stat().st_size
        self.result.bytes_after += done.stat().st_size

    def _state(self, name: str) -> Iterator[tuple[str, Tensor]]:
        layers: set[str] = set()
        for key in sorted(key for key, place in self.places.items() if place == name):
            layer, _, leaf = key.rpartition(".")
            if self.reader is not None and self._of_reader(layer, leaf):
                if layer not in layers and key == self._parts(layer)[0]:
                    layers.add(layer)
                    yield f"{layer}.weight", self._read(layer)
            elif self.config is not None and key in self.chosen:
                yield key, self._quantise(self.config, key)
            else:
                yield key, self._tensor(key)

    def _of_reader(self, layer: str, leaf: str) -> bool:
        """Whether a tensor is part of a quantised weight; a layer that was left alone has `weight` alone."""
        assert self.reader is not None
        if leaf not in self.reader.names:
            return False
        return leaf != "weight" or len(self._parts(layer)) > 1

    def _parts(self, layer: str) -> list[str]:
        assert self.reader is not None
        return sorted(f"{layer}.{leaf}" for leaf in self.reader.names if f"{layer}.{leaf}" in self.places)

    def _read(self, layer: str) -> QuantizedTensor:
        assert self.reader is not None
        tensors = {part.removeprefix(f"{layer}."): self._tensor(part) for part in self._parts(layer)}
        return self.reader.weight(layer, tensors, self.dtype)

    def _quantise(self, config: QuantizationConfig, key: str) -> Tensor:
        weight = self._tensor(key)
        layer = self.chosen[key]
        rows = as_rows(layer, weight)
        if config.obstacle(rows) is not None:
            return weight
        try:
            return as_weight(layer, config.quantize(rows))
        except ValueError as error:
            raise ValueError(f"convert: {key}: {error}") from error

    def _tensor(self, key: str) -> Tensor:
        return serialization.tensor_in(self.source / self.places[key], key)

    def end(self) -> Conversion:
        """Writes what belongs to the files, and frees the target."""
        from aoext.integrations.transformers import AoextConfig

        for file in self.source.iterdir():
            weights = file.suffix in (".safetensors", ".bin", ".pt") or file.name == DEFAULT_INDEX
            if file.is_file() and not weights:
                shutil.copy2(file, self.target / file.name)
        kept = AoextConfig(self.config)
        self.settings["quantization_config"] = kept.to_dict()
        (self.target / "config.json").write_text(json.dumps(self.settings, indent=2) + "\n")
        if len(self.files) > 1:
            places = {key: name for name in self.files for key in serialization.names_in(self.target / name)}
            index = {"metadata": {"total_size": self.result.bytes_after}, "weight_map": places}
            (self.target / DEFAULT_INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        (self.target / MARKER).unlink()
        return self.result


def _dtype(settings: Mapping[str, Any]) -> torch.dtype:
    """What a checkpoint's config says of the activations' dtype."""
    name = settings.get("dtype") or settings.get("torch_dtype")
    return {dtype_name(dtype): dtype for dtype in FLOAT_DTYPES}.get(str(name), torch.bfloat16)


def _linear_layers(source: Path, config: QuantizationConfig | None) -> dict[str, nn.Module]:
    """The layers that from_pretrained would quantise, without values, by the names of their weights."""
    if config is None:
        return {}
    import transformers

    from aoext.integrations.transformers import AoextConfig, AoextQuantizer

    described = transformers.AutoConfig.from_pretrained(source)
    (architecture,) = described.architectures or ("AutoModel",)
    model_type: Any = getattr(transformers, architecture)
    with torch.device("meta"):
        model: nn.Module = model_type._from_config(described)
    quantizer = AoextQuantizer(AoextConfig(config), pre_quantized=False)
    quantizer._process_model_before_weight_loading(model)
    return {
        name: model.get_submodule(name.rpartition(".")[0])
        for name, _ in model.named_parameters()
        if quantizer.config_for(model, name) is not None
    }

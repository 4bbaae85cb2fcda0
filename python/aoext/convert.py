"""Checkpoints of transformers from one form to another, file by file.

What a source says of its weights makes quantised weights (checkpoints.Reader, or a config); these become
files of aoext or of another library (checkpoints.Writer).

No more than one file's tensors are in memory. A conversion that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aoext import checkpoints, schemes, serialization
from aoext.checkpoints.base import Reader, Writer
from aoext.configs import QuantizationConfig
from aoext.layers import as_rows, as_weight
from aoext.packing import FLOAT_DTYPES, dtype_name
from aoext.serialization import DEFAULT_INDEX
from aoext.tensors import QuantizedTensor

# In the target until the conversion is complete: what is converted, how, and what is known of each file.
MARKER = "aoext_conversion.json"

AOEXT = "aoext"
FORMATS = (AOEXT, *checkpoints.WRITERS)


@dataclass
class Conversion:
    """What a checkpoint has become."""

    method: str | None  # that had quantised it; None: nobody
    format: str = AOEXT
    quantised: list[str] = field(default_factory=list)  # names of weights
    others: list[str] = field(default_factory=list)
    bytes_before: int = 0
    bytes_after: int = 0
    notes: list[str] = field(default_factory=list)  # what is not as the source has it

    def __str__(self) -> str:
        line = (
            f"{self.method or 'not quantised'}: {len(self.quantised)} weights quantised by {self.format}, "
            f"{len(self.others)} tensors as they were, {self.bytes_before / 1e6:.1f} -> "
            f"{self.bytes_after / 1e6:.1f} MB"
        )
        return "\n  ".join((line, *self.notes))


def convert_checkpoint(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    config: QuantizationConfig | None = None,
    *,
    format: str = AOEXT,
    double_quantization: bool = False,
    each: Callable[[list[str]], Iterable[str]] = list,
) -> Conversion:
    """Write a checkpoint of transformers, a folder, as one of aoext's, which from_pretrained loads.

    config: how to quantise a checkpoint that is not quantised: its linear layers but the output layer and
        what is tied to it. None for one that aoext or another library (checkpoints.READERS) has quantised:
        its weights come onto aoext's layouts without loss.
    format: whose checkpoint the target is: "aoext", or "gptq", "torchao", "compressed-tensors" or
        "bitsandbytes", where these can say exactly what the weights are.
    double_quantization: whether bitsandbytes' scales become 8 bits themselves, which rounds them.
    each: goes through the names of the files, as tqdm does.

    FileExistsError for a target that is there and is no unfinished conversion of the same; FileNotFoundError
    and ValueError, which name the file or layers, for a source that cannot be converted.
    """
    job = _Job(Path(source), Path(target), config, format, double_quantization)
    job.begin()
    try:
        for name in each(job.files):
            job.convert(name)
        return job.end()
    except ValueError:
        job.abandon()
        raise


# The tensors of a file, its metadata, and the facts of its quantised layers.
_File = tuple[dict[str, Tensor], dict[str, str], dict[str, dict[str, Any]]]


class _Job:
    def __init__(
        self,
        source: Path,
        target: Path,
        config: QuantizationConfig | None,
        format: str,
        double_quantization: bool,
    ) -> None:
        self.source, self.target, self.config, self.format = source, target, config, format
        self.double_quantization = double_quantization
        if format not in FORMATS:
            raise ValueError(f"convert: format must be one of {', '.join(FORMATS)}, got {format!r}")
        if double_quantization and format != "bitsandbytes":
            raise ValueError(f"convert: double_quantization is for format 'bitsandbytes', got {format!r}")
        if not (source / "config.json").is_file():
            raise FileNotFoundError(f"convert: {source} must be a folder with a config.json")
        self.settings: dict[str, Any] = json.loads((source / "config.json").read_text(encoding="utf-8"))
        self.places = serialization.files_in("convert", source)
        self.files = sorted(set(self.places.values()))
        foreign = checkpoints.settings_in(self.settings)
        self.method = foreign.get("quant_method") if foreign else None
        self.reader: Reader | None = None
        # The tensors of each quantised layer by their names behind it, and the layer of each of them.
        self.parts: dict[str, dict[str, str]] = {}
        self.layer_of: dict[str, str] = {}
        if foreign is None and config is None:
            raise ValueError(f"convert: {source} is not quantised: name a scheme for it")
        if foreign is not None:
            if config is not None:
                raise ValueError(
                    f"convert: {source} is quantised by {self.method} already: leave out the scheme"
                )
            if self.method == format == AOEXT:
                raise ValueError(f"convert: {source} is a checkpoint of aoext already: name another format")
            self.reader = _OwnReader(foreign) if self.method == AOEXT else checkpoints.reader_for(foreign)
            for name in self.files:
                self.reader.read_metadata(serialization.metadata_of(source / name))
            self.parts = self.reader.layers(self.places)
            self.layer_of = {key: layer for layer, parts in self.parts.items() for key in parts.values()}
        self.writer: Writer | None = None
        if format != AOEXT:
            symmetric = _is_symmetric(config, foreign or {})
            options = {"double_quantization": True} if double_quantization else {}
            self.writer = checkpoints.WRITERS[format](symmetric=symmetric, **options)
        self.dtype = _dtype(self.settings)
        if self.method in checkpoints.READERS:
            assert self.reader is not None
            checkpoints.check_files(
                self.reader,
                [source / name for name in self.files],
                self.dtype,
                self._known_model(),
            )
        self.chosen = _linear_layers(source, config)
        notes = () if self.reader is None else self.reader.notes
        self.result = Conversion(self.method, format, notes=list(notes))
        # Of each file that is done: facts of its quantised layers, and the names of its other tensors.
        self.done: dict[str, dict[str, Any]] = {}

    @property
    def _marker(self) -> Path:
        return self.target / MARKER

    def begin(self) -> None:
        """Claims the target, or finds it claimed for the same."""
        claimed = json.loads(self._marker.read_text(encoding="utf-8")) if self._marker.is_file() else {}
        if claimed.get("claim") == self._claim:
            self.done = claimed["done"]
        elif self.target.exists() and any(self.target.iterdir()):
            raise FileExistsError(
                f"convert: {self.target} is there already, and is no part of this conversion"
            )
        self.target.mkdir(parents=True, exist_ok=True)
        self._remember()

    @property
    def _claim(self) -> dict[str, Any]:
        scheme = None if self.config is None else schemes.to_dict(self.config)
        return {
            "source": str(self.source.resolve()),
            "scheme": scheme,
            "format": self.format,
            "double_quantization": self.double_quantization,
        }

    def _remember(self) -> None:
        self._marker.write_text(json.dumps({"claim": self._claim, "done": self.done}), encoding="utf-8")

    def abandon(self) -> None:
        """Frees the target if nothing was written."""
        if not self.done:
            self._marker.unlink()
            self.target.rmdir()

    def convert(self, name: str) -> None:
        """Writes one file, unless a run before has."""
        done = self.target / name
        if name not in self.done:
            state = dict(self._state(name))
            write = self._as_aoext if self.writer is None else self._as_another
            tensors, metadata, layers = write(state)
            serialization.write_file(done, tensors, {"format": "pt", **metadata})
            others = [key for key, tensor in state.items() if not isinstance(tensor, QuantizedTensor)]
            self.done[name] = {"layers": layers, "others": others}
            self._remember()
        self.result.quantised += [f"{layer}.weight" for layer in self.done[name]["layers"]]
        self.result.others += self.done[name]["others"]
        self.result.bytes_before += (self.source / name).stat().st_size
        self.result.bytes_after += done.stat().st_size

    def _as_aoext(self, state: dict[str, Tensor]) -> _File:
        tensors, metadata = serialization.flattened(state)
        names = [key for key, tensor in state.items() if isinstance(tensor, QuantizedTensor)]
        return tensors, metadata, {name.removesuffix(".weight"): {} for name in names}

    def _as_another(self, state: dict[str, Tensor]) -> _File:
        """ValueError, which names every layer that the format cannot say exactly, a line for each."""
        assert self.writer is not None
        tensors: dict[str, Tensor] = {}
        layers: dict[str, dict[str, Any]] = {}
        refused: list[str] = []
        for key, tensor in state.items():
            layer = key.removesuffix(".weight")
            if not isinstance(tensor, QuantizedTensor):
                tensors[key] = tensor
                continue
            try:
                if layer not in self.linear_layers:
                    raise ValueError(f"{layer}: only linear layers have a quantised weight there")
                parts, layers[layer] = self.writer.write(layer, tensor)
            except ValueError as error:
                refused.append(str(error))
            else:
                tensors.update({f"{layer}.{part}": value for part, value in parts.items()})
        if refused:
            raise ValueError(
                f"convert: {self.format} cannot say exactly what these layers are:\n" + "\n".join(refused)
            )
        others = [key for key in tensors if key in state]
        return tensors, self.writer.metadata(layers, others), layers

    @cached_property
    def linear_layers(self) -> set[str]:
        """Names of the model's linear layers."""
        return {name for name, module in self.modules.items() if isinstance(module, nn.Linear)}

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        """The model's modules, without values."""
        return dict(_model(self.source).named_modules())

    def _known_model(self) -> checkpoints.Model | None:
        """What is known of the model; nothing where transformers does not have it."""
        try:
            module = self.modules.get
        except ValueError:
            return None
        return checkpoints.Model(module, self.settings.get("text_config") or self.settings)

    def _state(self, name: str) -> Iterator[tuple[str, Tensor]]:
        for key in sorted(key for key, place in self.places.items() if place == name):
            if key in self.layer_of:
                layer = self.layer_of[key]
                if key == min(self.parts[layer].values()):  # the first of them, wherever the others lie
                    yield f"{layer}.weight", self._read(layer)
            elif self.config is not None and key in self.chosen:
                yield key, self._quantise(self.config, key)
            else:
                yield key, self._tensor(key)

    def _read(self, layer: str) -> QuantizedTensor:
        assert self.reader is not None
        tensors = {leaf: self._tensor(key) for leaf, key in self.parts[layer].items()}
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
        for file in self.source.iterdir():
            weights = file.suffix in (".safetensors", ".bin", ".pt") or file.name == DEFAULT_INDEX
            if file.is_file() and not weights:
                shutil.copy2(file, self.target / file.name)
        self.settings["quantization_config"] = self._quantization_config()
        (self.target / "config.json").write_text(json.dumps(self.settings, indent=2) + "\n", encoding="utf-8")
        if len(self.files) > 1:
            places = {key: name for name in self.files for key in serialization.names_in(self.target / name)}
            index = {"metadata": {"total_size": self.result.bytes_after}, "weight_map": places}
            (self.target / DEFAULT_INDEX).write_text(
                json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8"
            )
        self._marker.unlink()
        return self.result

    def _quantization_config(self) -> dict[str, Any]:
        from aoext.integrations.transformers import AoextConfig

        if self.writer is None:
            return AoextConfig(self.config).to_dict()
        layers = {layer: facts for done in self.done.values() for layer, facts in done["layers"].items()}
        if not layers:
            raise ValueError(f"convert: {self.source} has no weight to quantise")
        return self.writer.settings(layers, sorted(self.linear_layers - layers.keys()))


class _OwnReader(Reader):
    """Of aoext's own checkpoints: the fields of each weight, as the files' metadata describes them."""

    names = tuple(
        sorted({f"weight.{name}" for kind in serialization.TENSOR_TYPES.values() for name in kind.fields})
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.described: dict[str, Any] = {}

    def read_metadata(self, metadata: Mapping[str, str]) -> None:
        self.described.update(json.loads(metadata.get(serialization.WEIGHTS_KEY, "{}")))

    def weight(self, layer: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> QuantizedTensor:
        name = f"{layer}.weight"
        stored = {f"{layer}.{part}": tensor for part, tensor in tensors.items()}
        return serialization.assembled(name, self.described.get(name), stored)


def _is_symmetric(config: QuantizationConfig | None, foreign: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's int4 weights are known to have no zero points."""
    if config is not None:
        return bool(getattr(config, "symmetric", False))
    groups = (foreign.get("config_groups") or {}).values()  # of compressed-tensors
    if groups:
        return all((group.get("weights") or {}).get("symmetric", False) for group in groups)
    scheme = foreign.get("scheme") or {}  # of aoext
    return bool(foreign.get("sym", scheme.get("symmetric", False)))


def _dtype(settings: Mapping[str, Any]) -> torch.dtype:
    """What a checkpoint's config says of the activations' dtype."""
    name = settings.get("dtype") or settings.get("torch_dtype")
    return {dtype_name(dtype): dtype for dtype in FLOAT_DTYPES}.get(str(name), torch.bfloat16)


def _linear_layers(source: Path, config: QuantizationConfig | None) -> dict[str, nn.Module]:
    """The layers that from_pretrained would quantise, without values, by the names of their weights."""
    if config is None:
        return {}
    from aoext.integrations.transformers import AoextConfig, AoextQuantizer

    model = _model(source)
    quantizer = AoextQuantizer(AoextConfig(config), pre_quantized=False)
    quantizer._process_model_before_weight_loading(model)
    return {
        name: model.get_submodule(name.rpartition(".")[0])
        for name, _ in model.named_parameters()
        if quantizer.config_for(model, name) is not None
    }


def _model(source: Path) -> Any:
    """The model of a checkpoint, without values."""
    import transformers

    described = transformers.AutoConfig.from_pretrained(source)
    architecture = next(iter(described.architectures or ()), None)
    model_type: Any = getattr(transformers, str(architecture), None)
    if model_type is None:
        raise ValueError(
            f"convert: {source}/config.json must name an architecture of transformers, got {architecture!r}"
        )
    with torch.device("meta"):
        return model_type._from_config(described)

"""convert_checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from aoext import checkpoints, serialization
from aoext.checkpoints.base import Reader, Writer
from aoext.checkpoints.experts import Experts, read_experts
from aoext.checkpoints.groups import has_zero_points, with_scales_in
from aoext.configs import QuantizationConfig
from aoext.configs.per_module import AnyConfig, PerModuleConfig
from aoext.configs.schemes import to_dict
from aoext.convert.experts import PlainExperts
from aoext.convert.own import OwnReader
from aoext.convert.source import Checkpoint
from aoext.convert.target import Target
from aoext.models.layers import as_rows, as_weight
from aoext.models.summary import grouped, large_tensors
from aoext.tensors import QuantizedTensor

AOEXT = "aoext"

# What checkpoints call a weight of one expert.
_OF_EXPERTS = re.compile(r"\bexperts\.")
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
            f"{self.method or 'plain'} -> {self.format}: {len(self.quantised)} weights quantised, "
            f"{len(self.others)} tensors as they were, {self.bytes_before / 1e6:.1f} -> "
            f"{self.bytes_after / 1e6:.1f} MB"
        )
        return "\n  ".join((line, *self.notes))


def convert_checkpoint(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    config: AnyConfig | None = None,
    *,
    format: str = AOEXT,
    double_quantization: bool = False,
    quantize_embeddings: bool = False,
    each: Callable[[list[str]], Iterable[str]] = list,
) -> Conversion:
    """Write a checkpoint of transformers, a folder, as one of aoext's, which from_pretrained loads.

    config: how to quantise a checkpoint that is not quantised: its linear layers but the output layer and
        what is tied to it; a PerModuleConfig says it for each. None for one that aoext or another library
        (checkpoints.READERS) has quantised: its weights come onto aoext's layouts without loss.
    format: whose checkpoint the target is: "aoext", or "gptq", "torchao", "compressed-tensors" or
        "bitsandbytes", where these can say exactly what the weights are.
    double_quantization: whether bitsandbytes' scales become 8 bits themselves, which rounds those of floats.
    quantize_embeddings: whether config quantises embeddings too, for aoext's format; an output layer that is
        tied to one goes on sharing its weight.
    each: goes through the names of the files, as tqdm does.

    Files beside the weights are copied, but for links that lead elsewhere and what is no regular file; the
    result's notes name those.

    FileExistsError for a target that is there and is no unfinished conversion of the same; FileNotFoundError
    and ValueError, which name the file or layers, for a source that cannot be converted, or in which nothing
    would be quantised.
    """
    job = _Job(Path(source), Path(target), config, format, double_quantization, quantize_embeddings)
    job.target.begin()
    try:
        for name in each(job.files):
            job.convert(name)
        return job.end()
    except ValueError:
        job.target.abandon()
        raise


# The tensors of a file, its metadata, and the facts of its quantised layers.
_File = tuple[dict[str, Tensor], dict[str, str], dict[str, dict[str, Any]]]


class _Job:
    def __init__(
        self,
        source: Path,
        target: Path,
        config: AnyConfig | None,
        format: str,
        double_quantization: bool,
        quantize_embeddings: bool,
    ) -> None:
        if format not in FORMATS:
            raise ValueError(f"convert: format must be one of {', '.join(FORMATS)}, got {format!r}")
        if double_quantization and format != "bitsandbytes":
            raise ValueError(f"convert: double_quantization is for format 'bitsandbytes', got {format!r}")
        if quantize_embeddings and (format != AOEXT or config is None):
            raise ValueError(f"convert: quantize_embeddings needs a config, and the format {AOEXT!r}")
        self.config, self.format, self.quantize_embeddings = config, format, quantize_embeddings
        self.source = Checkpoint(source)
        self._check_method()
        claim = {
            "source": str(source.resolve()),
            "scheme": config.to_dict() if isinstance(config, PerModuleConfig) else config and to_dict(config),
            "format": format,
            "double_quantization": double_quantization,
            "quantize_embeddings": quantize_embeddings,
        }
        self.target = Target(target, claim, self.source)
        self.files = self.source.files
        self.reader: Reader | None = None
        # The tensors of each quantised layer by their names behind it, and the weights of experts that layers
        # make together.
        self.parts: dict[str, dict[str, str]] = {}
        self.experts: dict[str, Experts] = {}
        if self.source.foreign is not None:
            self._read_layers(self.source.foreign)
        self.writer: Writer | None = None
        if format != AOEXT:
            symmetric = _is_symmetric(config, self.source.foreign or {})
            options = {"double_quantization": True} if double_quantization else {}
            self.writer = checkpoints.WRITERS[format](symmetric=symmetric, **options)
        self.chosen: dict[str, nn.Module] = {}
        self.configs: dict[str, QuantizationConfig] = {}  # of chosen layers and of plain experts
        self.plain = PlainExperts(self.source, {})
        if config is not None:
            self.chosen, experts, self.configs = self.source.to_quantise(config, quantize_embeddings)
            if format == AOEXT:  # other libraries' formats have no experts
                self.plain = PlainExperts(self.source, experts)
        # The tensors of each weight that is made of several, and the weight of each of them.
        self.keys = self._keys()
        self.weight_of = {key: name for name, keys in self.keys.items() for key in keys}
        if not self.chosen and not self.keys:
            how = "that is quantised" if config is None else f"that {config} quantises"
            raise ValueError(f"convert: {source} has no layer {how}, so nothing is written")
        notes = () if self.reader is None else self.reader.notes
        self.result = Conversion(self.source.method, format, notes=list(notes))

    def _check_method(self) -> None:
        folder, method = self.source.folder, self.source.method
        if self.source.foreign is None and self.config is None:
            raise ValueError(f"convert: {folder} is not quantised: name a scheme for it")
        if self.source.foreign is not None and self.config is not None:
            raise ValueError(f"convert: {folder} is quantised by {method} already: leave out the scheme")
        if method == self.format == AOEXT:
            raise ValueError(f"convert: {folder} is a checkpoint of aoext already: name another format")

    def _read_layers(self, foreign: Mapping[str, Any]) -> None:
        source = self.source
        self.reader = OwnReader(foreign) if source.method == AOEXT else checkpoints.reader_for(foreign)
        for name in self.files:
            self.reader.read_metadata(serialization.metadata_of(source.folder / name))
        self.parts = self.reader.layers(source.places)
        if source.method != AOEXT:
            self.experts = checkpoints.check_files(
                self.reader,
                [source.folder / name for name in self.files],
                source.dtype,
                source.known_model,
            )

    def _keys(self) -> dict[str, list[str]]:
        keys = {
            name: [key for layer in experts.layers for key in self.parts[layer].values()]
            for name, experts in self.experts.items()
        }
        together = {layer for experts in self.experts.values() for layer in experts.layers}
        for layer in self.parts.keys() - together:
            keys[f"{layer}.weight"] = list(self.parts[layer].values())
        return keys | {name: list(parts) for name, parts in self.plain.parts.items()}

    @property
    def _of_experts(self) -> set[str]:
        return self.experts.keys() | self.plain.parts.keys()

    def _in_file(self, weight: str) -> str:
        """A weight's name beside the tensors that make it, whose names may be older than the model's."""
        path, found, _ = self.keys[weight][0].rpartition(".experts.")
        module, _, leaf = weight.rpartition(".")
        renamed = found and weight in self._of_experts and module.endswith(".experts")
        return f"{path}.experts.{leaf}" if renamed else weight

    def convert(self, name: str) -> None:
        """Writes one file, unless a run before has."""
        written = self.target.folder / name
        if name not in self.target.done:
            state = dict(self._state(name))
            write = self._as_aoext if self.writer is None else self._as_another
            tensors, metadata, layers = write(state)
            serialization.write_file(written, tensors, {"format": "pt", **metadata})
            others = [key for key, tensor in state.items() if not isinstance(tensor, QuantizedTensor)]
            self.target.wrote(name, layers, others)
        done = self.target.done[name]
        of_experts = {self._in_file(weight) for weight in self._of_experts}
        names = (layer if layer in of_experts else f"{layer}.weight" for layer in done["layers"])
        self.result.quantised += names
        self.result.others += done["others"]
        self.result.bytes_before += (self.source.folder / name).stat().st_size
        self.result.bytes_after += written.stat().st_size

    def _as_aoext(self, state: dict[str, Tensor]) -> _File:
        tensors, metadata = serialization.flattened(state)
        names = [key for key, tensor in state.items() if isinstance(tensor, QuantizedTensor)]
        return tensors, metadata, {name.removesuffix(".weight"): {} for name in names}

    def _as_another(self, state: dict[str, Tensor]) -> _File:
        """ValueError, which names every layer that the format cannot say exactly, those alike in a line."""
        assert self.writer is not None
        tensors: dict[str, Tensor] = {}
        layers: dict[str, dict[str, Any]] = {}
        refused: dict[str, str] = {}
        for key, tensor in state.items():
            layer = key.removesuffix(".weight")
            if not isinstance(tensor, QuantizedTensor):
                tensors[key] = tensor
                continue
            try:
                if layer not in self.source.linear_layers:
                    raise ValueError("only linear layers have a quantised weight there")
                parts, layers[layer] = self.writer.write(layer, tensor)
            except ValueError as error:
                refused[key] = str(error).removeprefix(f"{layer}: ")
            else:
                tensors.update({f"{layer}.{part}": value for part, value in parts.items()})
        if refused:
            named_so = {key.removesuffix(".weight"): why for key, why in refused.items()}
            lines = [f"{names}: {why}" for names, why in grouped(named_so)]
            if any(has_zero_points(state[key]) for key in refused):
                lines.append(
                    "integers without zero points come of symmetric=True (--symmetric): convert the "
                    "checkpoint that is not quantised so"
                )
            raise ValueError(
                f"convert: {self.format} cannot say exactly what these layers are:\n" + "\n".join(lines)
            )
        others = [key for key in tensors if key in state]
        return tensors, self.writer.metadata(layers, others), layers

    def _state(self, name: str) -> Iterator[tuple[str, Tensor]]:
        for key in sorted(key for key, place in self.source.places.items() if place == name):
            if key in self.weight_of:
                weight = self.weight_of[key]
                if key == min(self.keys[weight]):  # the first of them, wherever the others lie
                    yield self._in_file(weight), self._weight(weight)
            elif key in self.chosen:
                yield key, self._quantise(self.configs[key], key, self.source.tensor(key), self.chosen[key])
            elif not any(re.search(aside, key) for aside in self._left_aside):
                yield key, self.source.tensor(key)

    @property
    def _left_aside(self) -> tuple[str, ...]:
        return () if self.reader is None else self.reader.left_aside

    def _tensors(self, layer: str) -> dict[str, Tensor]:
        return {leaf: self.source.tensor(key) for leaf, key in self.parts[layer].items()}

    def _weight(self, name: str) -> Tensor:
        """The weight that several tensors make."""
        if name in self.plain.parts:
            quantized = self.plain.quantized(name, self.configs[name], self.source.tensor)
            if quantized is not None:
                return as_weight(self.plain.modules[name], quantized)
            plain = self.plain.tensor(name, self.source.tensor)
            return self._quantise(self.configs[name], name, plain, self.plain.modules[name])
        assert self.reader is not None
        if name in self.experts:
            weight = read_experts(self.reader, name, self.experts[name], self._tensors, self.source.dtype)
            return as_weight(self.source.module_of(name), weight)
        layer = name.removesuffix(".weight")
        weight = self.reader.weight(layer, self._tensors(layer), self.source.dtype)
        if weight.transposed or layer not in self.source.transposed_layers:
            return weight
        return as_weight(self.source.transposed_layers[layer], weight)

    def _quantise(self, config: QuantizationConfig, key: str, weight: Tensor, layer: nn.Module) -> Tensor:
        rows = as_rows(layer, weight)
        if config.obstacle(rows) is not None:
            return weight
        try:
            quantized = config.quantize(rows)
        except ValueError as error:
            raise ValueError(f"convert: {key}: {error}") from error
        if self.writer is not None and self.writer.scale_dtype is not None:
            quantized = with_scales_in(self.writer.scale_dtype, quantized, rows)
        return as_weight(layer, quantized)

    def end(self) -> Conversion:
        """Writes what belongs to the files, and frees the target."""
        self.result.notes += self.target.end(self._quantization_config(), self.result.bytes_after)
        self.result.notes += self._what_stays()
        return self.result

    def _what_stays(self) -> list[str]:
        """Lines on large tensors that are as they were, by name and size."""
        forms: dict[str, Tensor] = {}
        for name in self.files:
            forms.update(serialization.forms_in(self.source.folder / name))
        stay = {name: forms[name] for name in self.result.others if name in forms}

        def reason(name: str) -> str:
            if forms[name].dim() < 3 and not _OF_EXPERTS.search(name):
                return "plain"
            return "experts, for which this format has no place"

        found = large_tensors(stay, sum(form.numel() for form in forms.values()), reason)
        return [line.strip() for line in found]

    def _quantization_config(self) -> dict[str, Any]:
        from aoext.integrations.transformers import AoextConfig

        if self.writer is None:
            return AoextConfig(self.config, quantize_embeddings=self.quantize_embeddings).to_dict()
        written = [done["layers"].items() for done in self.target.done.values()]
        layers = {layer: facts for items in written for layer, facts in items}
        return self.writer.settings(layers, sorted(self.source.linear_layers - layers.keys()))


def _is_symmetric(config: AnyConfig | None, foreign: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's integers are known to have no zero points."""
    if config is not None:
        return bool(getattr(config, "symmetric", False))
    groups = (foreign.get("config_groups") or {}).values()  # of compressed-tensors
    if groups:
        return all((group.get("weights") or {}).get("symmetric", False) for group in groups)
    scheme = foreign.get("scheme") or {}  # of aoext
    return bool(foreign.get("sym", scheme.get("symmetric", False)))

"""The folder that a checkpoint is converted into."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aoext import checkpoints, serialization
from aoext.convert.source import CONFIG, Checkpoint
from aoext.serialization.container import Source, parse_json
from aoext.serialization.replacing import is_temporary, replacing

# In the target until the conversion is complete: what is converted, how, and what is known of each file.
MARKER = "aoext_conversion.json"


class Target:
    """A folder that is claimed for one conversion.

    claim: what is converted, and how, in JSON's types.
    done: of each file that is written, facts of its quantised layers and the names of its other tensors.

    FileExistsError for a folder that is there and is not of the same conversion, or of it and complete;
    ValueError for one whose marker is damaged.
    """

    def __init__(self, folder: Path, claim: Mapping[str, Any], source: Checkpoint) -> None:
        self.folder, self.claim, self.source = folder, claim, source
        self.done: dict[str, dict[str, Any]] = {}
        self.was_there = folder.exists()
        said = self._marked()
        if said.get("claim") == claim:
            self.done = {name: facts for name, facts in said["done"].items() if (folder / name).is_file()}
        elif self.was_there and not all(map(is_temporary, folder.iterdir())):
            if self._is_finished():
                raise FileExistsError(
                    f"convert: finished already: {folder} is {source.folder} as a checkpoint of "
                    f"{claim['format']}"
                )
            raise FileExistsError(f"convert: {folder} is there already, and is no part of this conversion")

    @property
    def _marker(self) -> Path:
        return self.folder / MARKER

    def _marked(self) -> dict[str, Any]:
        if not self._marker.is_file():
            return {}
        source = Source("convert", self._marker)
        try:
            said = parse_json(self._marker.read_bytes())
            if all(facts.keys() == {"layers", "others"} for facts in said["done"].values()):
                return {"claim": said["claim"], "done": said["done"]}
            problem = "facts of a file are missing"
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
        raise source.error(
            f"it is damaged ({problem}), so nobody knows how far the conversion came: remove {self.folder}"
        )

    def _is_finished(self) -> bool:
        """Whether the folder is what this conversion makes, as far as a look at its config says."""
        try:
            written = json.loads((self.folder / CONFIG).read_bytes())
            ours = written.pop("quantization_config")
            method, scheme = ours["quant_method"], ours.get("scheme")
            embeddings = ours.get("quantize_embeddings", False)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return False
        settings = checkpoints.without_settings(self.source.settings)
        alike = method == self.claim["format"] and scheme in (self.claim["scheme"], None)
        alike = alike and embeddings == self.claim["quantize_embeddings"]
        return alike and written == settings and all((self.folder / f).is_file() for f in self.source.files)

    def begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remember()

    def _remember(self) -> None:
        _write_json(self._marker, {"claim": self.claim, "done": self.done})

    def abandon(self) -> None:
        """Frees the folder if nothing was written."""
        if not self.done:
            self._marker.unlink()
            if not self.was_there:
                self.folder.rmdir()

    def wrote(self, name: str, layers: Mapping[str, Any], others: list[str]) -> None:
        self.done[name] = {"layers": layers, "others": others}
        self._remember()

    def end(self, quantization_config: Mapping[str, Any], total_size: int) -> list[str]:
        """Writes what belongs to the files; notes on what of the source is not there."""
        notes = []
        for file, obstacle in self.source.others():
            if obstacle is not None:
                notes.append(f"{file.name} is not copied: {obstacle}")
            elif file.name != MARKER:
                shutil.copy2(file, self.folder / file.name)
        if len(files := self.source.files) > 1:
            places = {key: name for name in files for key in serialization.names_in(self.folder / name)}
            index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(places.items()))}
            _write_json(self.folder / serialization.DEFAULT_INDEX, index)
        settings = checkpoints.without_settings(self.source.settings)
        settings["quantization_config"] = quantization_config
        _write_json(self.folder / CONFIG, settings)
        self._marker.unlink()
        return notes


def _write_json(path: Path, value: Any) -> None:
    with replacing(path) as file:
        file.write(json.dumps(value, indent=2).encode() + b"\n")

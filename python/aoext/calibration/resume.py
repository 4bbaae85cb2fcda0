"""Blocks that are finished, in a folder, so that a calibration that was interrupted goes on after them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aoext import serialization
from aoext.calibration.pipeline import Finished
from aoext.calibration.rounding import Errors
from aoext.serialization.replacing import replacing
from aoext.tensors import QuantizedTensor

_CLAIM = "calibration.json"
_FACTS = "aoext_calibration"


class Checkpoint:
    """A folder of finished blocks.

    claim: what is calibrated and how, in JSON's types; FileExistsError for a folder of another calibration
    """

    def __init__(self, folder: str | os.PathLike[str], claim: Mapping[str, Any]) -> None:
        self.folder, self.claim = Path(folder), json.loads(json.dumps(claim))
        marker = self.folder / _CLAIM
        if marker.is_file():
            known = json.loads(marker.read_bytes())
            if known != self.claim:
                other = [name for name in self.claim if known.get(name) != self.claim[name]]
                raise FileExistsError(
                    f"calibrate: resume_dir {self.folder} is of another calibration, which has other "
                    f"{', '.join(other)}"
                )
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(marker) as file:
            file.write(json.dumps(self.claim, indent=2).encode())

    def _file(self, number: int) -> Path:
        return self.folder / f"block_{number:05}.safetensors"

    def save(self, number: int, finished: Finished) -> None:
        fields, metadata = serialization.flattened({**finished.quantized, **finished.plain})
        facts = {
            "errors": {name: asdict(errors) for name, errors in finished.errors.items()},
            "notes": finished.notes,
        }
        tensors = {name: tensor.contiguous() for name, tensor in fields.items()}
        serialization.write_file(self._file(number), tensors, {**metadata, _FACTS: json.dumps(facts)})

    def load(self, number: int) -> Finished | None:
        """A block that is finished; None where it is not."""
        file = self._file(number)
        if not file.is_file():
            return None
        described = serialization.descriptions_in(file)
        tensors = serialization.tensors_in(file, serialization.names_in(file))
        facts = json.loads(serialization.metadata_of(file)[_FACTS])
        finished = Finished(notes=facts["notes"])
        finished.errors = {name: Errors(**errors) for name, errors in facts["errors"].items()}
        for name, description in described.items():
            keys = [f"{name}.{field}" for field in description["fields"]]
            parts = {key: tensors.pop(key) for key in keys}
            weight = serialization.assembled(name, description, parts)
            assert isinstance(weight, QuantizedTensor)
            finished.quantized[name] = weight
        finished.plain = tensors
        return finished

    def remove(self) -> None:
        """Once nobody needs it."""
        for file in (*self.folder.glob("block_*.safetensors"), self.folder / _CLAIM):
            file.unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

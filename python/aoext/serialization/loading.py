"""load_model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from aoext.integrations import adopt
from aoext.serialization.checkpoint import opened
from aoext.serialization.container import Source, TensorFile
from aoext.serialization.contents import Contents, Place, Stored, read_contents
from aoext.serialization.placing import Slot, place
from aoext.serialization.state import buffers_beside_the_state, check_module, state_of


class LoadedNames(NamedTuple):
    """What load_model has left out; both are empty unless it was called with strict=False."""

    missing: list[str]  # names of the model that the file lacks
    unexpected: list[str]  # names of the file that the model lacks


def load_model(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    strict: bool = True,
    verify: bool = False,
    prefix: str = "",
    cast: bool = False,
) -> LoadedNames:
    """Load what save_model wrote into a model of the same architecture, quantised or not.

    path: a file, the index of a model in several files, or a folder that has either as
        `model.safetensors`.
    strict: refuse a file that lacks a name of the model's, or has one that the model lacks; else these are
        left as they are, and returned.
    verify: hold what is read to the file's checksums. Files of format version 1 have none, which is an error.
    prefix: the name of the model inside the one that was saved: load_model(base, path, prefix="model")
        takes what is under "model." and no head.
    cast: convert floating-point tensors to the model's dtype where the file has another; quantised weights
        get it as their dtype, that of the activations.

    Weights that are quantised in the file replace those of the model's linear layers and embeddings.
    All else is copied into the model's tensors. Tensors stay on the model's devices; those on the
    meta device arrive on the CPU. Buffers that are not persistent stay as they are, but for those on the meta
    device, which get the file's values.

    All or nothing: everything is read and checked before the model changes, and what fails later is taken
    back. That needs memory for the file's tensors beside the model's, of which one on the meta device takes
    none.

    ValueError, which names the file and the tensor, for a file that is damaged, of an unknown format, or
    that does not fit the model by names, shapes, dtypes or ties; for tensors of the model that cannot be
    filled (DTensors, expanded ones, freed storage); and for buffers that are not persistent, on the meta
    device and not in the file. What a module's own __setattr__ raises is passed on.
    """
    check_module("load_model", model)
    # New parameters are normal tensors, whatever mode the caller is in.
    with torch.inference_mode(False), torch.no_grad():
        source = Source("load_model", Path(path))
        with opened(source.who, source.path) as files:
            match = _Match(source, model, read_contents(files), prefix, cast)
            if strict:
                match.check_names()
            match.check_places()
            tensors = _read(match, verify)
        place(match.slots, tensors)
    adopt(model)
    return LoadedNames(match.missing + match.unfilled, match.unexpected)


class _Match:
    """Which tensor of a file goes where in a model, and what is left over."""

    def __init__(self, source: Source, model: nn.Module, contents: Contents, prefix: str, cast: bool) -> None:
        self.source = source
        self.cast = cast
        state = state_of("load_model", model)
        stored = _below(prefix, contents.state)
        if prefix and not stored:
            raise source.error(f"no name in the file begins with {prefix + '.'!r}")
        self._follow_ties(state, stored)
        self.unexpected = sorted(stored.keys() - state.keys())
        self.missing = sorted(state.keys() - stored.keys())
        self.stored = {name: stored[name] for name in state if name in stored}
        modules = dict(model.named_modules(remove_duplicate=False))
        self.slots = []
        for name, tensor in self.stored.items():
            path, _, leaf = name.rpartition(".")
            self.slots.append(Slot(name, modules.get(path, model), leaf, state[name], tensor.form))
        self.unfilled = self._match_buffers(model, _below(prefix, contents.not_persistent))

    def _follow_ties(self, state: Mapping[str, Tensor], stored: dict[str, Stored]) -> None:
        """Give names that share a tensor in the model what the file has under one of them."""
        holders: dict[int, str] = {}
        for name, tensor in state.items():
            if name not in stored:
                continue
            holder = holders.setdefault(id(tensor), name)
            if stored[holder] is not stored[name]:
                raise self.source.error(
                    f"{name} and {holder} share a tensor in the model, but not in the file"
                )
        for name, tensor in state.items():
            if name not in stored and id(tensor) in holders:
                stored[name] = stored[holders[id(tensor)]]

    def _match_buffers(self, model: nn.Module, stored: Mapping[str, Stored]) -> list[str]:
        """Find values for the buffers on the meta device that are not persistent; names of those without."""
        unfilled = []
        for name, module, leaf, tensor in buffers_beside_the_state(model):
            if not tensor.is_meta:
                continue
            slot = Slot(name, module, leaf, tensor, stored[name].form) if name in stored else None
            if slot is None or slot.obstacle(self.cast):
                unfilled.append(name)
                continue
            self.stored[name] = stored[name]
            self.slots.append(slot)
        return unfilled

    def check_places(self) -> None:
        """ValueError where a tensor cannot go into its place."""
        for slot in self.slots:
            if obstacle := slot.obstacle(self.cast):
                raise self.source.error(obstacle)

    def check_names(self) -> None:
        """ValueError where names are left over."""
        for names, problem in (
            (self.missing, "the file lacks"),
            (self.unexpected, "the model has no"),
        ):
            if names:
                raise self.source.error(f"{problem} {', '.join(names)}")
        if self.unfilled:
            raise self.source.error(
                "buffers on the meta device that are not persistent must get their values before, as the "
                f"file does not have them in this shape and dtype: {', '.join(self.unfilled)}"
            )


def _below(prefix: str, stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """What is stored under the names that begin with a prefix, by the rest of these names."""
    start = f"{prefix}." if prefix else ""
    return {name[len(start) :]: value for name, value in stored.items() if name.startswith(start)}


def _read(match: _Match, verify: bool) -> dict[str, Tensor]:
    """The tensors of all slots; names that are tied in the file get the same object."""
    unique = set(match.stored.values())
    keys: dict[TensorFile, set[str]] = {}
    for where in (where for stored in unique for where in stored.places.values()):
        keys.setdefault(where.file, set()).add(where.key)
    read = {
        Place(file, key): tensor
        for file, names in keys.items()
        for key, tensor in file.read(sorted(names), verify).items()
    }
    assembled = {stored: stored.assembled(read) for stored in unique}
    return {name: assembled[stored] for name, stored in match.stored.items()}

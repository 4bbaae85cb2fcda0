"""Which files hold a model: one, or several with an index beside them.

The index is Hugging Face's, `<file>.index.json` with the file's name of each tensor. Each save gives its
files new names, so that the index, which is written last, leads to files of one save only.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from aoext.serialization import container, writing
from aoext.serialization.container import Source, TensorFile, parse_json
from aoext.serialization.contents import FORMAT_VERSION, VERSION_KEY
from aoext.serialization.replacing import Replacement, replacing, target_of

INDEX_SUFFIX = ".index.json"
DEFAULT_NAME = "model.safetensors"  # in a folder, as Hugging Face names it
DEFAULT_INDEX = DEFAULT_NAME + INDEX_SUFFIX


@dataclass(frozen=True)
class Shard:
    """What one file is to hold."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


def bytes_of(size: int | str) -> int:
    """A size as a number of bytes: 5_000_000_000, "5GB" or "5GiB"."""
    number: float | None = size if type(size) is int else None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT])(i?)B", size) if isinstance(size, str) else None
    if match is not None:
        number = float(match[1]) * (1024 if match[3] else 1000) ** ("KMGT".index(match[2]) + 1)
    if number is None or number < 1:
        raise ValueError(
            f"save_model: max_shard_size must be a number of bytes or a text such as '5GB', got {size!r}"
        )
    return int(number)


def write_shards(path: Path, shards: Sequence[Shard]) -> None:
    """Write one file, or more and their index, in the place of what was saved under this path before."""
    target = target_of(path)
    if len(shards) == 1:
        with replacing(target) as file:
            writing.write(file, shards[0].tensors, shards[0].metadata)
        _remove_index(target)
        return
    save = secrets.token_hex(4)
    names = [
        f"{target.stem}-{save}-{number:05d}-of-{len(shards):05d}{target.suffix}"
        for number in range(1, len(shards) + 1)
    ]
    written: list[Replacement] = []
    try:
        for name, shard in zip(names, shards, strict=True):
            written.append(Replacement(target.with_name(name)))
            writing.write(written[-1].file, shard.tensors, shard.metadata)
        for replacement in written:
            replacement.finish()
        earlier = _shards_of_an_index(target)
        with replacing(target_of(_index_of(target))) as file:
            file.write(_index(names, shards))
    except BaseException:
        # An interrupt may come when the index already leads to them.
        used = _shards_of_an_index(target)
        for replacement in written:
            if replacement.target not in used:
                replacement.target.unlink(missing_ok=True)
        raise
    finally:
        for replacement in written:
            replacement.discard()
    for left in (target, *earlier):
        left.unlink(missing_ok=True)


def _index(names: Sequence[str], shards: Sequence[Shard]) -> bytes:
    total = sum(tensor.numel() * tensor.itemsize for shard in shards for tensor in shard.tensors.values())
    index = {
        "metadata": {"total_size": total, VERSION_KEY: FORMAT_VERSION},
        "weight_map": {
            key: name for name, shard in zip(names, shards, strict=True) for key in sorted(shard.tensors)
        },
    }
    return json.dumps(index, indent=2).encode()


def _index_of(target: Path) -> Path:
    return target.with_name(target.name + INDEX_SUFFIX)


def _shards_of_an_index(target: Path) -> list[Path]:
    """The files that an index of save_model's beside `target` leads to; none where it is another's."""
    source = Source("save_model", _index_of(target))
    pattern = re.escape(target.stem) + r"-[0-9a-f]{8}-\d{5}-of-\d{5}" + re.escape(target.suffix)
    try:
        metadata, weight_map = _read_index(source)
    except (OSError, ValueError):
        return []
    if VERSION_KEY not in metadata:
        return []
    return [target.with_name(name) for name in set(weight_map.values()) if re.fullmatch(pattern, name)]


def _remove_index(target: Path) -> None:
    """Remove an index of save_model's and its files, in whose place a single file is."""
    if shards := _shards_of_an_index(target):
        for path in (_index_of(target), *shards):
            path.unlink(missing_ok=True)


@contextmanager
def opened(who: str, path: Path) -> Iterator[list[TensorFile]]:
    """The files that a path leads to: a file, an index, or a folder that has either.

    Where a file is not there but its index is, the index is read. ValueError, which names the file, for
    damage, and for a folder with both.
    """
    if path.is_dir():
        path = path / DEFAULT_NAME
        if path.exists() and _index_of(path).exists():
            raise ValueError(f"{who}: {path.parent} has {path.name} and {_index_of(path).name}: name one")
    index = _index_of(Path(os.path.realpath(path)))  # where save_model has written it
    if not path.exists() and index.exists():
        path = index
    with ExitStack() as stack:
        files = _files(Source(who, path))
        for file in files:
            stack.callback(file.close)
        yield files


def files_in(who: str, folder: Path) -> dict[str, str]:
    """The file's name of each tensor in a folder: as its index says, else of all safetensors files there.

    ValueError, which names the file, for damage; FileNotFoundError for a folder without such files.
    """
    if (folder / DEFAULT_INDEX).is_file():
        return _read_index(Source(who, folder / DEFAULT_INDEX))[1]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{who}: {folder} has no safetensors files")
    return {key: file.name for file in files for key in container.names_in(file)}


def write_file(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write one file, which appears whole or not at all."""
    with replacing(path) as file:
        writing.write(file, tensors, metadata)


def _files(source: Source) -> list[TensorFile]:
    if not source.path.name.endswith(INDEX_SUFFIX):
        return [TensorFile(source)]
    _, weight_map = _read_index(source)
    files: list[TensorFile] = []
    try:
        for name in sorted(set(weight_map.values())):
            files.append(TensorFile(Source(source.who, source.path.with_name(name))))
            expected = {key for key, where in weight_map.items() if where == name}
            if different := expected ^ files[-1].entries.keys():
                raise source.error(f"{name} and the index differ in {', '.join(sorted(different))}")
    except BaseException:
        for file in files:
            file.close()
        raise
    return files


def _read_index(source: Source) -> tuple[dict[str, Any], dict[str, str]]:
    """An index's metadata, and the file's name of each tensor."""
    with container.open_regular(source) as file:
        text = file.read()
    try:
        index = parse_json(text)
    except ValueError as error:
        raise source.error(f"it is no JSON: {error}") from error
    metadata, weight_map = (
        index.get(key) if isinstance(index, dict) else None for key in ("metadata", "weight_map")
    )
    if not isinstance(metadata, dict) or not isinstance(weight_map, dict):
        raise source.error(f"it must have the objects metadata and weight_map, got {reprlib.repr(index)}")
    for key, name in weight_map.items():
        # No index leads out of its folder.
        if not isinstance(name, str) or name in ("", ".", "..") or re.search(r"[/\\\0]", name):
            raise source.error(f"{key} must be in a file of the same folder, got {reprlib.repr(name)}")
    return metadata, weight_map

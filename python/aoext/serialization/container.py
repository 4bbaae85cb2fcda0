"""One safetensors file: 8 bytes with the length of a JSON header, the header, and the tensors' bytes.

The header says dtype, shape and place of each tensor and has a table of texts, the metadata. aoext puts
the checksums of all tensors there, and tags for dtypes that safetensors has no name for.

Tensors are read, never mapped: a mapped file that another process cuts ends the process that uses it, and
reading into new memory is the faster of the two.
"""

from __future__ import annotations

import json
import math
import os
import reprlib
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
from torch import Tensor

from aoext.serialization.layout import (
    CHECKSUMS_KEY,
    DTYPES,
    DTYPES_KEY,
    LENGTH_BYTES,
    LONGEST_HEADER,
    METADATA,
    TAGGED,
    memory_of,
)


class DamagedFileError(ValueError):
    """A file that says what cannot be."""


@dataclass(frozen=True)
class Source:
    """A file as error messages name it, with the function that reads it."""

    who: str
    path: Path

    def error(self, what: str) -> DamagedFileError:
        """The error to raise where something of this file is wrong."""
        return DamagedFileError(f"{self.who}: {self.path}: {what}")

    def broken(self, why: str) -> DamagedFileError:
        """The error to raise where the file is no safetensors file."""
        return DamagedFileError(f"{self.who}: {self.path} is no whole safetensors file: {why}")

    @contextmanager
    def named(self) -> Iterator[None]:
        """Gives errors of whatever kind that what is read leads to the file's name."""
        try:
            yield
        except DamagedFileError:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError) as error:
            raise self.error(f"{type(error).__name__}: {error}") from error


def open_regular(source: Source) -> BufferedReader:
    """A file that is open for reading; DamagedFileError for a pipe and the like, which may never end."""
    if not stat.S_ISREG(os.stat(source.path).st_mode):
        raise source.error("it is no regular file")
    return open(source.path, "rb")


def parse_json(text: str | bytes) -> Any:
    """A JSON text as Python's objects; ValueError for what is none, or has a key twice in one object."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise ValueError("a key is there twice")
        return table

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: what it is, and where its bytes begin."""

    dtype: torch.dtype
    shape: list[int]
    begin: int
    size: int


def metadata_of(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a safetensors file, whoever has written it; ValueError where its header is damaged."""
    source = Source("metadata_of", Path(path))
    with open_regular(source) as file:
        return _header_of(file, source)[1]


def names_in(path: str | os.PathLike[str]) -> list[str]:
    """The names of the tensors in a safetensors file; as for metadata_of."""
    source = Source("names_in", Path(path))
    with open_regular(source) as file:
        return list(_header_of(file, source)[0])


def forms_in(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file by their names, on the meta device; as for metadata_of."""
    with closing(TensorFile(Source("forms_in", Path(path)))) as file:
        return file.forms()


def tensor_in(path: str | os.PathLike[str], name: str) -> Tensor:
    """A tensor of a safetensors file, on the CPU; KeyError for another name, else as for metadata_of."""
    with closing(TensorFile(Source("tensor_in", Path(path)))) as file:
        return file.read([name])[name]


def tensors_in(path: str | os.PathLike[str], names: Sequence[str]) -> dict[str, Tensor]:
    """Tensors of a safetensors file by their names; as for tensor_in."""
    with closing(TensorFile(Source("tensors_in", Path(path)))) as file:
        return file.read(names)


def table_of(metadata: Mapping[str, str], key: str, source: Source) -> dict[str, Any]:
    """The JSON object that an entry of a file's metadata holds; empty where there is none."""
    try:
        table = parse_json(metadata.get(key, "{}"))
    except ValueError as error:
        raise source.error(f"{key} is no JSON: {error}") from error
    if not isinstance(table, dict):
        raise source.error(f"{key} must be a JSON object, got {reprlib.repr(table)}")
    return table


def _header_of(file: BinaryIO, source: Source) -> tuple[dict[str, Any], dict[str, str], int]:
    """What a file says of its tensors, its metadata, and where the tensors' bytes begin."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    start = LENGTH_BYTES + length
    if start > size or length > LONGEST_HEADER:
        raise source.broken(f"it has {size} bytes, and its header {length}")
    try:
        header = parse_json(file.read(length))
    except ValueError as error:
        raise source.broken(f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise source.broken("its header is no JSON object")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise source.broken(f"{METADATA} must be a JSON object of texts")
    return header, metadata, start


class TensorFile:
    """A safetensors file that is open for reading.

    Opening reads the header and checks it; DamagedFileError where anything about it is wrong, OSError for
    what cannot be opened.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._file = open_regular(source)
        try:
            with source.named():
                self._read_header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; tensors that were read stay."""
        self._file.close()

    def _read_header(self) -> None:
        header, self.metadata, start = _header_of(self._file, self.source)
        self.entries = {key: self._entry(key, value, start) for key, value in header.items()}
        end, size = start, os.fstat(self._file.fileno()).st_size
        for entry in sorted(self.entries.values(), key=lambda entry: (entry.begin, entry.size)):
            if entry.begin != end:
                raise self.source.broken(f"byte {end} belongs to no tensor, or to two")
            end += entry.size
        if end != size:
            raise self.source.broken(f"its tensors end at byte {end}, and it has {size}")
        for key, tag in self.table(DTYPES_KEY).items():
            self.entries[key] = self._tagged(key, tag)
        self.checksums: dict[str, Any] | None = None
        if CHECKSUMS_KEY in self.metadata:
            self.checksums = self.table(CHECKSUMS_KEY)

    def _entry(self, key: str, value: Any, start: int) -> Entry:
        try:
            dtype, shape, (begin, end) = DTYPES[value["dtype"]], value["shape"], value["data_offsets"]
        except (TypeError, ValueError, KeyError):
            self._refuse(key, value)
        if not _is_shape(shape) or not _is_size(begin) or not _is_size(end):
            self._refuse(key, value)
        if math.prod(shape) * dtype.itemsize != end - begin:
            self._refuse(key, value)
        return Entry(dtype, shape, start + begin, end - begin)

    def _tagged(self, key: str, tag: Any) -> Entry:
        bytes_of = self.entries.get(key)
        try:
            dtype, shape = TAGGED[tag["dtype"]], tag["shape"]
        except (TypeError, KeyError):
            self._refuse(key, tag)
        if not _is_shape(shape):
            self._refuse(key, tag)
        if bytes_of is None or bytes_of.dtype is not torch.uint8:
            self._refuse(key, tag)
        if bytes_of.size != math.prod(shape) * dtype.itemsize:
            self._refuse(key, tag)
        return Entry(dtype, shape, bytes_of.begin, bytes_of.size)

    def _refuse(self, key: str, value: Any) -> NoReturn:
        known = ", ".join((*DTYPES, *TAGGED))
        raise self.source.broken(
            f"{key} must have a dtype of {known}, a shape and a place that fit each other, "
            f"got {reprlib.repr(value)}"
        )

    def table(self, key: str) -> dict[str, Any]:
        """The JSON object that an entry of the metadata holds; empty where there is none."""
        return table_of(self.metadata, key, self.source)

    def forms(self) -> dict[str, Tensor]:
        """All tensors on the meta device, for their dtypes and shapes."""
        with self.source.named():
            return {
                key: torch.empty(entry.shape, dtype=entry.dtype, device="meta")
                for key, entry in self.entries.items()
            }

    def read(self, keys: Iterable[str], verify: bool = False) -> dict[str, Tensor]:
        """Tensors on the CPU, in memory of their own.

        verify: whether to hold them to their checksums. DamagedFileError where they differ, where there is
            none, and where the file has become shorter than it was.
        """
        tensors = {
            key: torch.empty(self.entries[key].shape, dtype=self.entries[key].dtype, device="cpu")
            for key in keys
        }

        def read_one(key: str) -> None:
            memory = memory_of(tensors[key])
            self._read_into(memory, self.entries[key].begin)
            if verify:
                self._verify(key, memory)

        _at_once(read_one, tensors)
        return tensors

    def verify(self) -> None:
        """Hold all tensors to their checksums, as read does, and keep none."""

        def verify_one(key: str) -> None:
            entry = self.entries[key]
            self._verify(key, self._bytes(entry.begin, entry.size))

        _at_once(verify_one, self.entries)

    def _verify(self, key: str, data: memoryview | bytearray) -> None:
        if self.checksums is None or key not in self.checksums:
            raise self.source.error(f"{key} has no checksum that could be verified")
        actual = f"{zlib.crc32(data):08x}"
        if self.checksums[key] != actual:
            raise self.source.error(
                f"{key} is damaged: its checksum must be {reprlib.repr(self.checksums[key])}, got {actual!r}"
            )

    def _bytes(self, begin: int, size: int) -> bytearray:
        data = bytearray(size)
        self._read_into(memoryview(data), begin)
        return data

    def _read_into(self, memory: memoryview, begin: int) -> None:
        done = 0
        while done < len(memory):
            count = self._read_at(memory[done:], begin + done)
            if not count:
                raise self.source.broken(f"it ended at byte {begin + done} while it was read")
            done += count

    def _read_at(self, memory: memoryview, begin: int) -> int:
        """Bytes that were read, at least one before the end of the file."""
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [memory], begin)
        with self._lock:  # around the one position that the file has
            self._file.seek(begin)
            return self._file.readinto(memory) or 0


def _at_once(work: Callable[[str], None], keys: Iterable[str]) -> None:
    """Do the same for all keys, in as many threads as torch has.

    The interpreter's lock is released while bytes are read and summed.
    """
    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        for _ in pool.map(work, keys):
            pass


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_shape(value: object) -> bool:
    """Whether this is a list of sizes, of no more dimensions than a product of them is quickly made of."""
    return isinstance(value, list) and len(value) <= 64 and all(map(_is_size, value))

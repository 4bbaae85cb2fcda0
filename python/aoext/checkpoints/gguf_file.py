"""The container of GGUF files: metadata by keys, and a table that says where each tensor's blocks lie.

Tensors are read by their place, never mapped: a mapped file that another process cuts ends the process that
uses it.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import gguf
import torch
from torch import Tensor

from aoext.serialization.container import Source, open_regular

ARCHITECTURE, ALIGNMENT = "general.architecture", "general.alignment"
DEFAULT_ALIGNMENT = 32
SPLIT_COUNT, MOST_FILES = "split.count", 1000
VERSIONS = (2, 3)

# What a header may have: far more than any model's, and little enough to be read in seconds.
LONGEST_HEADER = 1 << 26  # bytes
MOST_ENTRIES = 1 << 16  # keys, or tensors
LONGEST_LIST = 1 << 16  # numbers of an array that are kept

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


class Array(NamedTuple):
    """An array of the metadata: its length, and its numbers where they are few."""

    length: int
    numbers: tuple[int | float, ...] | None


class Place(NamedTuple):
    """A tensor: the format of its blocks, its shape in torch's order, and its bytes in the file."""

    kind: str
    shape: tuple[int, ...]
    begin: int
    size: int


class GGUFFile:
    """A GGUF file that is open for reading: `metadata` and `tensors`, by their names.

    ValueError with the file's name for what is no whole GGUF file, OSError for what cannot be opened.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._file = open_regular(source)
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            with source.named():
                self._read_header()
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """How many files the model lies in."""
        count = self.metadata.get(SPLIT_COUNT, 1)
        if type(count) is not int or not 0 <= count <= MOST_FILES:
            raise self.source.error(f"{SPLIT_COUNT} must be a number up to {MOST_FILES}, got {count!r}")
        return max(count, 1)

    def close(self) -> None:
        """Close the file; tensors that were read stay."""
        self._file.close()

    def read(self, name: str) -> Tensor:
        """A tensor's bytes on the CPU, uint8 of its shape with bytes in the last dimension."""
        place = self.tensors[name]
        data = torch.empty(place.size, dtype=torch.uint8, device="cpu")
        self._file.seek(place.begin)
        if self._file.readinto(cast(Any, data.numpy())) != place.size:
            raise self.source.error(f"the file ended inside {name} while it was read")
        return data.view(*place.shape[:-1], -1)

    # The header

    def _read_header(self) -> None:
        self._at, self._end = 0, min(self._size, LONGEST_HEADER)
        magic = self._take(4, "its first bytes")
        if magic != b"GGUF":
            raise self.source.error(f"must begin with GGUF, got {magic!r}")
        (version,) = self._unpack("I", "its version")
        if version and version & 0xFFFF == 0:
            raise self.source.error("is of big-endian machines, which aoext does not read")
        if version not in VERSIONS:
            raise self.source.error(f"must be of GGUF's version 2 or 3, got {version}")
        tensors, keys = self._unpack("QQ", "its counts")
        for what, count in (("tensors", tensors), ("keys", keys)):
            if count > MOST_ENTRIES:
                raise self.source.error(f"must have at most {MOST_ENTRIES} {what}, got {count}")
        self.metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._text("a key")
            if key in self.metadata:
                raise self.source.error(f"{key} is there twice")
            (kind,) = self._unpack("I", key)
            self.metadata[key] = self._value(key, kind)
        entries = dict(self._entries(tensors))
        self.tensors = dict(self._placed(entries))

    def _take(self, size: int, what: str) -> bytes:
        """The next bytes of the header."""
        if self._at + size > self._end:
            where = "the file ends" if self._end == self._size else f"its header is longer than {self._end}"
            raise self.source.error(f"{where} inside {what}: {size} bytes from byte {self._at}")
        self._at += size
        data = self._file.read(size)
        if len(data) != size:
            raise self.source.error(f"the file ended inside {what} while it was read")
        return data

    def _unpack(self, form: str, what: str) -> tuple[Any, ...]:
        form = f"<{form}"
        return struct.unpack(form, self._take(struct.calcsize(form), what))

    def _text(self, what: str) -> str:
        (length,) = self._unpack("Q", what)
        try:
            return self._take(length, what).decode()
        except UnicodeDecodeError as error:
            raise self.source.error(f"{what} is no UTF-8: {error}") from error

    def _value(self, key: str, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._unpack(_NUMBERS[kind], key)[0]
        if kind == _TEXT:
            return self._text(key)
        if kind != _ARRAY:
            raise self.source.error(f"{key} has a value of type {kind}, which GGUF has not")
        kind, count = self._unpack("IQ", key)
        if kind == _TEXT:
            for _ in range(count):  # tokens, of which nothing here needs more than how many
                self._take(self._unpack("Q", key)[0], key)
            return Array(count, None)
        if kind not in _NUMBERS:
            raise self.source.error(f"{key} has an array of type {kind}, which GGUF has not")
        data = self._take(count * struct.calcsize(f"<{_NUMBERS[kind]}"), key)
        few = count <= LONGEST_LIST
        return Array(count, struct.unpack(f"<{count}{_NUMBERS[kind]}", data) if few else None)

    def _entries(self, count: int) -> Iterator[tuple[str, tuple[str, tuple[int, ...], int]]]:
        """Names of tensors, with their formats, shapes, and places behind the header."""
        names = set()
        for _ in range(count):
            name = self._text("the name of a tensor")
            if name in names:
                raise self.source.error(f"{name} is there twice")
            names.add(name)
            (dims,) = self._unpack("I", name)
            if not 1 <= dims <= 4:
                raise self.source.error(f"{name} must have 1 to 4 dimensions, got {dims}")
            shape = self._unpack(f"{dims}Q", name)[::-1]
            kind, offset = self._unpack("IQ", name)
            try:
                yield name, (gguf.GGMLQuantizationType(kind).name, shape, offset)
            except ValueError:
                raise self.source.error(f"{name} has format {kind}, which `gguf` does not know") from None

    def _placed(self, entries: dict[str, tuple[str, tuple[int, ...], int]]) -> Iterator[tuple[str, Place]]:
        """Where in the file tensors are; they lie one behind the other, each aligned."""
        alignment = self.metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self.source.error(f"{ALIGNMENT} must be a power of two, got {alignment!r}")
        end = start = _aligned(self._at, alignment)
        name = "its header"
        for following, (kind, shape, offset) in sorted(entries.items(), key=lambda entry: entry[1][2]):
            values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
            if not all(shape) or math.prod(shape) >= 1 << 62 or shape[-1] % values:
                raise self.source.error(
                    f"{following} must have rows of a multiple of {values} values, as {kind} has them, "
                    f"got {list(shape)}"
                )
            if start + offset != _aligned(end, alignment):
                raise self.source.error(
                    f"{following} must begin where {name} ends, at byte {_aligned(end, alignment)}, "
                    f"got {start + offset}"
                )
            name, size = following, math.prod(shape) // values * size
            end = start + offset + size
            if end > self._size:
                raise self.source.error(f"{name} ends at byte {end}, and the file has {self._size}")
            yield name, Place(kind, shape, start + offset, size)
        if self._size > _aligned(end, alignment):
            raise self.source.error(f"{name} ends at byte {end}, and the file has {self._size}")


class SplitGGUFFile:
    """A model in several files, which are named by their numbers, as one file."""

    def __init__(self, first: GGUFFile) -> None:
        self.source, self.metadata = first.source, first.metadata
        self.tensors = dict(first.tensors)
        self._files = [first]
        self._of = dict.fromkeys(first.tensors, first)
        match = re.fullmatch(r"(.*-)00001-of-(\d{5})(\.gguf)", first.source.path.name)
        if match is None or int(match[2]) != first.count:
            raise self.source.error(
                f"with {SPLIT_COUNT} {first.count} it must be named …-00001-of-{first.count:05}.gguf"
            )
        try:
            for number in range(2, first.count + 1):
                name = f"{match[1]}{number:05}-of-{match[2]}{match[3]}"
                self._add(GGUFFile(Source(self.source.who, self.source.path.with_name(name))))
        except BaseException:
            self.close()
            raise

    def _add(self, file: GGUFFile) -> None:
        self._files.append(file)
        for name in file.tensors:
            if name in self.tensors:
                raise file.source.error(f"{name} is there twice")
        self.tensors.update(file.tensors)
        self._of.update(dict.fromkeys(file.tensors, file))

    def read(self, name: str) -> Tensor:
        """A tensor's bytes, as GGUFFile.read gives them."""
        return self._of[name].read(name)

    def close(self) -> None:
        for file in self._files:
            file.close()


GGUF = GGUFFile | SplitGGUFFile


def open_gguf(source: Source) -> GGUF:
    """The model whose file, or the first of whose files, this is."""
    file = GGUFFile(source)
    try:
        return file if file.count == 1 else SplitGGUFFile(file)
    except BaseException:
        file.close()
        raise


def _aligned(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment

"""What a file of a model is: aoext's, another library's, nobody's or llama.cpp's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from aoext.checkpoints import READERS
from aoext.convert import AOEXT
from aoext.formats.dtypes import dtype_name
from aoext.serialization.checkpoint import opened
from aoext.serialization.container import Source, TensorFile, open_regular
from aoext.serialization.contents import VERSION_KEY
from aoext.serialization.summary import describe_files

_GGUF = b"GGUF"
_GGUF_HEADER = 24  # bytes: magic, version, numbers of tensors and of settings


def describe(path: Path) -> str:
    """A text on a file, an index or a folder; ValueError, which names the file, for damage."""
    if path.is_file() and (text := _gguf(Source("info", path))) is not None:
        return text
    with opened("info", path) as files:
        settings = _settings(files[0].source.path.parent)
        if not any(VERSION_KEY in file.metadata for file in files) and _method(settings) != AOEXT:
            return _of_others(path, files, settings)
    return describe_files(path)


def _gguf(source: Source) -> str | None:
    with open_regular(source) as file:
        header = file.read(_GGUF_HEADER)
    if not header.startswith(_GGUF):
        return None
    if len(header) < _GGUF_HEADER:
        raise source.error("it is a GGUF file that was cut")
    version, tensors = (int.from_bytes(header[begin:end], "little") for begin, end in ((4, 8), (8, 16)))
    return (
        f"{source.path}: a GGUF file, version {version}, {tensors} tensors, "
        f"{source.path.stat().st_size / 1e6:.2f} MB\n  `aoext convert` and aoext.load_gguf take it"
    )


def _of_others(path: Path, files: list[TensorFile], settings: dict[str, Any] | None) -> str:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for file in files:
        for entry in file.entries.values():
            counts[dtype_name(entry.dtype)] += 1
            sizes[dtype_name(entry.dtype)] += entry.size
    whose, advice = _whose(settings)
    lines = [f"{path}: no checkpoint of aoext's, {whose}, {len(files)} file(s)"]
    lines += [f"  {kind}: {count}, {sizes[kind] / 1e6:.2f} MB" for kind, count in sorted(counts.items())]
    return "\n".join(lines + advice)


def _settings(folder: Path) -> dict[str, Any] | None:
    try:
        with open_regular(Source("info", folder / "config.json")) as file:
            settings = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return settings if isinstance(settings, dict) else None


def _method(settings: dict[str, Any] | None) -> Any:
    """What a config.json says of who has quantised; None where nobody has."""
    foreign = (settings or {}).get("quantization_config")
    return foreign.get("quant_method") if isinstance(foreign, dict) else foreign


def _whose(settings: dict[str, Any] | None) -> tuple[str, list[str]]:
    """Who has quantised a checkpoint with this config.json, and what can be done with it."""
    if settings is None:
        return "no config.json beside it says whose", []
    method = _method(settings)
    if method is None:
        return "plain", ['  quantised by `aoext convert … --scheme int4` or AoextConfig("int4")']
    known = isinstance(method, str) and method in READERS
    advice = "`aoext convert` and AoextConfig.keep() take it" if known else "aoext does not read it"
    return f"quantised by {method}", [f"  {advice}"]

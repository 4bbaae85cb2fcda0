"""What files of a model hold, in a few lines for people; and whether they are whole."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from aoext.formats.dtypes import dtype_name
from aoext.models.summary import large_tensors
from aoext.serialization.checkpoint import opened
from aoext.serialization.contents import VERSION_KEY, Stored, read_contents
from aoext.tensors import QuantizedTensor
from aoext.tensors.fields import K


def describe_files(path: str | os.PathLike[str]) -> str:
    """A text on what save_model wrote to `path`, whose checksums are verified where it has them.

    ValueError, which names the file, for whatever load_model would refuse about the files alone, and for
    tensors that differ from their checksums.
    """
    with opened("info", Path(path)) as files:
        contents = read_contents(files)
        stored = {**contents.state, **contents.not_persistent}
        counts = Counter(map(_kind, set(stored.values())))
        sizes: Counter[str] = Counter()
        for tensor in set(stored.values()):
            sizes[_kind(tensor)] += tensor.size
        versions = sorted({file.metadata[VERSION_KEY] for file in files})
        lines = [f"{path}: aoext format version {' and '.join(versions)}, {len(files)} file(s)"]
        for kind, count in sorted(counts.items()):
            lines.append(f"  {kind}: {count}, {sizes[kind] / 1e6:.2f} MB")
        forms = {name: kept.form for name, kept in contents.state.items()}
        values = sum(form.numel() for form in forms.values())
        lines += large_tensors(forms, values, lambda _: "plain")
        if tied := len(stored) - len(set(stored.values())):
            lines.append(f"  names that share another's tensor: {tied}")
        with_checksums = [file for file in files if file.checksums is not None]
        for file in with_checksums:
            file.verify()
        verified = sum(len(file.entries) for file in with_checksums)
        lines.append(
            f"  checksums: {verified} verified" if with_checksums else "  checksums: none in this version"
        )
    return "\n".join(lines)


def _kind(stored: Stored) -> str:
    form = stored.form
    if not isinstance(form, QuantizedTensor):
        return f"plain {dtype_name(form.dtype)}"
    codes = form.encoding["format"] if "packing" in form.encoding else dtype_name(form.qdata.dtype)
    parts = [type(form).__name__, codes, f"for {dtype_name(form.dtype)}"]
    if not form.blocks_are_rows:
        rows = "x".join(map(str, form.block_size)) if form.any_blocks else str(form.block_size[K])
        parts.append(f"{'block_size' if form.any_blocks else 'group_size'} {rows}")
    if form.quantizes_input_to is not None:
        parts.append("dynamic activations")
    return ", ".join(parts)

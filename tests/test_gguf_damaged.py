"""Damaged and hostile GGUF files: a ValueError that names the file, before anything large is made."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers")

import aoext.integrations.gguf.loading as integration  # noqa: E402
from aoext.integrations.gguf.loading import load_gguf  # noqa: E402
from gguf_models import ALL, HIDDEN, INNER, write  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


@pytest.fixture
def path(tmp_path) -> Path:
    write(tmp_path / "model.gguf", "llama", ALL)
    return tmp_path / "model.gguf"


def refused(path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=rf"load_gguf: .*model\.gguf: {message}"):
        load_gguf(path)


def replaced(path: Path, old: bytes, new: bytes) -> None:
    """Write other bytes in the place of some that are there once."""
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


def key(name: str, kind: str, value: Any) -> bytes:
    """A key with a value of 4 bytes as the file has it."""
    numbers = {"I": 4, "i": 5, "f": 6}
    return name.encode() + struct.pack(f"<I{kind}", numbers[kind], value)


def test_a_file_that_is_cut_while_it_is_read(path, monkeypatch):
    """A mapped one would end the process."""
    read = integration._read

    def cut(*arguments: Any) -> Any:
        os.truncate(path, 4096)
        return read(*arguments)

    monkeypatch.setattr(integration, "_read", cut)
    refused(path, r"the file ended inside \S+ while it was read")


def test_a_file_that_is_cut_anywhere(path):
    data = path.read_bytes()
    for size in [*range(0, 600, 7), 3000, len(data) // 2, len(data) - 33]:
        path.write_bytes(data[:size])
        refused(path, "")
    path.write_bytes(data + bytes(4096))
    refused(path, r"\S+ ends at byte \d+, and the file has \d+")


@pytest.mark.parametrize("count", [0, 2, 20_000, 2**31])
def test_layers_are_counted_before_a_model_is_made(path, count, monkeypatch):
    monkeypatch.setattr(integration, "config_of", None)
    replaced(path, key("llama.block_count", "I", 1), key("llama.block_count", "I", count))
    refused(path, rf"llama\.block_count must be the number of layers that tensors name, 1, got {count}")


def test_sizes_that_tensors_have_not(path):
    data = path.read_bytes()
    for name, right, wrong, message in (
        ("embedding_length", HIDDEN, 2**31, r"llama\.embedding_length must be a whole number up to"),
        ("embedding_length", HIDDEN, 2**30, r"llama\.embedding_length must be 256, the width of"),
        ("embedding_length", HIDDEN, 0, r"llama\.embedding_length must be greater than 0"),
        ("vocab_size", 96, 2**31 - 1, r"llama\.vocab_size must be 96"),
        ("feed_forward_length", INNER, 2**31 - 1, r"blk\.0\.ffn_\w+\.weight must be \["),
        ("attention.head_count", 4, 2**20, r"llama\.attention\.head_count must be a divisor of"),
        ("attention.head_count", 4, 8, r"blk\.0\.attn_q\.weight must be \[512, 256\]"),
    ):
        path.write_bytes(data)
        replaced(path, key(f"llama.{name}", "I", right), key(f"llama.{name}", "I", wrong))
        refused(path, message)


def test_tensors_of_other_shapes_or_names(tmp_path):
    gate, name = numpy.zeros((INNER, HIDDEN), dtype=numpy.float32), "blk.0.ffn_gate.weight"
    for name, tensor, message in (
        (
            "blk.0.ffn_gate.weight",
            gate.T.copy(),
            r"blk\.0\.ffn_gate\.weight must be \[512, 256\], got \[256, 512\]",
        ),
        ("blk.0.ffn_gate.weight", gate[0], r"blk\.0\.ffn_gate\.weight must be \[512, 256\], got \[256\]"),
        ("blk.0.ffn_gate.weight", None, r"has no blk\.0\.ffn_gate\.weight"),
        ("token_embd.weight", None, r"has no token_embd\.weight"),
        ("blk.0.attn_q.scale", gate[0, :1], r"blk\.0\.attn_q\.scale is no tensor of llama that aoext knows"),
        ("blk.0.attn_q_norm.weight", gate[0], r"blk\.0\.attn_q_norm\.weight is no tensor of llama"),
        (
            "blk.0.ffn_gate_exps.weight",
            gate[None],
            r"blk\.0\.ffn_gate_exps\.weight is no tensor of llama",
        ),
        ("rope_freqs.weight", gate[0], r"rope_freqs\.weight must be F32 \[32\], got F32 \[256\]"),
        ("rope_freqs.weight", gate[0, :32], r"rope_freqs\.weight must be finite and greater than 0"),
    ):
        write(tmp_path / "model.gguf", "llama", {}, {name: tensor})
        refused(tmp_path / "model.gguf", message)
    write(tmp_path / "model.gguf", "qwen2", {}, {"rope_freqs.weight": numpy.full(32, 2, dtype=numpy.float32)})
    refused(tmp_path / "model.gguf", r"rope_freqs\.weight is no tensor of qwen2 that aoext knows")


def table_entry(path: Path, name: str) -> int:
    """Where a tensor's format stands, and its place behind it, in a file with two dimensions of it."""
    data = path.read_bytes()
    return data.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name) + 4 + 16


@pytest.mark.parametrize(
    ("kind", "offset", "message"),
    [
        (0, None, r"\S+ must begin where blk\.0\.attn_q\.weight ends"),  # F32 of the bytes of Q4_0
        (6, None, r"\S+ must begin where blk\.0\.attn_q\.weight ends"),
        (99, None, r"blk\.0\.attn_q\.weight has format 99, which `gguf` does not know"),
        (None, 0, r"\S+ must begin where"),  # two in one place
        (None, 2**63, r"\S+ must begin where"),
    ],
)
def test_formats_and_places_that_cannot_be(path, kind, offset, message):
    data, at = bytearray(path.read_bytes()), table_entry(path, "blk.0.attn_q.weight")
    if kind is not None:
        data[at : at + 4] = struct.pack("<I", kind)
    if offset is not None:
        data[at + 4 : at + 12] = struct.pack("<Q", offset)
    path.write_bytes(data)
    refused(path, message)


def test_headers_that_cannot_be(path, tmp_path):
    data = path.read_bytes()
    for place, new, message in (
        (0, b"GGML", r"must begin with GGUF, got b'GGML'"),
        (4, struct.pack(">I", 3), "is of big-endian machines"),
        (4, struct.pack("<I", 1), "must be of GGUF's version 2 or 3, got 1"),
        (8, struct.pack("<Q", 2**60), "must have at most 65536 tensors"),
        (16, struct.pack("<Q", 2**60), "must have at most 65536 keys"),
        (24, struct.pack("<Q", 2**62), "the file ends inside a key"),
        (32, b"\xff\xff", "a key is no UTF-8"),
    ):
        path.write_bytes(data[:place] + new + data[place + len(new) :])
        refused(path, message)
    path.write_bytes(data)
    replaced(path, b"llama.rope.freq_base", b"llama.rope.freq_bass")
    refused(path, r"llama\.rope\.freq_bass is not known, and may change results")
    path.write_bytes(data)
    replaced(path, b"llama.vocab_size", b"llama.block_size"[:16])
    refused(path, r"llama\.block_size is not known")
    write(tmp_path / "model.gguf", "llama", {}, keys={"general.alignment": 24})
    refused(path, r"general\.alignment must be a power of two, got 24")
    with pytest.raises(FileNotFoundError):
        load_gguf(tmp_path / "none.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ValueError, match=r"pipe\.gguf: it is no regular file"):
        load_gguf(tmp_path / "pipe.gguf")


def test_formats_that_cannot_be_dequantised(tmp_path):
    norm = torch.ones(HIDDEN, dtype=torch.float64).numpy()
    write(tmp_path / "model.gguf", "llama", {}, {"output_norm.weight": norm})
    refused(tmp_path / "model.gguf", r"output_norm\.weight is in format F64, which `gguf` cannot dequantise")


def test_scales_that_are_not_finite(path):
    data, name = bytearray(path.read_bytes()), "blk.0.attn_q.weight"
    begin = next(tensor.data_offset for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    data[begin : begin + 2] = b"\xff\xff"
    path.write_bytes(data)
    refused(path, r".*blk\.0\.attn_q\.weight: Q4_0 must have finite scales, got NaN or Inf")


def test_a_model_in_several_files(path, tmp_path):
    """The first has the metadata; each has its part of the tensors."""
    whole = load_gguf(path)
    reader = gguf.GGUFReader(path)
    names = [tmp_path / f"part-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    for i, name in enumerate(names):
        writer = gguf.GGUFWriter(name, "llama")
        for field in reader.fields.values() if i == 0 else ():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                kind, *parts = field.types
                writer.add_key_value(field.name, field.contents(), kind, parts[0] if parts else None)
        writer.add_key_value("split.count", 3, gguf.GGUFValueType.UINT16)
        for tensor in reader.tensors[i::3]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    ids = torch.arange(8)[None]
    assert torch.equal(load_gguf(names[0])(ids).logits, whole(ids).logits)
    with pytest.raises(ValueError, match=r"00002-of-00003\.gguf: with split\.count 3 it must be named"):
        load_gguf(names[1])
    names[1].write_bytes(names[2].read_bytes())
    with pytest.raises(ValueError, match=r"00003-of-00003\.gguf: \S+ is there twice"):
        load_gguf(names[0])
    names[2].unlink()
    with pytest.raises(FileNotFoundError, match=r"00003-of-00003\.gguf"):
        load_gguf(names[0])

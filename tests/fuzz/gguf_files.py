"""Damaged GGUF files, for load_gguf: each raises a ValueError that names the file, or loads and runs."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fuzz.draws import INTEGERS, Answer, Draw

HIDDEN, INNER, TOKENS, LAYERS, HEADS, KV_HEADS = 64, 96, 32, 2, 4, 2
HEAD = HIDDEN // HEADS

SHAPES = {
    "attn_q": (HEADS * HEAD, HIDDEN),
    "attn_k": (KV_HEADS * HEAD, HIDDEN),
    "attn_v": (KV_HEADS * HEAD, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}
NORMS = {
    "llama": {"attn_norm": HIDDEN, "ffn_norm": HIDDEN},
    "gemma3": {
        **dict.fromkeys(("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"), HIDDEN),
        **dict.fromkeys(("attn_q_norm", "attn_k_norm"), HEAD),
    },
}
FORMATS = ("F32", "F16", "Q8_0", "Q4_0", "Q5_1")

# What may stand for a value of the metadata, beside numbers of all sizes.
VALUES = [
    True,
    0.0,
    -0.5,
    1.5,
    1e30,
    float("nan"),
    float("inf"),
    "",
    "yarn",
    "x" * 5000,
    [0],
    [1, 2],
    [0.5],
    ["a"],
]


def metadata(architecture: str) -> dict[str, Any]:
    """All of a file's metadata but its architecture."""
    own = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 128,
        "rope.freq_base": 1e4,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 2.0,
        "vocab_size": TOKENS,
    }
    return {
        **{f"{architecture}.{key}": value for key, value in own.items()},
        "general.alignment": 32,
        "general.quantization_version": 2,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(TOKENS)],
        "tokenizer.ggml.eos_token_id": 2,
    }


def file_of(draw: Draw, architecture: str, keys: dict[str, Any]) -> bytes:
    """A file of random weights with these keys."""
    import gguf

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in keys.items():
            # numbers as this package writes those of models
            fits = type(value) is int and 0 <= value < 2**32
            kind = gguf.GGUFValueType.UINT32 if fits else gguf.GGUFValueType.get_type(value)
            if type(value) is int and not fits:
                kind = gguf.GGUFValueType.INT64 if value < 0 else gguf.GGUFValueType.UINT64
            writer.add_key_value(key, value, kind)
        generator = draw.generator()
        shapes = {"token_embd": (TOKENS, HIDDEN), "output_norm": (HIDDEN,)}
        for layer in range(LAYERS):
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in SHAPES.items()}
            shapes |= {f"blk.{layer}.{name}": (size,) for name, size in NORMS[architecture].items()}
        for name, shape in shapes.items():
            values = torch.randn(shape, generator=generator).numpy()
            kind = gguf.GGMLQuantizationType[draw.choice(FORMATS) if len(shape) == 2 else "F32"]
            raw = gguf.quants.quantize(values, kind)
            writer.add_tensor(f"{name}.weight", raw, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def damaged(draw: Draw) -> tuple[str, bytes]:
    """What was done to a file, and the file."""
    architecture = draw.choice(list(NORMS))
    keys = metadata(architecture)
    kind = draw.choice(
        ["keys", "keys", "keys", "bits", "header", "header", "numbers", "cut", "longer", "moved"]
    )
    if kind == "keys":
        changed = {}
        for _ in range(draw.choice([1, 1, 2])):
            key = draw.choice([*keys, f"{architecture}.{draw.choice(['expert_count', 'logit_scale', 'x'])}"])
            changed[key] = draw.choice([None, *VALUES, *INTEGERS, draw.choice(INTEGERS) + 1])
        keys |= changed
        keys = {key: value for key, value in keys.items() if value is not None}
        return f"{architecture} with {changed}"[:300], file_of(draw, architecture, keys)
    data = bytearray(file_of(draw, architecture, keys))
    header = data.index(b"blk.1.attn_norm.weight")  # about where it ends
    if kind in ("bits", "header"):
        size = len(data) if kind == "bits" else header
        places = [draw.randrange(8 * size) for _ in range(draw.choice([1, 1, 3]))]
        for place in places:
            data[place // 8] ^= 1 << place % 8
        return f"{architecture}: bits {places} flipped", bytes(data)
    if kind == "numbers":
        place, number = draw.randrange(header), draw.choice(INTEGERS) % 2**64
        data[place : place + 8] = struct.pack("<Q", number)
        return f"{architecture}: {number} at {place}", bytes(data)
    if kind == "cut":
        size = draw.choice([draw.randrange(header), draw.randrange(len(data))])
        return f"{architecture}: cut to {size} bytes", bytes(data[:size])
    if kind == "longer":
        more = draw.randbytes(draw.choice([1, 32, 5000]))
        return f"{architecture}: {len(more)} bytes more", bytes(data) + more
    first = draw.randrange(len(data))
    return f"{architecture}: turned round at {first}", bytes(data[first:] + data[:first])


def damaged_gguf(draw: Draw) -> tuple[str, Callable[[], Answer]]:
    words, data = damaged(draw)
    embeddings = draw.chance(0.5)

    def attempt() -> Answer:
        import aoext

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "damaged.gguf"
            path.write_bytes(data)
            refused = None
            try:
                model = aoext.load_gguf(path, quantize_embeddings=embeddings)
            except ValueError as error:
                refused = str(error)
        if refused is not None:
            assert path.name in refused, f"the error does not name the file: {refused}"
            return "raised"
        with torch.no_grad():
            model(torch.tensor([[1, 2, 3]]))
        return "ran"

    return f"{words}{', embeddings too' if embeddings else ''}", attempt

"""Damaged files, for load_model: each raises a ValueError that names the file and leaves the model as it was,
or loads. With verify=True it loads as the whole file does, unless its JSON was changed with care.
"""

from __future__ import annotations

import copy
import functools
import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import aoext
from aoext.serialization import load_model, save_model
from fuzz.draws import Answer, Draw
from models import assert_same_state

HEADER_LENGTH = 8  # bytes at the beginning of a safetensors file


def build() -> nn.Module:
    """Linear layers, an embedding whose weight a head shares, a norm and a buffer."""
    model = nn.ModuleDict(
        {
            "embedding": nn.Embedding(12, 32),
            "norm": nn.BatchNorm1d(32),
            "first": nn.Linear(32, 24),
            "second": nn.Linear(24, 32, bias=False),
            "head": nn.Linear(32, 12, bias=False),
        }
    )
    model["head"].weight = model["embedding"].weight
    return model.to(torch.bfloat16)


SCHEMES = [
    aoext.Int4WeightOnlyConfig(8),
    aoext.Int8WeightOnlyConfig(),
    aoext.Int8DynamicActivationInt8WeightConfig(),
    aoext.Float8WeightOnlyConfig(),
    aoext.Float8WeightOnlyConfig(torch.float8_e5m2),
    aoext.Float8WeightOnlyConfig(granularity=aoext.PerBlock([4, 8])),
    aoext.Int8DynamicActivationInt4WeightConfig(8),
    aoext.NVFP4WeightOnlyConfig(),
]


@functools.cache
def whole_file(scheme: int, embeddings: bool) -> bytes:
    torch.manual_seed(0)
    model = build()
    aoext.quantize_(model, SCHEMES[scheme], quantize_embeddings=embeddings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.safetensors"
        save_model(model, path)
        return path.read_bytes()


@functools.cache
def whole_model(scheme: int, embeddings: bool) -> nn.Module:
    model = build()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.safetensors"
        path.write_bytes(whole_file(scheme, embeddings))
        load_model(model, path)
    return model


JSON_CHANGED = "JSON changed"

# What may stand for a value of JSON, whatever was there.
VALUES = [
    None, True, 0, -1, 1, 7, 2**31, 2**63, 2**64, 10**30, 1e300, -0.5, "", "x", "\x00", "BF16", "F8_E4M3",
    "Int4Tensor", "Int8Tensor", "int8", "bfloat16", [], [0], [1, 8], [[]], {}, {"x": 1}, "[" * 5000,
    "1" * 5000, "{}", "[]", "NaN", "Infinity",
]  # fmt: skip


def changed_json(draw: Draw, value: Any) -> Any:
    """A value of JSON with one thing changed, somewhere in it."""
    if isinstance(value, str) and value[:1] in ("{", "[") and draw.chance(0.7):
        try:
            return json.dumps(changed_json(draw, json.loads(value)))
        except (json.JSONDecodeError, RecursionError):
            pass
    if isinstance(value, dict) and value and draw.chance(0.9):
        value, key = dict(value), draw.choice(list(value))
        kind = draw.choice(["drop", "rename", "double", "move", "into", "into", "into", "into"])
        if kind == "drop":
            del value[key]
        elif kind == "rename":
            value[draw.choice(["", "x", "first.weight", "__metadata__", key + ".scale", key[:-1]])] = (
                value.pop(key)
            )
        elif kind == "double":
            value[key + draw.choice(["2", ".qdata", ".weight"])] = value[key]
        elif kind == "move":
            value[key] = value[draw.choice(list(value))]
        else:
            value[key] = changed_json(draw, value[key])
        return value
    if isinstance(value, list) and value and draw.chance(0.8):
        value, i = list(value), draw.randrange(len(value))
        kind = draw.choice(["drop", "double", "into", "into", "swap"])
        if kind == "drop":
            del value[i]
        elif kind == "double":
            value.insert(i, value[i])
        elif kind == "swap":
            value.reverse()
        else:
            value[i] = changed_json(draw, value[i])
        return value
    if isinstance(value, int) and draw.chance(0.6):
        return value + draw.choice([-1, 1, 2, 8, -8, 2**32, -(2**40)])
    return draw.choice(VALUES)


def damaged(draw: Draw, whole: bytes) -> tuple[str, bytes]:
    """What was done to a file, and the file."""
    kind = draw.choice(
        ["bits", "bytes", "header bytes", "cut", "longer", "zeros", "moved", "json", "json", "json"]
    )
    data, end = bytearray(whole), HEADER_LENGTH + struct.unpack("<Q", whole[:HEADER_LENGTH])[0]
    if kind == "bits":
        places = [draw.randrange(8 * len(data)) for _ in range(draw.choice([1, 1, 2, 20]))]
        for place in places:
            data[place // 8] ^= 1 << place % 8
        return f"bits {places} flipped", bytes(data)
    if kind in ("bytes", "header bytes"):
        size = end if kind == "header bytes" else len(data)
        places = [draw.randrange(size) for _ in range(draw.choice([1, 1, 3]))]
        for place in places:
            data[place] = draw.randrange(256)
        return f"bytes {places} changed", bytes(data)
    if kind == "cut":
        size = draw.choice([draw.randrange(end), draw.randrange(len(data))])
        return f"cut to {size} bytes", bytes(data[:size])
    if kind == "longer":
        more = draw.randbytes(draw.choice([1, 8, 5000]))
        return f"{len(more)} bytes more", bytes(data) + more
    first, second = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    if kind == "zeros":
        data[first:second] = bytes(second - first)
        return f"zeros from {first} to {second}", bytes(data)
    if kind == "moved":
        return f"turned round at {first}", bytes(data[first:] + data[:first])
    header = json.loads(whole[HEADER_LENGTH:end])
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        header = changed_json(draw, header)
    try:
        text = json.dumps(header).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # a JSON that cannot be written
        text = b"{}"
    return JSON_CHANGED, struct.pack("<Q", len(text)) + text + whole[end:]


def damaged_file(draw: Draw) -> tuple[str, Callable[[], Answer]]:
    scheme, embeddings = draw.randrange(len(SCHEMES)), draw.chance(0.5)
    words, data = damaged(draw, whole_file(scheme, embeddings))
    quantized, verify = draw.chance(0.5), draw.chance(0.5)

    def attempt() -> Answer:
        model = build()
        if quantized:
            aoext.quantize_(model, SCHEMES[scheme], quantize_embeddings=embeddings)
        before, parameters = copy.deepcopy(model), dict(model.named_parameters())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "damaged.safetensors"
            path.write_bytes(data)
            refused = None
            try:
                load_model(model, path, verify=verify)
            except ValueError as error:
                refused = str(error)
        if refused is not None:
            assert path.name in refused, f"the error does not name the file: {refused}"
            assert_same_state(model, before)
            for name, parameter in model.named_parameters():
                assert parameter is parameters[name], f"{name} was replaced"
            return "raised"
        assert model["head"].weight is model["embedding"].weight
        if verify and words != JSON_CHANGED:
            assert_same_state(model, whole_model(scheme, embeddings))
        model["head"](model["second"](model["first"](model["embedding"](torch.tensor([1, 2])))))
        return "ran"

    target = f"a {'quantised' if quantized else 'plain'} model{', verified' if verify else ''}"
    return f"{SCHEMES[scheme]}{', embeddings too' if embeddings else ''}: {words}, into {target}", attempt

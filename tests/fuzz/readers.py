"""Damaged settings and tensors of other libraries' checkpoints, for their readers.

Each raises a ValueError that names the method or the layer, or gives a weight whose product runs. That whole
ones are read rightly, tests/test_checkpoints.py shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

import checkpoint_packers as pack
from aoext.checkpoints import READERS, reader_for
from aoext.checkpoints.checks import refusals
from aoext.tensors import QuantizedTensor
from fuzz.draws import DTYPES, Answer, Draw
from fuzz.files import changed_json

LAYER = "model.layers.3.mlp.down_proj"
N, K, GROUP = 24, 128, 32


def _groups(**weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear", r"re:.*\.(gate|up)_proj$"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


def _torchao() -> tuple[dict[str, Tensor], dict[str, str]]:
    """Fields as torchao's files have them, and the metadata that describes them."""
    scale = torch.rand(N, 1)
    tensors = {"_weight_qdata": torch.randint(-128, 128, (N, K)).to(torch.int8), "_weight_scale": scale}
    said = {"_type": "Int8Tensor", "_data": {"block_size": [1, K], "act_quant_kwargs": None}}
    return tensors, {f"{LAYER}.weight": json.dumps(said), "tensor_names": json.dumps([f"{LAYER}.weight"])}


def _plain(make: Callable[[], pack.Stored]) -> Callable[[], tuple[dict[str, Tensor], dict[str, str]]]:
    return lambda: (make()[0], {})


Made = tuple[dict[str, Any], Callable[[], tuple[dict[str, Tensor], dict[str, str]]]]

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "checkpoint_format": "gptq"}
DYNAMIC = {r"+:^model\.layers\.\d+\.mlp\.(gate|up)_proj$": {"bits": 8}, r"-:.*lm_head.*": {}}
EIGHT = {"num_bits": 8, "symmetric": True, "strategy": "group", "group_size": GROUP}
FOUR = {"num_bits": 4, "type": "float", "symmetric": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "static", "fmt": "e4m3"}
BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
AUTO = {"quant_method": "auto-round", "bits": 4, "group_size": GROUP, "data_type": "int", "sym": True}
OWN = {LAYER: {"group_size": GROUP}, r".*\.o_proj": {"bits": 8}}

CHECKPOINTS: list[Made] = [
    ({**GPTQ, "dynamic": DYNAMIC}, _plain(lambda: pack.gptq(N, K, GROUP, act_order=True))),
    ({**GPTQ, "bits": 8}, _plain(lambda: pack.gptq_8(N, K, GROUP, "any", act_order=True))),
    ({**GPTQ, "group_size": 96}, _plain(lambda: pack.gptq_partial(N, K, 96, 4, act_order=True))),
    ({"quant_method": "awq", "bits": 4, "group_size": GROUP}, _plain(lambda: pack.awq(N, K, GROUP))),
    (
        {**AUTO, "packing_format": "auto_round:auto_awq", "extra_config": OWN},
        _plain(lambda: pack.awq(N, K, GROUP)),
    ),
    ({**AUTO, "packing_format": "auto_round", "extra_config": OWN}, _plain(lambda: pack.gptq(N, K, GROUP))),
    (
        _groups(num_bits=4, type="int", strategy="group", group_size=GROUP, symmetric=False),
        _plain(lambda: pack.pack_quantized(N, K, GROUP, symmetric=False)),
    ),
    (
        _groups(**{**EIGHT, "symmetric": False}, type="int", actorder="group"),
        _plain(lambda: pack.pack_quantized_8(N, K, GROUP, "any", act_order=True)),
    ),
    (
        _groups(num_bits=8, type="float", strategy="block", block_structure=[16, 48]),
        _plain(lambda: pack.quantized_by_blocks(N, K, (16, 48))),
    ),
    (_groups(num_bits=8, type="int", strategy="channel"), _plain(lambda: pack.int_quantized(N, K))),
    (_groups(**FOUR, strategy="tensor_group", group_size=16), _plain(lambda: pack.nvfp4(N, K, divided=True))),
    (_groups(**FOUR, strategy="group", group_size=32), _plain(lambda: pack.mxfp4(N, K))),
    (BITSANDBYTES, _plain(lambda: pack.bitsandbytes_int8(N, K))),
    ({**BITSANDBYTES, "load_in_4bit": True}, _plain(lambda: pack.bitsandbytes_4(N, K, nested=True))),
    (
        {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "axis": 1}}},
        _plain(lambda: pack.hqq(N, K, GROUP)),
    ),
    ({"quant_method": "torchao"}, _torchao),
    ({**FP8, "weight_block_size": [16, 48], "scale_fmt": None}, _plain(lambda: pack.fp8(N, K, (16, 48)))),
    ({**FP8, "quant_method": "mxfp8"}, _plain(lambda: pack.fp8(N, K, (1, 32), "bytes"))),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, _plain(lambda: pack.nvfp4(N, K))),
    ({"quant_method": "gemma", "num_bits": 2}, _plain(lambda: pack.gemma(N, K, 2, embedding=True))),
    ({"quant_method": "gemma", "module_quant_configs": {"a|q": {}}}, _plain(lambda: pack.gemma(N, K, 4))),
    (
        {"quant_method": "modelopt", "quantization": {"quant_algo": "MIXED_PRECISION"}}
        | {"quantized_layers": {LAYER: {"quant_algo": "FP8"}}},
        _plain(lambda: pack.fp8_whole(N, K)),
    ),
]

# Expressions that take for ever where each way is tried, and such as are none.
EXPRESSIONS = [
    r"([\w.]+)+!",
    "(a|a)*b",
    ".*" * 30 + "!",
    "(",
    "[",
    "*",
    "a{99999}",
    "(?i)x",
    r"\1",
    "(?<=a)b",
    "",
]
HUGE = [2**20, 2**29, 2**33, 2**62, 10**30, -1, 0]


def damaged_settings(draw: Draw, settings: dict[str, Any]) -> Any:
    """Something of the settings is another value, an enormous number or a strange expression."""
    kind = draw.choice(["any", "any", "any", "huge", "expression"])
    if kind == "any":
        return changed_json(draw, settings)
    text = json.dumps(settings)
    numbers = list(re.finditer(r"(?<=: )\d+(?=[,}])", text))
    if kind == "huge" and numbers:
        found = draw.choice(numbers)
        return json.loads(f"{text[: found.start()]}{draw.choice(HUGE)}{text[found.end() :]}")
    place = draw.choice(["dynamic", "extra_config", "targets", "ignore"])
    pattern = draw.choice(EXPRESSIONS)
    if place == "targets":
        group = {"targets": [f"re:{pattern}", pattern, "Linear"], "weights": {"num_bits": 8}}
        return {**settings, "config_groups": {"group_0": group}}
    return {**settings, place: [f"re:{pattern}"] if place == "ignore" else {pattern: {"bits": 8}}}


def damaged_tensor(draw: Draw, tensor: Tensor) -> Tensor:
    """The tensor with another shape, dtype or values."""
    kind = draw.choice(["cut", "longer", "reshaped", "cast", "values", "values", "dims", "empty", "other"])
    if kind == "cut" and tensor.dim():
        return tensor[: draw.randint(0, tensor.shape[0])]
    if kind == "longer" and tensor.dim():
        return torch.cat((tensor, tensor[:1]))
    if kind == "reshaped" and tensor.dim() == 2:
        return draw.choice([tensor.t(), tensor.reshape(-1), tensor.reshape(-1, 1), tensor[:, ::2]])
    if kind == "cast":
        return tensor.to(draw.choice(DTYPES))
    if kind == "values" and tensor.numel():
        tensor = tensor.clone().contiguous()
        numbers = tensor.view(-1).view(torch.uint8)
        for _ in range(draw.choice([1, 1, 5, 100])):
            numbers[draw.randrange(len(numbers))] = draw.randrange(256)
        return tensor
    if kind == "dims":
        return draw.choice([tensor[None], tensor[..., None], torch.ones((), dtype=tensor.dtype)])
    if kind == "empty":
        return draw.choice([tensor.reshape(-1)[:0], torch.empty(0, K, dtype=tensor.dtype)])
    return torch.zeros(draw.shape(), dtype=tensor.dtype)


def changed_text(draw: Draw, text: str) -> str:
    """JSON with one thing of it changed, or cut."""
    try:
        return json.dumps(changed_json(draw, json.loads(text)))
    except (ValueError, RecursionError):  # what was damaged before
        return text[:-1]


def damaged_checkpoint(draw: Draw) -> tuple[str, Callable[[], Answer]]:
    number = draw.randrange(len(CHECKPOINTS))
    settings, make = CHECKPOINTS[number]
    tensors, metadata = make()
    said: Any = settings
    words = [f"{settings['quant_method']} ({number})"]
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        if draw.chance(0.5):
            said = damaged_settings(draw, said) if isinstance(said, dict) else said
            words.append(f"settings {json.dumps(said)[:1000]}")
        elif metadata and draw.chance(0.5):
            key = draw.choice(list(metadata))
            metadata[key] = changed_text(draw, metadata[key])
            words.append(f"metadata {metadata[key][:1000]}")
        else:
            name = draw.choice(list(tensors))
            if draw.chance(0.1):
                del tensors[name]
                words.append(f"without {name}")
                break
            if "quant_state" in name and tensors[name].dtype is torch.uint8 and tensors[name].dim() == 1:
                text = changed_text(draw, bytes(tensors[name].tolist()).decode(errors="replace"))
                tensors[name] = torch.tensor(list(text.encode("utf-8", "replace")), dtype=torch.uint8)
            else:
                tensors[name] = damaged_tensor(draw, tensors[name])
            words.append(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}")
    dtype = draw.choice([torch.bfloat16, torch.float16, torch.float32])
    on_meta = draw.chance(0.3)

    def attempt() -> Answer:
        method = said.get("quant_method") if isinstance(said, dict) else None
        known = isinstance(method, str) and method in READERS
        reader = _tried(
            lambda: reader_for(said), method if known else "quantization_config|aoext: quant_method"
        )
        if reader is None or _tried(lambda: reader.read_metadata(metadata) or True, "torchao: ") is None:
            return "raised"
        if on_meta:  # as all doors try it first
            forms = {
                f"{LAYER}.{key}": tensor if key.rpartition(".")[2] in reader.telling else tensor.to("meta")
                for key, tensor in tensors.items()
            }
            for sentence in refusals(reader, forms, dtype):
                assert sentence.startswith(f"{LAYER}: "), f"the error does not name the layer: {sentence}"
        weight = _tried(lambda: reader.weight(LAYER, tensors, dtype), f"{LAYER}: ")
        if weight is None:
            return "raised"
        assert isinstance(weight, QuantizedTensor)
        assert weight.dtype is dtype
        rows, columns = weight.shape
        assert linear(torch.ones(2, columns, dtype=dtype), weight).shape == (2, rows)
        return "ran"

    return ", ".join(words), attempt


def _tried(work: Callable[[], Any], beginnings: str) -> Any:
    """What `work` gives; None where it raises a ValueError that begins so, or so."""
    try:
        return work()
    except ValueError as error:
        text = str(error)
    assert text.startswith(tuple(beginnings.split("|"))), f"the error does not name what is wrong: {text}"
    return None

"""GGUF files, the checkpoints of llama.cpp: models of transformers with aoext's weights."""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)

from aoext import serialization
from aoext.checkpoints import gguf as blocks
from aoext.checkpoints.gguf_file import ARCHITECTURE, GGUF, open_gguf
from aoext.formats.checks import shown
from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name, one_of
from aoext.integrations.gguf.config import ROPE_FREQUENCIES, config_of
from aoext.integrations.gguf.config_others import LONG_ROPE, config_of_others
from aoext.integrations.gguf.names import Place, Places, architectures, places_of
from aoext.integrations.transformers import AoextConfig
from aoext.models.experts import are_interleaved
from aoext.models.layers import as_rows, as_weight, quantizable
from aoext.serialization.container import Source
from aoext.tensors import QuantizedTensor

logger = logging.getLogger(__name__)

# transformers' name of the models of architectures whose keys are asked for one by one.
_STRICT = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}
_PLAIN = ("F32", "F16", "BF16")
# Tensors that the config is made of, by the models that have them.
_IN_THE_CONFIG = {
    "llama": (ROPE_FREQUENCIES,),
    "mixtral": (ROPE_FREQUENCIES,),
    "gemma4_text": (ROPE_FREQUENCIES,),
    "phi3": LONG_ROPE,
}


class _Part(NamedTuple):
    """A tensor of the file that is a parameter or rows of one."""

    key: str
    place: Place


class _Form(NamedTuple):
    """What activations are: of the model's, and within products by weights in blocks."""

    dtype: torch.dtype
    activation: torch.dtype | None


def load_gguf(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.bfloat16,
    quantize_embeddings: bool = True,
    activation: torch.dtype | None = None,
) -> Any:
    """The model of a GGUF file, on the CPU. Weights stay in the file's blocks; those in MXFP4 and NVFP4
    become others of the same values.

    dtype: of activations, and of all that is not quantised; a warning names the weights of other quantised
        formats, which are dequantised.
    quantize_embeddings: whether embeddings stay quantised too, and with them an output layer that shares
        their weight; False dequantises them.
    activation: None, by which results are those of the file's weights to the precision of `dtype`; or
        torch.int8, to which each layer quantises what it gets, in blocks as long as the weight's, as
        llama.cpp does: faster on CPUs, with 0.5% to 0.7% of a layer's result in noise. Weights that do not
        keep their blocks, and plain ones, get activations as they are.

    Architectures: all that transformers reads, and deepseek2. ValueError, which names the file and the key or
    tensor, for others, for what is damaged, and for tensors that transformers' model has no place for. So are
    settings that would change results and that it has no place for, of llama (Mixtral, too), qwen2, qwen3,
    qwen3moe, gemma2 and gemma3 (text); a warning names such settings of other architectures.
    """
    if dtype not in FLOAT_DTYPES:
        raise ValueError(f"load_gguf: dtype must be {one_of(FLOAT_DTYPES)}, got {dtype_name(dtype)}")
    if activation not in (None, torch.int8):
        raise ValueError(f"load_gguf: activation must be None or torch.int8, got {shown(activation)}")
    source = Source("load_gguf", Path(path))
    with closing(open_gguf(source)) as file, source.named():
        config = _config(file)
        model_type = _model_type(config)
        with torch.device("meta"):
            model = model_type(config)
        model.tie_weights()  # which not every release does before there are values
        parts = _parts(file, model, places_of(file.metadata[ARCHITECTURE], model))
        state = _read(file, model, parts, _Form(dtype, activation), quantize_embeddings)
        tensors, metadata = serialization.flattened(state)
        described = json.loads(metadata[serialization.WEIGHTS_KEY])
        config.quantization_config = {**AoextConfig.keep().to_dict(), "described": described}
        model, loading = model_type.from_pretrained(
            None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
        )
        for key in ("unexpected_keys", "missing_keys"):
            if loading[key]:
                raise source.error(f"{key.replace('_', ' ')}: {', '.join(sorted(loading[key]))}")
        return model.eval()


def _config(file: GGUF) -> PreTrainedConfig:
    """What the file says of its model."""
    name = file.metadata.get(ARCHITECTURE)
    known = architectures()
    if not isinstance(name, str) or name not in known:
        raise file.source.error(f"architecture must be one of {', '.join(known)}, got {name!r}")
    if name not in _STRICT:
        return config_of_others(file)
    _check_layers(file)
    has_experts = name == "llama" and "blk.0.ffn_gate_inp.weight" in file.tensors
    return config_of(file, "mixtral" if has_experts else _STRICT[name])


def _model_type(config: PreTrainedConfig) -> Any:
    """The class of a config's model."""
    for name in config.architectures or ():
        return getattr(transformers, name)
    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING):
        if type(config) in mapping:
            return mapping[type(config)]
    raise ValueError(f"transformers has no language model of {config.model_type}")


def _check_layers(file: GGUF) -> None:
    """Whether the layers that tensors name are as many as the file says; before anything is made of them."""
    found = (re.match(r"blk\.(0|[1-9][0-9]{0,5})\.", name) for name in file.tensors)
    named = {int(match[1]) for match in found if match}
    key = f"{file.metadata[ARCHITECTURE]}.block_count"
    count = file.metadata.get(key)
    if type(count) is not int or count != len(named) or any(layer >= count for layer in named):
        raise file.source.error(
            f"{key} must be the number of layers that tensors name, {len(named)}, got {count!r}"
        )


def _parts(file: GGUF, model: Any, places: Places) -> dict[str, list[_Part]]:
    """The file's tensors by the parameters that they make; ValueError where the model's are others."""
    parameters = model.state_dict(keep_vars=True)
    found: dict[str, list[_Part]] = {}
    for key in sorted(file.tensors, key=lambda key: file.tensors[key].begin):
        place = places.of(key)
        if place is not None and place.parameter in parameters:
            found.setdefault(place.parameter, []).append(_Part(key, place))
        elif not _is_left_out(model, key, place):
            raise file.source.error(f"{key} is no tensor of {file.metadata[ARCHITECTURE]} that aoext knows")
    there = {id(parameters[name]) for name in found}
    stems = {_stem(key) for key in file.tensors}
    for name, parameter in parameters.items():
        if id(parameter) in there:
            continue
        keys = places.names(name)
        is_bias = isinstance(_owner(model, name), nn.Linear) and name.endswith(".bias")
        if is_bias and not any(_stem(key) in stems for key in keys):
            found[name] = []  # which no layer of the file has
        else:
            raise file.source.error(f"has no {keys[0] if keys else f'tensor for {name}'}")
    for name, parts in found.items():
        parts.sort(key=lambda part: part.place.part)
        _check_shapes(file, _in_rows(model, name, parameters[name]), parts)
    return found


def _is_left_out(model: Any, key: str, place: Place | None) -> bool:
    """Whether a tensor is none of the model's parameters for a reason that is known."""
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    named = place is not None and any(re.search(pattern, place.parameter) for pattern in ignored)
    return named or key in _IN_THE_CONFIG.get(model.config.model_type, ())


def _stem(key: str) -> str:
    """A tensor's name without the number of its layer."""
    return re.sub(r"\bblk\.\d+\.", "blk.", key)


def _owner(model: Any, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _in_rows(model: Any, name: str, tensor: Tensor) -> Tensor:
    """A parameter as files have it, [N, K] or [E, N, K]."""
    return as_rows(_owner(model, name), tensor) if not name.endswith("bias") else tensor


def _check_shapes(file: GGUF, parameter: Tensor, parts: list[_Part]) -> None:
    rows = _rows_at(parameter, parts)
    for key, place in parts:
        expected = list(place.shape or parameter.shape)
        if len(parts) > 1 and place.shape is None:
            expected[rows] //= len(parts)
        got = list(file.tensors[key].shape)
        if [size for size in got if size > 1] != [size for size in expected if size > 1]:
            raise file.source.error(f"{key} must be {expected}, got {got}")


def _rows_at(parameter: Tensor, parts: list[_Part]) -> int:
    """Along which dimension parts lie behind each other."""
    return -1 if parameter.dim() < 2 or any(key.endswith(".bias") for key, _ in parts) else -2


def _read(
    file: GGUF, model: Any, parts: dict[str, list[_Part]], form: _Form, quantize_embeddings: bool
) -> dict[str, Tensor]:
    """The model's tensors by transformers' names, in the file's order."""
    parameters = model.state_dict(keep_vars=True)
    state: dict[str, Tensor] = {}
    dequantised: list[str] = []
    for name, of in parts.items():
        if not of:
            state[name] = torch.zeros(parameters[name].shape, dtype=form.dtype, device="cpu")
            continue
        owner, leaf = _owner(model, name), name.rpartition(".")[2]
        stays = quantize_embeddings or not isinstance(owner, nn.Embedding)
        kinds = {file.tensors[key].kind for key, _ in of}
        as_blocks = (
            len(kinds) == 1
            and kinds <= blocks.FORMATS.keys()
            and leaf in quantizable(owner)
            and all(change.keeps_rows for _, place in of for change in place.changes)
        )
        if stays and as_blocks:
            state[name] = as_weight(owner, _quantized(file, owner, of, form))
            continue
        if stays and not kinds <= {*_PLAIN}:
            dequantised.append(f"{name} ({', '.join(sorted(kinds))})")
        rows = _in_rows(model, name, parameters[name])
        plain = _joined([_plain(file, part) for part in of], owner, _rows_at(rows, of)).reshape(rows.shape)
        state[name] = _in_rows(model, name, plain).to(form.dtype).contiguous()
    if dequantised:
        logger.warning(
            "load_gguf: no kernels yet for the formats of %d weights, which are dequantised to %s: %s",
            len(dequantised),
            form.dtype,
            ", ".join(dequantised),
        )
    return state


def _joined(parts: list[Tensor], owner: nn.Module, rows: int) -> Tensor:
    """The parts' rows behind each other, or in turns."""
    if len(parts) == 1:
        return parts[0]
    if not are_interleaved(owner):
        return torch.cat(parts, rows)
    at = parts[0].dim() + rows
    return torch.stack(parts, at + 1).flatten(at, at + 1)


def _quantized(file: GGUF, owner: nn.Module, parts: list[_Part], form: _Form) -> QuantizedTensor:
    """The weight of blocks, whose rows have been moved as they are."""
    raw = []
    for key, place in parts:
        tensor = file.read(key)
        for change in place.changes:
            tensor = change.read(tensor)
        raw.append(tensor)
    key, place = parts[0]
    weight = blocks.weight(key, file.tensors[key].kind, _joined(raw, owner, -2), *form)
    if place.columns is None:
        return weight
    return weight.remade({**dict(weight.named_fields()), "k_order": place.columns})


def _plain(file: GGUF, part: _Part) -> Tensor:
    """A tensor in float32, of whatever format, as transformers has it."""
    key, place = part
    kind = gguf.GGMLQuantizationType[file.tensors[key].kind]
    try:
        values = gguf.quants.dequantize(file.read(key).numpy(), kind)
    except NotImplementedError as error:
        raise file.source.error(f"{key} is in format {kind.name}, which `gguf` cannot dequantise") from error
    tensor = torch.from_numpy(values.copy())
    for change in place.changes:
        tensor = change.read(tensor)
    return tensor if place.columns is None else tensor[:, place.columns.argsort()]

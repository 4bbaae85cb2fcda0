"""Where the tensors of a GGUF file go in transformers' model, as transformers' own tables say it.

Names come from its map of a model's parameters to llama.cpp's names, or from its conversions of weights,
where it has them for an architecture.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import gguf
from torch import Tensor
from transformers.modeling_gguf_pytorch_utils import (
    GGUF_SUPPORTED_ARCHITECTURES,
    TENSOR_PROCESSORS,
    TensorProcessor,
)

from aoext.integrations.gguf import deepseek
from aoext.integrations.gguf.changes import Change, changes_of

# transformers' conversions by architecture, which earlier releases do not have.
CONVERSIONS: dict[str, Callable[[Any], Sequence[Any]]] = {}
with contextlib.suppress(ImportError):
    from transformers.integrations.gguf import GGUF_ARCHS

    CONVERSIONS = GGUF_ARCHS

# What transformers' tables call architectures by names of its own.
TRANSFORMERS_NAMES = {
    "gpt-oss": "gpt_oss",
    "minimax-m2": "minimax_m2",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "t5encoder": "t5",
}
# Those that it has only as models, or has no model for.
_NO_ARCHITECTURES = {"general", "tokenizer", "mistral", "umt5", "deci"}


# Tensors whose names end with what they are.
_WITHOUT_LEAF = (".scale", ".ssm_a", ".ssm_d")


# Gate and up of experts in one tensor, as newer files may have them.
_FUSED, _GATE = ".ffn_gate_up_exps.weight", ".ffn_gate_exps"
# Architectures of which transformers has rows of gate and up in turns.
_INTERLEAVED = ("gpt-oss",)


class Place(NamedTuple):
    """What a tensor of the file is a part of."""

    parameter: str
    part: int = 0  # of several that lie behind each other along the rows
    changes: tuple[Change, ...] = ()
    shape: Sequence[int] | None = None  # in the file, where it is not the parameter's or an equal part of it
    columns: Tensor | None = None  # column j of the file's is column columns[j] of the parameter


class Places(NamedTuple):
    """Places by the names of a file's tensors, and names that a file must have for parameters."""

    of: Callable[[str], Place | None]
    names: Callable[[str], Sequence[str]]


def architectures() -> list[str]:
    """Those that are known, by the names that files have for them."""
    known = {*GGUF_SUPPORTED_ARCHITECTURES, *TRANSFORMERS_NAMES, *CONVERSIONS, deepseek.ARCHITECTURE}
    return sorted(known - _NO_ARCHITECTURES - {*TRANSFORMERS_NAMES.values()} | {"t5"})


def places_of(architecture: str, model: Any) -> Places:
    """Where tensors of an architecture's file go in a model, which may be on the meta device."""
    if architecture in CONVERSIONS:
        return _by_conversions(CONVERSIONS[architecture](model.config))
    return _by_names(architecture, model)


def _by_names(architecture: str, model: Any) -> Places:
    parameters = dict(model.state_dict(keep_vars=True))
    names = {
        name: (parameter, int("ffn_up_exps" in name))
        for name, parameter in _names(architecture, model, parameters).items()
    }
    covered = {parameter for parameter, _ in names.values()}
    for parameter in parameters:
        if parameter not in covered:
            names.update(_further(parameter))
    by_parameter: dict[str, list[str]] = {}
    for name, (parameter, _) in names.items():
        leaf = "" if name.endswith((".weight", ".bias", *_WITHOUT_LEAF)) else ".weight"
        by_parameter.setdefault(parameter, []).append(name + leaf)

    def of(key: str) -> Place | None:
        place = names.get(key) or names.get(key.removesuffix(".weight"))
        if place is None and key.endswith(_FUSED) and architecture not in _INTERLEAVED:
            place = names.get(key.removesuffix(_FUSED) + _GATE)
        half = deepseek.half_of(key, model.config) if architecture == deepseek.ARCHITECTURE else None
        parameter, part, shape = half or (*(place or ("", 0)), None)
        if parameter not in parameters:
            return None
        rows = parameters[parameter].shape[0]
        return Place(parameter, part, tuple(changes_of(architecture, model.config, key, rows)), shape)

    return Places(of, lambda parameter: by_parameter.get(parameter, []))


def _names(architecture: str, model: Any, parameters: Iterable[str]) -> dict[str, str]:
    """Parameters by llama.cpp's names, as gguf's table has these for names of transformers, and transformers'
    processor of the architecture for those of experts.

    The table has names of some models as they are without a head.
    """
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
    named = "t5" if architecture == "t5encoder" else architecture
    known = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == named)
    layers = getattr(model.config, "num_hidden_layers", None) or model.config.num_layers
    table = gguf.get_tensor_name_map(known, layers)
    found: dict[str, str] = {}
    for parameter in parameters:
        whole = processor.preprocess_name(parameter)
        path, _, leaf = whole.rpartition(".")
        name, suffix = (path, f".{leaf}") if leaf in ("weight", "bias") else (whole, "")
        parts = name.split(".")
        shorter = (".".join(parts[i:]) for i in range(len(parts)))
        of_file = next(filter(None, map(table.get_name, shorter)), None)
        if of_file is None:
            processor.perform_fallback_tensor_mapping(found, suffix, "", parameter)
        else:
            found.setdefault(of_file + suffix, parameter)
    return found


# Parameters of a layer that gguf's table lacks, and the file's tensors that they are made of.
_FURTHER = {
    "mlp.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
    "mlp.experts.down_proj": ("ffn_down_exps",),
    "mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
    "mlp.experts.down_proj_bias": ("ffn_down_exps.bias",),
    "router.scale": ("ffn_gate_inp.scale",),
    "router.per_expert_scale": ("ffn_down_exps.scale",),
    "mlp.gate.e_score_correction_bias": ("exp_probs_b.bias",),
}


def _further(parameter: str) -> dict[str, tuple[str, int]]:
    """Names of a file's tensors for a parameter that the table lacks."""
    match = re.fullmatch(r"(?:model\.)?layers\.(\d+)\.(.+)", parameter)
    parts = _FURTHER.get(match[2], ()) if match else ()
    return {f"blk.{match[1]}.{part}": (parameter, i) for i, part in enumerate(parts) if match}


class _Converted:
    """A change by operations of transformers."""

    def __init__(self, operations: Iterable[Any]) -> None:
        self.operations = list(operations)
        self.keeps_rows = all(getattr(op, "supports_packed", False) for op in self.operations)

    def read(self, tensor: Tensor) -> Tensor:
        for operation in self.operations:
            (tensor,) = operation.convert({"tensor": [tensor]}, ["tensor"], ["tensor"]).values()
        return tensor

    def written(self, tensor: Tensor) -> Tensor:
        raise NotImplementedError(f"{self.operations} are not written")


def _by_conversions(conversions: Sequence[Any]) -> Places:
    from transformers.core_model_loading import (
        Concatenate,
        WeightConverter,
        WeightRenaming,
        rename_source_key,
    )

    renamings = [c for c in conversions if isinstance(c, WeightRenaming)]
    converters = [c for c in conversions if isinstance(c, WeightConverter)]
    by_pattern = {pattern: (c, i) for c in converters for i, pattern in enumerate(c.source_patterns)}

    def of(key: str) -> Place | None:
        if key.endswith(_FUSED):
            key = f"{key.removesuffix(_FUSED)}{_GATE}.weight"
        parameter, pattern = rename_source_key(key, renamings, converters)
        if pattern not in by_pattern:
            return Place(parameter)
        converter, part = by_pattern[pattern]
        operations = [op for op in converter.operations if not isinstance(op, Concatenate)]
        columns = [getattr(op, "input_permutation", None) for op in operations]
        operations = [op for op, order in zip(operations, columns, strict=True) if order is None]
        orders = [order for order in columns if order is not None]
        changes = (_Converted(operations),) if operations else ()
        return Place(parameter, part, changes, columns=orders[0] if orders else None)

    return Places(of, lambda parameter: ())

"""Configs of GGUF files of architectures whose keys aoext does not ask for one by one.

Which key is which setting, transformers' tables say, and the ones below what its reader leaves at its
defaults. Keys that nobody reads are named in a warning.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig
from transformers.integrations.ggml import GGUF_CONFIG_DEFAULTS_MAPPING, GGUF_CONFIG_MAPPING

from aoext.checkpoints.gguf_file import ARCHITECTURE, GGUF, Array
from aoext.integrations.gguf import deepseek
from aoext.integrations.gguf.keys import Keys, changes_no_result
from aoext.integrations.gguf.names import CONVERSIONS, TRANSFORMERS_NAMES

logger = logging.getLogger(__name__)

Settings = dict[str, Any]

# Keys, and the first of the settings of that meaning that a config has.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"),
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "attention.sliding_window": ("sliding_window",),
    "context_length": ("n_positions", "max_position_embeddings"),
    "decoder_block_count": ("num_decoder_layers",),
    "embedding_length_per_layer_input": ("hidden_size_per_layer_input",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "feed_forward_length": ("intermediate_size", "n_inner", "d_ff", "ffn_hidden_size"),
    "final_logit_softcapping": ("final_logit_softcapping",),
}
# Keys that the tensors' shapes say again, or that are applied below.
_SAID_ELSEWHERE = {
    "attention.head_count_kv",
    "attention.key_length_swa",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window_pattern",
    "attention.value_length",
    "attention.value_length_swa",
    "expert_count",
    "expert_gating_func",
    "expert_used_count",
    "rope.dimension_count",
    "rope.dimension_count_swa",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "tensor_data_layout",
    "use_parallel_residual",
}
# Phi-3's factors of frequencies, up to the context that it was trained for and behind it.
LONG_ROPE = ("rope_factors_short.weight", "rope_factors_long.weight")
# transformers' names of models where they are not those of its tables.
_MODELS = {"gemma3": "gemma3_text", "gemma4": "gemma4_text"}


def config_of_others(file: GGUF) -> PreTrainedConfig:
    """The config of the model in a file; ValueError where transformers makes none of it."""
    architecture = file.metadata[ARCHITECTURE]
    try:
        if architecture in CONVERSIONS:
            path = file.source.path
            config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
            config.tie_word_embeddings = "output.weight" not in file.tensors  # in whichever of its files
            return config
        return _by_tables(file, architecture)
    except Exception as error:  # whatever its readers and its validation raise
        raise file.source.error(f"is no model of transformers: {type(error).__name__}: {error}") from error


def _by_tables(file: GGUF, architecture: str) -> PreTrainedConfig:
    table = TRANSFORMERS_NAMES.get(architecture, architecture)
    names_of = deepseek.SETTINGS if table == deepseek.ARCHITECTURE else GGUF_CONFIG_MAPPING[table]
    keys, settings = Keys(file), dict(GGUF_CONFIG_DEFAULTS_MAPPING.get(table, {}))
    of_file = {key: _of_all_layers(value) for key, value in keys.left.items()}
    model_type = _MODELS.get(table, table)
    if table == "t5" and "umt5" in str(file.metadata.get("general.name", "")).lower():
        model_type = "umt5"
    if table == deepseek.ARCHITECTURE:
        model_type = deepseek.model_type(file)
    defaults = CONFIG_MAPPING[model_type]()
    for key, names in _SETTINGS.items():
        name = next((name for name in names if hasattr(type(defaults), name)), None)
        if name and not isinstance(of_file.get(key), Array | None):
            settings[name] = of_file[key]
    if settings.get("sliding_window") == 0:
        settings["sliding_window"] = None
    for key, name in names_of.items():
        if name and not isinstance(of_file.get(key), Array | None):
            settings[name] = of_file[key]
    for name in ("scoring_func", "rope_theta"):
        settings.pop(name, None)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None:
        settings["vocab_size"] = embedding.shape[0]
        settings |= keys.token_ids(embedding.shape[0])
    settings["tie_word_embeddings"] = "output.weight" not in file.tensors
    if table == deepseek.ARCHITECTURE:
        settings |= deepseek.settings_of(of_file, settings)
    elif isinstance(defaults.rope_parameters if hasattr(defaults, "rope_parameters") else None, dict):
        settings["rope_parameters"] = _rope(file, defaults, settings, of_file)
    if model_type in _OF_MODELS:
        settings |= _OF_MODELS[model_type](file, defaults, settings, of_file)
    if architecture == "t5encoder":
        settings["architectures"] = ["UMT5EncoderModel" if model_type == "umt5" else "T5EncoderModel"]
    _warn_of_unread(file, architecture, of_file, {key for key, name in names_of.items() if name})
    return AutoConfig.for_model(model_type, **settings)


def _of_all_layers(value: Any) -> Any:
    """The number that all layers have, where it is the same."""
    if isinstance(value, Array) and value.numbers and len(set(value.numbers)) == 1:
        return value.numbers[0]
    return value


def _rope(file: GGUF, defaults: Any, settings: Settings, keys: Settings) -> Settings:
    """How positions turn queries and keys."""
    rope: Settings = dict(defaults.rope_parameters)
    if any(isinstance(value, dict) for value in rope.values()):
        bases = {"full_attention": "rope.freq_base", "sliding_attention": "rope.freq_base_swa"}
        theta = {kind: keys[key] for kind, key in bases.items() if key in keys}
        return {
            kind: {**of, **({"rope_theta": theta[kind]} if kind in theta else {})}
            for kind, of in rope.items()
        }
    if "rope.freq_base" in keys:
        rope["rope_theta"] = keys["rope.freq_base"]
    head = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
    if "rope.dimension_count" in keys:
        share = keys["rope.dimension_count"] / head
        if share != 1 or "partial_rotary_factor" in rope:
            rope["partial_rotary_factor"] = share
    scaling, factor = keys.get("rope.scaling.type"), keys.get("rope.scaling.factor", 1.0)
    context = keys.get("rope.scaling.original_context_length") or settings["max_position_embeddings"]
    if all(name in file.tensors for name in LONG_ROPE):
        short, long = (file.read(name).view(torch.float32).flatten().tolist() for name in LONG_ROPE)
        factors = {"short_factor": short, "long_factor": long}
        rope |= {"rope_type": "longrope", "original_max_position_embeddings": context, **factors}
        settings["original_max_position_embeddings"] = context
        if "rope.scaling.attn_factor" in keys:
            rope["attention_factor"] = keys["rope.scaling.attn_factor"]
    elif scaling in ("linear", "yarn") and factor != 1:
        rope |= {"rope_type": scaling, "factor": factor}
        if scaling == "yarn":
            rope["original_max_position_embeddings"] = context
            for name in ("beta_fast", "beta_slow"):
                if f"rope.scaling.yarn_{name}" in keys:
                    rope[name] = keys[f"rope.scaling.yarn_{name}"]
    return rope


def _falcon(file: GGUF, defaults: Any, settings: Settings, keys: Settings) -> Settings:
    if "blk.0.attn_norm_2.weight" not in file.tensors:
        return {}
    return {"new_decoder_architecture": True, "num_kv_heads": keys["attention.head_count_kv"]}


def _stablelm(file: GGUF, defaults: Any, settings: Settings, keys: Settings) -> Settings:
    return {
        "use_qkv_bias": "blk.0.attn_q.bias" in file.tensors,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in file.tensors,
    }


def _t5(file: GGUF, defaults: Any, settings: Settings, keys: Settings) -> Settings:
    gated = "enc.blk.0.ffn_gate.weight" in file.tensors
    return {"feed_forward_proj": "gated-gelu" if gated else "relu"}


def _gemma4(file: GGUF, defaults: Any, settings: Settings, keys: Settings) -> Settings:
    """Layers with a window have heads of their own size."""
    found: Settings = {"global_head_dim": keys.get("attention.key_length", 512)}
    found["head_dim"] = keys.get("attention.key_length_swa", found["global_head_dim"])
    pattern, heads = (keys.get(f"attention.{key}") for key in ("sliding_window_pattern", "head_count_kv"))
    if isinstance(pattern, Array) and pattern.numbers:
        kinds = ["sliding_attention" if slides else "full_attention" for slides in pattern.numbers]
        found["layer_types"] = kinds
        if isinstance(heads, Array) and heads.numbers and len(heads.numbers) == len(kinds):
            by_kind = dict(zip(kinds, heads.numbers, strict=True))
            found["num_key_value_heads"] = by_kind.get("sliding_attention", heads.numbers[0])
            found["num_global_key_value_heads"] = by_kind.get("full_attention")
        full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
        found["attention_k_eq_v"] = bool(full) and f"blk.{full[0]}.attn_v.weight" not in file.tensors
    widths = keys.get("feed_forward_length")
    if isinstance(widths, Array) and widths.numbers:
        found["intermediate_size"] = min(widths.numbers)
        found["use_double_wide_mlp"] = max(widths.numbers) == 2 * min(widths.numbers)
    if keys.get("expert_count"):
        experts = {"num_experts": keys["expert_count"], "top_k_experts": keys["expert_used_count"]}
        found |= {"enable_moe_block": True, **experts}
    table = file.tensors.get("per_layer_token_embd.weight")
    if table is None:
        found["hidden_size_per_layer_input"] = 0
    else:
        found["vocab_size_per_layer_input"] = table.shape[0]
    return found


_OF_MODELS = {
    "falcon": _falcon,
    "gemma4_text": _gemma4,
    "stablelm": _stablelm,
    "t5": _t5,
    "umt5": _t5,
}


def _warn_of_unread(file: GGUF, architecture: str, keys: Settings, read: set[str]) -> None:
    read |= _SAID_ELSEWHERE | _SETTINGS.keys()
    read |= deepseek.READ_BESIDE if architecture == deepseek.ARCHITECTURE else set()
    unread = [key for key, value in keys.items() if key not in read and not changes_no_result(key, value)]
    if unread:
        logger.warning(
            "load_gguf: %s: nobody reads these keys, which may change results: %s",
            file.source.path,
            ", ".join(f"{architecture}.{key}" for key in sorted(unread)),
        )

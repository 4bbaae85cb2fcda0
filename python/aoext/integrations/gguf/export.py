"""A checkpoint of transformers as a GGUF file, which llama.cpp, transformers and load_gguf read."""

from __future__ import annotations

import json
import math
import os
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from aoext.checkpoints.gguf_file import GGUFFile
from aoext.convert import Conversion
from aoext.integrations.gguf.config import ROPE_FREQUENCIES, config_of, factors_of
from aoext.integrations.gguf.names import places_of
from aoext.integrations.gguf.tensors import add_tensors
from aoext.integrations.gguf.vocabulary import add_vocabulary
from aoext.serialization.container import Source

# Formats of matrices, and what llama.cpp calls files of them.
FORMATS = {
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q4_K": gguf.LlamaFileType.MOSTLY_Q4_K_S,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}
# The architecture of a model_type.
_ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}
# Settings that have to come back, where a model has them.
_SETTINGS = (
    "attention_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "mlp_bias",
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_local_experts",
    "query_pre_attn_scalar",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "vocab_size",
)


def write_gguf(source: Path, target: Path, kind: str | None) -> Conversion:
    """Write the model in a folder of transformers, and its tokenizer, as a GGUF file of the format `kind`,
    of FORMATS, or None, which keeps plain weights.

    Weights that aoext keeps in GGUF's blocks stay as they are, others are rounded to `kind`; output layers,
    and embeddings that are output layers too, to Q8_0, as they need more bits. Norms and biases are float32.

    FileExistsError for a target that is there; ValueError for models and settings that a file cannot say. A
    note of the result says why there is no tokenizer.
    """
    if target.exists():
        raise FileExistsError(f"convert: {target} is there already")
    if kind not in (None, *FORMATS):
        raise ValueError(f"convert: a GGUF file is of {', '.join(FORMATS)}, got {kind!r}")
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto", device_map="cpu")
    architecture = _ARCHITECTURES.get(model.config.model_type)
    if architecture is None:
        raise ValueError(
            f"convert: GGUF files are written of {', '.join(_ARCHITECTURES)}, got {model.config.model_type}"
        )
    done = Conversion(None, "gguf", bytes_before=sum(f.stat().st_size for f in source.glob("*.safetensors")))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as folder:
        made = Path(folder) / "model.gguf"  # whole before it is where others find it
        writer = gguf.GGUFWriter(made, architecture)
        if kind is not None:
            writer.add_file_type(FORMATS[kind])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        _add_keys(writer, architecture, model)
        try:
            add_vocabulary(writer, AutoTokenizer.from_pretrained(source), model.config)
        except Exception as error:  # whatever is wrong in a vocabulary
            done.notes.append(f"no tokenizer: {type(error).__name__}: {error}")
        tied = model.config.tie_word_embeddings
        plain = {torch.bfloat16: "BF16", torch.float16: "F16"}.get(model.dtype, "F32")

        def kind_of(key: str, is_weight: bool) -> str:
            if not is_weight or kind is None:
                return plain if is_weight else "F32"
            return "Q8_0" if key == "output.weight" or (tied and key == "token_embd.weight") else kind

        formats = add_tensors(writer, model, places_of(architecture, model), kind_of)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        _check(made, model.config)
        done.bytes_after = made.stat().st_size
        os.replace(made, target)
    for key, format in formats.items():
        (done.others if format in ("F32", "F16", "BF16") else done.quantised).append(key)
    return done


def _add_keys(writer: Any, architecture: str, model: Any) -> None:
    """What the model is, by llama.cpp's keys."""
    config = model.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_name(getattr(config, "name_or_path", "") and Path(config.name_or_path).name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(head)
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if architecture == "qwen3moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    rope = config.rope_parameters
    if architecture.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
        # llama.cpp's values where there is no key are not "none".
        writer.add_final_logit_softcapping(config.final_logit_softcapping or 0.0)
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping or 0.0)
    if "full_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    _add_rope(writer, rope, head)


def _add_rope(writer: Any, rope: dict[str, Any], head: int) -> None:
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return
    if kind == "llama3":
        writer.add_tensor(ROPE_FREQUENCIES, factors_of(rope, head).numpy())
        return
    if kind not in ("linear", "yarn"):
        raise ValueError(f"convert: a GGUF file cannot say rope_type {kind!r}")
    writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
    writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for name in ("beta_fast", "beta_slow"):
            if name in rope:
                getattr(writer, f"add_rope_scaling_yarn_{name}")(rope[name])


def _check(path: Path, config: Any) -> None:
    """ValueError unless the file says the settings that the model has."""
    source = Source("convert", path)
    with closing(GGUFFile(source)) as file:
        model_type = "llama" if config.model_type == "mistral" else config.model_type
        back = config_of(file, model_type)
    for name in _SETTINGS:
        wanted, said = (getattr(each, name, None) for each in (config, back))
        if name == "rope_parameters":
            wanted, said = _whole(config.rope_parameters), _whole(back.rope_parameters)
        if wanted is not None and json.dumps(_numbers(wanted)) != json.dumps(_numbers(said)):
            raise ValueError(f"convert: a GGUF file cannot say {name} = {wanted!r}: it would read {said!r}")
    window = getattr(config, "sliding_window", None)
    if config.model_type == "mistral" and window and window < config.max_position_embeddings:
        raise ValueError(f"convert: a GGUF file of llama has no window, got sliding_window = {window}")


def _whole(rope: dict[str, Any]) -> dict[str, Any]:
    """Settings of positions with those that may be left out."""
    if rope.get("rope_type") != "yarn":
        return rope
    usual = {"attention_factor": 0.1 * math.log(rope["factor"]) + 1, "beta_fast": 32.0, "beta_slow": 1.0}
    return {**usual, **{key: value for key, value in rope.items() if value is not None}}


def _numbers(value: Any) -> Any:
    """Settings as float32 has them, in a fixed order; those that are not set are left out."""
    if isinstance(value, dict):
        return {key: _numbers(value[key]) for key in sorted(value) if value[key] is not None}
    if isinstance(value, float | int) and not isinstance(value, bool):
        return float(torch.tensor(value, dtype=torch.float32, device="cpu"))
    return value

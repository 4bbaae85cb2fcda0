"""A tokenizer of transformers as a GGUF file has it: byte-level BPE, and BPE in SentencePiece's spelling."""

from __future__ import annotations

import json
from typing import Any

import gguf


def add_vocabulary(writer: Any, tokenizer: Any, config: Any) -> None:
    """Give a writer the tokens, merges and special tokens; ValueError for tokenizers of other kinds."""
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    model = described["model"]
    if model["type"] != "BPE":
        raise ValueError(f"a GGUF file is written with a BPE vocabulary, got {model['type']}")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    byte_level = "ByteLevel" in _types(described["pre_tokenizer"]) | _types(described["decoder"])
    tokens, kinds = _tokens(described, config.vocab_size)
    writer.add_tokenizer_model("gpt2" if byte_level else "llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if byte_level:
        writer.add_tokenizer_pre(_pre(described["pre_tokenizer"]))
        writer.add_token_merges(merges)
    else:
        made = {merge.replace(" ", "", 1): -float(i) for i, merge in reversed(list(enumerate(merges)))}
        writer.add_token_scores([made.get(token, -float(len(merges))) for token in tokens])
        writer.add_add_space_prefix(_adds_space(described))
    for name in ("bos", "eos", "unk", "pad"):
        token = getattr(tokenizer, f"{name}_token_id")
        if token is not None and 0 <= token < config.vocab_size:
            getattr(writer, f"add_{name}_token_id")(token)
    bare = tokenizer("a").input_ids
    writer.add_add_bos_token(bool(bare) and bare[0] == tokenizer.bos_token_id)
    writer.add_add_eos_token(bool(bare) and bare[-1] == tokenizer.eos_token_id)
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _tokens(described: dict[str, Any], rows: int) -> tuple[list[str], list[int]]:
    """All tokens by their numbers, and GGUF's kinds of them; rows without a token have a name, too."""
    kind = gguf.TokenType
    tokens = [f"[PAD{i}]" for i in range(rows)]
    kinds = [int(kind.UNUSED)] * rows
    for token, i in described["model"]["vocab"].items():
        is_byte = len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        tokens[i], kinds[i] = token, int(kind.BYTE if is_byte else kind.NORMAL)
    for added in described["added_tokens"]:
        i = added["id"]
        tokens[i] = added["content"]
        kinds[i] = int(kind.CONTROL if added["special"] else kind.USER_DEFINED)
    unknown = described["model"].get("unk_token")
    if unknown in tokens:
        kinds[tokens.index(unknown)] = int(kind.UNKNOWN)
    return tokens, kinds


def _steps(described: Any) -> list[dict[str, Any]]:
    """A step of a tokenizer, or those that it is a sequence of."""
    if not described:
        return []
    parts = described.get("pretokenizers") or described.get("decoders") or described.get("normalizers")
    return [described] if parts is None else [step for part in parts for step in _steps(part)]


def _types(described: Any) -> set[str]:
    return {step["type"] for step in _steps(described)}


def _pre(described: Any) -> str:
    """llama.cpp's name of how text is split."""
    # Which earlier releases do not have.
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    splits = [step["pattern"].get("Regex") for step in _steps(described) if step["type"] == "Split"]
    known = ("llama-bpe", "qwen2", "qwen35", "tekken", "gpt-4o")
    return next((name for name in known if GGUF_PRE_TOKENIZER_SPLITS.get(name) in splits), "gpt-2")


def _adds_space(described: dict[str, Any]) -> bool:
    prepends = any(step["type"] == "Prepend" for step in _steps(described["normalizer"]))
    schemes = [step.get("prepend_scheme") for step in _steps(described["pre_tokenizer"])]
    return prepends or "always" in schemes or "first" in schemes

"""The snippets of the documents about models, run in the order in which they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from test_transformers import FOREIGN, foreign_checkpoint, llama

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", ["models.md", "lora.md"])
def test_snippets_run(tmp_path, monkeypatch, name):
    for package in ("diffusers", "peft", "sentence_transformers", "torchao"):
        pytest.importorskip(package)
    from test_diffusers import transformer
    from test_sentence_transformers import write_encoder

    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    llama().save_pretrained("my-model")
    foreign_checkpoint(tmp_path / "my-gptq-model", *FOREIGN["gptq"])
    write_encoder(tmp_path / "my-encoder")
    transformer().save_pretrained("my-pipeline/transformer")
    snippets = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)
    assert snippets
    scope: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, name, "exec"), scope)

"""The snippets of the documents about models, run in the order in which they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from click.testing import CliRunner

from aoext.cli.commands import cli
from moe_models import build
from test_transformers import FOREIGN, foreign_checkpoint, llama

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", ["models.md", "lora.md", "quality.md", "qat.md"])
def test_snippets_run(tmp_path, monkeypatch, name, generator):
    for package in ("diffusers", "peft", "sentence_transformers", "torchao"):
        pytest.importorskip(package)
    from test_diffusers import transformer
    from test_sentence_transformers import write_encoder

    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    llama().save_pretrained("my-model")
    build("qwen3", generator, torch.bfloat16).save_pretrained("my-moe-model")
    foreign_checkpoint(tmp_path / "my-gptq-model", *FOREIGN["gptq"])
    write_encoder(tmp_path / "my-encoder")
    transformer().save_pretrained("my-pipeline/transformer")
    snippets = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)
    assert snippets
    scope: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, name, "exec"), scope)


def test_commands_run(tmp_path, monkeypatch):
    for package in ("gguf", "torchao"):
        pytest.importorskip(package)
    from gguf_models import ALL, write

    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    llama(dtype=torch.bfloat16).save_pretrained("my-model")
    foreign_checkpoint(tmp_path / "my-gptq-model", *FOREIGN["gptq"])
    write(tmp_path / "model.gguf", "llama", ALL)
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    commands = [line.removeprefix("aoext ") for line in lines]
    assert len(commands) > 5
    for command in commands:
        done = CliRunner().invoke(cli, command.split())
        assert done.exit_code == 0, (command, done.output)


def test_help_leads_to_the_documents():
    text = CliRunner().invoke(cli, ["--help"]).output
    named = re.findall(r"^ *(\w+\.md)", text, re.MULTILINE)
    assert len(named) >= 4
    assert all((DOCS / name).is_file() for name in named)

"""`aoext convert`: checkpoints file by file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import aoext
from aoext.cli.commands import cli
from aoext.convert import MARKER, convert_checkpoint
from aoext.serialization import DEFAULT_INDEX
from aoext.tensors import QuantizedTensor

transformers = pytest.importorskip("transformers")

from test_transformers import FOREIGN, IDS, foreign_checkpoint, llama, same_bits  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded(generator):
    torch.manual_seed(generator.initial_seed())


def load(folder: Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cli, ["convert", *map(str, arguments)])


@pytest.mark.parametrize("tied", [False, True])
def test_a_plain_checkpoint_in_several_files(tmp_path, tied):
    llama(tie_word_embeddings=tied).save_pretrained(tmp_path / "plain", max_shard_size="40KB")
    done = run(tmp_path / "plain", tmp_path / "int4", "--scheme", "int4", "--group-size", 32)
    assert done.exit_code == 0, done.output
    assert "not quantised: 14 weights quantised by aoext" in done.output
    config = aoext.AoextConfig({"scheme": "int4", "group_size": 32})
    same_bits(load(tmp_path / "plain", quantization_config=config), load(tmp_path / "int4"))
    assert (tmp_path / "int4" / DEFAULT_INDEX).is_file()
    assert not (tmp_path / "int4" / MARKER).exists()


@pytest.mark.parametrize("name", FOREIGN)
def test_checkpoints_of_other_libraries(tmp_path, name):
    foreign_checkpoint(tmp_path / "theirs", *FOREIGN[name])
    written = json.loads((tmp_path / "theirs" / "config.json").read_text())
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({**written, "dtype": "float32"}))
    done = run(tmp_path / "theirs", tmp_path / "ours")
    assert done.exit_code == 0, done.output
    kept = load(tmp_path / "theirs", quantization_config=aoext.AoextConfig.keep(), dtype=torch.float32)
    converted = load(tmp_path / "ours")
    same_bits(kept, converted)
    assert torch.equal(kept(IDS).logits, converted(IDS).logits)


def test_an_interrupted_conversion_goes_on(tmp_path):
    llama().save_pretrained(tmp_path / "plain", max_shard_size="40KB")
    arguments = (tmp_path / "plain", tmp_path / "int8", aoext.Int8WeightOnlyConfig())

    def two(names: list[str]) -> Any:
        yield from names[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(*arguments, each=two)
    written = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "int8").glob("*.safetensors")}
    assert len(written) == 2
    with pytest.raises(FileExistsError, match="is there already, and is no part of this conversion"):
        convert_checkpoint(*arguments[:2], aoext.Float8WeightOnlyConfig())
    result = convert_checkpoint(*arguments)
    assert len(result.quantised) == 14
    assert all((tmp_path / "int8" / name).stat().st_mtime_ns == time for name, time in written.items())
    weights = [p for p in load(tmp_path / "int8").parameters() if isinstance(p, QuantizedTensor)]
    assert len(weights) == 14
    with pytest.raises(FileExistsError):
        convert_checkpoint(*arguments)


def test_what_cannot_be_converted(tmp_path):
    llama().save_pretrained(tmp_path / "plain")
    foreign_checkpoint(tmp_path / "gptq", *FOREIGN["gptq"])
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ((tmp_path / "plain", tmp_path / "out"), "is not quantised: name a scheme for it"),
        ((tmp_path / "gptq", tmp_path / "out", "--scheme", "int4"), "is quantised by gptq already"),
        ((tmp_path / "empty", tmp_path / "out"), "must be a folder with a config.json"),
        ((tmp_path / "plain", tmp_path / "gptq", "--scheme", "int8"), "is there already"),
        ((tmp_path / "plain", tmp_path / "out", "--scheme", "int8", "--group-size", 3), "for --scheme int4"),
    ):
        done = run(*arguments)
        assert done.exit_code != 0
        assert message in done.output
        assert not (tmp_path / "out").exists()


def test_a_gguf_file(tmp_path):
    pytest.importorskip("gguf")
    from test_gguf import ALL, write

    write(tmp_path / "model.gguf", "llama", ALL)
    done = run(tmp_path / "model.gguf", tmp_path / "ours")
    assert done.exit_code == 0, done.output
    loaded = load(tmp_path / "ours")
    assert torch.equal(loaded(IDS).logits, aoext.load_gguf(tmp_path / "model.gguf")(IDS).logits)

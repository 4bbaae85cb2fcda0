"""The files of save_model: modes, links, what a killed process leaves, several for one model, checksums."""

from __future__ import annotations

import copy
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import nn

from aoext.cli.commands import cli
from aoext.configs import Float8WeightOnlyConfig, Int4WeightOnlyConfig
from aoext.models.quantize import quantize_
from aoext.serialization import container, load_model, replacing, save_model, writing
from models import as_version_1, assert_same_state, build, contents, fill, quantized_model

POSIX = pytest.mark.skipif(os.name != "posix", reason="modes, links and locks are POSIX's")


@pytest.fixture
def model(generator):
    return quantized_model("cpu", generator)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@POSIX
@pytest.mark.parametrize("umask", [0o022, 0o007, 0o077])
def test_a_new_file_has_the_mode_of_the_umask_and_an_old_one_keeps_its_own(umask, model, path):
    before = os.umask(umask)
    try:
        save_model(model, path)
        assert mode(path) == 0o666 & ~umask
        path.chmod(0o640)
        save_model(model, path)
        assert mode(path) == 0o640
    finally:
        os.umask(before)


@POSIX
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("limit", [None, 1000])
def test_a_symbolic_link_stays_and_its_target_is_written(exists, limit, model, tmp_path):
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "blob", tmp_path / "model.safetensors"
    if exists:
        target.write_bytes(b"old")
    link.symlink_to(target)
    save_model(model, link, max_shard_size=limit)
    assert link.is_symlink()
    assert os.listdir(tmp_path / "store") != ["blob"] if limit else os.listdir(tmp_path / "store") == ["blob"]
    loaded = build()
    load_model(loaded, link)
    assert_same_state(loaded, model)


@POSIX
def test_what_is_no_regular_file_is_not_replaced(model, tmp_path):
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for path in (tmp_path, pipe, loop):
        with pytest.raises(ValueError, match=rf"save_model: {path} is there and no regular file"):
            save_model(model, path)
    assert sorted(os.listdir(tmp_path)) == ["loop", "pipe"]


def test_names_may_be_as_long_as_the_file_system_allows(model, tmp_path):
    path = tmp_path / ("m" * (255 - len(".safetensors")) + ".safetensors")
    save_model(model, path)
    loaded = build()
    load_model(loaded, path)
    assert_same_state(loaded, model)


SAVER = """
import sys, time
from aoext.serialization.replacing import Replacement
from pathlib import Path

replacement = Replacement(Path(sys.argv[1]))
replacement.file.write(b"half")
replacement.file.flush()
print("writing", flush=True)
time.sleep(600)
"""


@POSIX
def test_what_a_killed_saver_left_goes_with_the_next_save_and_a_living_ones_stays(model, path):
    saver = subprocess.Popen([sys.executable, "-c", SAVER, path], stdout=subprocess.PIPE, text=True)
    assert saver.stdout is not None
    try:
        assert saver.stdout.readline() == "writing\n"
        (temporary,) = os.listdir(path.parent)
        other = path.with_name("other.safetensors")
        save_model(model, other)
        assert sorted(os.listdir(path.parent)) == [temporary, other.name]
    finally:
        saver.send_signal(signal.SIGKILL)
        saver.wait()
        saver.stdout.close()
    assert temporary in os.listdir(path.parent)
    save_model(model, path)
    assert sorted(os.listdir(path.parent)) == [path.name, other.name]


def test_many_savers_at_once_leave_one_whole_file(model, path):
    failures: list[Exception] = []

    def save() -> None:
        try:
            for _ in range(20):
                save_model(model, path)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert os.listdir(path.parent) == [path.name]
    loaded = build()
    load_model(loaded, path, verify=True)
    assert_same_state(loaded, model)


@POSIX
def test_a_temporary_that_is_taken_before_it_is_locked_is_replaced_by_another(model, path, monkeypatch):
    lock, taken = replacing._lock, []

    def late(file) -> bool | None:
        if not taken:  # another saver finds it without a lock and removes it
            taken.append(file.name)
            replacing._remove_abandoned(path.parent)
            assert not os.path.exists(file.name)
        return lock(file)

    monkeypatch.setattr(replacing, "_lock", lambda file: lock(file) if len(taken) else late(file))
    save_model(model, path)
    assert len(taken) == 1
    assert os.listdir(path.parent) == [path.name]


# Reading while others write


def interfere(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Let something happen to the file after its header was read, and before its tensors are."""
    read = container.TensorFile.read

    def read_later(self, *arguments):
        action()
        return read(self, *arguments)

    monkeypatch.setattr(container.TensorFile, "read", read_later)


def test_a_file_that_is_cut_while_it_is_loaded_is_an_error_and_no_crash(generator, path, monkeypatch):
    model = quantized_model("cpu", generator)
    model.append(nn.Linear(512, 512))  # pages of which nothing has been read with the header
    save_model(model, path)
    target = copy.deepcopy(model)
    fill(target[4], generator)
    before = copy.deepcopy(target)
    interfere(monkeypatch, lambda: os.truncate(path, path.stat().st_size // 2))
    with pytest.raises(ValueError, match=rf"{path} is no whole safetensors file: it ended at byte \d+ while"):
        load_model(target, path)
    assert_same_state(target, before)


def test_a_file_that_is_replaced_while_it_is_loaded_gives_the_model_that_was_opened(
    model, generator, path, monkeypatch
):
    save_model(model, path)
    other = quantized_model("cpu", generator)
    interfere(monkeypatch, lambda: save_model(other, path))
    target = build()
    load_model(target, path, verify=True)
    assert_same_state(target, model)


# Several files


def deep_model(generator: torch.Generator, layers: int = 6) -> nn.Module:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(layers)))
    model[4].weight = model[1].weight
    fill(model, generator)
    quantize_(model, Int4WeightOnlyConfig(group_size=32), lambda _, name: name != "3")
    return model


@pytest.mark.parametrize("limit", [1, 5000, "20KB", "16KiB"])
def test_a_large_model_goes_into_several_files(limit, generator, path):
    model = deep_model(generator)
    save_model(model, path, max_shard_size=limit)
    index = json.loads(path.with_name(path.name + ".index.json").read_text())
    names = sorted(set(index["weight_map"].values()))
    assert not path.exists()
    assert len(names) > 1
    assert sorted(os.listdir(path.parent)) == sorted([*names, path.name + ".index.json"])
    size = {1: 1, 5000: 5000, "20KB": 20000, "16KiB": 16384}[limit]
    for name in names:
        tensors, metadata = contents(path.with_name(name))
        assert {key for key, where in index["weight_map"].items() if where == name} == tensors.keys()
        weights = json.loads(metadata["aoext_weights"])
        units = {next((w for w in weights if key.startswith(f"{w}.")), key) for key in tensors}
        assert len(units) == 1 or sum(tensor.nbytes for tensor in tensors.values()) <= size
    assert "4.weight.qdata" not in index["weight_map"]
    folder, file = path.parent, path.with_name(path.name + ".index.json")
    for where in (path, folder, file):
        target = deep_model(generator)
        load_model(target, where, verify=True)
        assert_same_state(target, model)
        assert target[4].weight is target[1].weight
    part = nn.Sequential(nn.Linear(64, 64))
    assert load_model(part, path, strict=False).missing == []
    assert_same_state(part[0], model[0])


def test_a_save_replaces_what_was_there_however_many_files_that_were(generator, path):
    first, second = deep_model(generator), deep_model(generator)
    for limits in ((None, 5000), (5000, None), (5000, 20000), (None, None)):
        for model, limit in zip((first, second), limits, strict=True):
            save_model(model, path, max_shard_size=limit)
        target = deep_model(generator)
        load_model(target, path)
        assert_same_state(target, second)
        index = path.with_name(path.name + ".index.json")
        kept = (
            {index.name, *json.loads(index.read_text())["weight_map"].values()} if limits[1] else {path.name}
        )
        assert set(os.listdir(path.parent)) == kept


def test_several_files_appear_whole_or_not_at_all(generator, path, monkeypatch):
    first = deep_model(generator)
    save_model(first, path, max_shard_size=5000)
    before = sorted(os.listdir(path.parent))
    write = writing.write

    def third_fails(file, tensors, metadata):
        counted.append(file)
        if len(counted) == 3:
            raise KeyboardInterrupt
        write(file, tensors, metadata)

    counted: list[object] = []
    monkeypatch.setattr(writing, "write", third_fails)
    with pytest.raises(KeyboardInterrupt):
        save_model(deep_model(generator), path, max_shard_size=5000)
    assert sorted(os.listdir(path.parent)) == before
    target = deep_model(generator)
    load_model(target, path)
    assert_same_state(target, first)


def test_other_programs_files_stay(model, path):
    index = path.with_name(path.name + ".index.json")
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"w": "model-00001-of-00002.safetensors"}}))
    path.with_name("model-00001-of-00002.safetensors").write_bytes(b"precious")
    save_model(model, path)
    assert path.with_name("model-00001-of-00002.safetensors").read_bytes() == b"precious"
    with pytest.raises(ValueError, match=r"has model\.safetensors and \S+\.index\.json: name one"):
        load_model(model, path.parent)


@pytest.mark.parametrize("tied", [True, False])
def test_folders_of_save_pretrained_load_whose_files_cut_through_weights(tied, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=96
    )
    config.tie_word_embeddings = tied
    model = transformers.LlamaForCausalLM(config).bfloat16().eval()
    quantize_(model, Int4WeightOnlyConfig(group_size=32), lambda _, name: name.endswith("_proj"))
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    target = transformers.LlamaForCausalLM(config).bfloat16().eval()
    assert load_model(target, tmp_path) == ([], [])
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(target(ids).logits, model(ids).logits)
    assert (target.lm_head.weight is target.model.embed_tokens.weight) == tied


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda index: index.update(weight_map=[]), "it must have the objects metadata and weight_map"),
        (lambda index: index.pop("metadata"), "it must have the objects metadata and weight_map"),
        (lambda index: index["weight_map"].popitem(), "and the index differ in"),
        (
            lambda index: index["weight_map"].update({"0.bias": "../x"}),
            r"0\.bias must be in a file of",
        ),
        (lambda index: index["weight_map"].update({"0.bias": 1}), r"0\.bias must be in a file of"),
    ],
)
def test_a_damaged_index_is_refused(spoil, message, generator, path):
    model = deep_model(generator)
    save_model(model, path, max_shard_size=5000)
    file = path.with_name(path.name + ".index.json")
    index = json.loads(file.read_text())
    spoil(index)
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=rf"^load_model: {file}: .*{message}"):
        load_model(model, path)


def test_a_lost_file_of_several_is_named(generator, path):
    model = deep_model(generator)
    save_model(model, path, max_shard_size=5000)
    lost = next(path.parent.glob("*-00002-of-*"))
    lost.unlink()
    with pytest.raises(FileNotFoundError, match=lost.name):
        load_model(model, path)


@pytest.mark.parametrize("size", ["5 apples", "-1GB", 0, -5, 1.5, True, "GB", ""])
def test_sizes_that_are_none_are_refused(size, model, path):
    with pytest.raises(ValueError, match="max_shard_size must be a number of bytes or a text such as '5GB'"):
        save_model(model, path, max_shard_size=size)
    assert os.listdir(path.parent) == []


# Checksums


def flip_a_bit(path: Path, generator: torch.Generator) -> None:
    """One bit somewhere in the tensors."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    place = int(torch.randint(start, len(data), (), generator=generator))
    data[place] ^= 1 << int(torch.randint(8, (), generator=generator))
    path.write_bytes(data)


def test_every_flipped_bit_is_found_where_asked_for(model, generator, path):
    save_model(model, path)
    whole = path.read_bytes()
    target = build()
    before = copy.deepcopy(target)
    for _ in range(50):
        flip_a_bit(path, generator)
        with pytest.raises(ValueError, match=rf"load_model: {path}: \S+ is damaged: its checksum must be"):
            load_model(target, path, verify=True)
        path.write_bytes(whole)
    assert_same_state(target, before)
    load_model(target, path, verify=True)
    assert_same_state(target, model)


def invoke(*arguments: object):
    return CliRunner().invoke(cli, ["info", *map(str, arguments)])


def test_info_says_whose_a_checkpoint_is_that_is_not_aoexts(tmp_path):
    save_file(
        {"a": torch.zeros(8, 64), "b": torch.zeros(4, dtype=torch.int32)}, tmp_path / "model.safetensors"
    )
    kinds = ["  float32: 1, 0.00 MB", "  int32: 1, 0.00 MB"]
    for said, whose, advice in (
        (None, "no config.json beside it says whose", None),
        ("[]", "no config.json beside it says whose", None),
        ("{}", "plain", 'quantised by `aoext convert … --scheme int4` or AoextConfig("int4")'),
        ('{"quantization_config": {"quant_method": "gptq"}}', "quantised by gptq", "`aoext convert` and"),
        ('{"quantization_config": {"quant_method": "eetq"}}', "quantised by eetq", "aoext does not read it"),
        ('{"quantization_config": {"quant_method": ["gptq"]}}', "quantised by ['gptq']", "does not read it"),
    ):
        if said is not None:
            (tmp_path / "config.json").write_text(said)
        for path in (tmp_path, tmp_path / "model.safetensors"):
            result = invoke(path)
            assert result.exit_code == 0, result.output
            first, *lines = result.output.splitlines()
            assert first == f"{path}: no checkpoint of aoext's, {whose}, 1 file(s)"
            assert lines[:2] == kinds
            assert (advice in lines[2]) if advice else len(lines) == 2


def test_info_knows_gguf_files(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + (290).to_bytes(8, "little") + bytes(1000))
    result = invoke(path)
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{path}: a GGUF file, version 3, 290 tensors, 0.00 MB")
    assert "`aoext convert` and aoext.load_gguf" in result.output
    path.write_bytes(b"GGUF" + bytes(3))
    assert f"{path}: it is a GGUF file that was cut" in invoke(path).output


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_nobody_waits_for_a_pipe(tmp_path, generator):
    os.mkfifo(tmp_path / "model.safetensors")
    model = deep_model(generator)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(ValueError, match=r"model\.safetensors: it is no regular file"):
            load_model(model, path)
        assert "it is no regular file" in invoke(path).output
    os.mkfifo(tmp_path / "other.safetensors.index.json")
    with pytest.raises(ValueError, match=r"other\.safetensors\.index\.json: it is no regular file"):
        load_model(model, tmp_path / "other.safetensors")


def test_info_tells_what_a_file_holds_and_whether_it_is_whole(generator, path):
    model = deep_model(generator)
    quantize_(model, Float8WeightOnlyConfig(), lambda _, name: name == "3")
    save_model(model, path)
    result = invoke(path)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"{path}: aoext format version 2, 1 file(s)",
        "  Float8Tensor, float8_e4m3fn, for float32: 1, 0.00 MB",
        "  Int4Tensor, int4, for float32, group_size 32: 4, 0.01 MB",
        "  plain float32: 6, 0.00 MB",
        "  names that share another's tensor: 1",
        "  checksums: 20 verified",
    ]
    flip_a_bit(path, generator)
    result = invoke(path)
    assert result.exit_code == 1
    assert f"info: {path}: " in result.output
    assert "is damaged" in result.output

    save_model(model, path, max_shard_size=5000)
    assert "checksums: 20 verified" in invoke(path).output
    assert invoke(path.parent / "nothing").exit_code == 1
    save_model(model, path)
    as_version_1(path)
    assert "checksums: none in this version" in invoke(path).output
    path.write_bytes(b"nonsense")
    assert "is no whole safetensors file" in invoke(path).output

"""`aoext convert`: checkpoints file by file."""

from __future__ import annotations

import importlib.util
import json
import os
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

from test_checkpoints import exactly  # noqa: E402
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
    last = next(line for line in done.output.splitlines() if "->" in line)
    assert last.startswith("plain -> aoext: 14 weights quantised, ")
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
    with pytest.raises(
        FileExistsError, match=r"convert: finished already: .*int8 is .*plain as a checkpoint"
    ):
        convert_checkpoint(*arguments)
    with pytest.raises(FileExistsError, match="is no part of this conversion"):
        convert_checkpoint(*arguments[:2], aoext.Float8WeightOnlyConfig())


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
        (
            (tmp_path / "plain", tmp_path / "out", "--scheme", "int4", "--group-size", 100),
            "plain has no layer that Int4WeightOnlyConfig(group_size=100, symmetric=False) quantises",
        ),
    ):
        done = run(*arguments)
        assert done.exit_code != 0
        assert message in done.output
        assert not (tmp_path / "out").exists()


def test_a_gguf_file(tmp_path):
    pytest.importorskip("gguf")
    from gguf_models import ALL, VOCABULARY, write

    ours = tmp_path / "further" / "ours"
    # Three tokens that stand for none, bytes, and some letters.
    letters = ["<unk>", "<s>", "</s>", "\u2581", *"abcd", "ab", "cd", "\u2581ab"]
    tokens = [*letters, *(f"<0x{i:02X}>" for i in range(VOCABULARY - len(letters)))]
    keys = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(VOCABULARY)],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }
    write(tmp_path / "model.gguf", "llama", ALL, keys=keys)
    done = run(tmp_path / "model.gguf", ours, "--dtype", "float16")
    assert done.exit_code == 0, done.output
    assert "6 weights quantised, 6 tensors as they were" in done.output
    loaded = load(ours)
    assert loaded.dtype is torch.float16
    expected = aoext.load_gguf(tmp_path / "model.gguf", dtype=torch.float16)
    assert torch.equal(loaded(IDS).logits, expected(IDS).logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(ours)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert tokenizer("ab cd").input_ids == theirs("ab cd").input_ids
    assert tokenizer.bos_token_id in tokenizer("ab cd").input_ids
    assert tokenizer.chat_template == "{{ messages }}"
    again = run(tmp_path / "model.gguf", ours)
    assert again.exit_code != 0
    assert "is there already" in again.output


def test_a_gguf_file_without_a_vocabulary(tmp_path):
    pytest.importorskip("gguf")
    from gguf_models import ALL, write

    write(tmp_path / "model.gguf", "llama", ALL, keys={"tokenizer.ggml.model": "none"})
    done = run(tmp_path / "model.gguf", tmp_path / "ours")
    assert done.exit_code == 0, done.output
    assert "no tokenizer: " in done.output
    assert load(tmp_path / "ours").dtype is torch.bfloat16
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    broken = run(tmp_path / "model.gguf", tmp_path / "broken")
    assert broken.exit_code != 0
    assert "model.gguf: the file ends inside its version" in broken.output
    assert not (tmp_path / "broken").exists()
    assert "--dtype is for a GGUF file" in run(tmp_path / "ours", tmp_path / "o", "--dtype", "float32").output


def keep(folder: Path, **options: Any) -> Any:
    return load(folder, quantization_config=aoext.AoextConfig.keep(), **options)


def same_weights(model: Any, other: Any) -> None:
    """Whether two models have the same numbers, whatever the dtype of their scales."""
    assert model.state_dict().keys() == other.state_dict().keys()
    for name, tensor in model.state_dict().items():
        theirs = other.state_dict()[name]
        assert type(tensor) is type(theirs), name
        if isinstance(tensor, QuantizedTensor):
            difference = (exactly(tensor) - exactly(theirs)).abs().max()
            # compressed-tensors divides by nvfp4's one scale, and that rounds
            rounds = getattr(tensor, "global_scale", None) is not None
            assert difference <= (2**-22 if rounds else 0) * exactly(tensor).abs().max(), name
            assert tensor.quantizes_input_to == theirs.quantizes_input_to, name
        else:
            assert torch.equal(tensor, theirs), name


@pytest.mark.parametrize(
    ("form", "scheme"),
    [
        ("gptq", ("int4", "--group-size", 32, "--symmetric")),
        ("gptq", ("int4", "--group-size", -1, "--symmetric")),
        ("gptq", ("int4", "--group-size", "auto", "--symmetric")),
        ("compressed-tensors", ("int4", "--group-size", "auto", "--symmetric")),
        ("gptq", ("int3", "--group-size", 32, "--symmetric")),
        ("compressed-tensors", ("int5", "--symmetric")),
        ("torchao", ("int2", "--symmetric")),
        ("compressed-tensors", ("int8",)),
        ("compressed-tensors", ("int8_dynamic",)),
        ("compressed-tensors", ("float8",)),
        ("compressed-tensors", ("float8_dynamic",)),
        ("compressed-tensors", ("float8_block",)),
        ("compressed-tensors", ("mxfp8",)),
        ("compressed-tensors", ("mxfp4",)),
        ("compressed-tensors", ("nvfp4",)),
        ("compressed-tensors", ("int4_int8", "--group-size", 32, "--symmetric")),
        ("compressed-tensors", ("int4_float8", "--group-size", 32, "--symmetric")),
        ("torchao", ("mxfp8",)),
        ("torchao", ("nvfp4",)),
        ("bitsandbytes", ("nf4",)),
        ("torchao", ("int4", "--group-size", 32)),
        ("torchao", ("int8",)),
        ("torchao", ("int8_dynamic",)),
        ("torchao", ("float8",)),
        ("torchao", ("float8_dynamic",)),
    ],
    ids=str,
)
def test_another_librarys_checkpoint(tmp_path, form, scheme):
    if form == "torchao":
        pytest.importorskip("torchao")
    llama(dtype=torch.bfloat16).save_pretrained(tmp_path / "plain", max_shard_size="60KB")
    for target, name in (("ours", "aoext"), ("theirs", form)):
        done = run(tmp_path / "plain", tmp_path / target, "--scheme", *scheme, "--format", name)
        assert done.exit_code == 0, done.output
        assert f"plain -> {name}: 14 weights quantised" in done.output
    written = json.loads((tmp_path / "theirs" / "config.json").read_text())["quantization_config"]
    assert written["quant_method"] == form
    ours, theirs = load(tmp_path / "ours"), keep(tmp_path / "theirs")
    same_weights(ours, theirs)
    # From our checkpoint it is the same as from the plain one, and the way back gives ours again.
    done = run(tmp_path / "ours", tmp_path / "from ours", "--format", form)
    assert done.exit_code == 0, done.output
    same_weights(ours, keep(tmp_path / "from ours"))
    done = run(tmp_path / "theirs", tmp_path / "back")
    assert done.exit_code == 0, done.output
    same_weights(ours, load(tmp_path / "back"))


def test_scales_of_8_bits_for_bitsandbytes(tmp_path):
    llama(dtype=torch.bfloat16).save_pretrained(tmp_path / "plain")
    asked = ("--scheme", "nf4", "--format", "bitsandbytes", "--double-quantization")
    done = run(tmp_path / "plain", tmp_path / "theirs", *asked)
    assert done.exit_code == 0, done.output
    theirs, plain = keep(tmp_path / "theirs"), load(tmp_path / "plain")
    logits, expected = theirs(IDS).logits.float(), plain(IDS).logits.float()
    assert (logits - expected).norm() < 0.2 * expected.norm()
    layer = theirs.model.layers[0].mlp.down_proj
    assert type(layer.weight) is aoext.NestedLut4Tensor
    for source, target, form in (("theirs", "ours", "aoext"), ("ours", "again", "bitsandbytes")):
        done = run(tmp_path / source, tmp_path / target, "--format", form)
        assert done.exit_code == 0, done.output
    same_weights(load(tmp_path / "ours"), theirs)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    done = run(tmp_path / "plain", tmp_path / "ours", "--scheme", "nf4", "--double-quantization")
    assert done.exit_code == 1
    assert "double_quantization is for format 'bitsandbytes', got 'aoext'" in done.output


@pytest.mark.parametrize("scheme", [("int8",), ("float8",), ("int3", "--symmetric")], ids=str)
def test_torchao_itself_reads_what_is_written_for_it(tmp_path, scheme):
    pytest.importorskip("torchao")
    llama(dtype=torch.bfloat16).save_pretrained(tmp_path / "plain")
    for form in ("aoext", "torchao"):
        done = run(tmp_path / "plain", tmp_path / form, "--scheme", *scheme, "--format", form)
        assert done.exit_code == 0, done.output
    theirs, ours = load(tmp_path / "torchao", dtype=torch.bfloat16), load(tmp_path / "aoext")
    name = "model.layers.1.mlp.down_proj.weight"
    assert type(theirs.get_parameter(name)).__module__.startswith("torchao.")
    assert torch.equal(theirs.get_parameter(name).dequantize(), ours.get_parameter(name).dequantize())
    wanted, got = ours(IDS).logits.float(), theirs(IDS).logits.float()
    assert (wanted - got).norm() <= 2e-2 * wanted.norm()


@pytest.mark.parametrize(
    "scheme",
    [
        ("int4", "--group-size", 32, "--symmetric"),
        ("int6", "--symmetric"),
        ("int8",),
        ("float8",),
        ("mxfp8",),
        ("mxfp4",),
        ("nvfp4",),
    ],
    ids=str,
)
def test_compressed_tensors_itself_reads_what_is_written_for_it(tmp_path, scheme):
    pytest.importorskip("compressed_tensors")
    llama(dtype=torch.bfloat16).save_pretrained(tmp_path / "plain")
    for form in ("aoext", "compressed-tensors"):
        done = run(tmp_path / "plain", tmp_path / form, "--scheme", *scheme, "--format", form)
        assert done.exit_code == 0, done.output
    theirs, ours = load(tmp_path / "compressed-tensors", dtype=torch.bfloat16), load(tmp_path / "aoext")
    wanted, got = ours(IDS).logits.float(), theirs(IDS).logits.float()
    assert (wanted - got).norm() <= 2e-2 * wanted.norm()


def test_layers_that_a_format_cannot_say_are_named(tmp_path):
    llama().save_pretrained(tmp_path / "plain")
    done = run(
        tmp_path / "plain", tmp_path / "out", "--scheme", "int4", "--group-size", 32, "--format", "gptq"
    )
    assert done.exit_code != 0
    for part in ("self_attn.q_proj", "mlp.down_proj"):
        line = f"model.layers.*.{part} (2): its zero points are no multiples of its scales"
        assert done.output.count(line) == 1
    assert "come of symmetric=True (--symmetric)" in done.output
    assert not (tmp_path / "out").exists()  # nothing half converted is left


@pytest.mark.parametrize("scheme", ["int3", "int4", "int8"])
def test_scales_for_gptq_are_exact_in_float16_and_the_codes_fit_them(tmp_path, scheme):
    model = llama().float()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight *= 1e-4  # scales below float16's normal numbers
        model.model.layers[0].mlp.down_proj.weight[:, :32] = 0
    model.save_pretrained(tmp_path / "plain")
    options = ("--group-size", 32, "--symmetric") if scheme != "int8" else ()
    done = run(tmp_path / "plain", tmp_path / "gptq", "--scheme", scheme, *options, "--format", "gptq")
    assert done.exit_code == 0, done.output
    plain, theirs = load(tmp_path / "plain").state_dict(), keep(tmp_path / "gptq").state_dict()
    for name, weight in theirs.items():
        if not isinstance(weight, QuantizedTensor):
            continue
        scale = weight.scale if scheme == "int8" else weight.scale.t()
        columns = scale.double().repeat_interleave(weight.shape[1] // scale.shape[1], 1).abs()
        if "up_proj" not in name or "layers.1" in name:  # a subnormal scale clips, which the format forces
            assert (exactly(weight) - plain[name].double()).abs().le(
                0.5001 * columns
            ).float().mean() > 0.95, name  # the others are beyond the range
        assert torch.equal(scale.half().float(), scale.float()), name


def test_settings_and_files_of_strangers_end_in_an_error_that_names_them(tmp_path):
    source = tmp_path / "plain"
    llama().save_pretrained(source)
    good = json.loads((source / "config.json").read_text())
    config = aoext.Int8WeightOnlyConfig()
    for text, message in (
        ("[]", "it must be a JSON object"),
        ("null", "it must be a JSON object"),
        ("{", "Expecting property name"),
        (
            json.dumps({**good, "quantization_config": "int4"}),
            "quantization_config: the settings must be a JSON object",
        ),
        (json.dumps({**good, "architectures": ["pipeline"]}), "architectures must name a model of transf"),
        (json.dumps({**good, "architectures": 3}), "architectures must name a model of transformers"),
        (json.dumps({**good, "num_hidden_layers": 2**31}), "num_hidden_layers must be at most 21"),
        (json.dumps({**good, "hidden_size": "many"}), "hidden_size"),
    ):
        (source / "config.json").write_text(text)
        with pytest.raises(ValueError, match=message) as raised:
            convert_checkpoint(source, tmp_path / "out", config)
        assert str(source / "config.json") in str(raised.value)
        assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_links_that_lead_elsewhere_and_pipes_are_not_copied(tmp_path):
    source = tmp_path / "snapshots" / "plain"
    llama().save_pretrained(source)
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "1").write_text("{}")
    (source / "notes.txt").symlink_to(tmp_path / "secret.txt")
    (source / "tokenizer.json").symlink_to("../../blobs/1")  # as in the cache of huggingface_hub
    os.mkfifo(source / "pipe.txt")
    result = convert_checkpoint(source, tmp_path / "out", aoext.Int8WeightOnlyConfig())
    assert result.notes[:2] == [
        "notes.txt is not copied: a link that leads out of the folder",
        "pipe.txt is not copied: no regular file",
    ]
    assert [note.split(" (")[0] for note in result.notes[2:]] == [
        "stays    lm_head.weight",
        "stays    model.embed_tokens.weight",
    ]
    copied = {file.name for file in (tmp_path / "out").iterdir()}
    assert copied == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    os.mkfifo(source / "more.safetensors")
    with pytest.raises(ValueError, match=r"more\.safetensors: it is no regular file"):
        convert_checkpoint(source, tmp_path / "again", aoext.Int8WeightOnlyConfig())


def test_a_damaged_marker_is_named_and_an_empty_folder_stays(tmp_path):
    llama().save_pretrained(tmp_path / "plain")
    target = tmp_path / "out"
    target.mkdir()
    asymmetric = aoext.Int4WeightOnlyConfig(group_size=32)
    with pytest.raises(ValueError, match="gptq cannot say exactly"):
        convert_checkpoint(tmp_path / "plain", target, asymmetric, format="gptq")
    assert list(target.iterdir()) == []
    for text in ("", "null", '{"claim": 1}', '{"claim": {}, "done": {"model.safetensors": {}}}'):
        (target / MARKER).write_text(text)
        with pytest.raises(ValueError, match=rf"{MARKER}: it is damaged .*: remove {target}"):
            convert_checkpoint(tmp_path / "plain", target, asymmetric)


def test_an_interrupted_conversion_to_another_format_goes_on(tmp_path):
    llama().save_pretrained(tmp_path / "plain", max_shard_size="40KB")
    config = aoext.Int4WeightOnlyConfig(group_size=32, symmetric=True)
    arguments = (tmp_path / "plain", tmp_path / "gptq", config)

    def two(names: list[str]) -> Any:
        yield from names[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(*arguments, format="gptq", each=two)
    with pytest.raises(FileExistsError, match="is no part of this conversion"):
        convert_checkpoint(*arguments)
    assert len(convert_checkpoint(*arguments, format="gptq").quantised) == 14
    assert not (tmp_path / "gptq" / MARKER).exists()
    convert_checkpoint(*arguments[:1], tmp_path / "ours", config)
    same_weights(load(tmp_path / "ours"), keep(tmp_path / "gptq"))


@pytest.mark.parametrize("name", ["gptq, act-order", "gptq, 8 bits, act-order"])
def test_act_order_goes_through_every_format_that_knows_it(tmp_path, name):
    foreign_checkpoint(tmp_path / "theirs", *FOREIGN[name])
    kept = keep(tmp_path / "theirs", dtype=torch.bfloat16)
    for form in ("gptq", "compressed-tensors"):
        done = run(tmp_path / "theirs", tmp_path / form, "--format", form)
        assert done.exit_code == 0, done.output
        same_weights(kept, keep(tmp_path / form, dtype=torch.bfloat16))
    written = json.loads((tmp_path / "gptq" / "config.json").read_text())["quantization_config"]
    assert written["desc_act"] is True
    if importlib.util.find_spec("torchao"):
        done = run(tmp_path / "theirs", tmp_path / "out", "--format", "torchao")
        assert "torchao's weights have no columns in another order" in done.output

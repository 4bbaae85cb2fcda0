"""aoext.search, PerModuleConfig, and the commands evaluate, search and convert with a scheme a layer."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import aoext
from aoext.cli.commands import cli
from aoext.configs.schemes import as_config
from aoext.models.summary import bits_per_weight
from aoext.quality.mixed_precision import MixedPrecision, knapsack
from aoext.quality.sensitivity import fisher_errors
from aoext.tensors import QuantizedTensor

V, HIDDEN = 40, 128


class Model(nn.Module):
    """Two layers have a common input; the last one's weight hardly matters, the first one's much."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, HIDDEN)
        self.gate, self.up = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.down, self.idle = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, V)
        self.head.weight.data *= 6

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        return self.head(self.down(self.gate(x) * self.up(x)) + 0.01 * self.idle(x.tanh()))


@pytest.fixture
def model(generator: torch.Generator) -> Model:
    torch.manual_seed(generator.initial_seed())
    return Model()


def batches(generator: torch.Generator) -> list[Tensor]:
    return [torch.randint(V, (4, 33), generator=generator) for _ in range(6)]


def test_knapsack_finds_what_trying_all_finds(generator):
    for _ in range(5):
        items = [[(float(c), float(e)) for c, e in torch.rand(4, 2, generator=generator)] for _ in range(5)]
        budget = 2.2
        errors = [
            sum(item[i][1] for item, i in zip(items, choice, strict=True))
            for choice in itertools.product(range(4), repeat=5)
            if sum(item[i][0] for item, i in zip(items, choice, strict=True)) <= budget * (1 - 1e-3)
        ]
        found = knapsack(items, budget)
        if not errors:  # once in thousands of draws nothing, or next to nothing, fits
            continue
        assert found is not None
        assert sum(item[i][0] for item, i in zip(items, found, strict=True)) <= budget
        assert sum(item[i][1] for item, i in zip(items, found, strict=True)) <= min(errors) + 1e-12
    assert knapsack([[(1.0, 0.0)]], 0.5) is None


@pytest.mark.parametrize("sensitivity", ["fisher", "divergence"])
def test_bits_go_where_they_count(sensitivity, model, generator, tmp_path):
    data = batches(generator)
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = aoext.search(model, data, 5.2, ["int3", "int4", "int6", "int8"], sensitivity=sensitivity)
    assert all(torch.equal(p, before[name]) and p.requires_grad for name, p in model.named_parameters())
    assert not any(isinstance(p, QuantizedTensor) for p in model.parameters())
    assert found.per_module["gate"] == found.per_module["up"]

    def bits(name: str) -> float:
        form = found.per_module[name].quantize(model.get_submodule(name).weight)
        return 8 * form.stored_bytes / form.numel()

    assert bits("idle") < bits("head")
    assert found.bits_per_weight <= 5.2
    found.save(tmp_path / "scheme.json")
    again = aoext.PerModuleConfig.load(tmp_path / "scheme.json")
    assert again.per_module == found.per_module
    mixed = copy.deepcopy(model)
    summary = aoext.quantize_(mixed, again)
    assert summary.bits_per_weight == pytest.approx(found.bits_per_weight)
    assert bits_per_weight(mixed) == pytest.approx(found.bits_per_weight)
    divergence = aoext.evaluate(mixed, data, model).divergence
    assert divergence / 3 < found.error < divergence * 3
    uniform = copy.deepcopy(model)
    aoext.quantize_(uniform, as_config("test", {"scheme": "int4", "group_size": 32}))  # more bits
    assert divergence < aoext.evaluate(uniform, data, model).divergence


def test_fisher_is_that_of_float64(model, generator):
    """For one token of a linear model, where p's gradient is known: Σ_v p_v (1_v − p)² x²."""
    from aoext.models.choice import Owner
    from aoext.quality.mixed_precision import Item

    linear = nn.Sequential(nn.Embedding(V, HIDDEN), nn.Linear(HIDDEN, V, bias=False))
    config = as_config("test", "int3")
    data = [torch.randint(V, (1, 2), generator=generator) for _ in range(400)]
    item = Item([[Owner("1", linear[1], "weight")]], [config], [0.0], V * HIDDEN)
    ((error,),) = fisher_errors(linear, data, [item], seed=generator.initial_seed())
    x = linear[0].weight.detach().double()[torch.cat(data)[:, 0]]
    p = (x @ linear[1].weight.detach().double().t()).softmax(-1)
    fisher = ((p * (1 - p)).unsqueeze(2) * x.square().unsqueeze(1)).mean(0)
    delta = config.quantize(linear[1].weight.detach()).dequantize().double() - linear[1].weight.double()
    expected = (fisher * delta.square()).sum() / 2
    assert error == pytest.approx(expected.item(), rel=0.25)


class Unused(Model):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(HIDDEN, HIDDEN)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("no data", "no batch"),
        ("one token", "no token"),
        ("too few bits", "target_bits must be at least"),
        ("NaN", "NaN"),
        ("never reached", "data never reaches unused"),
        ("activations", "quantises activations"),
        ("no such sensitivity", "sensitivity must be"),
        ("no such scheme", "scheme must be one of"),
    ],
)
def test_what_cannot_be_is_told_and_the_model_stays(what, told, model, generator):
    data: list[Any] = batches(generator)
    options: dict[str, Any] = {"candidates": ["int4", "int8"]}
    if what == "no data":
        data = []
    elif what == "one token":
        data = [data[0][:, :1]]
    elif what == "too few bits":
        options["target_bits"] = 3.0
    elif what == "NaN":
        with torch.no_grad():
            model.embedding.weight[data[0][0, 0]] = math.nan
    elif what == "never reached":
        model = Unused()
    elif what == "activations":
        options["candidates"] = ["int4", "int4_int8"]
        options["target_bits"] = 8
    elif what == "no such sensitivity":
        options["sensitivity"] = "guess"
    else:
        options["candidates"] = ["int9"]
    if what not in ("too few bits", "activations"):
        options["target_bits"] = 6.0
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match=told):
        aoext.search(model, data, **options)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad
        assert parameter.grad is None
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0, equal_nan=True)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_schemes_by_module_in_json_and_what_is_wrong_in_it(tmp_path):
    config = aoext.PerModuleConfig("int4", {"head": "int8", r"layers\.\d+\.up": None})
    assert config.config_for("head") == aoext.Int8WeightOnlyConfig()
    assert config.config_for("model.layers.3.up") is None
    assert config.config_for("model.layers.3.down") == as_config("test", "int4")
    config.save(tmp_path / "scheme.json")
    assert aoext.PerModuleConfig.load(tmp_path / "scheme.json") == config
    for content, told in (
        ("[1]", "must be an object"),
        ('{"scheme": "int9"}', "scheme must be one of"),
        ('{"per_module": {"(": "int4"}}', "regular expressions"),
        ("{", "scheme.json"),
        ('{"model": {}}', "must be an object"),
    ):
        (tmp_path / "scheme.json").write_text(content)
        with pytest.raises(ValueError, match=re.escape(str(tmp_path / "scheme.json"))) as error:
            aoext.PerModuleConfig.load(tmp_path / "scheme.json")
        assert told in str(error.value)


def test_the_commands_search_convert_and_evaluate(tmp_path, generator):
    pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    from test_transformers import llama

    torch.manual_seed(generator.initial_seed())
    model = llama(tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "plain")
    letters = {chr(ord("a") + i): i for i in range(26)} | {" ": 26}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token=" "))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "plain")
    text = "".join(chr(ord("a") + int(i)) for i in torch.randint(26, (1000,), generator=generator))
    (tmp_path / "text.txt").write_text(text)
    plain, data = str(tmp_path / "plain"), ["--data", str(tmp_path / "text.txt"), "--length", "32"]
    scheme, out = str(tmp_path / "scheme.json"), str(tmp_path / "out")

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == code, result.output
        return result.output

    said = run("search", plain, *data, "--target-bits", "6.5", "--candidates", "int4,int8", "-o", scheme)
    assert "bits per weight" in said
    chosen = json.loads(Path(scheme).read_text())["per_module"]
    assert {each["scheme"] for each in chosen.values()} == {"int4", "int8"}
    assert "lm_head" not in chosen
    assert "at least" in run("search", plain, *data, "--target-bits", "1", "-o", scheme, code=1)
    run("convert", plain, out, "--scheme", scheme)
    loaded = AutoModelForCausalLM.from_pretrained(out)
    for name, own in chosen.items():
        weight = loaded.get_submodule(name).weight
        assert (weight.code == aoext.Code.INT4) == (own["scheme"] == "int4")
    quantised = AutoModelForCausalLM.from_pretrained(plain)
    aoext.quantize_(quantised, aoext.PerModuleConfig.load(scheme))
    ids = torch.randint(26, (1, 8), generator=generator)
    assert torch.equal(quantised(ids).logits, loaded(ids).logits)

    chart, numbers = str(tmp_path / "chart.svg"), str(tmp_path / "numbers.json")
    said = run("evaluate", plain, out, *data, "--chart", chart, "--json", numbers)
    rows = json.loads(Path(numbers).read_text())["models"]
    assert rows[0]["kl"] is None
    assert 0 < rows[1]["kl"] < 0.5
    assert rows[1]["bits_per_weight"] < 6.5 < rows[0]["bits_per_weight"]
    assert f"{rows[1]['kl']:.4f}" in said
    assert f"{rows[1]['kl']:.4f}" in Path(chart).read_text()
    assert "has 1000 tokens" in run("evaluate", plain, out, *data[:-1], "2000", code=1)
    Path(scheme).write_text("{}x")
    assert "scheme.json" in run("convert", plain, str(tmp_path / "other"), "--scheme", scheme, code=2)
    assert isinstance(MixedPrecision(None, {}), aoext.PerModuleConfig)

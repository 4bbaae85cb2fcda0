"""The programs of benchmarks/: tiny runs measure all that they name, of what they say."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import test_calibrate

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("needs the project's sources", allow_module_level=True)
pytest.importorskip("transformers")
pytest.importorskip("torchao")

MODES = ("inference_mode", "no_grad", "grad")
TINY = ("--size", "tiny", "--batch", "1,3", "--prefill", "8", "--prefill-batch", "1,2", "--steps", "2")
FAST = ("--context", "128", "--seconds", "0.001", "--rounds", "1", "--threads", "1")


@pytest.fixture(scope="module")
def program() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a program of the benchmarks, as if its folder were where it was started from."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


def run(module: ModuleType, folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    file = folder / "out.json"
    result = CliRunner().invoke(module.main, [*arguments, "--json", str(file)])
    assert result.exit_code == 0, result.output
    return result.output, json.loads(file.read_text())


@pytest.fixture(scope="module")
def eager(
    program: Callable[[str], ModuleType], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any]]:
    """Every scheme, without a compiler."""
    module = program("whole_model")
    return run(module, tmp_path_factory.mktemp("eager"), *TINY, *FAST, "--no-compile")


def by_key(result: dict[str, Any]) -> dict[tuple[str, int, str], dict[str, Any]]:
    return {(m["kind"], m["batch"], m["mode"]): m for m in result["measured"]}


def assert_sound(content: dict[str, Any]) -> None:
    results = {result["name"]: result for result in content["results"]}
    for result in results.values():
        for key, m in by_key(result).items():
            assert all(0 < seconds < math.inf for seconds in m["samples"])
            assert m["seconds"] == min(m["samples"])
            assert m["tokens"] == key[1] * (8 if key[0] == "prefill" else 1)
            assert m["tokens_per_s"] == pytest.approx(m["tokens"] / m["seconds"])
            for other, speedup in m["speedup"].items():
                assert other in ("bf16", "float32", result["peer"])
                assert speedup == pytest.approx(by_key(results[other])[key]["seconds"] / m["seconds"])
            assert m["peak_bytes"] is None or m["peak_bytes"] > result["weight_bytes"]
            assert m["busy_seconds"] is m["kernels"] is m["host_seconds"] is None  # there is no GPU


def test_every_scheme_runs_in_every_mode(eager: tuple[str, dict[str, Any]]) -> None:
    output, content = eager
    assert content["schema"] == "aoext.whole_model/1"
    assert isinstance(content["busy"], bool)
    assert content["busy"] == bool(content["load"]["reasons"])
    assert content["environment"]["transformers"]
    assert_sound(content)
    ours = ["int4", "int4g32", "int4_int8", "int4g32_int8", "mxfp4", "nvfp4", "nf4", "fp8block"]
    ours += ["int8wo", "int8dyn", "fp8wo", "fp8dyn"]
    torchao = ["ao_int8wo", "ao_int8dyn", "ao_fp8wo"]
    assert {r["name"] for r in content["results"]} == {"bf16", "float32", *ours, *torchao}
    keys = {("decode", batch, mode) for batch in (1, 3) for mode in MODES}
    keys |= {("prefill", batch, "no_grad") for batch in (1, 2)}
    for result in content["results"]:
        assert result["skipped"] == {}
        assert set(by_key(result)) == keys
        assert result["name"] in output
        for m in result["measured"]:
            peers = {"bf16", "float32", *({result["peer"]} & set(torchao))} - {result["name"]}
            assert set(m["speedup"]) == peers


def test_schemes_hold_the_bytes_that_they_should(eager: tuple[str, dict[str, Any]]) -> None:
    _, content = eager
    size = {result["name"]: result["weight_bytes"] for result in content["results"]}
    # q, k, v, o; gate, up, down; the head
    shapes = [*(2 * [(128, 128), (64, 128), (64, 128), (128, 128)]), *(2 * [(256, 128)] * 2), (192, 128)]
    shapes += 2 * [(128, 256)]
    elements, rows = sum(n * k for n, k in shapes), sum(n for n, _ in shapes)
    assert size["bf16"] - size["int4"] == elements * (2 - 0.5 - 2 * 2 / 128)
    assert size["bf16"] - size["int4g32"] == elements * (2 - 0.5 - 2 * 2 / 32)
    for name in ("int8wo", "int8dyn", "fp8wo", "fp8dyn"):
        assert size["bf16"] - size[name] == elements - 4 * rows
    for name in ("ao_int8wo", "ao_int8dyn", "ao_fp8wo"):  # their scales are of another dtype, maybe
        assert 0 <= elements - (size["bf16"] - size[name]) <= 8 * rows


def test_a_model_of_experts_is_measured(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    schemes = [part for name in ("bf16", "int4") for part in ("--scheme", name)]
    arguments = (*TINY, "--size", "experts-tiny", "--no-compile", *schemes, *FAST)
    _, content = run(program("whole_model"), tmp_path, *arguments)
    assert_sound(content)
    bf16, int4 = (result["weight_bytes"] for result in content["results"])
    assert int4 < 0.32 * bf16  # nearly all of it are experts


def test_peers_of_products_of_experts_compute_the_same(program: Callable[[str], ModuleType]) -> None:
    """The loops do; torch's product is of other weights."""
    g = torch.Generator().manual_seed(torch.seed() % 2**31)
    x = torch.randn(24, 256, dtype=torch.bfloat16, generator=g)
    offsets = torch.tensor([7, 7, 20, 21], dtype=torch.int32)  # behind which rows are left
    calls = {name: call for name, _, _, call in program("experts").products(x, 128, offsets, g)}
    loops = [name for name in calls if name.endswith(" by a loop")]
    assert len(loops) == 4
    for name in loops:
        result = calls[name](1)
        assert result.shape == (21, 128)
        torch.testing.assert_close(result, calls[name.removesuffix(" by a loop")](1)[:21])


def test_compiled_steps_are_measured(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    schemes = [part for name in ("bf16", "int8wo") for part in ("--scheme", name)]
    output, content = run(program("whole_model"), tmp_path, *TINY, "--batch", "2", *schemes, *FAST)
    assert_sound(content)
    for result in content["results"]:
        m = by_key(result)["decode", 2, "compiled"]
        assert m["compile_seconds"] > 0
        assert set(m["speedup"]) == {"bf16"} - {result["name"]}
    assert "compiled" in output


def test_what_there_is_no_time_for_is_named(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    output, content = run(program("whole_model"), tmp_path, *TINY, *FAST, "--minutes", "1e-9")
    assert all(r["skipped"] == {"everything": "the time is up"} for r in content["results"])
    assert all(r["measured"] == [] for r in content["results"])
    assert "left out: int4, everything: the time is up" in output


def test_budget_expects_what_was(program: Callable[[str], ModuleType]) -> None:
    now = [0.0]
    budget = program("whole_model_run").Budget(100.0, clock=lambda: now[0])
    assert budget.allows("a")
    with budget.spending("a"):
        now[0] += 60.0
    assert not budget.allows("a")  # 40 are left
    assert budget.allows("b")
    assert not budget.allows("b", at_least=41.0)
    now[0] += 40.0
    assert not budget.allows("b")


def test_a_scheme_of_another_device_is_left_out(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    output, content = run(program("whole_model"), tmp_path, *TINY, *FAST, "--scheme", "ao_int4")
    assert content["results"][0]["skipped"] == {"everything": "it runs on cuda alone"}
    assert "left out: ao_int4" in output


def test_context_that_is_too_short_is_refused(program: Callable[[str], ModuleType]) -> None:
    result = CliRunner().invoke(program("whole_model").main, ["--context", "64"])
    assert result.exit_code == 2
    assert "--context must hold" in result.output


@pytest.mark.parametrize("scheme", ["float32", "int8wo"])
@torch.no_grad()
def test_decoding_with_the_cache_gives_what_the_whole_prompt_gives(
    program: Callable[[str], ModuleType], scheme: str
) -> None:
    models, schemes = program("llama_models"), program("schemes").SCHEMES
    seed = torch.seed() % 2**31
    model = models.make("tiny", schemes[scheme], torch.device("cpu"), torch.float32, seed)
    print(f"seed {seed}")
    decoding = models.Decoding(model, batch=2, prompt=5, context=16)
    ids = torch.randint(192, (2, 5))
    decoding.cache.reset()
    tokens = decoding.step(ids, torch.arange(5))
    for position in range(5, 10):
        ids = torch.cat([ids, tokens], dim=1)
        logits = model(input_ids=ids, use_cache=False).logits[:, -1]
        tokens = decoding.step(tokens, torch.tensor([position]))
        # A tie of two tokens within rounding is no difference.
        chosen = logits.gather(1, tokens)
        torch.testing.assert_close(chosen, logits.amax(1, keepdim=True), rtol=1e-4, atol=1e-4)


def test_host_time_of_every_way_to_call(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    small = ("--size", "32", "--calls", "2", "--repeats", "2")
    schemes = ("int4g32", "int8wo", "int8dyn", "fp8wo", "fp8dyn", "ao_int8wo")
    chosen = [part for name in schemes for part in ("--scheme", name)]
    output, content = run(program("host_time"), tmp_path, *small, *chosen)
    assert content["schema"] == "aoext.host_time/1"
    found = {(r["scheme"], r["way"], r["mode"]): r for r in content["results"]}
    ways = dict.fromkeys(schemes, ("layer", "F.linear", "operator"))
    ways |= {"bf16": ("layer", "F.linear"), "ao_int8wo": ("layer", "F.linear")}
    assert set(found) == {(name, way, mode) for name in ways for way in ways[name] for mode in MODES}
    for (_, _, mode), r in found.items():
        assert 0 < r["seconds"] < math.inf
        base = found["bf16", "layer", mode]["seconds"]
        assert r["ratio"] == pytest.approx(r["seconds"] / base)
    assert all(name in output for name in ways)


@torch.inference_mode()
def test_host_time_calls_the_same_product_every_way(program: Callable[[str], ModuleType]) -> None:
    module = program("host_time")
    x = torch.randn(3, 128, dtype=torch.bfloat16)
    for name in ("int4", "int4g32", "int8wo", "int8dyn", "fp8wo", "fp8dyn"):
        calls = module.calls(module.SCHEMES[name], 128, x, torch.bfloat16)
        layer, linear, operator = (call() for call in calls.values())
        assert torch.equal(layer, linear), name
        assert torch.equal(layer, operator), name


def test_merging_shows_what_an_adapter_loses(program, tmp_path):
    pytest.importorskip("peft")
    module = program("merging")
    output, content = run(module, tmp_path, "--scheme", "int8", "--scheme", "mxfp4", "--steps", "12")
    exact, coarse = content["results"]
    for result in (exact, coarse):
        bits = result["bits_per_token"]
        assert list(bits) == list(module.COLUMNS)
        assert result["scheme"] in output
        assert bits["adapter apart"] < bits["before"]
        assert bits["dequantised, merged"] == pytest.approx(bits["adapter apart"], abs=1e-3)
    assert exact["survives"] > 0.9 > 0.7 > coarse["survives"]
    assert coarse["bits_per_token"]["merged"] > coarse["bits_per_token"]["adapter apart"]


def test_quantisers_are_judged_on_the_same_text(program, tmp_path, generator):
    test_calibrate.of_letters(tmp_path, generator)
    for name, count in (("train", 4200), ("heldout", 1100)):
        (tmp_path / f"{name}.txt").write_text(test_calibrate.letters(generator, count))
    one = program("quality_peers").one
    results = [
        one(name, tmp_path, bits=4, group_size=32, samples=8, steps=10, windows=2)
        for name in ("rounding", "search", "gptq", "signround")
    ]
    assert [result["by"] for result in results] == ["rounding", "search", "gptq", "signround"]
    rounding, *others = results
    for result in others:
        assert 0 < result["kl"] < rounding["kl"]
        assert result["perplexity"] > 1
        assert result["seconds"] > 0
        assert result["peak_mb"] >= 0


def test_training_draws_curves_of_all_ways(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    module = program("training")
    chart = tmp_path / "curves.png"
    _, content = run(module, tmp_path, "--steps", "4", "--seeds", "2", "--chart", str(chart))
    assert [result["way"] for result in content["results"]] == list(module.WAYS)
    assert chart.stat().st_size > 1000
    for result in content["results"]:
        assert len(result["curve"]) == 4
        assert abs(result["difference"]) < 0.2
    assert content["results"][0]["difference"] == 0
    assert len({result["bits_per_byte"] for result in content["results"]}) > 2


def test_training_steps_are_timed(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    module = program("training_step")
    arguments = ("--hidden", "64", "--layers", "1", "--tokens", "8", "--steps", "1", "--vocabulary", "64")
    _, content = run(module, tmp_path, *arguments)
    assert [result["way"] for result in content["results"]] == list(module.WAYS)
    assert all(result["tokens_per_second"] > 0 for result in content["results"])


def test_training_products_are_timed(program: Callable[[str], ModuleType], tmp_path: Path) -> None:
    module = program("training_products")
    arguments = ("--shape", "64x128", "--m", "8", "--repeats", "1")
    _, content = run(module, tmp_path, *arguments)
    assert [result["scheme"] for result in content["results"]] == list(module.SCHEMES)
    assert all(set(result["parts"]) == set(module.COLUMNS) for result in content["results"])


def test_calibration_is_timed_by_the_layer(program: Callable[[str], ModuleType]) -> None:
    arguments = ["--size", "tiny", "--group-size", "32", "--samples", "4", "--length", "64"]
    algorithms = ["--algorithm", "gptq", "--algorithm", "search"]
    result = CliRunner().invoke(program("calibration_time").main, [*arguments, *algorithms])
    assert result.exit_code == 0, result.output
    gptq, search = [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]
    assert (gptq["algorithm"], search["algorithm"]) == ("gptq", "search")
    for line in (gptq, search):
        assert (line["tokens"], line["layers"]) == (256, 2)
        assert line["seconds_a_layer"] > 0


def test_training_for_a_scheme_is_measured(program: Callable[[str], ModuleType]) -> None:
    arguments = ["tiny", "--group-size", "64", "--steps", "10", "--batch", "1", "--length", "64"]
    result = CliRunner().invoke(program("qat").main, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output[result.output.index("{") :])
    assert found["trained"]["kl"] < found["rounded"]["kl"]
    assert found["steps"] == 10

"""aoext demo: what it writes is measured and consistent."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
import torch

from aoext_bench import demo_run, demo_view
from aoext_bench.budget import Budget
from aoext_bench.busy import Load
from aoext_bench.demo_run import PLAIN, SCHEMES, DemoResult, SchemeResult, Size
from aoext_bench.devices import CPU
from aoext_bench.tiny_lm import TinyLMConfig
from test_bench import assert_environment, assert_png, on_xpu, succeed

NARROW = TinyLMConfig(dim=256, hidden=384, layers=2, heads=2)  # instead of a model that takes its time


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The output of a demo without time, and the folder that it wrote to; it measures float32 too."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    small = ("--windows", 4, "--seconds", 0.1, "--seed", 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_run, "WIDE", (NARROW,))
        patch.setattr(demo_run, "measured_plain", lambda device, rates: list(PLAIN))
        return succeed("demo", "--device", "cpu", *small, "--output-dir", folder), folder


def figures_of(scheme: str, output: str) -> str:
    """The line of the demo's first table that is about a scheme."""
    return next(line for line in output.splitlines() if line.lstrip().startswith(f"{scheme} "))


def test_demo_measures_every_scheme(demo: tuple[str, Path]) -> None:
    output, folder = demo
    content = json.loads((folder / "demo.json").read_text())
    assert content["schema"] == "aoext.demo/3"
    assert content["settings"]["seed"] == 3
    assert_environment(content)

    schemes = {scheme["name"]: scheme for scheme in content["schemes"]}
    assert list(schemes) == [*PLAIN, *SCHEMES]
    trained = schemes["bf16"]
    assert trained["bits_per_byte"] < 3
    for name, scheme in schemes.items():
        assert scheme["bits_per_byte"] == pytest.approx(statistics.fmean(scheme["window_bits"]))
        assert len(scheme["window_bits"]) == content["settings"]["windows"] == 4
        change = scheme["bits_per_byte"] / trained["bits_per_byte"] - 1
        assert scheme["bits_per_byte_change"] == pytest.approx(change, abs=1e-9)
        assert abs(change) < 0.05, name
        assert 0 <= scheme["bits_per_byte_change_error"] < 0.05
        assert 0.9 < scheme["same_byte"] <= 1
        assert scheme["rounds"] == 1
        assert name in output
    assert trained["same_byte"] == 1
    assert trained["bits_per_byte_change_error"] == 0


def test_demo_counts_the_bytes_of_both_models(demo: tuple[str, Path]) -> None:
    content = json.loads((demo[1] / "demo.json").read_text())
    for scheme in content["schemes"]:
        name = scheme["name"]
        for model in ("quality", "speed"):
            size = scheme[f"{model}_model"]
            bits = size["bits_per_weight"]
            if name in ("float32", "bf16"):
                assert bits == {"float32": 32, "bf16": 16}[name]
            else:
                expected = {
                    "int4 group 128": 4.25,
                    "int4 group 32": 5,
                    "int4 under int8": 5,
                    "float8 block": 8,
                    "mxfp8": 8.25,
                    "mxfp4": 4.25,
                    "nvfp4": 4.5,
                    "nf4": 4.5,
                }.get(name, 8.1)
                assert bits == pytest.approx(expected, rel=0.013), name
            assert 8 * size["weight_bytes"] / bits < content["models"][model]["parameters"]
            assert size["weight_bytes"] < size["model_bytes"]
    speed = content["models"]["speed"]
    assert {name: speed[name] for name in ("dim", "hidden", "layers", "heads")} == {
        name: getattr(NARROW, name) for name in ("dim", "hidden", "layers", "heads")
    }


def test_demo_holds_speed_against_the_fastest_that_is_not_quantised(demo: tuple[str, Path]) -> None:
    output, folder = demo
    content = json.loads((folder / "demo.json").read_text())
    schemes = {scheme["name"]: scheme for scheme in content["schemes"]}
    for kind, tokens in (("prefill", "prefill_tokens"), ("decode", "decode_steps")):
        base = min(PLAIN, key=lambda name: schemes[name][f"{kind}_seconds"])
        assert content["baselines"][kind] == base
        for name, scheme in schemes.items():
            speed = content["settings"][tokens] / scheme[f"{kind}_seconds"]
            assert scheme[f"{kind}_tokens_per_s"] == pytest.approx(speed)
            ratio = schemes[base][f"{kind}_seconds"] / scheme[f"{kind}_seconds"]
            assert scheme[f"{kind}_speedup"] == pytest.approx(ratio)
            assert name == base or f"{ratio:.2f}×" in figures_of(name, output)
            assert 0 < ratio < math.inf


def known_demo(decode: dict[str, float], load: Load) -> DemoResult:
    """The result of a demo whose steps took so many seconds."""
    settings = demo_run.Settings(CPU(torch.device("cpu")), 2, 0, 1.0)
    sizes = {"float32": 32.0, "bf16": 16.0, "int4 group 128": 4.25}
    bits = {"float32": [1.0, 3.0], "bf16": [1.0, 3.0], "int4 group 128": [1.01, 3.03]}
    schemes = [
        SchemeResult(
            name,
            None,
            Size(0, 0, sizes[name]),
            bits[name],
            same_byte=[1.0],
            prefill_seconds=1.0,
            step_seconds=[seconds],
        )
        for name, seconds in decode.items()
    ]
    return DemoResult(settings, 1, 2, 2, 512, schemes, load=load)


def test_demo_says_in_its_headline_what_was_measured() -> None:
    decode = {"float32": 2.0, "bf16": 3.0, "int4 group 128": 1.0}
    result = known_demo(decode, Load(1))
    change, error = result.schemes[2].change_from(result.trained)
    assert (change, error) == (pytest.approx(0.01), pytest.approx(0.005))
    assert demo_view.headline(result) == (
        "int4 group 128 decodes 2.0× as fast as float32: 4.25 bits per weight, bits per byte +1.00%"
    )
    slower = known_demo({**decode, "int4 group 128": 4.0}, Load(1))
    assert "decodes 0.5× as fast" in demo_view.headline(slower)
    busy = known_demo(decode, Load(1, 0.5, 0.5, ["a reason"]))
    assert demo_view.headline(busy) == "Other work kept this machine busy: its speeds are not valid"
    assert demo_view.percent(-1e-7) == "+0.00%"


class FakeClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rounds_end_before_one_as_long_as_the_longest_would_not_fit() -> None:
    clock = FakeClock()
    done = []
    for count in Budget(20, clock).rounds(10):
        done.append(count)
        clock.now += 3 if count < 2 else 5
    assert done == [0, 1, 2, 3]  # 3, 6, 11 and 16 s
    assert list(Budget(0, clock).rounds(10)) == [0]
    assert list(Budget(1, clock).rounds(3)) == [0, 1, 2]


def test_what_is_slow_is_measured_least_and_everything_once() -> None:
    clock = FakeClock()
    costs = {"slow": 30.0, "middle": 4.0, "fast": 1.0}
    count = dict.fromkeys(costs, 0)
    for name in Budget(60, clock).turns(list(costs)):
        count[name] += 1
        clock.now += costs[name]
    assert count["slow"] == 1 < count["middle"] < count["fast"]
    assert 155 < clock.now <= 160
    late = Budget(1, clock)
    clock.now += 2
    assert list(late.turns(["a", "b"])) == ["a", "b"]  # though the time was over before


def test_the_slower_the_machine_the_smaller_the_model_for_speed_and_its_prefill() -> None:
    best, least = demo_run.WIDE[0], demo_run.WIDE[-1]
    chosen = [demo_run.choose_wide(15, 1e-9 * slow, [1e13 / slow]) for slow in (1, 10, 100, 1e3, 1e4, 1e6)]
    work = [wide.layers * wide.dim * wide.hidden * tokens for wide, tokens in chosen]
    assert work == sorted(work, reverse=True)
    assert chosen[0] == (best, demo_run.PREFILL[0])
    assert chosen[-1] == (least, demo_run.PREFILL[-1])
    slow_bf16 = demo_run.choose_wide(15, 1e-9, [1e9, 1e12])
    assert slow_bf16 == demo_run.choose_wide(15, 1e-9, [1e12, 1e9]) != chosen[0]


def test_demo_says_what_it_had_no_time_for() -> None:
    result = known_demo({"bf16": 3.0, "int4 group 128": 1.0}, Load(1))
    result.schemes[0].rounds, result.schemes[1].rounds = 1, 5
    assert demo_view.left_out(result) == ["a second measurement of the speed of bf16"]
    result.schemes[1].rounds = 1
    assert demo_view.left_out(result) == ["a second measurement of the speed of everything"]
    result.all_windows, result.wide = 96, demo_run.WIDE[1]
    for scheme in result.schemes:
        scheme.prefill_tokens, scheme.rounds = 128, 2
    assert demo_view.left_out(result) == [
        "94 of 96 windows of text",
        "a model for speed of 3 layers, dim 2048: this one is smaller",
        "a prefill of 512 tokens",
    ]


def test_demo_writes_a_chart_and_says_where(demo: tuple[str, Path]) -> None:
    output, folder = demo
    assert_png(folder / "demo.png")
    assert str(folder / "demo.png") in output
    assert str(folder / "demo.json") in output


def test_demo_output_fits_a_page_when_piped(demo: tuple[str, Path]) -> None:
    output, _ = demo
    assert max(map(len, output.splitlines())) <= 120
    assert "\x1b" not in output


@on_xpu
def test_demo_runs_on_xpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "WIDE", (NARROW,))
    monkeypatch.setattr(demo_run, "PREFILL", (16,))
    monkeypatch.setattr(demo_run, "DECODE_PROMPT", 8)
    monkeypatch.setattr(demo_run, "DECODE_STEPS", 2)
    small = ("--windows", 1, "--seconds", 0.01)
    succeed("demo", "--device", "xpu", *small, "--output-dir", tmp_path)
    content = json.loads((tmp_path / "demo.json").read_text())
    assert content["environment"]["device"]["type"] == "xpu"
    assert [scheme["name"] for scheme in content["schemes"]] == ["bf16", *SCHEMES]
    for scheme in content["schemes"]:
        assert abs(scheme["bits_per_byte_change"]) < 0.05, scheme["name"]

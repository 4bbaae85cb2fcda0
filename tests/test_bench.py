"""aoext bench and demo: what they write is measured and consistent, and bad arguments say what is wrong."""

from __future__ import annotations

import io
import itertools
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console
from rich.table import Table

import aoext
from aoext.cli.commands import cli
from aoext.cli.page import WIDTH
from aoext.cli.shapes import LLAMA_3_8B_AND_70B, Shape
from aoext.ops import ERROR_BOUND
from aoext.reference import SUBJECTS, Problem, Sample
from aoext_bench import (
    bench_defaults,
    bench_run,
    bench_view,
    ceilings,
    cuda_read,
    demo_run,
    demo_view,
    floor_chart,
    floor_view,
)
from aoext_bench.bench import OPERATORS
from aoext_bench.bench_run import Point, Settings
from aoext_bench.busy import Load
from aoext_bench.ceilings import Ceilings
from aoext_bench.clocks import Candidate
from aoext_bench.demo_run import PLAIN, SCHEMES, DemoResult, SchemeResult, Size
from aoext_bench.devices import CPU, CUDA, MIB
from aoext_bench.peers import PEERS
from aoext_bench.pool import Pool
from aoext_bench.timing import interleaved
from aoext_bench.tiny_lm import TinyLMConfig


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def assert_png(path: Path) -> None:
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(content) > 10_000


def assert_environment(content: dict[str, Any]) -> None:
    environment = content["environment"]
    assert environment["torch"] == torch.__version__
    assert environment["aoext"] == aoext.__version__
    device = environment["device"]
    assert device["type"] == "cpu"
    assert device["threads"] == torch.get_num_threads()
    assert device["instruction_set"] in ("amx", "avx512", "avxvnni", "avx2", "portable")


NARROW = TinyLMConfig(dim=256, hidden=384, layers=2, heads=2)  # instead of a model that takes its time


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The output of a small demo, and the folder that it wrote to; it measures float32 too."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    small = ("--windows", 4, "--new-tokens", 8, "--seconds", 0.1, "--seed", 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_run, "WIDE", NARROW)
        patch.setattr(demo_run, "float32_is_faster", lambda device: True)
        return succeed("demo", "--device", "cpu", *small, "--output-dir", folder), folder


def figures_of(scheme: str, output: str) -> str:
    """The line of the demo's first table that is about a scheme."""
    return next(line for line in output.splitlines() if line.lstrip().startswith(f"{scheme} "))


def test_demo_measures_every_scheme(demo: tuple[str, Path]) -> None:
    output, folder = demo
    content = json.loads((folder / "demo.json").read_text())
    assert content["schema"] == "aoext.demo/2"
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
        assert name in output
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
    settings = demo_run.Settings(CPU(torch.device("cpu")), 2, "x", 1, 0.0, 0, 1.0)
    sizes = {"float32": 32.0, "bf16": 16.0, "int4 group 128": 4.25}
    bits = {"float32": [1.0, 3.0], "bf16": [1.0, 3.0], "int4 group 128": [1.01, 3.03]}
    schemes = [
        SchemeResult(name, None, Size(0, 0, sizes[name]), bits[name], b"", Size(0, 0, 0.0), 1.0, [seconds])
        for name, seconds in decode.items()
    ]
    return DemoResult(settings, 1, 2, 512, schemes, load=load)


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


def test_demo_writes_a_chart_and_says_where(demo: tuple[str, Path]) -> None:
    output, folder = demo
    assert_png(folder / "demo.png")
    assert str(folder / "demo.png") in output
    assert str(folder / "demo.json") in output


def test_demo_output_fits_a_page_when_piped(demo: tuple[str, Path]) -> None:
    output, _ = demo
    assert max(map(len, output.splitlines())) <= 120
    assert "\x1b" not in output


@pytest.fixture
def quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings that are quick to measure, and no ceilings."""
    monkeypatch.setattr(ceilings, "pool_bytes", lambda device: 8 * MIB)
    monkeypatch.setattr(ceilings, "CHUNK", 2 * MIB)
    monkeypatch.setattr(ceilings, "GEMM_SIZES", (64,))
    monkeypatch.setattr(ceilings, "SECONDS", 0.01)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """The output, JSON and chart of a small run over every operator."""
    folder = tmp_path_factory.mktemp("bench")
    every = [part for operator in OPERATORS for part in ("--operator", operator)]
    tiny = ("--shape", "256x128", "--shape", "64x192", "--group-size", "64,32", "--m", "1,9", "--generic")
    fast = ("--quick", "--seconds", 0.002, "--pool-mb", 2, "--seed", 5)
    files = ("--json", folder / "b.json", "--plot", folder / "b.png")
    output = succeed("bench", *every, *tiny, *fast, *files)
    return output, json.loads((folder / "b.json").read_text()), folder / "b.png"


def test_bench_times_every_operator(bench: tuple[str, dict[str, Any], Path]) -> None:
    output, content, chart = bench
    assert content["schema"] == "aoext.bench/3"
    assert content["busy"] == bool(content["load"]["reasons"]) == ("BUSY MACHINE, no figure" in output)
    assert content["settings"]["seed"] == 5
    assert "seed 5" in output
    assert_environment(content)
    assert_png(chart)
    assert {point["operator"] for point in content["results"]} == set(aoext.ops.operators())
    for point in content["results"]:
        assert set(point["seconds"]) | set(point["missing"]) == {"aoext", "linear", "generic", "torch"}
        assert not set(point["seconds"]) & set(point["missing"])
        assert all(0 < seconds < math.inf for seconds in point["seconds"].values())
        assert point["back_to_back"] == point["seconds"]
        assert point["behind"] == {}  # on a CPU nothing overlaps
        assert 0 < point["cpu_share"] <= 1
        for other, speedup in point["speedup"].items():
            ratio = point["seconds"][other] / point["seconds"]["aoext"]
            assert speedup == pytest.approx(ratio)
    assert max(map(len, output.splitlines())) <= 120


def test_bench_counts_bytes_and_operations(bench: tuple[str, dict[str, Any], Path]) -> None:
    _, content, _ = bench
    (point,) = (
        point
        for point in content["results"]
        if point["operator"] == "bf16i4bf16_rowwise"
        and (point["M"], point["N"], point["group_size"]) == (9, 256, 64)
    )
    M, N, K, groups = 9, 256, 128, 2
    weight = N * K // 2 + 2 * 2 * groups * N
    assert point["bytes_from_memory"] == weight
    assert point["bytes"] == 2 * M * K + weight + 2 * M * N
    assert point["flop"] == 2 * M * N * K
    rate = point["bytes"] / point["seconds"]["aoext"] / 1e9
    assert point["gb_per_s"] == pytest.approx(rate)
    (ceilings,) = content["ceilings"]
    assert point["of_read_ceiling"] == pytest.approx(rate / ceilings["read_gb_per_s"])
    rate = point["flop"] / point["seconds"]["aoext"] / 1e9
    assert point["of_gemm_ceiling"] == pytest.approx(rate / ceilings["gemm_gflop_per_s"])


def test_bench_holds_results_against_the_floor(bench: tuple[str, dict[str, Any], Path]) -> None:
    _, content, _ = bench
    assert content["settings"]["statistic"] == "fastest"
    (ceilings,) = content["ceilings"]
    for point in content["results"]:
        weight = point["bytes_from_memory"] / ceilings["read_gb_per_s"] / 1e9
        assert point["times_read_floor"] == pytest.approx(point["seconds"]["aoext"] / weight)
        read = point["bytes"] / ceilings["read_gb_per_s"] / 1e9
        # That of products in bfloat16, which 8-bit products need not obey: theirs is not measured here.
        flop = point["flop"] if point["operator"].startswith(("bf16", "weight_int4")) else 0
        floor = max(read, flop / ceilings["gemm_gflop_per_s"] / 1e9)
        assert point["floor_seconds"] == pytest.approx(floor)
        for name, seconds in point["seconds"].items():
            assert point["times_floor"][name] == pytest.approx(seconds / floor)

    def chosen(entry: dict[str, Any]) -> bool:
        return (entry["operator"], entry["M"], entry["group_size"]) == ("bf16i4bf16_rowwise", 9, 32)

    (mean,) = filter(chosen, content["geomean"])
    own = list(filter(chosen, content["results"]))
    assert len(own) == 2
    product = math.prod(p["times_floor"]["aoext"] for p in own)
    assert mean["times_floor"]["aoext"] == pytest.approx(math.sqrt(product))
    assert mean["least_speedup"]["linear"] == pytest.approx(min(p["speedup"]["linear"] for p in own))


def test_reads_are_interpolated_between_measured_sizes() -> None:
    by_size = Ceilings(1e3, "", 1e6, "", {10**6: 2e-6, 3 * 10**6: 6e-6, 10**9: 1e-3})
    for size, seconds in ((1, 2e-6), (10**6, 2e-6), (2 * 10**6, 4e-6), (10**9, 1e-3), (2 * 10**9, 2e-3)):
        assert by_size.reading(size) == pytest.approx(seconds)
    assert by_size.floor(10**6, 10**12) == pytest.approx(1e-3)
    assert by_size.floor(10**9, 10**6) == pytest.approx(1e-3)
    assert by_size.floor(10**6, 0, 10**13) == pytest.approx(2e-6)  # no ceiling for 8 bits was measured
    assert replace(by_size, gemm8_gflop_per_s=2e6).floor(10**6, 10**12, 10**13) == pytest.approx(5e-3)
    rate_alone = Ceilings(1e3, "", 1e6, "")
    assert rate_alone.reading(10**6) == pytest.approx(1e-6)


def known_point(M: int, N: int, K: int, **more: Any) -> Point:
    """A point of int4 in groups of 128 with one thread, where nothing else is said."""
    about = {
        "operator": "bf16i4bf16_rowwise",
        "format": "int4",
        "group_size": 128,
        "threads": 1,
        "layer": "",
        "plan": "a plan",
        "peer": "a peer",
        "peer_is_floor": False,
        "bytes": 10**6,
        "bytes_from_memory": 10**6,
        "flop": 2 * M * N * K,
        "floor_flop": 0,
        "floor_flop8": 0,
    }
    return Point(M=M, N=N, K=K, **(about | more))


def floor_points() -> list[Point]:
    """As measured on a GPU: 8 shapes, torch's operator missing at the last one."""
    points = []
    for shape in LLAMA_3_8B_AND_70B:
        for M in (1, 64):
            size, flop = shape.N * shape.K // 2, 2 * M * shape.N * shape.K
            point = known_point(M, shape.N, shape.K, bytes=size, bytes_from_memory=size, floor_flop=flop)
            point.seconds = {"aoext": 2e-5, "linear": 4e-5, "torch": 5e-5}
            points.append(point)
    del points[-1].seconds["torch"]
    return points


def printed(table: Table) -> str:
    """As it stands on a page."""
    out = Console(width=WIDTH, record=True, file=io.StringIO())
    out.print(table)
    return out.export_text()


def lines_below(text: str, name: str) -> dict[str, list[str]]:
    """The cells of a summary's lines for one name, by their labels."""
    lines = iter([line[1:] for line in text.splitlines()])  # without the space at the edge
    first = next(line for line in lines if line.startswith(f"{name} "))
    found = [first.removeprefix(name)]
    for line in lines:
        if not line.strip() or not line.startswith(" " * len(name)):
            break
        found.append(line)
    labels = ("÷ read floor", "÷ a copy", "vs linear", "vs torch")
    starts = [(next(label for label in labels if label in line), line) for line in found]
    return {label: line.partition(label)[2].split() for label, line in starts}


def test_summary_is_of_known_points() -> None:
    # 10 GB/s with one thread, 20 with two; 1 MB takes 100 and 50 µs to read.
    ceilings = {threads: Ceilings(10.0 * threads, "", 1e6, "") for threads in (1, 2)}
    points = []
    for threads in (1, 2):
        for M in (1, 4, 8):
            for group_size, factor in ((128, 1.0), (32, 2.0)):
                for N, own in ((4096, 2e-4), (14336, 8e-4)):  # geomean 4e-4
                    place = {"group_size": group_size, "threads": threads}
                    point = known_point(M, N, 4096, **place)
                    own_seconds = own * factor * M / threads
                    point.seconds = {
                        "aoext": own_seconds,
                        "linear": 3 * own_seconds,
                        "torch": own_seconds / 2,
                    }
                    points.append(point)
        quantize = {"operator": "quantize_rowwise", "format": "int8", "group_size": None}
        copy = {"peer": "a copy", "peer_is_floor": True, "flop": 0, "threads": threads}
        point = known_point(8, 0, 4096, **quantize, **copy)
        point.seconds = {"aoext": 1.3e-3 * threads, "torch": 1e-3}
        points.append(point)

    for threads in (1, 2):  # twice as many take half the time, and so does the floor
        text = printed(floor_view.summary(threads, points, ceilings))
        assert text.startswith("1 thread, " if threads == 1 else "2 threads, ")
        assert f"{10 * threads}.0 GB/s" in text
        for name, factor in (("group size 128", 1.0), ("group size 32", 2.0)):
            lines = lines_below(text, f"bf16i4bf16_rowwise, {name}")
            few = [f"{4 * factor:.2f}", f"{16 * factor:.1f}"]
            assert lines == {
                "÷ read floor": [*few, "–"],  # with 8 rows memory need not bind
                "vs linear": 3 * ["3.00×"],
                "vs torch": 3 * ["0.50×"],
            }
        assert lines_below(text, "quantize_rowwise [int8]") == {
            "÷ a copy": ["–", "–", f"{1.3 * threads:.2f}"]
        }
        assert max(map(len, text.splitlines())) <= WIDTH

    slower = bench_view.slower(points, "torch")
    assert len(slower) == 24  # all but the copies, which are floors
    assert "2 threads" in "".join(slower)


def test_summary_of_all_operators_fits_a_page() -> None:
    ceilings = {1: Ceilings(10.0, "", 1e6, "")}
    points = []
    for subject, M in itertools.product(SUBJECTS, bench_defaults.DEFAULTS["cpu"].rows):
        kind = {"operator": subject.operator, "format": subject.format}
        point = known_point(M, 64, 64, **kind, group_size=128 if subject.grouped else None)
        point.seconds = {"aoext": 1e-3, "linear": 0.0123, "torch": 0.1234}
        points.append(point)
    text = printed(floor_view.summary(1, points, ceilings))
    assert "…" not in text
    for subject in SUBJECTS:
        assert f"\n {subject.name}" in text


def test_floors_are_shown_over_all_shapes(tmp_path: Path) -> None:
    by_size = {1: Ceilings(4600.0, "", 8e5, "", {10**6: 2e-6, 10**9: 2.2e-4})}
    points = floor_points()
    first, last = floor_view.geomeans(points, by_size)
    assert (first.M, last.M) == (1, 64)
    assert first.speedup == pytest.approx({"linear": 2.0, "torch": 2.5})
    assert last.least_speedup == pytest.approx({"linear": 2.0})
    text = printed(floor_view.at_each_shape(points, by_size))
    for shape in LLAMA_3_8B_AND_70B:
        assert str(shape.N) in text
        assert f"x{shape.K}" in text
    for mean in (first, last):
        assert f"{mean.times_floor['aoext']:.2f}" in text
    assert "2.00×" in text
    assert "…" not in text
    floor_chart.draw(points, by_size, tmp_path / "floor.png", "footer")
    assert_png(tmp_path / "floor.png")


def test_default_rows_keep_to_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    own = bench_defaults.DEFAULTS["cuda"]
    (int4,) = (s for s in SUBJECTS if s.operator == "bf16i4bf16_rowwise")
    device = CUDA(torch.device("cuda"))  # nothing is asked of it
    settings = Settings(
        device, [int4], own.shapes, own.rows, torch.bfloat16, (128,), (1,), 0, own.seconds, 350 * 10**6, True
    )
    assert bench_defaults.estimate(settings) < 60 * own.minutes  # one operator at all M
    assert bench_defaults.within(settings, own.minutes) == settings
    everything = replace(settings, subjects=SUBJECTS)
    assert bench_defaults.estimate(everything) > 60 * own.minutes
    fitting = bench_defaults.within(everything, own.minutes)
    assert 0 < len(fitting.rows) < len(own.rows)
    assert bench_defaults.estimate(fitting) <= 60 * own.minutes
    assert bench_defaults.within(everything, 1e-6).rows == (1,)


def test_bench_leaves_out_rows_and_says_so(tmp_path: Path) -> None:
    tiny = ("--operator", "int8_mm", "--shape", "32x32", "--seconds", 0.001, "--pool-mb", 1)
    files = ("--json", tmp_path / "b.json", "--plot", tmp_path / "b.png")
    output = succeed("bench", *tiny, *files, "--minutes", 0.001)
    assert "left out to keep to the time: M = 2, 4, 8, 16, 32, 128, 512, 2048" in output
    assert {point["M"] for point in json.loads((tmp_path / "b.json").read_text())["results"]} == {1}


@pytest.mark.usefixtures("quick_ceilings")
def test_bench_measures_each_group_size_with_each_number_of_threads(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    operators = ("bf16i4bf16_rowwise", "bf16i8bf16_rowwise", "scaled_mm_rowwise", "quantize_rowwise")
    chosen = [part for operator in operators for part in ("--operator", operator)]
    tiny = ("--format", "int4", "--format", "int8", "--shape", "64x128", "--m", "1,9", "--pool-mb", 1)
    lists = ("--threads", "2,1", "--group-size", "64,32", "--seconds", 0.001)
    files = ("--json", tmp_path / "b.json", "--plot", tmp_path / "b.png")
    output = succeed("bench", *chosen, *tiny, *lists, *files)
    assert torch.get_num_threads() == before
    content = json.loads((tmp_path / "b.json").read_text())
    assert content["settings"]["threads"] == [2, 1]
    assert content["settings"]["group_sizes"] == [64, 32]
    assert [reached["threads"] for reached in content["ceilings"]] == [2, 1]
    places = [(p["operator"], p["group_size"], p["threads"], p["M"]) for p in content["results"]]
    groups = {"bf16i4bf16_rowwise": (64, 32)}
    assert sorted(places, key=str) == sorted(
        (
            (operator, group, threads, M)
            for operator in operators
            for group in groups.get(operator, (None,))
            for threads in (1, 2)
            for M in (1, 9)
        ),
        key=str,
    )
    means = [(m["operator"], m["group_size"], m["threads"], m["M"]) for m in content["geomean"]]
    assert sorted(means, key=str) == sorted(places, key=str)
    for text in ("2 threads, geomean over the shapes", "1 thread, geomean over the shapes"):
        assert output.count(text) == 1
    assert "bf16i4bf16_rowwise, group size 32, 2 threads; F.linear in bfloat16" in output
    assert_png(tmp_path / "b.png")

    rates = {reached["threads"]: reached["read_gb_per_s"] for reached in content["ceilings"]}
    for point in content["results"]:
        floor = point["bytes_from_memory"] / rates[point["threads"]] / 1e9
        assert point["times_read_floor"] == pytest.approx(point["seconds"]["aoext"] / floor)
        if point["operator"] == "scaled_mm_rowwise":
            assert point["peer"] == "_int_mm alone"
            assert point["bytes_from_memory"] == 64 * 128 + 4 * 64 + 2 * 64  # weight, scales, bias
            if "torch" not in point["missing"]:
                assert point["errors"]["torch"] < 1e-2  # with the scales and the bias that it leaves out
        if point["operator"] == "quantize_rowwise":
            assert point["peer_is_floor"]
            assert {"aoext", "torch"} <= set(point["seconds"])


def test_cpu_defaults_are_what_the_goals_are_stated_in() -> None:
    own = bench_defaults.defaults(CPU(torch.device("cpu")))
    assert [(shape.N, shape.K) for shape in own.shapes] == [(4096, 4096), (14336, 4096), (4096, 14336)]
    assert (tuple(own.group_sizes), tuple(own.threads)) == ((128, 32), (1, 2))
    assert tuple(own.rows) == (1, 2, 4, 8, 16, 32, 128, 512, 2048)


def test_bench_says_why_a_peer_is_missing(bench: tuple[str, dict[str, Any], Path]) -> None:
    output, content, _ = bench
    missing = [p for p in content["results"] if p["operator"] == "bf16f8bf16_rowwise"]
    assert {point["missing"]["torch"] for point in missing} == {"torch has no such operator"}
    assert "torch has no such operator" in output


on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@on_cuda
def test_bench_runs_on_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_read, "SIZES_MB", (1, 4, 16))
    monkeypatch.setattr(ceilings, "GEMM_SIZES_CUDA", (1024,))
    tiny = ("--shape", "512x256", "--shape", "256x512", "--m", "1,9", "--pool-mb", 20, "--seconds", 0.002)
    files = ("--json", tmp_path / "b.json", "--plot", tmp_path / "b.png")
    output = succeed("bench", "--device", "cuda", "--operator", "bf16i4bf16_rowwise", *tiny, *files)
    content = json.loads((tmp_path / "b.json").read_text())
    assert content["settings"]["statistic"] == "median"
    (reached,) = content["ceilings"]
    assert list(reached["read_seconds"]) == ["1000000", "4000000", "16000000"]
    assert "sum of int32" not in reached["read_by"]
    for point in content["results"]:
        assert {"aoext", "linear", "torch"} == set(point["seconds"])
        assert set(point["clocks"].values()) == {"graph replays behind a kernel of PyTorch's"}
        assert point["behind"] == point["seconds"]
        assert set(point["back_to_back"]) == set(point["seconds"])
        assert 0 < point["floor_seconds"] < math.inf
    assert [mean["M"] for mean in content["geomean"]] == [1, 9]
    assert "time ÷ floor" in output
    assert "back to" in output
    assert_png(tmp_path / "b.png")


@on_cuda
def test_a_candidate_that_cannot_be_captured_is_timed_by_events() -> None:
    device = CUDA(torch.device("cuda"))
    x = torch.randn(1000, device="cuda")
    clocks = {
        "waits": device.clock(Candidate(lambda: lambda: x.sum().item())),
        "does not": device.clock(Candidate(lambda: lambda: x.sum(), copies=3)),
    }
    assert clocks["waits"].way == "calls between events"
    assert clocks["does not"].way == "graph replays"
    assert clocks["does not"].calls % 3 == 0
    for clock in clocks.values():
        assert all(0 < seconds < 1 for seconds in clock.samples())


on_xpu = pytest.mark.skipif(not torch.xpu.is_available(), reason="no XPU, real or simulated")


@on_xpu
@pytest.mark.usefixtures("quick_ceilings")
def test_bench_runs_on_xpu(tmp_path: Path) -> None:
    operators = ("--operator", "bf16i4bf16_rowwise", "--operator", "bf16i8bf16_rowwise")
    tiny = ("--shape", "64x128", "--group-size", 64, "--m", "1,9", "--pool-mb", 1, "--seconds", 0.001)
    files = ("--json", tmp_path / "b.json", "--plot", tmp_path / "b.png")
    output = succeed("bench", "--device", "xpu", *operators, *tiny, *files)
    content = json.loads((tmp_path / "b.json").read_text())
    device = content["environment"]["device"]
    assert device["type"] == "xpu"
    simulated = torch.xpu.get_device_properties().type == "cpu"
    assert device["name"].startswith("simulated XPU on ") == simulated
    assert device["name"] in output
    assert {(point["operator"], point["M"]) for point in content["results"]} == {
        (operator, M) for operator in operators[1::2] for M in (1, 9)
    }
    for point in content["results"]:
        assert {"aoext", "linear", "generic"} <= set(point["seconds"])
        assert all(0 < seconds < math.inf for seconds in point["seconds"].values())


@on_xpu
def test_demo_runs_on_xpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "WIDE", NARROW)
    monkeypatch.setattr(demo_run, "PREFILL", 16)
    monkeypatch.setattr(demo_run, "DECODE_PROMPT", 8)
    monkeypatch.setattr(demo_run, "DECODE_STEPS", 2)
    monkeypatch.setattr(demo_run, "MIN_ROUNDS", 1)
    small = ("--windows", 1, "--new-tokens", 2, "--seconds", 0.01)
    succeed("demo", "--device", "xpu", *small, "--output-dir", tmp_path)
    content = json.loads((tmp_path / "demo.json").read_text())
    assert content["environment"]["device"]["type"] == "xpu"
    assert [scheme["name"] for scheme in content["schemes"]] == ["bf16", *SCHEMES]
    for scheme in content["schemes"]:
        assert abs(scheme["bits_per_byte_change"]) < 0.05, scheme["name"]


def _int4_with_integer_zeros(x, stored, group_size, scale, zeros):
    """aten::_weight_int4pack_mm_with_scales_and_zeros, which torch has for XPU alone."""
    nibbles = torch.stack([(stored >> 4 * i) & 15 for i in range(8)], dim=-1).view(stored.shape[0], -1)
    weight = (nibbles - expand_groups(zeros, group_size)) * expand_groups(scale, group_size)
    return (x.float() @ weight.float().t()).to(x.dtype)


def expand_groups(of_groups: torch.Tensor, group_size: int) -> torch.Tensor:
    """[K / group_size, N] to [N, K]."""
    return of_groups.t().repeat_interleave(group_size, dim=1)


@pytest.mark.parametrize("operator", ["bf16i4bf16_rowwise", "bf16i4bf16_rowwise_bias"])
def test_torch_computes_the_same_int4_on_xpu(
    operator: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "_weight_int4pack_mm_with_scales_and_zeros"
    monkeypatch.setattr(torch.ops.aten, name, _int4_with_integer_zeros)
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda *_: True)
    (subject,) = (s for s in SUBJECTS if s.operator == operator)
    p = Problem(M=5, N=24, K=192, group_size=64, dtype=torch.bfloat16)
    inputs, rotated = subject.inputs(p, generator), subject.rotated(p, generator)
    peer = PEERS["xpu"][operator, "int4"]
    result = peer.call(p, inputs, peer.pack(p, rotated))
    sample = Sample.draw(subject, p, inputs, rotated, generator)
    assert sample.error(result) <= bench_run.PEER_BOUND


def test_bench_stops_at_a_wrong_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ERROR_BOUND, torch.bfloat16, 1e-9)
    monkeypatch.chdir(tmp_path)
    arguments = ("--operator", "bf16i8bf16_rowwise", "--shape", "64x64", "--m", 2, "--pool-mb", 1)
    result = invoke("bench", *arguments)
    assert result.exit_code == 1
    assert "differs from float64" in result.output


BAD: dict[str, tuple[list[str], str]] = {
    "unknown device": (["demo", "--device", "nonsense"], "nonsense"),
    "device that cannot be measured": (["bench", "--device", "meta"], "measured are: cpu"),
    "no windows": (["demo", "--windows", "0"], "0 is not in the range"),
    "chart of an unknown kind": (["demo", "--chart", "chart.txt"], "must end in .png"),
    "folder that is a file": (["demo", "--output-dir", "file"], "file"),
    "JSON below a file": (["demo", "--json", "file/x.json"], "cannot write"),
    "plot below a file": (["bench", "--plot", "file/x.png"], "cannot write"),
    "shape of one size": (["bench", "--shape", "4096"], "is not NxK"),
    "empty shape": (["bench", "--shape", "0x64"], "is not NxK"),
    "M of zero": (["bench", "--m", "1,0"], "positive integers"),
    "unknown operator": (["bench", "--operator", "nope"], "nope"),
    "operator without the format": (
        ["bench", "--operator", "int8_mm", "--format", "int4"],
        "no operator of int8_mm has the format int4",
    ),
    "group size that does not divide": (["bench", "--group-size", "128,100"], "a multiple of"),
    "group size of zero": (["bench", "--group-size", "128,0"], "'128,0' is not a list of positive integers"),
    "no number of threads": (["bench", "--threads", "1,two"], "'1,two' is not a list of positive integers"),
    "empty list of threads": (["bench", "--threads", ""], "is not a list of positive integers"),
    "no command": (["nope"], "No such command"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_exit_with_2(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


class ScriptedDevice(CPU):
    """A device on which a call takes as long as it says."""

    def seconds(self, call: Callable[[], Any]) -> float:
        return float(call())


def test_slow_candidates_do_not_hold_up_fast_ones() -> None:
    times = {"fast": iter([0.03, 0.01] + 1000 * [0.02]), "slow": iter(1000 * [5.0])}
    candidates = {name: Candidate(lambda t=t: lambda: next(t)) for name, t in times.items()}
    timings = interleaved(candidates, ScriptedDevice(torch.device("cpu")), seconds=0.1)
    assert timings["slow"].calls == 1
    assert timings["fast"].calls == 5
    assert timings["fast"].seconds == 0.01


class BehindDevice(CPU):
    """A device whose kernels are timed behind others', where each costs what it says."""

    BEHIND = True

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.costs = {"produced": 1.0, "product": 5.0}  # seconds
        self.ran: list[str] = []

    def seconds(self, call: Callable[[], Any]) -> float:
        self.ran.clear()
        call()
        back_to_back = self.ran == ["product"]
        return sum(self.costs[name] for name in self.ran) - back_to_back * 2.0  # what overlaps


def test_what_counts_is_a_product_behind_a_kernel_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    device = BehindDevice()
    produce = bench_run.produced

    def produced(x: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        device.ran.append("produced")
        fresh = produce(x)
        assert torch.equal(fresh[0].float(), x[0].float())
        assert fresh[0].data_ptr() != x[0].data_ptr()
        return fresh

    def product(self: Any, call: Any, x: Any, pool: Any) -> None:
        def counted(*arguments: Any) -> Any:
            device.ran.append("product")
            return call(*arguments)

        for name, value in (("call", counted), ("x", x), ("pool", pool)):
            object.__setattr__(self, name, value)

    monkeypatch.setattr(bench_run, "produced", produced)
    monkeypatch.setattr(bench_run.Way, "__init__", product)
    subjects = [s for s in SUBJECTS if s.operator in ("bf16i8bf16_rowwise", "scaled_mm_rowwise", "int8_mm")]
    subjects += [s for s in SUBJECTS if s.operator == "quantize_rowwise"]
    shapes = [Shape(32, 64)]
    settings = Settings(
        device, subjects, shapes, (1, 3), torch.bfloat16, (32,), (1,), 0, 1e-9, 10**4, True, False
    )
    runner = bench_run.Bench(settings)
    points = [point for subject in subjects for point in runner.points(subject)]
    assert len(points) >= 2 * len(subjects)
    for point in points:
        alone = set(point.back_to_back.values())
        assert alone == {3.0}
        if point.operator == "quantize_rowwise":  # its input is what rotates
            assert point.behind == {}
            assert point.seconds == point.back_to_back
        else:
            assert set(point.behind) == set(point.back_to_back)
            assert set(point.behind.values()) == {5.0}
            assert point.seconds == point.behind
            assert {"aoext", "linear"} <= set(point.seconds)
    known = {1: Ceilings(1e3, "", 1e6, "", {10**3: 1.0, 10**9: 2.0})}
    products = [point for point in points if point.behind]
    (mean, *_) = floor_view.geomeans(products, known)
    assert mean.times_floor_back_to_back == pytest.approx(mean.times_floor["aoext"] * 3 / 5)
    text = printed(floor_view.at_each_shape(bench_run.sections(products)[0], known))
    assert "back to" in text
    own = [point for point in products if point.operator == "int8_mm"]
    (subject,) = (s for s in subjects if s.operator == "int8_mm")
    text = printed(bench_view.table(subject, own, settings, known))
    assert "back to back" in text
    assert "3,000,000" in text
    assert "5,000,000" in text


def test_equal_candidates_get_equally_many_calls() -> None:
    candidates = {name: Candidate(lambda: lambda: 0.01) for name in "abc"}
    timings = interleaved(candidates, ScriptedDevice(torch.device("cpu")), seconds=0.1)
    assert len({timing.calls for timing in timings.values()}) == 1


def test_pool_goes_round_through_distinct_copies() -> None:
    original = (torch.randn(30, 7), torch.randint(-9, 9, (5,), dtype=torch.int8))
    pool = Pool(size=5000)
    pool.fill(original)
    copies = [pool.next() for _ in range(8)]
    for copy in copies:
        assert all(torch.equal(a, b) for a, b in zip(copy, original, strict=True))
        assert all(tensor.is_contiguous() for tensor in copy)
    addresses = [copy[0].data_ptr() for copy in copies]
    assert len(set(addresses)) == 4  # 840 and 5 bytes, padded to 1024 and 256
    assert addresses[4:] == addresses[:4]

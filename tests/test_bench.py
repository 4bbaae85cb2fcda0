"""aoext bench: what it writes is measured and consistent; bad arguments, of demo too, say what is wrong."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
from collections.abc import Iterator
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
from aoext.cli.shapes import LLAMA_3_8B_AND_70B
from aoext.ops import ERROR_BOUND
from aoext.reference import SUBJECTS, Problem, Sample
from aoext_bench import bench_defaults, bench_run, bench_view, ceilings, cuda_read, floor_chart, floor_view
from aoext_bench.bench import OPERATORS
from aoext_bench.bench_points import Point, Settings
from aoext_bench.ceilings import Ceilings
from aoext_bench.clocks import Candidate
from aoext_bench.devices import CPU, CUDA, MIB
from aoext_bench.peers import PEERS


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


@pytest.fixture(scope="module")
def quick_ceilings() -> Iterator[None]:
    """Ceilings that are quick to measure, and no ceilings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ceilings, "pool_bytes", lambda device: 8 * MIB)
        patch.setattr(ceilings, "CHUNK", 2 * MIB)
        patch.setattr(ceilings, "GEMM_SIZES", (64,))
        patch.setattr(ceilings, "SECONDS", 0.01)
        yield


@pytest.fixture(scope="module")
def bench(quick_ceilings: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
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
    assert {point["operator"] for point in content["results"]} == {subject.operator for subject in SUBJECTS}
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


def test_bench_times_products_by_expert(quick_ceilings: None, tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    sizes = ("--experts", 6, "--top-k", 2, "--shape", "96x128", "--group-size", 64, "--m", "1,5")
    fast = ("--quick", "--seconds", 0.002, "--pool-mb", 2, "--json", file, "--plot", tmp_path / "b.png")
    assert "F.grouped_mm in bfloat16" in succeed("bench", *sizes, *fast)
    points = json.loads(file.read_text())["results"]
    assert {point["format"] for point in points} == {"int4 experts", "int8 experts"}
    for point in points:
        tokens = point["M"] // 2
        assert tokens in (1, 5)
        assert {"aoext", "linear"} <= set(point["seconds"])
        assert point["errors"]["aoext"] <= 5e-3
        assert point["flop"] == 2 * point["M"] * 96 * 128
        codes, scales = (96 * 64, 2 * 2 * 2 * 96) if "int4" in point["format"] else (96 * 128, 4 * 96)
        of_one = codes + scales + 4  # with where the rows of the expert end
        assert point["bytes_from_memory"] % of_one == 0
        assert 2 <= point["bytes_from_memory"] // of_one <= min(6, point["M"])
    result = invoke("bench", "--experts", 2, "--top-k", 3)
    assert result.exit_code == 2
    assert "--top-k must be at most --experts, 2, got 3" in result.output


def test_bench_holds_results_against_the_floor(bench: tuple[str, dict[str, Any], Path]) -> None:
    _, content, _ = bench
    assert content["settings"]["statistic"] == "fastest"
    (ceilings,) = content["ceilings"]
    for point in content["results"]:
        weight = point["bytes_from_memory"] / ceilings["read_gb_per_s"] / 1e9
        assert point["times_read_floor"] == pytest.approx(point["seconds"]["aoext"] / weight)
        read = point["bytes"] / ceilings["read_gb_per_s"] / 1e9
        # That of products in bfloat16, which 8-bit products need not obey: theirs is not measured here.
        flop = point["flop"] if point["operator"].startswith(("bf16", "weight_")) else 0
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
        quantize = {"operator": "quantize", "format": "int8", "group_size": None}
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
        assert lines_below(text, "quantize [int8]") == {"÷ a copy": ["–", "–", f"{1.3 * threads:.2f}"]}
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
        assert f"\n {subject.operator}" in text
        assert f"[{subject.format}]" in text or subject.format == "int4"


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
    everything = replace(settings, subjects=[s for s in SUBJECTS if s.typical])
    assert bench_defaults.estimate(everything) > 60 * own.minutes
    fitting = bench_defaults.within(everything, own.minutes)
    assert 0 < len(fitting.rows) < len(own.rows)
    assert bench_defaults.estimate(fitting) <= 60 * own.minutes
    assert bench_defaults.within(everything, 1e-6).rows == (1,)


@pytest.mark.usefixtures("quick_ceilings")
def test_bench_leaves_out_rows_and_says_so(tmp_path: Path) -> None:
    tiny = ("--operator", "int8_mm", "--shape", "32x32", "--seconds", 0.001, "--pool-mb", 1)
    files = ("--json", tmp_path / "b.json", "--plot", tmp_path / "b.png")
    output = succeed("bench", *tiny, *files, "--minutes", 0.001)
    assert "left out to keep to the time: M = 2, 4, 8, 16, 32, 128, 512, 2048" in output
    assert {point["M"] for point in json.loads((tmp_path / "b.json").read_text())["results"]} == {1}


@pytest.mark.usefixtures("quick_ceilings")
def test_bench_forces_plans_and_takes_the_fastest_linear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[dict[str, int]] = []

    @contextlib.contextmanager
    def with_plan(kernel: str, **config: int) -> Iterator[None]:
        if kernel != "int4_ring":
            raise RuntimeError(f"{kernel}: there is no such kernel")
        forced.append(config)
        yield

    monkeypatch.setattr(bench_run, "with_plan", with_plan)
    plan = "int4_ring tiles=2 k_splits=4"
    tiny = ("--operator", "bf16i4bf16_rowwise", "--shape", "64x128", "--m", "1,9", "--seconds", 0.001)
    others = ("--dtype", "float32", "--linear", "float32", "--linear", "bfloat16", "--pool-mb", 1)
    plans = ("--plan", plan, "--plan", "no_such_kernel")
    files = ("--json", tmp_path / "b.json", "--plot", tmp_path / "b.png")
    output = succeed("bench", *tiny, *others, *plans, *files, "--threads", 1, "--group-size", 32)
    assert "F.linear in float32 or bfloat16" in output
    assert "not compared: no_such_kernel: " in output
    content = json.loads((tmp_path / "b.json").read_text())
    assert content["settings"]["linear"] == ["float32", "bfloat16"]
    for point in content["results"]:
        assert set(point["seconds"]) == {"aoext", "linear", "torch", plan}
        assert point["errors"][plan] < 2e-5
        assert "no_such_kernel" in point["missing"]
    assert {tuple(config.items()) for config in forced} == {(("tiles", 2), ("k_splits", 4))}
    wrong = invoke("bench", "--plan", "int4_ring tiles=two")
    assert wrong.exit_code == 2
    assert "must be" in wrong.output


@pytest.mark.usefixtures("quick_ceilings")
def test_bench_measures_each_group_size_with_each_number_of_threads(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    operators = ("bf16i4bf16_rowwise", "weight_only_linear", "scaled_mm_rowwise", "quantize")
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
    groups = {"bf16i4bf16_rowwise": (64, 32), "weight_only_linear": (64, 32, None)}
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
        if point["operator"] == "quantize":
            assert point["peer_is_floor"]
            assert {"aoext", "torch"} <= set(point["seconds"])


def test_cpu_defaults_are_what_the_goals_are_stated_in() -> None:
    own = bench_defaults.defaults(CPU(torch.device("cpu")))
    assert [(shape.N, shape.K) for shape in own.shapes] == [(4096, 4096), (14336, 4096), (4096, 14336)]
    assert (tuple(own.group_sizes), tuple(own.threads)) == ((128, 32), (1, 2))
    assert tuple(own.rows) == (1, 2, 4, 8, 16, 32, 128, 512, 2048)


def test_bench_says_why_a_peer_is_missing(bench: tuple[str, dict[str, Any], Path]) -> None:
    output, content, _ = bench
    missing = [
        p
        for p in content["results"]
        if (p["operator"], p["format"]) == ("weight_only_linear", "float8_e4m3fn")
    ]
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
    operators = (
        "--operator",
        "bf16i4bf16_rowwise",
        "--operator",
        "weight_only_linear",
        "--format",
        "int4",
        "--format",
        "int8",
    )
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
        (operator, M) for operator in operators[1:4:2] for M in (1, 9)
    }
    for point in content["results"]:
        assert {"aoext", "linear", "generic"} <= set(point["seconds"])
        assert all(0 < seconds < math.inf for seconds in point["seconds"].values())


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


@pytest.mark.usefixtures("quick_ceilings")
def test_bench_stops_at_a_wrong_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ERROR_BOUND, torch.bfloat16, 1e-9)
    monkeypatch.chdir(tmp_path)
    arguments = (
        "--operator",
        "weight_only_linear",
        "--format",
        "int8",
        "--shape",
        "64x64",
        "--m",
        2,
        "--pool-mb",
        1,
    )
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

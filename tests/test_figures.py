"""The documents with figures: every table is what the figures in the tree give, and has its command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from conftest import script_of_benchmarks

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="needs the project's sources")
WORDS = 6000  # in all documents together


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    return script_of_benchmarks("figures.py")


def texts() -> dict[str, str]:
    docs = BENCHMARKS.parent / "docs"
    documents = (*BENCHMARKS.glob("*.md"), docs / "lora.md", docs / "quality.md")
    return {path.name: path.read_text(encoding="utf-8") for path in documents}


def test_the_tables_are_what_the_figures_give(figures: ModuleType) -> None:
    for name, text in texts().items():
        assert figures.written(text) == text, f"{name}: python benchmarks/figures.py write"


def test_every_table_is_made_and_every_figure_is_shown(figures: ModuleType) -> None:
    shown = [found[2] for text in texts().values() for found in figures.PLACE.finditer(text)]
    assert sorted(shown) == sorted(path.stem for path in (BENCHMARKS / "figures").glob("*.json"))
    for name, text in texts().items():
        assert not re.search(r"(?m)^\|", figures.PLACE.sub("", text)), f"{name} has a table of its own"


def test_every_figure_has_a_command_and_whole_rows(figures: ModuleType) -> None:
    for path in (BENCHMARKS / "figures").glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["schema"] == figures.SCHEMA
        assert content["commands"]
        assert all(re.search(r"aoext|python|make", command) for command in content["commands"])
        assert {len(row["values"]) for row in content["rows"]} == {len(content["columns"])}, path.name
        assert figures.as_text(content) == path.read_text(encoding="utf-8"), path.name


def test_the_documents_stay_short() -> None:
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in BENCHMARKS.glob("*.md")) <= WORDS


def bench_json(busy: bool = False) -> dict[str, Any]:
    """What `aoext bench` writes, as far as a table shows it."""
    kind = {"operator": "int8_mm", "format": "int8", "group_size": None, "threads": 2}
    rates = {1: (1.256, 2.0, 3.0), 16: (2.5, 123.4, None)}
    return {
        "schema": "aoext.bench/3",
        "busy": busy,
        "load": {"reasons": ["others left 0.1 cores"] * busy},
        "environment": {
            "torch": "2.13.0",
            "time": "2026-11-01T00:00:00",
            "device": {"type": "cpu", "name": "a CPU", "instruction_set": "avx2"},
        },
        "geomean": [
            {
                **kind,
                "M": M,
                "times_read_floor": floor,
                "times_floor": {"aoext": 9.0},
                "speedup": {"linear": linear} | ({"torch": torch} if torch else {}),
            }
            for M, (floor, linear, torch) in rates.items()
        ],
    }


def test_a_run_becomes_a_table(figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FIGURES", tmp_path)
    (tmp_path / "bench.json").write_text(json.dumps(bench_json()))
    arguments = ["record", "mine", str(tmp_path / "bench.json"), "--command", "aoext bench --m 1,16"]
    done = CliRunner().invoke(figures.main, arguments)
    assert done.exit_code == 0, done.output
    text = figures.written("# Mine\n\n<!-- figures: mine -->\n<!-- end -->\n")
    assert "|  | M = 1 | M = 16 |" in text
    assert "| `int8_mm`, int8, 2 threads | 1.26 (2.00, 3.00) | 2.50 (123) |" in text
    assert "    aoext bench --m 1,16\n\n<!-- end -->\n" in text
    assert "a CPU, avx2, torch 2.13.0, 2026-11-01." in " ".join(text.split())
    assert figures.written(text) == text


def test_a_run_of_a_busy_machine_is_refused(figures: ModuleType, tmp_path: Path) -> None:
    for content, why in ((bench_json(busy=True), "busy: others left"), ({"schema": "x"}, "must be one of")):
        (tmp_path / "bench.json").write_text(json.dumps(content))
        done = CliRunner().invoke(
            figures.main, ["record", "m", str(tmp_path / "bench.json"), "--command", "x"]
        )
        assert done.exit_code == 1
        assert why in done.output

"""tools/cuda_sanitizer.py: its calls are good ones, and each is told of as it ends; the rest takes a GPU."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

TOOLS = Path(__file__).parent.parent / "tools"
pytestmark = pytest.mark.skipif(not TOOLS.is_dir(), reason="needs the project's sources")
CALLS = 130  # of all operators: about half of what there is


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))


@pytest.fixture
def tool() -> ModuleType:
    import cuda_sanitizer

    return cuda_sanitizer


def test_its_calls_are_right_on_a_cpu(generator: torch.Generator) -> None:
    import cuda_cases

    from aoext.reference import operator_of

    seen = set()
    for case in itertools.chain(cuda_cases.calls_by_kernel(), itertools.islice(cuda_cases.calls(), CALLS)):
        call = case.make(generator)
        assert call.operator == operator_of(case.kind)
        seen.add(case.kind)
        result = getattr(torch.ops.ao, call.operator)(*call.args, **call.kwargs)
        assert cuda_cases.is_right(call, result), str(case)
    assert {"bf16i4bf16_rowwise", "weight_only_linear mxfp4", "scaled_linear int4", "scaled_mm int4"} <= seen


def test_processes_begin_with_operators_of_their_own_and_small_calls() -> None:
    import cuda_cases

    every = cuda_cases.cases("newest", "", "cpu")
    turns = [cuda_cases.in_turn(every, part, 3) for part in range(3)]
    first = [{every[i].kind for i in turn[: len(every) // 9]} for turn in turns]
    assert sum(len(operators) for operators in first) == len(set.union(*first))
    for turn in turns:
        assert sorted(turn) == list(range(len(every)))
        sizes = [every[i].size for i in turn]
        own = next(i for i in range(1, len(sizes)) if sizes[i] < sizes[i - 1])
        assert sizes == sorted(sizes[:own]) + sorted(sizes[own:])


def sanitizer(folder: Path, end: str) -> Path:
    """A program that takes a command as compute-sanitizer does; `end` is what it does with that."""
    file = folder / "compute-sanitizer"
    file.write_text(f'#!/bin/sh\nwhile [ "$1" != "{sys.executable}" ]; do shift; done\n{end}\n')
    file.chmod(0o755)
    return file


def test_each_call_has_its_line_before_the_sanitizer_ends(tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = f'while [ ! -e "{go}" ]; do sleep 0.1; done'
    sanitizer(tmp_path, f'"$@" || exit 9\n{wait}\necho "========= ERROR SUMMARY: 0 errors"')
    arguments = "--tool memcheck --family newest --only dequantize --parts 1 --seconds 100 --device cpu"
    process = subprocess.Popen(
        [sys.executable, TOOLS / "cuda_sanitizer.py", *arguments.split()],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    assert process.stdout is not None
    lines = list(itertools.takewhile(lambda line: "6 of 6" not in line, process.stdout))
    go.touch()
    rest, _ = process.communicate()
    assert [f"{i} of 6" in line for i, line in enumerate(lines)] == [False, *[True] * 5]
    assert rest.splitlines()[-1] == "clean: memcheck (newest)"
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("does", "finds"),
    [
        ("echo '========= ERROR SUMMARY: 0 errors'", False),
        ("echo '========= ERROR SUMMARY: 1 error'; exit 9", True),
        ("exit 1", True),
        ("exec sleep 300", False),
        ("echo '========= Invalid __global__ read of size 16 bytes'; exec sleep 300", True),
    ],
)
def test_what_was_not_reached_is_named(
    does: str, finds: bool, tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "GRACE", 1)
    until = time.time() if "sleep" in does else time.time() + 100
    run = tool.Run("memcheck", "sm80", "convert", 2, until, 1, "cpu", tmp_path)
    found, left = tool.sanitize(str(sanitizer(tmp_path, does)), run)
    assert found is finds
    assert len(left) == len(tool.cases("sm80", "convert", "cpu"))
    assert all(line.startswith("convert_weight_to_int4pack M") for line in left)

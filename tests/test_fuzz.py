"""A little of what `python -m tests.fuzz` does for as long as one likes, and that it sees what goes wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import command

# Cases of each kind, and how many of them must run and be refused at least, so that the draws are worth it.
# That is far from what is to be expected: of files 7% run.
CASES = {
    "good-calls": (80, 80, 0),
    "bad-calls": (800, 100, 200),
    "helpers": (1000, 150, 250),
    "weights": (200, 25, 50),
    "files": (400, 3, 200),
    "gguf": (150, 3, 60),
    "readers": (600, 60, 200),
}

STRANGE = """
import os, signal, time

def dying(draw):
    number = draw.randrange(3)
    def attempt():
        if number == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        assert number != 1, "a wrong result"
        return "ran"
    return f"the number {number}", attempt

def hanging(draw):
    return "waits", lambda: time.sleep(600)
"""


def test_all_kinds_are_tried_here():
    assert list(CASES) == list(command.KINDS)


@pytest.mark.parametrize("kind", CASES)
def test_random_cases_do_what_they_should(kind, seed):
    cases, must_run, must_raise = CASES[kind]
    report = command.run([kind], seed, seconds=300, cases=cases)
    assert not report.failures, "\n".join(map(str, report.failures[:20]))
    counts = report.counts[kind]
    assert counts.total() == cases
    assert counts["ran"] >= must_run
    assert counts["raised"] >= must_raise


@pytest.fixture
def strange(tmp_path, monkeypatch) -> str:
    (tmp_path / "strange_cases.py").write_text(STRANGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return "strange_cases"


def test_deaths_and_failures_are_reported_with_the_case_that_did_it(strange):
    kind = f"{strange}:dying"
    report = command.run([kind], 7, seconds=300, cases=12)
    died = [failure for failure in report.failures if failure.error == "the process died: SIGSEGV"]
    wrong = [failure for failure in report.failures if failure.error == "AssertionError: a wrong result"]
    assert len(died) + len(wrong) == len(report.failures)
    assert all("the number 0" in failure.case for failure in died)
    assert all(failure.case == "the number 1" for failure in wrong)
    assert died
    assert wrong
    again = command.Report()
    command.run_batch(kind, 7, died[-1].number, 1, 60, again)  # alone, it dies again
    assert [(f.number, f.case, f.error) for f in again.failures] == [
        (died[-1].number, died[-1].case, died[-1].error)
    ]
    assert f"--seed 7 --case {died[-1].number}" in str(died[-1])


def test_cases_that_hang_are_ended_and_reported(strange, monkeypatch):
    monkeypatch.setattr(command, "HANGING", 20.0)
    report = command.Report()
    left = command.run_batch(f"{strange}:hanging", 1, 5, 10, 1, report)
    assert left == 6
    (failure,) = report.failures
    assert failure.number == 5
    assert "it hangs" in failure.error


def test_the_command_tells_its_seed_and_what_it_tried():
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--kind", "helpers", "--seed", "3", "--case", "1"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("seed 3\n")
    assert "helpers: 1 cases, 1 r" in done.stdout

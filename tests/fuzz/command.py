"""Batches of cases in processes of their own, until the time is up, and a report of what failed."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
KINDS = ("good-calls", "bad-calls", "helpers", "weights", "files", "gguf", "readers")
BATCH = 2000  # cases in one process
BATCH_SECONDS = 30.0  # after which it starts no further one
HANGING = 120.0  # seconds more, after which a case hangs


@dataclass
class Failure:
    """A case that failed, or that a process died of."""

    kind: str
    seed: int
    number: int
    case: str
    error: str
    trace: str = ""

    def __str__(self) -> str:
        again = f"python -m tests.fuzz --kind {self.kind} --seed {self.seed} --case {self.number}"
        return f"{self.kind} {self.number}: {self.error}\n  case: {self.case}\n  again: {again}"


@dataclass
class Report:
    """What a run has tried."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)  # by kind
    failures: list[Failure] = field(default_factory=list)

    def __str__(self) -> str:
        lines = []
        for kind, counts in self.counts.items():
            parts = (f"{number} {answer}" for answer, number in sorted(counts.items()))
            lines.append(f"{kind}: {counts.total()} cases, {', '.join(parts)}")
        return "\n".join(lines)


def run_batch(kind: str, seed: int, first: int, count: int, seconds: float, report: Report) -> int:
    """Try cases in one process; the number of the first that is left to try."""
    counts = report.counts.setdefault(kind, Counter())
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [
            sys.executable,
            "-m",
            "fuzz.batch",
            kind,
            *map(str, (seed, first, count, seconds)),
            str(log),
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        try:
            output, errors = process.communicate(timeout=seconds + HANGING)
            death = signal.Signals(-process.returncode).name if process.returncode < 0 else ""
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            death = "it hangs"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    done = False
    for line in output.splitlines():
        said = json.loads(line) if line.startswith("{") else {}
        if "counts" in said:
            counts.update(said["counts"])
            done = True
        elif "error" in said:
            report.failures.append(Failure(kind, seed, **said))
    number, _, words = lines[-1].partition(" ") if lines else (str(first), "", "")
    if not done:
        if not lines:
            raise RuntimeError(f"a batch did not begin: {death}\n{errors[-3000:]}")
        tried = int(number) - first
        counts.update({"died": 1, "tried before": tried})
        why = death or f"exit {process.returncode}"
        report.failures.append(
            Failure(kind, seed, int(number), words, f"the process died: {why}", errors[-3000:])
        )
    return int(number) + 1


def run(kinds: Sequence[str], seed: int, seconds: float, cases: int | None = None) -> Report:
    """Try `cases` of each kind, or what is done in as many seconds for all of them together."""
    report, end = Report(), time.monotonic() + seconds
    following = dict.fromkeys(kinds, 0)
    for kind in _in_turn(kinds):
        left = end - time.monotonic()
        following = {k: n for k, n in following.items() if cases is None or n < cases}
        if left <= 0 or not following:
            break
        if kind in following:
            count = BATCH if cases is None else min(BATCH, cases - following[kind])
            share = min(BATCH_SECONDS, left / len(kinds)) if cases is None else left
            following[kind] = run_batch(kind, seed, following[kind], count, share, report)
    return report


def _in_turn(kinds: Sequence[str]) -> Iterator[str]:
    while True:
        yield from kinds


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long, for all kinds together")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="a new one if not given")
    parser.add_argument("--kind", action="append", choices=KINDS, help="all if not given; may be repeated")
    parser.add_argument("--case", type=int, help="this case of one kind alone")
    options = parser.parse_args()
    kinds = options.kind or list(KINDS)
    print(f"seed {options.seed}", flush=True)
    report = Report()
    if options.case is None:
        report = run(kinds, options.seed, options.seconds)
    else:
        for kind in kinds:
            run_batch(kind, options.seed, options.case, 1, options.seconds, report)
    seen: Counter[str] = Counter()
    for failure in report.failures:
        seen[failure.error[:60]] += 1
        if seen[failure.error[:60]] <= 3 or options.case is not None:  # of one kind, a few
            print(failure)
        if options.case is not None:
            print(failure.trace)
    for error, number in seen.items():
        print(f"{number} failed: {error}")
    print(report)
    return 1 if report.failures else 0

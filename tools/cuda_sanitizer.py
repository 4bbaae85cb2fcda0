"""Runs our CUDA kernels under compute-sanitizer: memcheck, racecheck, initcheck and synccheck, on odd shapes.

    python tools/cuda_sanitizer.py [--tool memcheck] [--only grouped] [--parts 8] [--seconds 480]

Each tool runs the newest family of kernels, then sm80's, in so many processes at once, with every tensor an
allocation of its own, so that an access beyond one is seen; results are compared with float64 besides. A
process takes the calls of some operators, from small to large, so that few have to instrument a kernel, and
then what the others have not begun. Each call has its line as it ends.

The time is shared: a tool and family that ends early leaves its rest to those that follow. What was not
reached is named. The exit code is 1 where a tool finds anything or does not get through. racecheck wants a
library built with -DAOEXT_RACECHECK (docs/cuda.md), and takes minutes for the larger calls of kernels of
sm_90a.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cuda_cases import cases, in_turn, is_right

ROOT = Path(__file__).parent.parent
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FAMILIES = ("newest", "sm80")
FOUND = 9  # compute-sanitizer's exit code where it finds anything
SECONDS = 480  # of a tool
GRACE = 30  # seconds that a call may take longer than there is time, before its process is ended
PORTS = 16  # of each sanitizer: those that run at once look for free ones in a few beside the first
CLEAN = r"(ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)"
FINDING = (
    r"={5,} (Invalid|Uninitialized|Barrier error|Error|Program hit|.*[Rr]ace reported|.*hazard detected)"
)


class Run(NamedTuple):
    """A tool on a family of kernels: what its processes have in common."""

    tool: str
    family: str
    only: str
    parts: int
    until: float  # of time.time()
    seed: int
    device: str
    folder: Path  # where they take calls from each other, and write what they did

    def __str__(self) -> str:
        return f"{self.tool} ({self.family})"

    def arguments(self, part: int) -> list[str]:
        return [str(value) for value in (*self, part)]

    @classmethod
    def read(cls, arguments: Sequence[str]) -> tuple[Run, int]:
        tool, family, only, parts, until, seed, device, folder, part = arguments
        return cls(tool, family, only, int(parts), float(until), int(seed), device, Path(folder)), int(part)

    def claim(self, number: int) -> bool:
        """Whether this process is the first that wants a call."""
        try:
            os.close(os.open(self.folder / f"call{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def run(self: Run, part: int) -> None:
    """What a sanitized process does. Data comes from the CPU: next to no kernel of PyTorch's runs."""
    signal.setitimer(
        signal.ITIMER_REAL, max(0.1, self.until + GRACE - time.time())
    )  # ends it, whatever it does
    import torch

    import aoext
    from aoext.ops import with_plan

    if self.device == "cuda" and not torch._C._dispatch_has_kernel_for_dispatch_key(
        "ao::bf16i4bf16_rowwise", "CUDA"
    ):
        sys.exit("the library was built without kernels for CUDA")
    every = cases(self.family, self.only, self.device)
    wrong = 0
    with open(self.folder / f"done{part}", "w", buffering=1) as report:
        for number in in_turn(every, part, self.parts):
            if time.time() > self.until:
                break
            if not self.claim(number):
                continue
            case, began = every[number], time.monotonic()
            report.write(f"began {number}\n")
            call = case.make(torch.Generator().manual_seed(self.seed + number))
            moved, made = call.on(self.device), time.monotonic()
            with with_plan(case.kernel) if case.kernel else contextlib.nullcontext():
                result = getattr(torch.ops.ao, call.operator)(*moved, **call.kwargs).cpu()
                plan = aoext.explain(call.operator, *moved, **call.kwargs)
            took = f"{time.monotonic() - made:6.1f} s, {made - began:4.1f} s to make"
            right = is_right(call, result)
            wrong += not right
            report.write(f"ended {number} {took}: {case}: {plan}{'' if right else ': the result is WRONG'}\n")
    if wrong:
        sys.exit(f"{wrong} results are wrong")


class Process:
    """compute-sanitizer on one of a tool's processes."""

    def __init__(self, sanitizer: str, of: Run, part: int) -> None:
        threads = max(1, (os.cpu_count() or 1) // of.parts)
        environment = {
            **os.environ,
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
            "CUDA_MODULE_LOADING": "LAZY",  # what is never launched is not instrumented
            "OMP_NUM_THREADS": str(threads),
        }
        environment.pop("AOEXT_CUDA_FAMILY", None)
        if of.family != "newest":
            environment["AOEXT_CUDA_FAMILY"] = of.family
        options = ["--tool", of.tool, "--error-exitcode", str(FOUND), "--print-limit", "20"]
        # The host's frames are PyTorch's and Python's, and looking them up takes longer than the kernels.
        options += ["--show-backtrace", "device", "--port", str(49152 + PORTS * part)]
        if of.tool != "initcheck":  # which must see what other kernels write
            options += ["--kernel-name", "kernel_substring=aoext"]
        self._said, self._done = (of.folder / f"{name}{part}" for name in ("said", "done"))
        self._seen = {self._said: 0, self._done: 0}
        self._done.touch()
        with open(self._said, "w") as said:
            self._process = subprocess.Popen(
                [sanitizer, *options, sys.executable, __file__, "--run", *of.arguments(part)],
                env=environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.killed = False

    def news(self) -> tuple[list[str], list[str]]:
        """Whole lines that are new of what was said, and of what was done."""
        return self._lines(self._said), self._lines(self._done)

    def _lines(self, path: Path) -> list[str]:
        with open(path, "rb") as file:
            file.seek(self._seen[path])
            whole, end, _ = file.read().rpartition(b"\n")
        self._seen[path] += len(whole + end)
        return whole.decode(errors="replace").splitlines()

    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def finds(self) -> bool:
        """Whether it found anything, once it has ended: a process that was killed has no summary."""
        said = self._said.read_text(errors="replace")
        if self.killed:
            return re.search(FINDING, said) is not None
        return self._process.returncode != 0 or re.search(CLEAN, said) is None


def sanitize(sanitizer: str, of: Run) -> tuple[bool, list[str]]:
    """Whether a tool finds anything, and the calls that it did not get through. Prints lines as they come."""
    every = cases(of.family, of.only, of.device)
    processes = [Process(sanitizer, of, part) for part in range(of.parts)]
    began, ended = set(), set()
    try:
        going = True
        while going:
            going = any(process.running() for process in processes)  # before the last look
            for part, process in enumerate(processes):
                said, done = process.news()
                for line in said:
                    print(f"{of} {part + 1}/{of.parts}: {line}", flush=True)
                for line in done:
                    what, number, *rest = line.split(" ", 2)
                    (began if what == "began" else ended).add(int(number))
                    if rest:
                        count = f"{len(ended)} of {len(every)}"
                        print(f"{of} {part + 1}/{of.parts}, {count}: {rest[0]}", flush=True)
                if process.running() and time.time() > of.until + GRACE:
                    process.kill()
            time.sleep(0.1 if going else 0)
    finally:
        for process in processes:
            if process.running():
                process.kill()
    left = [f"{every[i]}{' (it began)' if i in began else ''}" for i in range(len(every)) if i not in ended]
    return any(process.finds() for process in processes), left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tool", choices=TOOLS, action="append")
    parser.add_argument("--family", choices=FAMILIES, action="append")
    parser.add_argument("--only", default="", help="operators with this in their names")
    parser.add_argument("--parts", type=int, default=max(1, min(8, (os.cpu_count() or 1) // 2)))
    parser.add_argument(
        "--seconds", type=float, help=f"for all together; {SECONDS} for each tool if not given"
    )
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(*Run.read(arguments.run))
        return
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(sanitizer).is_file():
        sys.exit("cuda_sanitizer.py: compute-sanitizer was not found: it comes with the CUDA toolkit")
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("cuda_sanitizer.py: torch sees no NVIDIA GPU")
    tools = arguments.tool or TOOLS
    pairs = list(itertools.product(tools, arguments.family or FAMILIES))
    end = time.time() + (SECONDS * len(tools) if arguments.seconds is None else arguments.seconds)
    seed = time.time_ns() % 2**31
    found, missed = [], []
    for i, (tool, family) in enumerate(pairs):
        until = time.time() + max(0.0, end - time.time()) / (len(pairs) - i)
        with tempfile.TemporaryDirectory() as folder:
            one = Run(
                tool, family, arguments.only, arguments.parts, until, seed, arguments.device, Path(folder)
            )
            print(f"{one}: {until - time.time():.0f} s at most, seed {seed}", flush=True)
            finds, left = sanitize(sanitizer, one)
        if finds:
            found.append(str(one))
        if left:
            missed.append(f"{one}, {len(left)} calls")
            print(f"{one}: not whole, {len(left)} calls were not reached:", *left, sep="\n  ", flush=True)
    if found:
        sys.exit(f"cuda_sanitizer.py: findings or failures of {', '.join(found)}")
    if missed:
        sys.exit(f"cuda_sanitizer.py: clean as far as it went, and not whole: {'; '.join(missed)}")
    print(f"clean: {', '.join(f'{tool} ({family})' for tool, family in pairs)}")


if __name__ == "__main__":
    main()

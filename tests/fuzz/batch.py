"""The cases of one process: `python -m fuzz.batch KIND SEED FIRST COUNT SECONDS LOG`.

KIND is one of KINDS, or `module:function` of another function that draws cases.
Before it tries a case it writes the case's number and words to the file LOG, so that they are there if the
process dies. What failed it writes to standard output, a JSON object a line, and at the end what it counted.
"""

from __future__ import annotations

import json
import os
import pkgutil
import resource
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable

import torch

from fuzz.bad_calls import bad_call
from fuzz.draws import Answer, Draw
from fuzz.files import damaged_file
from fuzz.gguf_files import damaged_gguf
from fuzz.good_calls import good_call
from fuzz.helper_calls import helper_call
from fuzz.readers import damaged_checkpoint
from fuzz.weights import weight_steps

KINDS: dict[str, Callable[[Draw], tuple[str, Callable[[], Answer]]]] = {
    "good-calls": good_call,
    "bad-calls": bad_call,
    "helpers": helper_call,
    "weights": weight_steps,
    "files": damaged_file,
    "gguf": damaged_gguf,
    "readers": damaged_checkpoint,
}

# Memory that a case may take beyond what the process has: huge sizes are to be refused, not to be filled.
MEMORY = 4 << 30


def limit_memory() -> None:
    """For address space, which sanitizers reserve all of; they have limits of their own."""
    if os.environ.get("AOEXT_SANITIZE"):
        return
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def draw_case(kind: str, seed: int, number: int) -> tuple[str, Callable[[], Answer]]:
    """The case of that number, the same whatever came before it."""
    torch.manual_seed(seed + number)
    draw_of_kind = KINDS[kind] if kind in KINDS else pkgutil.resolve_name(kind)
    return draw_of_kind(Draw(f"{seed} {kind} {number}"))


def main(kind: str, seed: int, first: int, count: int, seconds: float, log: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(min(2, torch.get_num_threads()))
    torch.ones(64, 64) @ torch.ones(64, 64)  # its threads and their stacks are no case's memory
    limit_memory()
    counts, end = Counter[str](), time.monotonic() + seconds
    with open(log, "w", buffering=1) as cases:
        for number in range(first, first + count):
            if time.monotonic() > end:
                break
            cases.write(f"{number} as it was drawn\n")
            words = "as it was drawn"
            try:
                words, attempt = draw_case(kind, seed, number)
                cases.write(f"{number} {words[:2000]!r}\n")
                answer = attempt()
            except Exception as error:
                text = str(error) or type(error).__name__
                failure = {"number": number, "case": words, "error": f"{type(error).__name__}: {text}"}
                print(json.dumps({**failure, "trace": traceback.format_exc()}), flush=True)
                answer = "failed"
            counts[answer] += 1
    print(json.dumps({"counts": counts}), flush=True)


if __name__ == "__main__":
    kind, seed, first, count, seconds, log = sys.argv[1:]
    main(kind, int(seed), int(first), int(count), float(seconds), log)

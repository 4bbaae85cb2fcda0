"""Compiles every SPIR-V image with Intel's own compiler for GPUs, and looks at the code.

    python tools/isa build/editable/spirv

Exits with 1 where a kernel spills registers, keeps arrays in memory, makes calls, or lacks matrix products
that it means to have (a built-in that is misspelt compiles to nothing). OCLOC names the compiler; where it is
unset, tools/intel_gpu_compiler.sh lays one into build/intel-gpu-compiler. Where that cannot be done either,
it says so and exits with 0; with AOEXT_REQUIRE_ISA=1 with 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import check
import roofline
import tables
from ocloc import Compiler, UnavailableError
from rich.console import Console

WIDTH = 118


def skip(reason: str) -> int:
    required = os.environ.get("AOEXT_REQUIRE_ISA") == "1"
    lines = [
        "SKIPPED: the XPU kernels were NOT compiled for Intel GPUs." if not required else "FAILED:",
        *reason.splitlines(),
        "Nothing is known about their spills, stack calls and matrix products.",
        "Set OCLOC to Intel's offline compiler, or run this on x86_64 Debian with a network.",
    ]
    width = max(map(len, lines)) + 4
    print(
        "",
        "!" * width,
        *(f"! {line:<{width - 4}} !" for line in lines),
        "!" * width,
        "",
        sep="\n",
        file=sys.stderr,
    )
    if not required:
        print("isa: SKIPPED")
    return int(required)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the build puts images, such as build/editable/spirv")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--update", action="store_true", help="make these counts of DPAS the expected ones")
    arguments = parser.parse_args()
    try:
        compiler = Compiler()
    except UnavailableError as error:
        return skip(str(error))
    report = check.compile_all(compiler, arguments.folder)
    if arguments.update:
        check.write_expected(report)
    check.inspect(report, check.read_expected())
    predictions = roofline.predict_all(report)
    if arguments.markdown:
        print(tables.markdown(report), roofline.markdown(predictions), sep="\n\n")
    else:
        console = Console(
            width=max(WIDTH, Console().width) if sys.stdout.isatty() else WIDTH, highlight=False, markup=False
        )
        tables.show(console, report)
        roofline.show(console, predictions)
    out = sys.stderr if arguments.markdown else sys.stdout
    for note in report.notes:
        print(f"note: {note}", file=out)
    for problem in report.problems:
        print(f"isa: {problem}", file=sys.stderr)
    verdict = f"FAILED, {len(report.problems)} problems" if report.problems else "ok"
    print(f"isa: {verdict}: {check.summary(report, report.images)}, ocloc {report.compiler}", file=out)
    return int(bool(report.problems))


if __name__ == "__main__":
    sys.exit(main())

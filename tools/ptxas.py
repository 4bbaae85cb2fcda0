"""What ptxas made of the CUDA kernels in a library: registers, shared memory and, above all, spills.

    python tools/ptxas.py build/editable/libaoext.so

Reads the machine code itself (cuobjdump --dump-resource-usage), so it holds for what is shipped. A kernel of
ours that keeps a stack frame or local memory spills, or indexes an array by what only a run knows: either way
its registers go through memory, and the check fails, as it does where machine code for an architecture or the
PTX for later GPUs is missing. A wheel (.whl) is looked into.

Later GPUs compile the PTX themselves. ptxas does here what their driver does there, for one architecture of
each kind (LATER), and the machine code that comes of it is looked at in the same way: it takes minutes.
The driver's compiler may be another release than this one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

NAMESPACE = "aoext::cuda::"
ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_90a")
PTX = "sm_90"  # as cuobjdump names compute_90
LATER = ("sm_100", "sm_120")  # that run the PTX: Blackwell's data centres, and its workstations


def wanted_of(capabilities: str) -> tuple[str, ...]:
    """The architectures that there must be code for, by AOEXT_CUDA_ARCHITECTURES: ALL, or a list as 80;90."""
    if capabilities == "ALL":
        return ARCHITECTURES
    asked = {f"sm_{capability}" for capability in capabilities.split(";")}
    return tuple(name for name in ARCHITECTURES if name in asked or name == "sm_90a")


@dataclass(frozen=True)
class Excuse:
    """Kernels that may keep some of a thread's registers in memory."""

    pattern: str  # of the kernel's name
    most: int  # bytes of a thread
    why: str  # that costs nothing that matters: how many instructions of the inner loops touch memory
    architectures: tuple[str, ...] = (*ARCHITECTURES, *LATER)


EXCUSES = (
    Excuse(r"int4_decode_kernel<", 16, "a cursor that moves between turns, no instruction"),
    Excuse(r"fp4_decode_kernel<", 16, "a cursor that moves between turns, no instruction"),
    Excuse(r"int4_ring_kernel<", 32, "a cursor that moves between turns, 4 of 650 with float32 scales"),
    Excuse(r"int4_ring_kernel<", 40, "the same", ("sm_120",)),
    Excuse(r"int4_grouped_ring_kernel<", 24, "what moves between turns, no instruction"),
    Excuse(r"int4_mma_kernel<.*Tile<4, 1, 32, 128,", 24, "all registers, no instruction", ("sm_120",)),
    Excuse(
        r"rowwise_mma_kernel<.*Tile<2, 2, 1, 64, 64, 64, 3>", 16, "all registers, no instruction", ("sm_120",)
    ),
    Excuse(
        r"rowwise_mma_kernel<.*BlockKind<.*Tile<2, 2, 1, 64, 64, 64, 3>",
        16,
        "a tile's first output, no instruction",
    ),
    Excuse(
        r"rowwise_mma_of_experts<.*Tile<2, 2, 1, 64, 64, 64,",
        24,
        "where a tile's rows lie, at most 1 of 819 in the loop along k",
    ),
    Excuse(r"rowwise_mma_of_experts<.*Tile<2, 2, 1, 64, 64, 64,", 32, "the same", LATER),
    Excuse(r"rowwise_decode_of_experts<", 16, "where a tile's rows lie, none in the loop along k"),
    Excuse(r"rowwise_decode_of_experts<", 24, "the same", ("sm_120",)),
    Excuse(r"packed_mma_of_experts<", 16, "an expert's operands, none in the loop along k"),
    Excuse(r"packed_mma<", 16, "where scales lie, 2 of 1,900 in the loop along k"),
    Excuse(r"packed_wgmma<", 8, "what ends a block, none in the loop along k"),
    Excuse(r"packed_(mma|mma_of_experts|decode)<", 32, "looked at by its size alone", ("sm_120",)),
    Excuse(r"packed_any<", 8, "for what others do not take, looked at by its size alone", ("sm_120",)),
    Excuse(r"arrange_scales<", 8, "once a thread, before its scales are read", ("sm_120",)),
    Excuse(r"tinygemm::mm_kernel<., 4, 2>", 16, "groups of 32, 28 of 3,900"),
    Excuse(r"tinygemm::mm_kernel<., 1, .>", 8, "3 of 2,700", ("sm_80", *LATER)),
)

PACKAGES = {"cuobjdump": "nvidia-cuda-cuobjdump", "ptxas": "nvidia-cuda-nvcc"}  # of PyPI


@dataclass(frozen=True)
class Kernel:
    """One kernel's machine code for one architecture; bytes of one thread or block."""

    name: str
    architecture: str
    registers: int
    stack: int
    local: int
    shared: int  # static

    @property
    def in_memory(self) -> int:
        """Bytes of a thread that should be registers."""
        return self.stack + self.local

    @property
    def excuse(self) -> str | None:
        fitting = (
            e.why
            for e in EXCUSES
            if self.in_memory <= e.most
            and self.architecture in e.architectures
            and re.search(e.pattern, self.name)
        )
        return next(fitting, None)


def find_tool(name: str) -> str:
    """From PATH, from the CUDA toolkit, or from PyPI's package."""
    candidates = [shutil.which(name), f"/usr/local/cuda/bin/{name}"]
    try:
        files = metadata.files(PACKAGES[name]) or []
        candidates += [str(file.locate()) for file in files if file.name == name]
    except metadata.PackageNotFoundError:
        pass
    for candidate in candidates:
        if candidate and Path(candidate).is_file():
            return candidate
    raise FileNotFoundError(
        f"ptxas.py: {name} was not found: pip install {PACKAGES[name]}, or put the CUDA toolkit's bin folder "
        "on PATH"
    )


def _output(*command: str, given: str | None = None, folder: Path | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        sys.exit(f"{done.stderr or done.stdout}\nptxas.py: failed: {' '.join(command)}")
    return done.stdout


def demangled(names: list[str]) -> list[str]:
    """As the source names them, without parameters; as they are where there is no c++filt."""
    if not shutil.which("c++filt"):
        return names
    lines = _output("c++filt", given="\n".join(names)).splitlines()
    anonymous = [re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::", "", line) for line in lines]
    return [re.sub(r"^void ", "", re.sub(r"\((?!.*>).*\)$", "", line)) for line in anonymous]


def kernels_of(library: Path, architecture: str = "") -> list[Kernel]:
    """All kernels of our namespace, for each architecture that there is machine code for.

    `architecture`: that of a cubin, which does not say it.
    """
    mangled, found = "", []
    for line in _output(find_tool("cuobjdump"), "--dump-resource-usage", str(library)).splitlines():
        if match := re.match(r"arch = (\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            mangled = match[1]
        elif match := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line):
            registers, stack, shared, local = map(int, match.groups())
            found.append((mangled, Kernel("", architecture, registers, stack, local, shared)))
    names = demangled([mangled for mangled, _ in found])
    kernels = [replace(k, name=name) for name, (_, k) in zip(names, found, strict=True)]
    return [kernel for kernel in kernels if kernel.name.startswith(NAMESPACE)]


def kernels_of_ptx(library: Path, later: Sequence[str]) -> list[Kernel]:
    """What ptxas makes of the PTX for each of these later architectures."""
    ptxas = find_tool("ptxas")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _output(find_tool("cuobjdump"), "--extract-ptx", "all", str(library.resolve()), folder=folder)
        sources = sorted(folder.glob("*.ptx"), key=lambda path: -path.stat().st_size)

        def compiled(job: tuple[Path, str]) -> list[Kernel]:
            source, architecture = job
            cubin = source.with_suffix(f".{architecture}.cubin")
            _output(ptxas, f"-arch={architecture}", "-o", str(cubin), str(source))
            return kernels_of(cubin, architecture)

        jobs = [(source, architecture) for source in sources for architecture in later]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return [kernel for kernels in pool.map(compiled, jobs) for kernel in kernels]


def ptx_of(library: Path) -> set[str]:
    """The architectures that there is PTX for."""
    listed = _output(find_tool("cuobjdump"), "--list-ptx", str(library))
    return set(re.findall(r"\.(sm_\w+)\.ptx", listed))


def missing_code(library: Path, kernels: list[Kernel], wanted: Sequence[str] = ARCHITECTURES) -> list[str]:
    """What a wheel must carry and this library does not, a line each: code for those wanted, and the PTX."""
    here = {kernel.architecture for kernel in kernels}
    lines = [f"no machine code for {name}" for name in wanted if name not in here]
    ptx = ptx_of(library)
    if PTX not in ptx:
        lines.append("no PTX of compute_90: newer GPUs cannot run it")
    return lines + [f"PTX of {name}, which no later GPU takes" for name in sorted(ptx) if name.endswith("a")]


def table(kernels: list[Kernel]) -> list[str]:
    """A line for each kernel; registers by architecture."""
    names = list(dict.fromkeys(kernel.name for kernel in kernels))
    architectures = [
        name for name in (*ARCHITECTURES, *LATER) if any(k.architecture == name for k in kernels)
    ]
    lines = [f"{'registers on':>12} {' '.join(f'{name:>6}' for name in architectures)}  shared"]
    for name in sorted(names):
        of_name = {kernel.architecture: kernel for kernel in kernels if kernel.name == name}
        registers = (str(of_name[a].registers) if a in of_name else "" for a in architectures)
        shared = max(kernel.shared for kernel in of_name.values())
        cells = " ".join(f"{cell:>6}" for cell in registers)
        lines.append(f"{'':>12} {cells} {shared:>7}  {name.removeprefix(NAMESPACE)}")
    return lines


@contextmanager
def library_in(path: Path) -> Iterator[Path]:
    """The library itself, also from within a wheel."""
    if path.suffix != ".whl":
        yield path
        return
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
        yield Path(archive.extract("aoext/lib/libaoext.so", folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument(
        "--later", nargs="+", choices=LATER, default=LATER, help="compile the PTX for these alone"
    )
    parser.add_argument(
        "--capabilities",
        default="ALL",
        help="what it was compiled for, as AOEXT_CUDA_ARCHITECTURES: ALL, or a list such as 80;90",
    )
    parser.add_argument("--quiet", action="store_true", help="print what is wrong alone")
    arguments = parser.parse_args()
    if not arguments.library.is_file():
        sys.exit(f"ptxas.py: there is no {arguments.library}")
    with library_in(arguments.library) as library:
        try:
            kernels = kernels_of(library)
            wrong = missing_code(library, kernels, wanted_of(arguments.capabilities))
            if kernels and not wrong:
                kernels += kernels_of_ptx(library, arguments.later)
        except FileNotFoundError as error:
            sys.exit(str(error))
    if not kernels:
        sys.exit(f"ptxas.py: {arguments.library} holds no kernel of {NAMESPACE}: built with AOEXT_CUDA=ON?")
    if not arguments.quiet:
        print("\n".join(table(kernels)))
    spilling = [kernel for kernel in kernels if kernel.in_memory]
    for kernel in spilling:
        verdict = kernel.excuse or "SPILLS"
        print(f"{kernel.in_memory} bytes a thread on {kernel.architecture}: {kernel.name}: {verdict}")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    bad = sum(kernel.excuse is None for kernel in spilling)
    print(f"{len({k.name for k in kernels})} kernels, {len(kernels)} with architectures, {bad} spilling")
    if bad or wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()

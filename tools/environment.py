"""Sets up the virtual environment whose Python runs it; says what each step does and how long it took.

    .venv/bin/python tools/environment.py demo     what `aoext demo` needs, kernels for the devices at hand
    .venv/bin/python tools/environment.py tools    torch and the developers' tools, no library
    .venv/bin/python tools/environment.py develop  these tools, and all kernels that can be compiled here
    .venv/bin/python tools/environment.py test     that, and the simulated XPU of the tests
    .venv/bin/python tools/environment.py test-inductor-xpu  that, and a Triton beside the environment
    .venv/bin/python tools/environment.py isa-inductor       that, and Intel's Triton beside it

A step that was done before, here or as part of a larger one, is left out; aoext.json in the environment
records them. Variables choose: TORCH is what pip installs as torch, AOEXT_CUDA and AOEXT_SYCL are AUTO, ON or
OFF, AOEXT_CUDA_ARCHITECTURES is ALL or a list of compute capabilities. A choice holds until another is made.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from requirements import bench_requirements, pinned_torch, requirements

ROOT = Path(__file__).parent.parent
RECORD = Path(sys.prefix) / "aoext.json"
SIMULATOR = ROOT / "xpu_sim"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
# Tritons for Inductor on a simulated XPU, each in a folder of its own, as one would hide the other: the one
# that torch 2.13 goes with, whose interpreter runs kernels, and the only one for Intel GPUs that PyPI has,
# which compiles them. Neither is in the environment itself: packages take a Triton that they can import for a
# GPU's.
TRITONS = {
    "test-inductor-xpu": ("triton", "triton==3.7.1"),
    "isa-inductor": ("triton-xpu", "triton-xpu==3.3.0b1"),
}
# What the library is made of; an editable install reads the Python sources where they are.
LIBRARY = (
    "CMakeLists.txt",
    "pyproject.toml",
    "VERSION",
    "cmake",
    "csrc",
    "tools/spirv",
    "tools/version_provider.py",
)


@dataclass
class Record:
    """What the environment holds."""

    torch: str = ""
    requirements: list[str] = field(default_factory=list)
    chosen: dict[str, str] = field(default_factory=dict)  # variables that somebody set
    options: dict[str, str] = field(default_factory=dict)  # of the library's build
    built: dict[str, str] = field(default_factory=dict)  # what AOEXT_CUDA and AOEXT_SYCL came to: ON or OFF
    library: str = ""  # the digest of its sources
    bench: str = ""  # that of aoext-bench's pyproject.toml
    simulator: str = ""

    @classmethod
    def load(cls) -> Record:
        return cls(**json.loads(RECORD.read_text())) if RECORD.is_file() else cls()

    def save(self) -> None:
        """Writes what is new, in one move: targets that set up nothing may run side by side."""
        text = json.dumps(asdict(self), indent=2) + "\n"
        if RECORD.is_file() and RECORD.read_text() == text:
            return
        unfinished = RECORD.with_name(f"{RECORD.name}.{os.getpid()}")
        unfinished.write_text(text)
        unfinished.replace(RECORD)


def digest(*paths: str | Path) -> str:
    """A digest of the names, sizes and times of files, and of all files below folders."""
    files: list[Path] = []
    for path in (ROOT / p for p in paths):
        files += sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
    facts = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.suffix != ".pyc"]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@contextmanager
def step(title: str) -> Iterator[None]:
    """Says what is being done, and at the end how long it took."""
    print(f"\n== {title}", flush=True)
    begin = time.monotonic()
    yield
    print(f"   {time.monotonic() - begin:.0f} s", flush=True)


def pip_install(*arguments: str) -> None:
    done = subprocess.run([*PIP, "install", *arguments], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)


def pip_build(*arguments: str) -> None:
    """Builds and installs a project: shows the steps of its compilation, and everything where that fails.

    On a terminal a step overwrites the one before.
    """
    command = [*PIP, "install", "--verbose", "--no-build-isolation", "--no-deps", *arguments]
    output = []
    terminal = sys.stdout.isatty()
    with subprocess.Popen(
        command, cwd=ROOT, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            said = line.strip()
            if not said.startswith(("[", "-- aoext:")):
                continue
            if terminal:
                print(f"\r\x1b[2K   {said[: shutil.get_terminal_size().columns - 4]}", end="", flush=True)
            else:
                print(f"   {said}", flush=True)
    if terminal:
        print("\r\x1b[2K", end="")
    if process.returncode:
        print("".join(output), flush=True)
        sys.exit(process.returncode)


def gpu_capabilities() -> list[str]:
    """The compute capabilities of the NVIDIA GPUs that the installed torch can use, such as ["90"]."""
    program = (
        "import torch\n"
        "for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):\n"
        "    print('%d%d' % torch.cuda.get_device_capability(i))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], stdout=subprocess.PIPE, text=True)
    return sorted(set(done.stdout.split()), key=int)


def has_nvcc() -> bool:
    return shutil.which(os.environ.get("CUDACXX") or "nvcc") is not None


def options_for(what: str, record: Record, capabilities: list[str]) -> dict[str, str]:
    """The options of the library's build: what was chosen, else for the demo what runs here, else all.

    capabilities: of the GPUs that kernels can be compiled for here. The demo takes a library that holds more.
    """
    options = {"AOEXT_CUDA": "AUTO", "AOEXT_CUDA_ARCHITECTURES": "ALL", "AOEXT_SYCL": "AUTO"}
    if what == "demo":
        options["AOEXT_SYCL"] = "OFF"
        options["AOEXT_CUDA"] = "ON" if capabilities else "OFF"
        options["AOEXT_CUDA_ARCHITECTURES"] = ";".join(capabilities) or "ALL"
        for device, built in record.built.items():
            if built == "ON" or record.options[device] == "AUTO":
                options.update({name: v for name, v in record.options.items() if name.startswith(device)})
    return options | {name: value for name, value in record.chosen.items() if name in options}


def install_torch(record: Record) -> None:
    wanted = record.chosen.get("TORCH") or pinned_torch()
    if record.torch == wanted:
        return
    with step(f"PyTorch: {wanted} (0.2 GB to download without CUDA, 3 GB with it)"):
        pip_install(*wanted.split())
    record.torch, record.library, record.simulator = wanted, "", ""  # which were built against another
    record.save()


def install_tools(what: str, record: Record) -> None:
    extras = ["build"] if what == "demo" else ["dev"]
    if record.chosen.get("AOEXT_SYCL") == "ON":
        extras.append("sycl")
    wanted = [requirement for extra in extras for requirement in requirements(extra)] + bench_requirements()
    if set(wanted) <= set(record.requirements):
        return
    size = (
        "0.2 GB to download"
        if what == "demo"
        else "1 GB to download: compilers for Intel GPUs, test tools, linters"
    )
    with step(f"tools: {', '.join(extras)} of pyproject.toml, what aoext-bench needs ({size})"):
        pip_install(*wanted)
    record.requirements = sorted({*record.requirements, *wanted})
    record.save()


def install_library(what: str, record: Record) -> None:
    sources = digest(*LIBRARY)
    options = options_for(what, record, gpu_capabilities() if what == "demo" and has_nvcc() else [])
    if record.library == sources and record.options == options:
        return
    for_devices = ["CPUs"]
    if options["AOEXT_SYCL"] != "OFF":
        for_devices.append("Intel GPUs where their compiler is")
    if options["AOEXT_CUDA"] == "ON" or (options["AOEXT_CUDA"] == "AUTO" and has_nvcc()):
        which = options["AOEXT_CUDA_ARCHITECTURES"]
        for_devices.append(
            "NVIDIA GPUs of all architectures, ten times the work of the others"
            if which == "ALL"
            else f"NVIDIA GPUs, sm_{which}, four times the work of the others"
        )
    with step(f"the library: kernels for {', '.join(for_devices)}"):
        defines = [f"--config-settings=cmake.define.{name}={value}" for name, value in options.items()]
        pip_build(*defines, "--editable", ".")
        program = "from aoext.library import info; c = info.build_config(); print(c['cuda'], c['sycl'])"
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    record.built = dict(zip(("AOEXT_CUDA", "AOEXT_SYCL"), done.stdout.split(), strict=True))
    record.library, record.options = sources, options
    record.save()


def install_bench(record: Record) -> None:
    """`aoext bench` and `aoext demo`, from where their sources are."""
    project = digest("benchmarks/pyproject.toml")
    if record.bench == project:
        return
    with step("aoext-bench: the commands aoext bench and aoext demo"):
        pip_build("--editable", "./benchmarks")
    record.bench = project
    record.save()


def install_simulator(record: Record) -> None:
    """The tests' XPU tensors on a machine without an Intel GPU, where they can be compiled."""
    sources = digest(*(p for p in SIMULATOR.iterdir() if p.name != "tests"))
    if record.simulator == sources:
        return
    if platform.machine() != "x86_64" or not Path(sysconfig.get_path("include"), "Python.h").is_file():
        print("no simulated XPU: it needs x86-64 and Python's headers (python3-dev)")
        return
    with step("the simulated XPU of the tests"):
        pip_build(f"--config-settings=build-dir={ROOT}/build/xpu_sim-{{wheel_tag}}", str(SIMULATOR))
    record.simulator = sources
    record.save()


def install_triton(folder: str, requirement: str) -> None:
    """Without what it names as its requirements: the interpreter needs numpy, which is there."""
    name, _, version = requirement.partition("==")
    into = Path(sys.prefix) / folder
    if (into / f"{name.replace('-', '_')}-{version}.dist-info").is_dir():
        return
    shutil.rmtree(into, ignore_errors=True)
    with step(f"{requirement}, in {into} (0.2 GB to download)"):
        pip_install("--no-deps", "--target", str(into), requirement)


def left_out(record: Record) -> list[str]:
    """What a demo's environment does not hold, and how to get it."""
    lines = []
    if record.built["AOEXT_CUDA"] == "OFF":
        why = (
            "torch sees no such GPU here"
            if has_nvcc()
            else "they need nvcc, and a torch that sees such a GPU"
        )
        lines.append(f"kernels for NVIDIA GPUs ({why}): make demo AOEXT_CUDA=ON")
    if record.built["AOEXT_SYCL"] == "OFF":
        lines.append("kernels for Intel GPUs: make demo AOEXT_SYCL=ON")
    if not set(requirements("dev")) <= set(record.requirements):
        lines.append("the tests and the developers' tools: make test")
    return lines


def main() -> None:
    what = sys.argv[1]
    record = Record.load()
    variables = ("TORCH", "AOEXT_CUDA", "AOEXT_CUDA_ARCHITECTURES", "AOEXT_SYCL")
    record.chosen.update({name: os.environ[name] for name in variables if os.environ.get(name)})
    install_torch(record)
    install_tools(what, record)
    if what != "tools":
        install_library(what, record)
        install_bench(record)
    if what in ("test", *TRITONS):
        install_simulator(record)
    if what in TRITONS:
        install_triton(*TRITONS[what])
    record.save()
    if what == "demo":
        for line in left_out(record):
            print(f"left out: {line}")


if __name__ == "__main__":
    main()

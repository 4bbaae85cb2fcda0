"""The wheel of a platform that this machine is not, and its tests under an emulator.

    python tools/foreign.py wheel aarch64              build dist/*.whl and check it
    python tools/foreign.py test aarch64               the operators' tests from it, a share of them
    python tools/foreign.py test aarch64 --tests all   all of them
    python tools/foreign.py run aarch64 -c 'import aoext; print(aoext.show_config())'

PLATFORMS says what a platform consists of. What it needs is downloaded once into build/<platform>/, and
nothing of this machine is changed: programs that PATH lacks (tools/), a root with its libraries and Python
(root/), its torch and the tests' packages (site/), into which `test` and `run` unpack the newest wheel of
dist/.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import wheel as wheels
from requirements import requirements

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Platform:
    """What is known of a platform. {root} and the names of `programs` stand for paths in `python`."""

    machine: str
    system: str  # what Python calls it, as sysconfig.get_platform
    tags: tuple[str, ...]  # of wheels that it installs, the newest first
    torch: str  # compiled for CPUs
    python_version: str
    python: tuple[str, ...]  # the command that runs its Python here
    packages: tuple[str, ...]  # Debian's, which make the root
    architecture: str  # Debian's name of it
    programs: dict[str, str]  # of this machine -> the Debian packages that have them
    toolchain: str  # CMake's file
    binutils: str  # what the names of its nm begin with
    cpus: dict[str, str]  # of each instruction set, an emulated CPU that has it and none that is better


PLATFORMS = {
    "aarch64": Platform(
        machine="aarch64",
        system="linux-aarch64",
        tags=("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64"),
        torch="torch==2.10.0",  # newer ones on PyPI are compiled for CUDA
        python_version="3.11",
        python=("{qemu-aarch64-static}", "-L", "{root}", "{root}/usr/bin/python3.11"),
        packages=("python3.11", "libstdc++6", "libgomp1"),
        architecture="arm64",
        programs={
            "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
            "qemu-aarch64-static": "qemu-user-static",
        },
        toolchain="cmake/aarch64.cmake",
        binutils="aarch64-linux-gnu-",
        cpus={"i8mm": "max", "dotprod": "neoverse-n1", "neon": "a64fx"},  # torch itself wants armv8.1
    ),
}

# What torch imports; pip would evaluate what wheels ask for as for this machine.
OF_TORCH = ("filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy", "typing_extensions")
OF_TESTS = ("iniconfig", "packaging", "pluggy", "pygments", "markdown-it-py", "mdurl")

# Of the operators' tests, those that fit into minutes under an emulator: all operators and formats.
SHARE = (
    "test_operators.py",
    "-k",
    "own and (within_the_bound or exact or nan_and_inf) and not M515 and not 2_31",
)
TESTS = {
    "share": SHARE,
    "all": ("test_operators.py", "test_blockwise.py", "test_layouts.py", "-k", "not generic and not 2_31"),
}


class Foreign:
    """A platform's programs and folders, brought here where they are not yet."""

    def __init__(self, name: str) -> None:
        self.platform = PLATFORMS[name]
        self.folder = ROOT / "build" / name
        self.root, self.site, self.tools = self.folder / "root", self.folder / "site", self.folder / "tools"
        lacking = [p for program, p in self.platform.programs.items() if not shutil.which(program)]
        if lacking:
            unpack_packages(lacking, None, self.tools)
        unpack_packages(self.platform.packages, self.platform.architecture, self.root)
        self.install()

    def program(self, name: str) -> str:
        return shutil.which(name) or str(self.tools / "usr" / "bin" / name)

    def install(self) -> None:
        """Torch and what the tests import, by this machine's pip."""
        packages = (self.platform.torch, *OF_TORCH, *OF_TESTS, *requirements("test"))
        if is_done(self.site, packages):
            return
        tags = [argument for tag in self.platform.tags for argument in ("--platform", tag)]
        wheels.run(
            *(
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--only-binary=:all:",
                "--upgrade",
            ),
            *("--target", self.site, "--python-version", self.platform.python_version, *tags, *packages),
        )
        note(self.site, packages)

    def defines(self) -> dict[str, str]:
        """What CMake is told."""
        beside = {} if shutil.which(next(iter(self.platform.programs))) else {"AOEXT_TOOLS": str(self.tools)}
        toolchain = {"CMAKE_TOOLCHAIN_FILE": str(ROOT / self.platform.toolchain)}
        return {**toolchain, **beside, "AOEXT_TORCH": str(self.site / "torch")}

    def unpack_wheel(self) -> Path:
        """The newest wheel of dist/, beside torch, where its library looks for it."""
        found = sorted(
            (ROOT / "dist").glob(f"aoext-*{self.platform.machine}.whl"), key=lambda p: p.stat().st_mtime
        )
        if not found:
            sys.exit(f"foreign: dist/ must have a wheel for {self.platform.machine}, got none")
        for old in (*self.site.glob("aoext-*.dist-info"), self.site / "aoext"):
            shutil.rmtree(old, ignore_errors=True)
        with zipfile.ZipFile(found[-1]) as archive:
            archive.extractall(self.site)
        return found[-1]

    def run(self, *arguments: str | Path, cwd: Path, cpu: str = "max", **variables: str) -> int:
        """The exit status of the platform's Python on an emulated CPU."""
        places = {name: self.program(name) for name in self.platform.programs} | {"root": str(self.root)}
        command = [part.format_map(places) for part in self.platform.python] + [str(a) for a in arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.site), "QEMU_CPU": cpu, **variables}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        print(f"+ QEMU_CPU={cpu}", *command, flush=True)
        return subprocess.run(command, cwd=cwd, env=environment).returncode


def is_done(folder: Path, what: object) -> bool:
    """Whether a folder holds what it was filled with."""
    done = folder / ".done"
    return done.is_file() and done.read_text() == repr(what)


def note(folder: Path, what: object) -> None:
    (folder / ".done").write_text(repr(what))


def unpack_packages(packages: list[str] | tuple[str, ...], architecture: str | None, folder: Path) -> None:
    """Debian packages, and what they need, in a folder of their own.

    Of another architecture they need all; of this machine's what is not installed on it.
    """
    if is_done(folder, packages):
        return
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        sys.exit(f"foreign: apt-get and dpkg fetch {', '.join(packages)}, and were not found: use Debian 12")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        private = Path(scratch)
        for place in ("state/lists/partial", "cache/archives/partial"):
            (private / place).mkdir(parents=True)
        status = private / "status" if architecture else Path("/var/lib/dpkg/status")
        status.touch()
        lines = [
            f'Dir::State "{private}/state";',
            f'Dir::State::status "{status}";',
            f'Dir::Cache "{private}/cache";',
            'APT::Install-Recommends "false";',
            'APT::Sandbox::User "";',
        ]
        if architecture:
            lines += [f'APT::Architecture "{architecture}";', f'APT::Architectures {{ "{architecture}"; }};']
        configuration = private / "apt.conf"
        configuration.write_text("\n".join(lines))
        for command in (["update"], ["install", "--yes", "--download-only", *packages]):
            print("+ apt-get", *command, flush=True)
            done = subprocess.run(
                ["apt-get", "-qq", *command],
                env={**os.environ, "APT_CONFIG": str(configuration)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                of = f" for {architecture}" if architecture else ""
                sys.exit(f"{done.stdout}\nforeign: the packages{of} are Debian 12's: {', '.join(packages)}")
        for package in (private / "cache" / "archives").glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder], check=True)
    note(folder, packages)


def build(foreign: Foreign) -> None:
    """The wheel, checked as far as this machine can."""
    system = {"_PYTHON_HOST_PLATFORM": foreign.platform.system}  # for the wheel's tag
    binutils = foreign.program(next(iter(foreign.platform.programs))).removesuffix("g++")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        built = wheels.build("cpu", scratch, foreign.defines(), **system)
        wheels.check_contents(built, "cpu", scratch, foreign.platform.machine, f"{binutils}nm")
    print(f"foreign: {built.relative_to(ROOT)} is good")


def test(foreign: Foreign, which: str, isas: list[str]) -> None:
    """The operators' tests with each instruction set, on a CPU that has no better one."""
    print(f"foreign: tests of {foreign.unpack_wheel().name}")
    tests = foreign.folder / "tests"
    shutil.rmtree(tests, ignore_errors=True)
    tests.mkdir()
    for file in (*wheels.HELPERS, *(name for name in TESTS[which] if name.endswith(".py"))):
        shutil.copy(ROOT / "tests" / file, tests)
    for isa in isas:
        cpu = foreign.platform.cpus[isa]
        program = (
            f"from aoext.info import build_config as c; assert c()['cpu instruction set'] == {isa!r}, c()"
        )
        if foreign.run("-c", program, cwd=tests, cpu=cpu):
            sys.exit(f"foreign: {cpu} must run {isa}")
        if foreign.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS[which], cwd=tests, cpu=cpu):
            sys.exit(f"foreign: the tests fail with {isa} on {cpu}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["wheel", "test", "run"])
    parser.add_argument("platform", choices=PLATFORMS)
    parser.add_argument("--tests", choices=TESTS, default="share")
    parser.add_argument("--isa", help="one instruction set in place of all")
    arguments, rest = parser.parse_known_args()
    foreign = Foreign(arguments.platform)
    if arguments.command == "wheel":
        build(foreign)
    elif arguments.command == "test":
        test(foreign, arguments.tests, [arguments.isa] if arguments.isa else list(foreign.platform.cpus))
    else:
        foreign.unpack_wheel()
        sys.exit(foreign.run(*rest, cwd=Path.cwd()))


if __name__ == "__main__":
    main()

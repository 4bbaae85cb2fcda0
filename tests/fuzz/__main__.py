"""`python -m tests.fuzz`, see command.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests' own modules

from fuzz.command import main

if __name__ == "__main__":
    sys.exit(main())

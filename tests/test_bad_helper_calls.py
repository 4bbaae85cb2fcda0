"""Bad calls of the Python helpers raise TypeError or ValueError, and none crashes the process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_thousands_of_drawn_helper_calls_raise_what_they_should():
    script = Path(__file__).parent / "draw_helper_calls.py"
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    found = re.search(r"calls: (\d+), raised: (\d+), ran: (\d+)", done.stdout)
    calls, raised, ran = map(int, found.groups())
    assert calls >= 2000
    assert raised >= 500
    assert ran >= 300

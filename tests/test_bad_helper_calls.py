"""Bad calls of the Python helpers raise TypeError or ValueError, and none crashes the process."""

from __future__ import annotations

from conftest import run_drawn_calls


def test_thousands_of_drawn_helper_calls_raise_what_they_should():
    calls, raised, ran = run_drawn_calls("draw_helper_calls.py")
    assert calls >= 2000
    assert raised >= 500
    assert ran >= 300

"""Which cases of the test bodies run: none that shows nothing new; with `pytest -m quick` one of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

# Files and bodies that `-m quick` leaves out: they build, compile or start programs for what others show too.
LEFT_OUT: frozenset[str] = frozenset()


def body(item: pytest.Item) -> str:
    """The file and the test function of a case, such as test_packing.py::test_x."""
    return f"{item.path.name}::{getattr(item, 'originalname', None) or item.name}"


def parameters(item: pytest.Item) -> dict[str, Any]:
    """Of a case, by name."""
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def repetitions(items: Sequence[pytest.Item], simulated: bool) -> list[pytest.Item]:
    """Cases that show nothing which others do not.

    A generic kernel is made of ATen operators, and a simulated XPU hands these to the CPU: there one case of
    each body and operator is enough.
    """
    seen, found = set(), []
    for item in items if simulated else ():
        given = parameters(item)
        if (given.get("device"), given.get("kernel_of")) == ("xpu", "generic"):
            key = (body(item), given.get("operator"))
            if key in seen:
                found.append(item)
            seen.add(key)
    return found


def mark_quick(items: Iterable[pytest.Item]) -> None:
    """Mark the first case of each body, which the order of devices makes one of the CPU."""
    seen = set()
    for item in items:
        name = body(item)
        if name not in seen and not {name, item.path.name} & LEFT_OUT:
            item.add_marker("quick")
        seen.add(name)

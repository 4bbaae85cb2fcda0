"""Puts our passes into Inductor, when and if it is loaded, behind whatever passes others set.

Inductor has one slot for each place where a pass can run: a variable of torch._inductor.config that holds a
pass (from torch 2.13 on, or a list of them). An assignment drops what was there, so we do not assign:
reading a slot gives what others put there, at any time, and our pass behind it. The variable itself stays
theirs.

Loading torch._inductor.config takes more than a second, so `install` waits for somebody else to import it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from aoext.other_packages import when_imported

CONFIG = "torch._inductor.config"
# Inductor's slots, and which of our passes (passes.OURS) run in each.
SLOTS = {"joint_custom_post_pass": "before_freezing", "post_grad_custom_pre_pass": "after_partition"}


def install() -> None:
    """Extend the slots now if Inductor is loaded, else as soon as it is."""
    when_imported(CONFIG, _extend_slots)


def _extend_slots(config: ModuleType) -> None:
    """Each module of configuration has a class of its own, on which a property comes before its variables."""

    def slot(name: str, ours: str) -> property:
        return property(lambda self: _chain(self.__getattr__(name), ours))

    for name, ours in SLOTS.items():
        if hasattr(config, name):
            setattr(type(config), name, slot(name, ours))


def _chain(theirs: Any, ours: str) -> Any:
    # Imported when a slot is read: passes imports Inductor, which may be what is being loaded.
    from aoext.inductor import passes

    return passes.chain(theirs, passes.OURS[ours])

"""Puts our passes into Inductor, when and if it is loaded, behind whatever passes others set.

Inductor has one slot for each place where a pass can run: a variable of torch._inductor.config that holds a
pass (from torch 2.13 on, or a list of them). Who assigns to it drops what was there. So we do not assign:
reading a slot gives what others put there, at any time, and our pass behind it. The variable itself stays
theirs.

Loading torch._inductor.config takes more than a second, so `install` waits for somebody else to import it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

CONFIG = "torch._inductor.config"


def install() -> None:
    """Extend the slots now if Inductor is loaded, else as soon as it is."""
    if CONFIG in sys.modules:
        _extend_slots(sys.modules[CONFIG])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _extend_slots(config: ModuleType) -> None:
    """Each module of configuration has a class of its own, on which a property comes before its variables."""
    from aoext.inductor.passes import SLOTS, chain

    def slot(name: str, ours: Any) -> property:
        return property(lambda self: chain(self.__getattr__(name), ours))

    for name, ours in SLOTS.items():
        if hasattr(config, name):
            setattr(type(config), name, slot(name, ours))


class _Finder(MetaPathFinder):
    """Finds torch._inductor.config as usual, and runs _extend_slots when it has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != CONFIG:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:  # get_source and the like
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _extend_slots(module)

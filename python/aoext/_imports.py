"""Calls that follow the import of a module which takes long to load, or may not be there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


def when_imported(name: str, action: Action) -> None:
    """Call action(module) now if the module `name` is loaded, else as soon as somebody has imported it."""
    if name in sys.modules:
        action(sys.modules[name])
    elif not any(isinstance(f, _Finder) and (f.name, f.action) == (name, action) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(MetaPathFinder):
    """Finds one module as others do, and has the action follow when it has been executed."""

    def __init__(self, name: str, action: Action) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.action)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, action: Action) -> None:
        self._loader, self._action = loader, action

    def __getattr__(self, name: str) -> Any:  # get_source and the like
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._action(module)

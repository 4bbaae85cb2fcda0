"""Other packages, none of which is imported here: calls that follow an import, and their marks on models."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch import nn

Action = Callable[[ModuleType], None]


def when_imported(name: str, action: Action) -> None:
    """Call action(module) now if the module `name` is loaded, else as soon as somebody has imported it."""
    if name in sys.modules:
        action(sys.modules[name])
    elif not any(isinstance(f, _Finder) and (f.name, f.action) == (name, action) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(MetaPathFinder):
    """Finds one module as others do, and has the action follow when it has been executed.

    It stays until then: programs look for a module, too, to know whether it is installed.
    """

    def __init__(self, name: str, action: Action) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> Any:  # get_source and the like
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
            self._finder.action(module)


# Packages whose tensors are quantised weights.
QUANTISERS = ("torchao", "bitsandbytes", "optimum", "quanto")


def quantised_by(weight: object) -> str | None:
    """The package that has quantised a weight; None for plain ones and for aoext's."""
    packages = (kind.__module__.partition(".")[0] for kind in type(weight).__mro__)
    return next((package for package in packages if package in QUANTISERS), None)


def peft_adapters(model: nn.Module) -> tuple[str, ...]:
    """Where PEFT's adapters begin: names of the submodules that it has put beside or around layers."""
    return tuple(
        ".".join(filter(None, (name, adapter)))
        for name, module in model.named_modules()
        for adapter in _names(module, "adapter_layer_names")
    )


def _names(module: nn.Module, attribute: str) -> tuple[str, ...]:
    names = getattr(type(module), attribute, ())
    return names if isinstance(names, tuple) else ()


def is_within(name: str, places: tuple[str, ...]) -> bool:
    """Whether a module of that name is one of `places` or inside one."""
    return any(place in ("", name) or name.startswith(f"{place}.") for place in places)


def offloaded_by_accelerate(model: nn.Module) -> tuple[str, ...]:
    """Names of the modules whose weights a hook of accelerate fetches at each call, and drops afterwards."""
    return tuple(
        name
        for name, module in model.named_modules()
        if any(getattr(hook, "offload", False) for hook in _hooks(module))
    )


def _hooks(module: nn.Module) -> Iterator[object]:
    hook = getattr(module, "_hf_hook", None)
    if hook is not None:
        yield from getattr(hook, "hooks", (hook,))

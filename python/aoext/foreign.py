"""What other packages put into a model, told by its form, so that none of them is imported."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

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

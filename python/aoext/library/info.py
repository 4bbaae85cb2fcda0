"""What this aoext is made of and what it would run: show_config and explain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from aoext.operators.calls import ao, bound, described, operators


def build_config() -> dict[str, str]:
    """How the library was built and which CPU instruction set it runs, as named texts."""
    return dict(line.split(": ", 1) for line in ao._build_config().splitlines())


def devices() -> dict[str, str]:
    """Device type -> whose kernels serve it: "own" or "generic". Devices that are at hand alone."""
    found = {"cpu": "own"}
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        key = torch._C._dispatch_key_for_device(accelerator.type)
        own = torch._C._dispatch_has_kernel_for_dispatch_key("ao::bf16i4bf16_rowwise", key)
        found[accelerator.type] = "own" if own else "generic"
    return found


def show_config() -> str:
    """A text for people and bug reports: versions, what was compiled in, devices, threads.

    >>> print(aoext.show_config())  # doctest: +SKIP
    """
    lines = {
        **build_config(),
        "torch": torch.__version__,
        "devices": ", ".join(f"{name} ({kernels} kernels)" for name, kernels in devices().items()),
        "threads": str(torch.get_num_threads()),
    }
    return "aoext\n" + "\n".join(f"  {name}: {value}" for name, value in lines.items())


def warmup(device: torch.device | str | int | None = None) -> dict[str, str]:
    """Pays up front what the first calls on a device would pay: builds its kernels and checks them.

    Returns each family of kernels with "ok", with "not checked" where the device needs no check, or with what
    was wrong: then its kernels are turned off in this process and slower ones serve. Empty for a device that
    has nothing to build. Without `device`, the current accelerator, or the CPU where there is none. It waits
    for the device. Raises TypeError or RuntimeError for a device that torch does not know.

    >>> aoext.warmup("xpu")  # doctest: +SKIP
    {'int4_tile.dpas': 'ok', ...}
    """
    if device is None:
        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    lines = ao._warmup(torch.empty(0, device=device)).splitlines()
    return dict(line.split(": ", 1) for line in lines)


@dataclass(frozen=True)
class Explanation:
    """What a device runs for a call: the kernel, and how it is to work by name, as text or numbers.

    `device` is cpu, cuda, xpu, or "generic" where ATen operators serve.
    """

    device: str
    kernel: str
    choices: dict[str, str | int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.device}: " + ", ".join([self.kernel, *(f"{n} {v}" for n, v in self.choices.items())])


def explain(operator: str, *arguments: Tensor | torch.dtype | int | None, **options: Any) -> Explanation:
    """Which kernel `torch.ops.ao.<operator>` would choose for these arguments; nothing is computed.

    Takes the operator's own arguments. Raises ValueError for an unknown operator, TypeError where there is no
    tensor, and the operator's RuntimeError for arguments that it would refuse.

    >>> print(aoext.explain("int8_mm", x, w))  # doctest: +SKIP
    cpu: gemv_i8, instruction_set avx512
    """
    if operator not in operators():
        raise ValueError(f"explain: operator must be one of {', '.join(operators())}, got {operator!r}")
    names = [a.name for a in getattr(ao, operator).default._schema.arguments]
    if len(arguments) > len(names) or options.keys() - set(names):
        given = [f"{len(arguments)} by position", *options]
        raise TypeError(f"explain: arguments must be {', '.join(names)}, got {', '.join(given)}")
    tensors, numbers, dtype = described(operator, bound(operator, arguments, options))
    first = next((t for t in tensors if t is not None), None)
    if first is None:
        raise TypeError(f"explain: arguments must be those of ao::{operator}, got no tensor")
    lines = [line.split(": ", 1) for line in ao._explain(operator, tensors, numbers, dtype).splitlines()]
    if not lines:
        device = first.device.type
        key = torch._C._dispatch_key_for_device(device)
        if torch._C._dispatch_has_kernel_for_dispatch_key(f"ao::{operator}", key):
            return Explanation(device, "a kernel that another package registered")
        return Explanation("generic", "ATen operators")
    (_, device), (_, kernel), *choices = lines
    return Explanation(device, kernel, {n: int(v) if v.isdecimal() else v for n, v in choices})

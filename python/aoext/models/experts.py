"""Modules that keep the weights of all experts of a layer in parameters of three dimensions.

Those that transformers' decorator use_experts_implementation makes choose by their config how experts run,
and run quantised ones by integrations/experts.py. They may lack attributes that later releases have.
"""

from __future__ import annotations

from typing import Any

from torch import nn

# The name of the function that runs them, in ALL_EXPERTS_FUNCTIONS of transformers.
IMPLEMENTATION = "aoext"

_NAMES = ("gate_up_proj", "up_proj", "down_proj", "weight")

# Classes that take their weights expert by expert, or by torch.bmm, in a forward of their own, by name; and
# whether these lie as [E, K, N].
_OWN_FORWARD = {"JetMoeParallelExperts": False, "Llama4TextExperts": True, "Step3p7Experts": False}


def expert_weights(module: nn.Module) -> tuple[str, ...]:
    """The names of a module's parameters that are weights of experts and can be quantised; none of most."""
    if not (_is_dispatched(module) or type(module).__name__ in _OWN_FORWARD):
        return ()
    parameters = ((name, module._parameters.get(name)) for name in _NAMES)
    return tuple(
        name for name, p in parameters if p is not None and not nn.parameter.is_lazy(p) and p.dim() == 3
    )


def are_transposed(module: nn.Module) -> bool:
    """Whether a module keeps the weights of its experts as [E, K, N]."""
    known: Any = module
    if type(module).__name__ in _OWN_FORWARD:
        return _OWN_FORWARD[type(module).__name__]
    return bool(getattr(known, "is_transposed", getattr(known, "experts_are_transposed", False)))


def are_interleaved(module: nn.Module) -> bool:
    """Whether rows of gate and up take turns in a module's gate_up_proj."""
    known: Any = module
    return not getattr(known, "is_concatenated", type(module).__name__ != "GptOssExperts")


def run_by_aoext(module: nn.Module) -> None:
    """Have a module run its experts by the function of this package, where it chooses one."""
    if _is_dispatched(module):
        known: Any = module
        known.config._experts_implementation = IMPLEMENTATION


def _is_dispatched(module: nn.Module) -> bool:
    chooses = hasattr(getattr(module, "config", None), "_experts_implementation")
    return chooses and hasattr(type(module).forward, "__wrapped__") and "down_proj" in module._parameters

"""torch.export: reading a field of a quantised weight becomes a node of the graph.

PyTorch records a read while its mode for torch functions is on. The mode is off within a torch function,
where a field would become a constant, and a fake one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

# Functions whose results PyTorch does not record, and those that give the same to a graph.
_RECORDED: dict[Any, Callable[..., Any]] = {Tensor.data.__get__: Tensor.detach}  # type: ignore[attr-defined]


def exports() -> bool:
    """Whether PyTorch records what runs here and now; Dynamo, which runs before it, does not."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def recorded(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a torch function gives; fields that it reads become nodes."""
    # Internals of PyTorch, so importing aoext shall not need them.
    from torch._ops import _get_dispatch_mode_pre_dispatch
    from torch.fx.experimental.proxy_tensor import PreDispatchTorchFunctionMode, has_proxy_slot

    mode = _get_dispatch_mode_pre_dispatch(torch._C._TorchDispatchModeKey.PROXY)
    weights: list[Any] = [arg for arg in tree_leaves((args, kwargs)) if is_traceable_wrapper_subclass(arg)]
    # The fields of a weight that is no node itself, such as contiguous() makes, are nodes.
    is_on = mode is not None and all(has_proxy_slot(weight, mode.tracer) for weight in weights)
    with PreDispatchTorchFunctionMode(mode.tracer) if is_on else nullcontext():
        return _RECORDED.get(function, function)(*args, **kwargs)


def check_torchscript() -> None:
    """Raise where torch.jit.trace takes a module, whose parameters torch.jit.save reads from their memory."""
    if torch.jit._trace._trace_module_map is not None:
        raise NotImplementedError(
            "torch.jit.trace of a module with quantised weights is not implemented: use torch.export, or "
            "trace a function, torch.jit.trace(lambda *inputs: model(*inputs), ...), without gradients: "
            "model.requires_grad_(False)"
        )

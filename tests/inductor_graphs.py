"""Inductor's own graph of a function, after all of its passes and without code: for tests of our passes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor import compile_fx, config, virtualized
from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
from torch._subclasses.fake_tensor import FakeTensorMode

import aoext
from aoext.inductor.graph import arguments

ao = torch.ops.ao


class Graphs(list[torch.fx.GraphModule]):
    """The graphs of one function, each called operator by operator as Inductor would have compiled it."""

    @property
    def calls(self) -> Counter[str]:
        """How often each operator is called, by name."""
        return Counter(str(node.target).removesuffix(".default") for node in self.nodes())

    def nodes(self, target: Any = None) -> Iterator[torch.fx.Node]:
        for graph in self:
            for node in graph.graph.nodes:
                if node.op == "call_function" and target in (None, node.target):
                    yield node

    def of_ours(self) -> dict[str, int]:
        """The operators of `ao`, without their namespace."""
        return {name[3:]: count for name, count in self.calls.items() if name.startswith("ao.")}


def _inner_compile(found: Graphs, module: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
    mode = next((i.fake_mode for i in inputs if isinstance(i, Tensor) and hasattr(i, "fake_mode")), None)
    with virtualized.V.set_fake_mode(mode or FakeTensorMode(allow_non_fake_inputs=True)):
        view_to_reshape(module)
        post_grad_passes(module, bool(kwargs.get("is_inference")))
    module.recompile()
    found.append(module)

    def run(*arguments: Any) -> Any:
        several = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list) else arguments
        return module(*several)

    return run


def bias_of(product: torch.fx.Node) -> torch.fx.Node | None:
    """The bias of a call of one of our products, if it has one."""
    return arguments(product)["bias"]


def compiled(
    function: Callable[..., Any], *, grad: bool = False, dynamic: bool = False, **options: Any
) -> tuple[Callable[..., Any], Graphs]:
    """A function that runs Inductor's graphs of `function`, and these graphs; options are Inductor's."""
    torch._dynamo.reset()
    found = Graphs()

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        return compile_fx.compile_fx(module, inputs, inner_compile=functools.partial(_inner_compile, found))

    run = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)

    def call(*arguments: Any) -> Any:
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(grad))
            # Graphs from a cache would be compiled already.
            stack.enter_context(config.patch(force_disable_caches=True, **options))
            stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
            return run(*arguments)

    return call, found


def both_ways(function: Callable[..., Any], *inputs: Any, **options: Any) -> tuple[Any, Graphs, Any, Graphs]:
    """Result and graphs with our passes, then without them."""
    call, graphs = compiled(function, **options)
    result = call(*inputs)
    with aoext.inductor.patch(enabled=False):
        call, plain = compiled(function, **options)
        expected = call(*inputs)
    return result, graphs, expected, plain


@contextmanager
def only(**options: bool) -> Iterator[None]:
    """All passes off but those named."""
    off = dict.fromkeys(
        ("weight_only", "scaled_products", "bias", "share_quantization", "merge_linears"), False
    )
    with aoext.inductor.patch(**{**off, **options}):
        yield


class Holds(nn.Module):
    """A function of an input and of named weights, as the parameters of a module."""

    def __init__(self, function: Callable[..., Any], **weights: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(weight, requires_grad=False))

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs, **dict(self.named_parameters()))

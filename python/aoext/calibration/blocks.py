"""A model as a row of blocks: which these are, and what each of them is called with.

Hidden states go from block to block; all else that a model gives its blocks, such as masks and positions, is
noted once. Models whose blocks do more than that, or that have none, are one block.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from aoext.calibration.data import Batch

# A list of modules has the model's blocks if it has more than this share of the weights to be quantised.
_SHARE = 0.5

# How far the blocks one after the other may be from the model itself.
_TOLERANCE = 1e-2


class Stop(Exception):  # noqa: N818
    """What is wanted of a forward pass is there."""


@dataclass
class Block:
    """A part of a model that is calibrated at once.

    path: its name in the model; "" for all of it
    calls: beside hidden states, what it is called with for each batch
    """

    path: str
    module: nn.Module
    calls: list[Batch] = field(default_factory=list)

    def name(self, inner: str) -> str:
        """The name in the model of a module in the block."""
        return ".".join(filter(None, (self.path, inner)))


@dataclass
class Row:
    """Blocks one after the other, and the hidden states of the first for each batch; none of one block.

    in_tuple: whether blocks give hidden states in a tuple
    """

    blocks: list[Block]
    hidden: list[Tensor] | None
    in_tuple: bool = False

    @contextlib.contextmanager
    def given(self, hidden: Tensor) -> Iterator[None]:
        """All blocks give these hidden states, so that the model computes what comes after them."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            return (hidden,) if self.in_tuple else hidden

        with _forwards({block.module: forward for block in self.blocks}):
            yield


def run(module: nn.Module, call: Batch, hidden: Tensor | None) -> Any:
    """What a block gives, its hidden states where it has some."""
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    call = call.to(device)
    if hidden is None:
        return module(*call.args, **call.kwargs)
    return _first(module(hidden.to(device), *call.args, **call.kwargs))


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, (tuple, list)) and output else output


def find_list(model: nn.Module, weights: Sequence[Tensor]) -> tuple[str, nn.ModuleList] | None:
    """The list of like modules that has most of the weights."""
    meant = {id(weight): weight.numel() for weight in weights}
    whole = sum(meant.values())
    best: tuple[int, str, nn.ModuleList] | None = None
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len({type(child) for child in module}) != 1:
            continue
        inside = sum({id(p): meant.get(id(p), 0) for p in module.parameters()}.values())
        if inside > _SHARE * whole and (best is None or inside > best[0]):
            best = inside, path, module
    return None if best is None else best[1:]


def _without_cache(model: nn.Module, batch: Batch) -> Batch:
    takes = "use_cache" in inspect.signature(model.forward).parameters
    return Batch(batch.args, {"use_cache": False, **batch.kwargs}) if takes else batch


def row_of(model: nn.Module, batches: list[Batch], weights: Sequence[Tensor]) -> Row:
    """The model's blocks and what the first is given; the model as one block where it has none."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batches = [_without_cache(model, batch) for batch in batches]
    found = find_list(model, weights)
    if found is not None:
        path, modules = found
        blocks = [Block(f"{path}.{i}", module) for i, module in enumerate(modules)]
        captured = (_captured(model, blocks, batch.to(device)) for batch in batches)
        hidden = [states for states in captured if states is not None]
        if len(hidden) == len(batches):
            expected = _last_output(model, blocks, batches[0].to(device))
            if _is_the_model(blocks, hidden[0], _first(expected)):
                return Row(blocks, hidden, isinstance(expected, tuple))
    return Row([Block("", model, batches)], None)


def _captured(model: nn.Module, blocks: list[Block], batch: Batch) -> Tensor | None:
    """Hidden states that reach the first block, while blocks note their calls; None if they get none."""
    first: list[Tensor] = []
    called: list[Batch] = []

    def recorder(last: bool) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if args:
                hidden, args = args[0], args[1:]
            else:
                hidden = kwargs.pop("hidden_states", None)
            if not isinstance(hidden, Tensor):
                raise Stop
            if not called:
                first.append(hidden)
            kwargs = {name: None if "past_key_value" in name else value for name, value in kwargs.items()}
            called.append(Batch(args, kwargs))
            if last:
                raise Stop
            return hidden

        return forward

    # What a model makes of these outputs before the last block may fail: then it is one block.
    failures = (Stop, TypeError, IndexError, AttributeError, ValueError)
    recorders = {block.module: recorder(block is blocks[-1]) for block in blocks}
    with _forwards(recorders), contextlib.suppress(*failures):
        model(*batch.args, **batch.kwargs)
    if len(called) != len(blocks):
        return None
    for block, call in zip(blocks, called, strict=True):
        block.calls.append(call)
    return first[0]


@contextlib.contextmanager
def _forwards(replaced: dict[nn.Module, Any]) -> Iterator[None]:
    """Modules with other forwards for a while."""
    own = {module: module.__dict__.get("forward") for module in replaced}
    try:
        for module, forward in replaced.items():
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, forward in own.items():
            module.__dict__.pop("forward", None)
            if forward is not None:
                module.__dict__["forward"] = forward


def _last_output(model: nn.Module, blocks: list[Block], batch: Batch) -> Any:
    """What the last block gives when the model runs."""
    found: list[Any] = [None]

    def note(module: nn.Module, args: Any, output: Any) -> None:
        found[0] = output
        raise Stop

    handle = blocks[-1].module.register_forward_hook(note)
    try:
        with contextlib.suppress(Stop):
            model(*batch.args, **batch.kwargs)
    finally:
        handle.remove()
    return found[0]


def _is_the_model(blocks: list[Block], hidden: Any, expected: Any) -> bool:
    """Whether the blocks one after the other compute what the model has them compute."""
    for block in blocks:
        hidden = run(block.module, block.calls[0], hidden)
    if not isinstance(hidden, Tensor) or not isinstance(expected, Tensor) or hidden.shape != expected.shape:
        return False
    difference = (hidden.float() - expected.float()).norm()
    # NaN is told of where a layer's inputs have it.
    return not bool(difference > _TOLERANCE * expected.float().norm())

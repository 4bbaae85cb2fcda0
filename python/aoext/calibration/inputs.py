"""What reaches the layers of a block: which share an input, in which order they run, and their inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from aoext.calibration.blocks import Stop
from aoext.configs import QuantizationConfig
from aoext.models.experts import expert_weights

# The name of the function that notes inputs of experts, in ALL_EXPERTS_FUNCTIONS of transformers.
_IMPLEMENTATION = "aoext_calibrate"
_RECORDER = "_aoext_recorder"


@dataclass
class Target:
    """A weight that is to be quantised.

    name: of the weight in the model
    places: names of its layers in the block, and of the parameter there; several layers may share it
    calls: how often its layers are called in a pass; 0 of those that are never reached
    pre_scale: by which its inputs are multiplied at every call, float32 [K]
    """

    name: str
    config: QuantizationConfig
    places: list[tuple[str, str]]
    calls: int = 0
    pre_scale: Tensor | None = None

    def layers(self, block: nn.Module) -> Iterator[tuple[nn.Module, str]]:
        for path, parameter in self.places:
            yield block.get_submodule(path), parameter

    def layer(self, block: nn.Module) -> nn.Module:
        return next(self.layers(block))[0]

    def weight(self, block: nn.Module) -> Any:
        layer, parameter = next(self.layers(block))
        return layer._parameters[parameter]

    def is_of_experts(self, block: nn.Module) -> bool:
        return bool(expert_weights(self.layer(block)))


# Takes a target, its input [T, K] and, of experts, where the rows of each end.
Note = Callable[[Target, Tensor, Tensor | None], None]


@contextlib.contextmanager
def watched(block: nn.Module, targets: Iterable[Target], note: Note, mask: Tensor | None) -> Iterator[None]:
    """Inputs of targets go to `note` while the block runs, without those of padding.

    mask: which tokens are none of padding, bool [B, L]
    """
    handles: list[Any] = []
    experts: dict[nn.Module, dict[str, Target]] = {}
    for target in targets:
        for layer, parameter in target.layers(block):
            if expert_weights(layer):
                experts.setdefault(layer, {})[parameter] = target
            else:
                handles.append(layer.register_forward_pre_hook(_hook(target, note, mask), with_kwargs=True))
    for module, by_name in experts.items():
        module.__dict__[_RECORDER] = _Experts(by_name, note, mask)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module in experts:
            module.__dict__.pop(_RECORDER, None)


def _hook(target: Target, note: Note, mask: Tensor | None) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        input = args[0] if args else kwargs.get("input", next(iter(kwargs.values()), None))
        if isinstance(input, Tensor) and input.is_floating_point():
            note(target, without_padding(input, mask), None)

    return hook


def without_padding(input: Tensor, mask: Tensor | None) -> Tensor:
    """Rows [T, K] of an input."""
    rows = input.detach().reshape(-1, input.shape[-1])
    if mask is None or mask.numel() != len(rows):
        return rows
    return rows[mask.to(rows.device).flatten()]


@dataclass
class _Experts:
    """What notes the rows that a module's experts get."""

    targets: dict[str, Target]
    note: Note
    mask: Tensor | None

    def __call__(self, name: str, rows: Tensor, offsets: Tensor) -> None:
        if name in self.targets:
            self.note(self.targets[name], rows.detach(), offsets)


def let_experts_be_watched(block: nn.Module) -> None:
    """Have the experts of a block, a copy, run by a function that can note their inputs."""
    for module in block.modules():
        known: Any = module
        if expert_weights(module) and hasattr(getattr(known, "config", None), "_experts_implementation"):
            _register()
            known.config._experts_implementation = _IMPLEMENTATION


def _register() -> None:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    from aoext.integrations.experts import count_of, output_of, up_name_of

    def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        recorder: _Experts | None = self.__dict__.get(_RECORDER)
        if recorder is not None and recorder.mask is not None:
            tokens = recorder.mask.to(top_k_index.device).flatten()
            if len(tokens) == len(top_k_index):  # padding has no expert
                nobody = count_of(getattr(self, up_name_of(self)))
                top_k_index = top_k_index.masked_fill(~tokens.unsqueeze(1), nobody)
                top_k_weights = top_k_weights * tokens.unsqueeze(1)
        return output_of(self, hidden_states, top_k_index, top_k_weights, recorder)

    ALL_EXPERTS_FUNCTIONS[_IMPLEMENTATION] = forward


@dataclass
class Group:
    """Targets with the same input, which share its statistics; those of experts are alone."""

    targets: list[Target] = field(default_factory=list)


def discover(block: nn.Module, targets: list[Target], passes: Iterable[Callable[[], Any]]) -> list[Group]:
    """Targets by their inputs, in the order in which passes reach them; it counts their calls in a pass.

    No more passes are made than it takes to reach all of them.
    """
    groups: dict[Any, Group] = {}
    placed: set[str] = set()
    for number, forward in enumerate(passes):
        calls: dict[str, int] = {}
        held: list[Tensor] = []  # so that no other input gets the same memory

        def note(target: Target, rows: Tensor, offsets: Tensor | None) -> None:
            calls[target.name] = calls.get(target.name, 0) + 1  # noqa: B023
            if target.name in placed:
                return
            placed.add(target.name)
            held.append(rows)  # noqa: B023
            key: Any = (rows.data_ptr(), tuple(rows.shape), number)  # noqa: B023
            groups.setdefault(target.name if offsets is not None else key, Group()).targets.append(target)

        with watched(block, targets, note, None), contextlib.suppress(Stop):
            forward()
        for target in targets:
            target.calls = max(target.calls, calls.get(target.name, 0))
        if len(placed) == len(targets):
            break
    return list(groups.values())


def until_seen(targets: Iterable[Target], note: Note) -> Note:
    """`note`, that stops the pass when these targets have had all of their calls."""
    left = {target.name: target.calls for target in targets}

    def counted(target: Target, rows: Tensor, offsets: Tensor | None) -> None:
        note(target, rows, offsets)
        left[target.name] -= 1
        if all(count <= 0 for count in left.values()):
            raise Stop

    return counted

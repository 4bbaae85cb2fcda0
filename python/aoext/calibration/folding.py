"""Factors and rotations of a layer's inputs that the layer before takes over, at no cost at run time.

    W x = (W·diag(s)) (x / s):  a norm with weights γ / s gives x / s, or a layer with rows divided by s

Which layer that is, a block's structure says: the norm whose output a layer takes as it is, or a linear layer
of the same parent with outputs as wide as the layer's inputs (v for o, up for down), whose heads may be
repeated. Whether it is so, the block says: with factors of powers of two, which round nothing, what it adds
to its input must stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aoext.calibration.blocks import Stop
from aoext.calibration.inputs import Group
from aoext.models.experts import expert_weights
from aoext.models.layers import as_rows

# How far what a block adds may move, by factors, which are exact, and by rotations, which round; and for what
# share of the tokens: a few may have values so large that nothing else of them shows.
_EXACT, _ROTATED, _TOKENS = 2e-2, 0.1, 0.9

# Columns that a rotation mixes.
ROTATION = 32

Key = tuple[int, int]


@dataclass
class Traffic:
    """Which modules of a block take and give which tensors, by their memory."""

    takes: dict[Key, list[nn.Module]]
    gives: dict[Key, nn.Module]
    inputs: dict[nn.Module, Key]
    held: list[Tensor]

    @classmethod
    def of(cls, block: nn.Module, forward: Callable[[], Any]) -> Traffic:
        traffic = cls({}, {}, {}, [])

        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            input = next((each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)), None)
            if input is not None and input.is_floating_point():
                traffic.held.append(input)
                traffic.inputs.setdefault(module, _key(input))
                traffic.takes.setdefault(_key(input), []).append(module)
            if isinstance(output, Tensor):
                traffic.held.append(output)
                traffic.gives.setdefault(_key(output), module)

        handles = [
            module.register_forward_hook(note, with_kwargs=True)
            for module in block.modules()
            if any(True for _ in module.parameters(recurse=False))
        ]
        try:
            with contextlib.suppress(Stop):
                forward()
        finally:
            for handle in handles:
                handle.remove()
        return traffic


def _key(tensor: Tensor) -> Key:
    return tensor.data_ptr(), tensor.numel()


@dataclass
class Link:
    """Layers with one input, and what gives it.

    consumers: layers and the parameters whose columns meet the input
    added: what a norm adds to its weights, as Gemma's do
    heads: (heads, how often each is repeated, their size) of what the producer gives; None where its outputs
        are the inputs one by one
    """

    producer: nn.Module
    consumers: list[tuple[nn.Module, str]]
    added: float = 0.0
    heads: tuple[int, int, int] | None = None

    @property
    def is_norm(self) -> bool:
        return _weight(self.producer).dim() == 1

    def shared(self, factors: Tensor) -> Tensor:
        """Factors [K] that the producer can take over: repeats of a head have the same."""
        if self.heads is None:
            return factors
        return factors.log().view(self.heads).mean(1, keepdim=True).exp().expand(self.heads).flatten()

    def scale(self, factors: Tensor) -> None:
        """Multiply columns of the consumers, and divide what the producer gives."""
        for layer, parameter in self.consumers:
            rows = as_rows(layer, layer._parameters[parameter].data)  # type: ignore[union-attr]
            rows.copy_(rows.float() * factors)
        if self.heads is not None:
            factors = factors.view(self.heads)[:, 0].flatten()
        weight = _weight(self.producer)
        if self.is_norm:
            weight.copy_((weight.float() + self.added) / factors - self.added)
        else:
            rows = as_rows(self.producer, weight)
            rows.copy_(rows.float() / factors.unsqueeze(1))
        if (bias := self.producer._parameters.get("bias")) is not None:
            bias.data.copy_(bias.float() / factors)

    def rotate(self) -> None:
        """Rotate each 32 outputs of the producer, and columns of the consumers back."""
        turn = hadamard(ROTATION, _weight(self.producer).device)
        for layer, parameter in self.consumers:
            rows = as_rows(layer, layer._parameters[parameter].data)  # type: ignore[union-attr]
            rows.copy_((rows.float().unflatten(-1, (-1, ROTATION)) @ turn).flatten(-2))
        rows = as_rows(self.producer, _weight(self.producer))
        rows.copy_((rows.float().t().unflatten(-1, (-1, ROTATION)) @ turn).flatten(-2).t())
        if (bias := self.producer._parameters.get("bias")) is not None:
            bias.data.copy_((bias.float().unflatten(-1, (-1, ROTATION)) @ turn).flatten(-2))

    @contextlib.contextmanager
    def tried(self) -> Iterator[None]:
        """All parameters of the link are in the end what they were."""
        parameters = [layer._parameters[name] for layer, name in self.consumers]
        parameters += list(self.producer._parameters.values())
        kept = [(p, p.data.clone()) for p in parameters if p is not None]
        try:
            yield
        finally:
            for parameter, data in kept:
                parameter.data.copy_(data)


# By a layer's name: the link that takes its factors, and the one that takes its rotation.
Links = dict[str, tuple[Link | None, Link | None]]


def _weight(module: nn.Module) -> Tensor:
    weight = module._parameters["weight"]
    assert weight is not None
    return weight.data


def hadamard(size: int, device: torch.device) -> Tensor:
    """Sylvester's matrix of ±1, scaled to be a rotation; it is its own inverse."""
    matrix = torch.ones(1, 1, dtype=torch.float32, device=device)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix / size**0.5


class _Probe:
    """Whether a block computes what it did."""

    def __init__(self, forward: Callable[[], Tensor], given: Tensor) -> None:
        self.forward = forward
        self.expected = forward().float()
        given = given.to(self.expected)
        # What it was given is most of what it gives, and shows no difference.
        added = self.expected - given if given.shape == self.expected.shape else self.expected
        self.added = added.norm(dim=-1)

    def is_same(self, tolerance: float) -> bool:
        difference = (self.forward().float() - self.expected).norm(dim=-1)
        return bool((difference <= tolerance * self.added).float().mean() >= _TOKENS)


def links_of(work: nn.Module, groups: list[Group], forward: Callable[[], Tensor], given: Tensor) -> Links:
    """The links of each group, by its first target; None where no layer takes a change over.

    forward: gives the block's output [..., hidden] for the input `given`
    """
    traffic = Traffic.of(work, forward)
    probe = _Probe(forward, given)
    parents = {child: parent for parent in work.modules() for child in parent.children()}
    links: Links = {}
    for group in groups:
        found = list(_candidates(work, group, traffic, parents))
        scaling = next((link for link in found if _takes_factors(link, probe)), None)
        rotating = next((link for link in found if _takes_rotation(link, probe)), None)
        links[group.targets[0].name] = scaling, rotating
    return links


def _candidates(
    work: nn.Module, group: Group, traffic: Traffic, parents: dict[nn.Module, nn.Module]
) -> Iterator[Link]:
    layer = group.targets[0].layer(work)
    key = traffic.inputs.get(layer)
    if key is None or expert_weights(layer):
        return
    columns = as_rows(layer, _weight(layer)).shape[-1]
    consumers = [(module, name) for module in traffic.takes[key] if (name := _columns_of(module, columns))]
    producer = traffic.gives.get(key)
    if producer is not None and _outputs(producer) == columns:
        yield Link(producer, consumers)
        if _weight(producer).dim() == 1:
            yield Link(producer, consumers, added=1.0)
    parent = parents.get(layer)
    if parent is None:
        return
    for sibling in parent.children():
        outputs = 0 if sibling is layer or sibling is producer else _outputs(sibling)
        if outputs and _weight(sibling).dim() == 2:
            if outputs == columns:
                yield Link(sibling, consumers)
            head = getattr(parent, "head_dim", None)
            if isinstance(head, int) and outputs < columns and columns % outputs == 0 and outputs % head == 0:
                yield Link(sibling, consumers, heads=(outputs // head, columns // outputs, head))


def _columns_of(module: nn.Module, columns: int) -> str:
    """The parameter whose columns meet a module's input; "" where none does."""
    names = expert_weights(module)[:1] or ("weight",)
    weight = module._parameters.get(names[0])
    if weight is None or weight.dim() < 2:
        return ""
    return names[0] if as_rows(module, weight).shape[-1] == columns else ""


def _outputs(module: nn.Module) -> int:
    """How many outputs a norm or a linear layer has; 0 of others."""
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() > 2 or any(True for _ in module.children()):
        return 0
    return len(weight) if weight.dim() == 1 else as_rows(module, weight).shape[0]


def _takes_factors(link: Link, probe: _Probe) -> bool:
    count = as_rows(link.consumers[0][0], _weight(link.consumers[0][0])).shape[-1]
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-2, 3, (count,), generator=generator).float()
    if link.heads is not None:
        exponents = exponents.view(link.heads)[:, :1].expand(link.heads).flatten()
    with link.tried():
        link.scale(exponents.to(probe.expected.device).exp2())
        return probe.is_same(_EXACT)


def _takes_rotation(link: Link, probe: _Probe) -> bool:
    size = _outputs(link.producer) if link.heads is None else link.heads[2]
    if link.is_norm or size % ROTATION:
        return False
    with link.tried():
        link.rotate()
        return probe.is_same(_ROTATED)

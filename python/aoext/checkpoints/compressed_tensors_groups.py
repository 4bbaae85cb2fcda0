"""The groups of a config of compressed-tensors: what each says of which layers."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch

from aoext.checkpoints.base import left_as_they_are
from aoext.checkpoints.expressions import Expression
from aoext.checkpoints.settings import Settings
from aoext.tensors import GROUPS_TYPES

TYPES = {"int": torch.int8, "float": torch.float8_e4m3fn}

# What may share a scale, by the bits and the type of the weights.
_STRATEGIES = {
    **{(bits, "int"): ("group", "channel") for bits in GROUPS_TYPES},
    (8, "int"): ("channel", "tensor", "group", "block"),
    (8, "float"): ("channel", "tensor", "group", "block"),
    (4, "float"): ("group", "tensor_group"),
}


class Scheme:
    """One entry of config_groups."""

    def __init__(self, group: Settings) -> None:
        who, weights = group.who, group.object("weights")
        bits, kind = weights.integer("num_bits", 8), weights.text("type", "int").lower()
        self.form = bits, kind
        self.in_groups = kind == "int" and bits in GROUPS_TYPES
        self.group_size = weights.group_size("group_size", -1)
        self.strategy = _strategy(weights)
        self.symmetric = weights.flag("symmetric", True)
        if self.form not in _STRATEGIES:
            raise ValueError(f"{who}: no kernel for weights of {bits} bits, {kind}")
        strategies = _STRATEGIES[self.form]
        if self.strategy not in strategies:
            raise ValueError(
                f"{who}: weights of {bits} bits must have a scale by "
                f"{' or '.join(strategies)} to run on aoext, got {reprlib.repr(self.strategy)}"
            )
        if self.strategy.endswith("group") and self.group_size == -1:
            weights.refuse("group_size", "a positive integer")
        if not self.symmetric and kind != "int":
            raise ValueError(f"{who}: weights of {bits} bits, {kind}, with zero points do not run on aoext")
        # Rows and columns that share a scale; None where these are whole rows, the weight, or in_groups.
        self.block_size = None if self.in_groups else self._blocks(weights)
        activations = group.object("input_activations")
        self.activation = activations.text("type", "int").lower()
        input_bits, symmetric = activations.integer("num_bits", 8), activations.flag("symmetric", True)
        self.dynamic_activation = (
            activations.choice("dynamic", (True, False, "local"), False) is True
            and input_bits == 8
            and symmetric
            and (self.activation == kind or (self.in_groups and self.activation in TYPES))
            and self._quantises_along_k(activations)
        )
        self.note = ""
        if activations and not self.dynamic_activation:
            zeros = "" if symmetric else " with zero points"
            self.note = left_as_they_are(input_bits, self.activation + zeros)

    def _blocks(self, weights: Settings) -> list[int] | None:
        if self.strategy in ("group", "tensor_group"):
            return [1, self.group_size]
        if self.strategy != "block":
            return None
        given = weights.any("block_structure")
        if isinstance(given, str):  # as "128x128"
            numbers = [
                int(size) if size.isdecimal() and len(size) < 19 else size for size in given.split("x")
            ]
            weights = Settings(weights.who, {"block_structure": numbers})
        sizes = weights.sizes("block_structure")
        if sizes is None:
            weights.refuse("block_structure", "two positive integers")
        return sizes

    def _quantises_along_k(self, activations: Settings) -> bool:
        """Whether activations have scales where a product by the weight can use them."""
        strategy = _strategy(activations)
        if self.block_size is None:
            return strategy == "token"
        return strategy == "group" and activations.group_size("group_size", -1) == self.block_size[1]


class Refusal(NamedTuple):
    """A group whose weights cannot run."""

    why: str


def scheme_of(name: str, group: Settings) -> Scheme | Refusal | None:
    """What a group says of its weights; None where it says nothing."""
    group = Settings(name, group.values)
    try:
        return Scheme(group) if group.object("weights") else None
    except ValueError as error:
        return Refusal(str(error))


def targets_of(group: Settings) -> list[str]:
    return group.texts("targets") or ["Linear"]


def _strategy(settings: Settings) -> str:
    """What shares a scale, which follows from the group_size where it is not said."""
    size = settings.group_size("group_size", 0) if "group_size" in settings else 0
    return settings.text("strategy", {0: "tensor", -1: "channel"}.get(size, "group")).lower()


_Said = TypeVar("_Said")


class Targets(Generic[_Said]):
    """What is said of layers: by name, by a regular expression behind "re:", or by class, in this order."""

    def __init__(self, key: str, said: Mapping[str, _Said]) -> None:
        self._said = said
        self._expressions = [
            (Expression(f"compressed-tensors: {key}", target.removeprefix("re:")), said[target])
            for target in sorted(said)
            if target.startswith("re:")
        ]

    def of(self, layer: str, classes: Sequence[str]) -> _Said | None:
        if layer in self._said:
            return self._said[layer]
        for expression, said in self._expressions:
            if expression.match(layer):
                return said
        return next((self._said[name] for name in sorted(classes) if name in self._said), None)

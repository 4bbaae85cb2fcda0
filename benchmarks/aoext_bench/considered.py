"""What an NVIDIA GPU's plan chooses a configuration among, and what the model says of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aoext import ops
from aoext.operators.calls import ao, bound, described


class Considered:
    """The configurations of a kernel for one call of an operator, of which meta tensors will do.

    RuntimeError where the kernel does not take the problem on that GPU, a name of csrc/cuda/gpus.h.
    """

    def __init__(self, gpu: str, kernel: str, operator: str, *arguments: Any, **options: Any) -> None:
        self.kernel = kernel
        self._call = (gpu, operator, *described(operator, bound(operator, arguments, options)))
        with ops.with_plan(kernel):
            words = ao._plan(*self._call).splitlines()[0].split(" | ")[0].split()
        if words[0] != kernel:
            raise RuntimeError(f"{operator} has no kernel {kernel}, its plan is {words[0]}")
        fields = [word.split("=") for word in words[1:]]
        self.names = tuple(name for name, _ in fields)
        self.chosen = tuple(int(value) for _, value in fields)
        table = self._rows(())
        self.configs = [tuple(map(int, row)) for row in table[:, 1:].tolist()]

    def microseconds(self, constants: Sequence[float] = ()) -> Tensor:
        """The model's time for each configuration; constants replace the GPU's own (csrc/cuda/fitted.h)."""
        return self._rows(constants)[:, 0]

    def _rows(self, constants: Sequence[float]) -> Tensor:
        with ops.with_plan(self.kernel):
            table = ao._considered(*self._call, torch.tensor(constants, dtype=torch.float64))
        return table.view(-1, 1 + len(self.names))

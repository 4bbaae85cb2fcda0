"""Copies of a weight, so many that going through them finds none in a cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aoext.reference import Tensors
from aoext_bench.devices import MIB, Device

LARGEST = 2048 * MIB

# Every tensor of a copy begins at a multiple of this, as a fresh tensor does.
ALIGNMENT = 256


def pool_bytes(device: Device) -> int:
    """How much a pool holds: several times the largest cache, and at least device.SMALLEST_POOL."""
    wanted = min(max(device.SMALLEST_POOL, device.CACHES * device.cache_bytes()), LARGEST)
    # A subject, its peer and F.linear have a pool each.
    return max(device.SMALLEST_POOL, min(wanted, device.free_bytes() // 8))


class Pool:
    """Some tensors and so many copies of them, at least two, that they take `size` bytes.

    Its memory stays from one filling to the next: to have the system map it anew takes longer than
    to write it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.original: Tensors = ()
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._copies = self._memory  # uint8 [count, bytes of a copy]
        self._turn = 0

    def fill(self, tensors: Tensors) -> None:
        """Hold these tensors, all of one device, instead of what was held before."""
        self.original = tensors
        stride = sum(map(_padded, tensors))
        count = max(2, math.ceil(self.size / stride))
        if self._memory.numel() < count * stride or self._memory.device != tensors[0].device:
            self._memory = tensors[0].new_empty(count * stride, dtype=torch.uint8)
        self._copies = self._memory[: count * stride].view(count, stride)
        begin = 0
        for tensor in tensors:
            content = tensor.contiguous().view(-1).view(torch.uint8)
            self._copies[:, begin : begin + tensor.nbytes] = content
            begin += _padded(tensor)

    @property
    def copies(self) -> int:
        """How many calls of next() it takes to come round."""
        return len(self._copies)

    def next(self) -> Tensors:
        """The copies whose last use is longest ago."""
        self._turn = (self._turn + 1) % len(self._copies)
        copy, begin, tensors = self._copies[self._turn], 0, []
        for like in self.original:
            content = copy[begin : begin + like.nbytes]
            tensors.append(content.view(like.dtype).view(like.shape))
            begin += _padded(like)
        return tuple(tensors)


def _padded(tensor: Tensor) -> int:
    return math.ceil(tensor.nbytes / ALIGNMENT) * ALIGNMENT

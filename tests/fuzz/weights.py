"""Views, copies and products of quantised weights, step by step beside the plain weight that they stand for.

A step gives what it gives of the plain weight, or is refused with an error that says why.
"""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from aoext.reference import assert_close
from aoext.tensors import QuantizedTensor
from aoext.tensors.flat import Flat
from formats import FORMATS, GROUP_SIZE, HIGH_PRECISION, columns_step, meaning, product
from fuzz.draws import Answer, Draw, refusal

REFUSALS = (NotImplementedError, ValueError, RuntimeError, IndexError, TypeError)

# A step is named with its numbers, and can be done to any tensor.
Step = tuple[str, Callable[[Any], Any]]


def _end(draw: Draw, length: int) -> int | None:
    """Mostly a boundary of groups, at times any number or none."""
    groups = GROUP_SIZE * draw.randint(-1, length // GROUP_SIZE + 1)
    return draw.choice([groups, groups, groups, draw.randint(-length - 2, length + 2), None])


def _pickled(tensor: Any) -> Any:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


def draw_step(draw: Draw, shape: list[int]) -> Step:
    """A step that keeps the values, whatever it makes of the shape."""
    dim = draw.choice([0, 1, -1, -2])
    length = shape[dim]
    start, end = _end(draw, length), _end(draw, length)
    count = draw.randint(-1, 5)
    size = draw.choice([GROUP_SIZE, 2 * GROUP_SIZE, draw.randint(-1, length + 1)])
    which = slice(start, end)
    steps: list[Step] = [
        (f"[{start}:{end}]", lambda t: t[which]),
        (f"[:, {start}:{end}]", lambda t: t[:, which]),
        (f"narrow({dim}, {start or 0}, {size})", lambda t: t.narrow(dim, start or 0, size)),
        ("t()", lambda t: t.t()),
        (f"transpose({dim}, {count})", lambda t: t.transpose(dim, count)),
        ("permute(1, 0)", lambda t: t.permute(1, 0)),
        (f"chunk({count}, {dim})[-1]", lambda t: t.chunk(count, dim)[-1]),
        (f"split({size}, {dim})[0]", lambda t: t.split(size, dim)[0]),
        (f"cat([t, t], {dim})", lambda t: torch.cat([t, t], dim)),
        ("detach()", lambda t: t.detach()),
        ("clone()", lambda t: t.clone()),
        ("contiguous()", lambda t: t.contiguous()),
        ("view_as(t)", lambda t: t.view_as(t)),
        ("view(shape)", lambda t: t.view(*t.shape)),
        (f"new_zeros(2, {size}).shape", lambda t: t.new_zeros(2, size)[:0]),
        ("deepcopy", lambda t: copy.deepcopy(t.detach())),
        ("to('cpu', copy=True)", lambda t: t.to("cpu", copy=True)),
        ("saved and loaded", lambda t: _pickled(t.detach())),
        (f"pad 16 rows of {dim}", lambda t: torch.nn.functional.pad(t, (0, 0, 0, GROUP_SIZE))),
        ("copy_ of itself", lambda t: t.clone().copy_(t)),
        (f"as parameter, requires_grad_({count > 2})", lambda t: torch.nn.Parameter(t.detach(), count > 9)),
        ("reshape(shape)", lambda t: t.reshape(t.shape)),
        (f"squeeze({dim})", lambda t: t.squeeze(dim)),
        (f"[{count}]", lambda t: t[count]),
        (f"unbind({dim})[0]", lambda t: t.unbind(dim)[0]),
        (f"flip({dim})", lambda t: t.flip(dim)),
        (f"[::{count}]", lambda t: t[::count]),
        ("flatten()", lambda t: t.flatten()),
    ]
    return draw.choice(steps)


def weight_steps(draw: Draw) -> tuple[str, Callable[[], Answer]]:
    format, dtype = draw.choice(list(FORMATS)), draw.choice(HIGH_PRECISION)
    step = math.lcm(GROUP_SIZE, columns_step(format))
    N, K = draw.choice([1, 5, 16, 32, 48]), step * draw.choice([1, 2, 3, 6])
    plain = torch.randn(N, K, generator=draw.generator()).to(dtype)
    weight: Any = FORMATS[format](plain)
    words = [f"{format} {dtype} [{N}, {K}]"]
    steps = [draw_step(draw, [N, K]) for _ in range(draw.randint(1, 5))]
    words += [name for name, _ in steps]
    seed = draw.getrandbits(62)

    def attempt() -> Answer:
        ours, plain = weight, weight.dequantize()
        answer = "ran"
        for name, step in steps:
            kept = ours, plain
            try:
                ours = step(ours)
            except REFUSALS as error:
                refusal(error)
                answer = "raised"
                ours, plain = kept
                continue
            try:
                plain = step(plain)
            except REFUSALS as error:
                raise AssertionError(f"{name} of a plain weight raises {error!r}") from error
            _compare(name, ours, plain)
            if not isinstance(ours, QuantizedTensor) or ours.dim() != 2:
                ours, plain = kept
        _multiply(Draw(seed), ours)
        return answer

    return ", ".join(words), attempt


def _compare(name: str, ours: Any, plain: Tensor) -> None:
    assert list(ours.shape) == list(plain.shape), f"{name}: {list(ours.shape)} for {list(plain.shape)}"
    assert ours.dtype is plain.dtype, f"{name}: {ours.dtype} for {plain.dtype}"
    parts = ours.parts if isinstance(ours, Flat) else [ours]  # view(-1) of a weight is one
    flat = torch.cat([(t.dequantize() if isinstance(t, QuantizedTensor) else t).flatten() for t in parts])
    values = flat.view(plain.shape)
    assert torch.equal(values, plain), f"{name}: other values than of the plain weight"


def _multiply(draw: Draw, weight: QuantizedTensor) -> None:
    """Products and rows of what the steps have left."""
    if weight.transposed:
        weight = weight.t()
    N, K = weight.shape
    x = torch.randn(draw.choice([0, 1, 3]), K, generator=draw.generator()).to(weight.dtype)
    if K == 0:
        return
    result = linear(x, weight)
    filled = weight.dequantize().any(dim=1)
    assert not result[:, ~filled].any()
    if filled.sum() >= 8:  # the bound is a part of their length: of few, the sums may cancel
        assert_close(result, product(x, weight))
    assert torch.equal(x @ weight.t(), result)
    if N:
        at = torch.randint(0, N, (2, 3), generator=draw.generator())
        rows = embedding(at, weight)
        assert torch.equal(rows, embedding(at, weight.dequantize()))
        if getattr(weight, "k_order", None) is None:
            assert_close(rows, meaning(weight)[at])

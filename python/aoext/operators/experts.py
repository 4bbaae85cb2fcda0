"""What gradients take products for: of one weight, and of a weight for each expert.

A product of experts that no kernel of the library has, with plain weights or with quantised ones along N,
goes one of two ways. On a CPU it is a loop over experts. Elsewhere the host would wait for their offsets:
there rows go into blocks of one expert each, of which there are never more than rows and experts allow, and
each block gets its expert's weight by a gather. So calls may be captured in graphs, and no more than
`_MEMORY` of plain weights is there at a time. Plain weights of bfloat16 go by PyTorch's own grouped product
on GPUs where that leaves the offsets on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from aoext.operators.expert_weights import PlainWeights, QuantizedWeights, Weights

ao = torch.ops.ao

# The operator lives as long as this object.
_library = torch.library.Library("ao", "FRAGMENT")


Parts: TypeAlias = Mapping[str, Any]  # what beside the input makes a product, by the arguments' names


class OneWeight:
    """What gradients take a product for: input [..., K] times a weight [N, K] in high precision.

    dequantized: dequantized(dtype, **parts) gives the weight
    """

    bias_wants_parts = False

    def times(
        self, input: Tensor, bias: Tensor | None, dequantized: Callable[..., Tensor], parts: Parts
    ) -> Tensor:
        bias = None if bias is None else bias.to(input.dtype)
        return linear(input, dequantized(input.dtype, **parts), bias)

    def input_grad(self, grad: Tensor, dequantized: Callable[..., Tensor], parts: Parts) -> Tensor:
        return grad @ dequantized(grad.dtype, **parts)

    def bias_grad(self, grad: Tensor, parts: Parts) -> Tensor:
        return grad.reshape(-1, grad.shape[-1]).sum(0, dtype=torch.float32)


class ByExpert(OneWeight):
    """Rows of input [T, K] times the weights [E, N, K] of their experts, of which few are plain at a time."""

    bias_wants_parts = True

    def times(
        self, input: Tensor, bias: Tensor | None, dequantized: Callable[..., Tensor], parts: Parts
    ) -> Tensor:
        product = times_quantized(input, parts["offsets"], True, *map(parts.get, _OPERANDS))
        if bias is None:
            return product
        return product + bias_of_rows(bias, input, parts["offsets"])

    def input_grad(self, grad: Tensor, dequantized: Callable[..., Tensor], parts: Parts) -> Tensor:
        return times_quantized(grad, parts["offsets"], False, *map(parts.get, _OPERANDS))

    def bias_grad(self, grad: Tensor, parts: Parts) -> Tensor:
        offsets = parts["offsets"]
        sums = grad.new_zeros((len(offsets) + 1, grad.shape[-1]), dtype=torch.float32)
        return sums.index_add(0, expert_of_row(offsets, grad.shape[0]), grad.float())[:-1]


_OPERANDS = ("weight", "scale", "code", "block_size", "zero_point", "table", "global_scale")

ONE_WEIGHT, BY_EXPERT = OneWeight(), ByExpert()


def expert_of_row(offsets: Tensor, rows: int) -> Tensor:
    """The expert of each row, as many as there are experts behind the last offset."""
    at = torch.arange(rows, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets, at, right=True)


def bias_of_rows(bias: Tensor, rows: Tensor, offsets: Tensor | None) -> Tensor:
    """A bias [N] as it is; of experts, [E, N], that of each row's, and zeros for rows without one."""
    if offsets is None:
        return bias
    return pad(bias, (0, 0, 0, 1))[expert_of_row(offsets, rows.shape[0])]


def times(rows: Tensor, weight: Tensor, offsets: Tensor | None) -> Tensor:
    """rows [..., A] times a plain weight [A, B]; beside offsets, those of their experts, [E, A, B]."""
    return rows @ weight if offsets is None else ao._times_experts(rows, offsets, weight)


def times_quantized(rows: Tensor, offsets: Tensor, transposed: bool, *operands: Any) -> Tensor:
    """rows [T, N] times the weights [N, K] of their experts, or [T, K] times those `transposed`.

    operands: weight, scale, code, block_size, zero_point, table and global_scale, as the products take them
    """
    return ao._times_quantized_experts(rows, offsets, transposed, *operands)


# How many bytes of plain weights there are at a time; one expert's, where that is more.
_MEMORY = 128 << 20

# Where rows are this many for each expert, the weights of all may be plain at a time, so many bytes of them.
_MANY_ROWS, _MEMORY_OF_ALL = 8, 1 << 30

# Rows of a block: with more a weight is made plain fewer times, with fewer fewer rows are multiplied in vain.
_FEWEST_ROWS, _MOST_ROWS = 16, 512

# Operators, since a graph holds no loop whose steps depend on numbers of rows.
_library.define("_times_experts(Tensor rows, Tensor offsets, Tensor weight) -> Tensor")
_library.define("_experts_grad(Tensor rows, Tensor offsets, Tensor grad) -> Tensor")
_library.define(
    "_times_quantized_experts(Tensor rows, Tensor offsets, bool transposed, Tensor weight, Tensor scale, "
    "int code, int[]? block_size, Tensor? zero_point, Tensor? table, Tensor? global_scale) -> Tensor"
)


def one_by_one(rows: Tensor, offsets: Tensor, weights: Weights) -> Tensor:
    """Each expert's rows by its weight; zeros where a row has no expert. The host reads the offsets."""
    result = rows.new_zeros((rows.shape[0], weights.shape[1]))
    begin = 0
    for e, end in enumerate(offsets.tolist()):
        if end > begin:
            result[begin:end] = rows[begin:end] @ weights.of_expert(e)
            begin = end
    return result


def by_blocks(rows: Tensor, offsets: Tensor, weights: Weights) -> Tensor:
    """The same, of blocks of rows with one expert each. The host reads nothing."""
    T, E = rows.shape[0], len(offsets)
    result = rows.new_zeros((T + 1, weights.shape[1]))  # the last row takes what belongs to nobody
    if T == 0:
        return result[:T]
    expert, row = _blocks_of(offsets, T, _rows_of_block(T, E))
    own = max(_MEMORY // (weights.shape.numel() * rows.itemsize), 1)
    for experts, at in zip(expert.split(own), row.split(own), strict=True):
        of_block = rows.index_select(0, at.flatten().clamp(max=T - 1)).unflatten(0, at.shape)
        product = torch.bmm(of_block, weights.of_experts(experts))
        result.index_copy_(0, at.flatten(), product.flatten(0, 1))
    return result[:T]


def weights_grad_one_by_one(rows: Tensor, offsets: Tensor, grad: Tensor) -> Tensor:
    """The gradient [E, A, B] of weights by which rows [T, A] were multiplied to [T, B]."""
    result = rows.new_zeros((len(offsets), rows.shape[1], grad.shape[1]))
    begin = 0
    for of_expert, end in zip(result, offsets.tolist(), strict=True):
        end = max(begin, end)
        torch.mm(rows[begin:end].mT, grad[begin:end], out=of_expert)
        begin = end
    return result


def weights_grad_by_blocks(rows: Tensor, offsets: Tensor, grad: Tensor) -> Tensor:
    """The same, and the host reads nothing."""
    T, A, B = rows.shape[0], rows.shape[1], grad.shape[1]
    result = rows.new_zeros((len(offsets), A, B), dtype=torch.float32)
    if T == 0:
        return result.to(rows.dtype)
    expert, row = _blocks_of(offsets, T, _rows_of_block(T, len(offsets)))
    own = max(_MEMORY // (A * B * 4), 1)
    for experts, at in zip(expert.split(own), row.split(own), strict=True):
        of_nobody = (at == T).unsqueeze(-1)  # zeros then, whatever the row that stands in holds
        of_block, grads = (
            t.index_select(0, at.flatten().clamp(max=T - 1)).unflatten(0, at.shape).masked_fill(of_nobody, 0)
            for t in (rows, grad)
        )
        result.index_add_(0, experts, torch.bmm(of_block.mT, grads).float())
    return result.to(rows.dtype)


def by_library(rows: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """As by_blocks, by PyTorch's grouped product, which writes nothing where a row has no expert."""
    ends, nobody = _ends_of(offsets, rows.shape[0])
    if weight.shape[1] > weight.shape[2]:
        return torch._grouped_mm(rows, weight, ends).masked_fill_(nobody, 0)
    ends[-1:].fill_(rows.shape[0])  # rows of zeros, which are fewer numbers, go to the last expert
    return torch._grouped_mm(rows.masked_fill(nobody, 0), weight, ends)


def weights_grad_by_library(rows: Tensor, offsets: Tensor, grad: Tensor) -> Tensor:
    """As weights_grad_by_blocks."""
    ends, _ = _ends_of(offsets, rows.shape[0])
    without_rows = torch.diff(pad(ends, (1, 0))) == 0
    return torch._grouped_mm(rows.mT, grad, ends).masked_fill_(without_rows.view(-1, 1, 1), 0)


class Groups:
    """The groups that offsets make of rows, for several products with thin weights in eager code."""

    def __init__(self, offsets: Tensor, rows: Tensor) -> None:
        self.offsets = offsets
        self._library = rows.device.type == "cuda" and _library_takes(rows)
        if self._library:
            self._ends, self._nobody = _ends_of(offsets, rows.shape[0])
            # Rows of zeros, which no expert has, may go to the last one.
            self._all = self._ends.clone()
            self._all[-1:].fill_(rows.shape[0])

    def thin(self, rows: Tensor, weight: Tensor) -> Tensor:
        """rows [T, A] times the weights [E, A, r] of their experts; zeros where a row has no expert."""
        if self._library and _library_takes(rows, weight):
            return torch._grouped_mm(rows, weight, self._ends).masked_fill_(self._nobody, 0)
        return ao._times_experts(rows, self.offsets, weight)

    def wide(self, thin: Tensor, weight: Tensor) -> Tensor:
        """What `thin` gives, [T, r], times the weights [E, r, B] of the experts."""
        if self._library and _library_takes(thin, weight):
            return torch._grouped_mm(thin, weight, self._all)
        return ao._times_experts(thin, self.offsets, weight)

    def grad(self, rows: Tensor, grad: Tensor) -> Tensor:
        """The gradient [E, A, B] of weights by which rows [T, A] were multiplied to [T, B]."""
        if self._library and _library_takes(rows, grad):
            return torch._grouped_mm(rows.mT, grad, self._ends).masked_fill_(self._without_rows, 0)
        return ao._experts_grad(rows, self.offsets, grad)

    @functools.cached_property
    def _without_rows(self) -> Tensor:
        return torch.diff(pad(self._ends, (1, 0))).view(-1, 1, 1) == 0


def _ends_of(offsets: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Where the rows of each expert end, and, [rows, 1], which rows belong to none."""
    ends = offsets.clamp(0, rows).cummax(0).values
    return ends, (torch.arange(rows, device=ends.device) >= ends[-1]).unsqueeze(1)


@functools.cache
def _reads_offsets(device: torch.device) -> bool:
    """Whether PyTorch's grouped product leaves offsets on the device; on other GPUs the host reads them."""
    return hasattr(torch, "_grouped_mm") and torch.cuda.get_device_capability(device)[0] in (9, 10)


def _library_takes(*matrices: Tensor) -> bool:
    """Whether PyTorch's grouped product is for these: bfloat16, rows or columns at 16 bytes."""
    return _reads_offsets(matrices[0].device) and all(
        matrix.dtype is torch.bfloat16
        and matrix.numel() > 0
        and matrix.data_ptr() % 16 == 0
        and not any(size % 8 for size in matrix.shape[1:])
        and not any(stride % 8 for stride in matrix.stride() if stride != 1)
        and 1 in matrix.stride()[-2:]
        for matrix in matrices
    )


def _rows_of_block(rows: int, experts: int) -> int:
    return min(max(1 << (rows // experts).bit_length(), _FEWEST_ROWS), _MOST_ROWS)


def _blocks_of(offsets: Tensor, rows: int, block_rows: int) -> tuple[Tensor, Tensor]:
    """The expert of each block, and which rows it has, [blocks, block_rows]; `rows` stands for none."""
    E = len(offsets)
    ends = offsets.long().clamp(0, rows).cummax(0).values
    begins = pad(ends, (1, -1))
    blocks = (ends - begins + block_rows - 1) // block_rows
    last = blocks.cumsum(0)
    block = torch.arange(rows // block_rows + min(rows, E), device=offsets.device)
    found = torch.searchsorted(last, block, right=True)
    expert = found.clamp(max=E - 1)
    first = begins[expert] + (block - (last - blocks)[expert]) * block_rows
    row = first.unsqueeze(1) + torch.arange(block_rows, device=offsets.device)
    inside = (row < ends[expert].unsqueeze(1)) & (found < E).unsqueeze(1)
    return expert, torch.where(inside, row, rows)


def _register(name: str, weights: Callable[..., Weights]) -> None:
    """An operator (rows, offsets, …): weights(rows, …) are those of the arguments behind the first two."""
    for key, kernel in (("CPU", one_by_one), ("CompositeExplicitAutograd", by_blocks)):

        def product(
            rows: Tensor, offsets: Tensor, *others: Any, kernel: Callable[..., Tensor] = kernel
        ) -> Tensor:
            return kernel(rows, offsets, weights(rows, *others))

        _library.impl(name, product, key)
    torch.library.register_fake(
        f"ao::{name}",
        lambda rows, offsets, *others: rows.new_empty((rows.shape[0], weights(rows, *others).shape[1])),
    )


_register("_times_experts", lambda rows, weight: PlainWeights(weight))
_register(
    "_times_quantized_experts",
    lambda rows, transposed, *operands: QuantizedWeights(rows.dtype, transposed, *operands),
)


def _times_experts_on_cuda(rows: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    if _library_takes(rows, weight):
        return by_library(rows, offsets, weight)
    return by_blocks(rows, offsets, PlainWeights(weight))


def _experts_grad_on_cuda(rows: Tensor, offsets: Tensor, grad: Tensor) -> Tensor:
    grad = grad.contiguous()
    by = weights_grad_by_library if _library_takes(rows, grad) else weights_grad_by_blocks
    return by(rows, offsets, grad)


def _times_quantized_experts_on_cuda(
    rows: Tensor, offsets: Tensor, transposed: bool, *operands: Any
) -> Tensor:
    weights, rows = QuantizedWeights(rows.dtype, transposed, *operands), rows.contiguous()
    experts, (A, B) = len(offsets), weights.shape
    at_once = rows.shape[0] >= _MANY_ROWS * experts and experts * A * B * rows.itemsize <= _MEMORY_OF_ALL
    if at_once and weights.rows_are_apart and A % 8 == B % 8 == 0 and _library_takes(rows):
        return by_library(rows, offsets, weights.of_all())
    return by_blocks(rows, offsets, weights)


_library.impl("_times_quantized_experts", _times_quantized_experts_on_cuda, "CUDA")
_library.impl("_times_experts", _times_experts_on_cuda, "CUDA")
_library.impl("_experts_grad", _experts_grad_on_cuda, "CUDA")
_library.impl("_experts_grad", weights_grad_one_by_one, "CPU")
_library.impl("_experts_grad", weights_grad_by_blocks, "CompositeExplicitAutograd")
torch.library.register_fake(
    "ao::_experts_grad",
    lambda rows, offsets, grad: rows.new_empty((offsets.shape[0], rows.shape[1], grad.shape[1])),
)

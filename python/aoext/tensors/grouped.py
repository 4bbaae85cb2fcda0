"""Products with weights of experts [E, N, K]: torch._grouped_mm, F.grouped_mm, bmm and baddbmm.

They are caught above autograd, as those of products.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aoext.formats.dtypes import dtype_name
from aoext.tensors.base import implements
from aoext.tensors.each_expert import has_experts
from aoext.tensors.products import batches, multiply

aten = torch.ops.aten


def _grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Rows [T, K], sorted by expert, times the weights [E, K, N] of their experts.

    offs: where the rows of each expert end; rows behind the last give zeros
    bias: [E, N]
    """
    if out_dtype not in (None, mat_a.dtype):
        raise NotImplementedError(
            f"grouped_mm with a quantised weight gives the input's dtype {dtype_name(mat_a.dtype)}, "
            f"not {dtype_name(out_dtype)}"
        )
    if mat_a.dim() == 3:
        product = batches("grouped_mm", mat_a, mat_b)
        return product if bias is None else product + bias.unsqueeze(1)
    if offs is None:
        raise RuntimeError("grouped_mm: offs must be int32 [E] beside rows of experts, got None")
    return multiply("grouped_mm", mat_a, mat_b, bias, transposed=True, offsets=offs)


for _function in (
    getattr(torch, "_grouped_mm", None),
    getattr(torch.nn.functional, "grouped_mm", None),
    getattr(getattr(aten, "_grouped_mm", None), "default", None),
):
    if _function is not None:
        implements(_function)(_grouped_mm)


@implements(torch.bmm, Tensor.bmm, aten.bmm.default)
def _bmm(input: Tensor, mat2: Tensor, **options: Any) -> Tensor:
    if options:
        raise NotImplementedError(f"bmm with a quantised weight takes no {' and no '.join(options)}")
    for name, factor in (("input", input), ("mat2", mat2)):
        if not has_experts(factor):
            raise RuntimeError(f"bmm: {name} must have 3 dimensions, got {list(factor.shape)}")
    return batches("bmm", input, mat2)


@implements(torch.baddbmm, Tensor.baddbmm, aten.baddbmm.default)
def _baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = _bmm(batch1, batch2)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (input if beta == 1 else input * beta)

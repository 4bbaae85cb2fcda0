"""Weights of integers in groups along K, with a scale and a float zero point for each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from aoext.formats.checks import has_values, shown
from aoext.formats.dtypes import FLOAT_DTYPES, dtype_name, one_of
from aoext.formats.table import FORMATS, Code, Format
from aoext.packing import groups
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.computing import of_rows
from aoext.tensors.each_expert import by_expert
from aoext.tensors.fields import Axis, Field, K, check_block_size, fields_of
from aoext.tensors.order import K_ORDER, as_codes, check_order
from aoext.tensors.ranges import RANGES, check_ranges

if TYPE_CHECKING:
    from typing_extensions import Self


# To which activations can be quantised.
INPUT_DTYPES = (torch.int8, torch.float8_e4m3fn)


class GroupsTensor(QuantizedTensor):
    """What weights w = q·scale + zero_point share, whatever bits q has; Int4Tensor names the fields."""

    fields: ClassVar[dict[str, Field]]
    attributes = ("block_size", "activation")

    act_pre_scale: Tensor | None
    zero_point: Tensor
    activation: torch.dtype | None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "codes" not in cls.__dict__:
            return
        cls.fields = {
            **fields_of(*cls.codes),
            "act_pre_scale": Field((Axis(K),), FLOAT_DTYPES, follows_dtype=True, optional=True),
            "k_order": K_ORDER,
            **RANGES,
        }

    def __new__(
        cls,
        qdata: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        block_size: Sequence[int],
        shape: Sequence[int],
        act_pre_scale: Tensor | None = None,
        *,
        k_order: Tensor | None = None,
        dtype: torch.dtype | None = None,
        activation: torch.dtype | None = None,
        input_scale: Tensor | None = None,
        output_scale: Tensor | None = None,
    ) -> Self:
        tensors = {
            "qdata": qdata,
            "scale": scale,
            "zero_point": zero_point,
            "act_pre_scale": act_pre_scale,
            "k_order": k_order,
            "input_scale": input_scale,
            "output_scale": output_scale,
        }
        if dtype is None:
            dtype = scale.dtype if isinstance(scale, Tensor) else torch.float32
        self = cls.from_fields(tensors, dtype, block_size=block_size, activation=activation)
        if not isinstance(shape, Sequence) or list(shape) != list(self.shape):
            raise ValueError(
                f"{cls.__name__}: shape must be {list(self.shape)} for a qdata {list(qdata.shape)}, "
                f"got {shown(shape)}"
            )
        return self

    def _check(self) -> None:
        who = type(self).__name__
        if self.activation not in (None, *INPUT_DTYPES):
            raise ValueError(
                f"{who}: activation must be None, {one_of(INPUT_DTYPES)}, got {shown(self.activation)}"
            )
        dtype = self.scale.dtype
        if dtype not in (self.dtype, torch.float32):
            raise TypeError(
                f"{who}: scale must have the tensor's dtype {dtype_name(self.dtype)} or float32, "
                f"got {dtype_name(dtype)}"
            )
        for name, tensor in self.named_fields():
            if self.fields[name].follows_dtype and tensor.dtype != dtype:
                raise TypeError(
                    f"{who}: {name} must have the dtype of scale, {dtype_name(dtype)}, "
                    f"got {dtype_name(tensor.dtype)}"
                )
        check_order(who, self.k_order)
        check_ranges(self)

    @classmethod
    def from_hp(
        cls,
        w: Tensor,
        block_size: Sequence[int],
        *,
        symmetric: bool = False,
        activation: torch.dtype | None = None,
    ) -> Self:
        """Quantise a weight [N, K] or [E, N, K] of bfloat16, float16 or float32 in blocks [1, group_size].

        symmetric: scale by the largest magnitude of a group alone; a code without a sign is its distance from
            the middle of its range then, and an int4's zero points are 0.
        The formulas are those of aoext.packing. NaN or Inf raises ValueError.
        """
        check_block_size(cls.__name__, block_size)
        format = FORMATS[cls.codes[0]]

        def of_matrix(w: Tensor) -> Any:
            fields = {**dict.fromkeys(cls.fields), **_quantized_fields(format, w, block_size[K], symmetric)}
            return cls.from_fields(fields, w.dtype, block_size=block_size, activation=activation)

        return by_expert(of_matrix, w)

    def _quantized_input(self, stored: torch.dtype) -> torch.dtype | None:
        return self.activation

    def _quantized(self, weight: Tensor) -> dict[str, Tensor]:
        weight, format = as_codes(weight, self.k_order), FORMATS[Code(self.code)]
        group_size, dtype = self.block_size[K], self.scale.dtype
        asymmetric = (self.zero_point != groups.symmetric_zero_point(self.scale, format)).any()
        if has_values(asymmetric):
            return _quantized_fields(format, weight, group_size, not bool(asymmetric), dtype)
        one, other = (
            _quantized_fields(format, weight, group_size, symmetric, dtype) for symmetric in (False, True)
        )
        return {name: torch.where(asymmetric, one[name], other[name]) for name in one}

    def _linear(
        self,
        input: Tensor,
        bias: Tensor | None,
        operators: Any = torch.ops.ao,
        offsets: Tensor | None = None,
    ) -> Tensor:
        return QuantizedTensor._linear(self, prescaled(self, input, offsets), bias, operators, offsets)

    def _linear_backward(self, grad: Tensor, offsets: Tensor | None = None) -> Tensor:
        return prescaled(self, super()._linear_backward(grad, offsets), offsets)


# A function, which torch.compile traces: a method of a tensor it would take for an operation.


def prescaled(weight: GroupsTensor, input: Tensor, offsets: Tensor | None = None) -> Tensor:
    factors = weight.act_pre_scale
    return input if factors is None else (input * of_rows(factors, input, offsets)).to(input.dtype)


def _quantized_fields(
    format: Format, w: Tensor, group_size: int, symmetric: bool, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """qdata, scale and zero_point of a plain weight [N, K]; `dtype` is that of scales, w's if not given."""
    who, rule = f"{format.name} weights", groups.symmetric if symmetric else groups.asymmetric
    q, scale, zero_point = groups.quantize_groups(who, w, group_size, dtype, format, rule)
    return {"qdata": groups.pack(who, q, format), "scale": scale, "zero_point": zero_point}

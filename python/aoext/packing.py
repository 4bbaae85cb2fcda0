"""Weights to small numbers and back: plain tensor functions that run on any device.

A weight is [N, K], one row per output channel. int4 is quantised in groups of `group_size` along K,
int8 and float8 in whole rows. The int4 formulas, in float32 and with ties to even:

    asymmetric   s = held((max − min) / 15),  z = min + 8·s
                 q = clamp(round((x − min) / s), 0, 15) − 8
    symmetric    s = −e / 8,                  z = 0     with e the value of the largest magnitude
                 q = clamp(round(x / s), −8, 7)         |s| held; s < 0 where e > 0
    dequantised  w = q·s + z

`held` is the scale itself where the dtype of scales, the weight's, has it as a normal number; q is chosen
by this float32 scale, and only then are s and z rounded to that dtype. A smaller scale is first rounded up
to a number of that dtype: a multiple of 2⁻¹⁴⁹ in float32, of 2⁻¹³³ in bfloat16, of 2⁻²⁴ in float16. A group
of equal values c is q = 0, s = 0, z = c, and symmetric zeros are q = 0, s = 0: exactly what they were,
whatever a kernel adds and subtracts on its way.

The asymmetric formula is that of FBGEMM and MSLK but for ranges below 1e-6, which count there as 1e-6, so
that little is left of weights around 1e-7; and but for `held`. Their symmetric one has s = absmax / 8, which
loses an eighth of positive extremes. The formula of int8 and float8 has its home in the operator
`ao::quantize_rowwise`.

Large weights pass through float32 in blocks of rows, so that a call needs little more memory than
its result. Wrong types and dtypes raise TypeError, wrong shapes and values ValueError. Tensors on
the meta device, fake ones and those that are traced have no values: there only shapes and dtypes are
checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

FLOAT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FLOAT8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)

# The dtypes of scales for blocks; uint8 holds exponents, as float8_e8m0fnu does.
EXPONENT_DTYPES = (torch.float8_e8m0fnu, torch.uint8)
BLOCK_SCALE_DTYPES = (*FLOAT_DTYPES, *EXPONENT_DTYPES, torch.float8_e4m3fn)

# Elements of one block: 4 MiB in float32, of which a few are alive at once; small against a layer.
BLOCK_ELEMENTS = 1 << 20

# The group_size that means a whole row.
WHOLE_ROW = -1

# Takes groups [n, K/G, G] in float32, which it may overwrite, and the dtype that scales are kept in; gives q
# of that shape, and float32 [n, K/G, 1] tensors: the scale, and the zero point where there is one.
GroupRule = Callable[[Tensor, torch.dtype], tuple[Tensor, ...]]


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype as users write it: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def one_of(dtypes: Sequence[torch.dtype]) -> str:
    """Dtypes as a choice: `bfloat16, float16 or float32`."""
    names = [dtype_name(dtype) for dtype in dtypes]
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def describe(value: object) -> str:
    """What came, for an error message: `int8 [4, 7]`, or the type of what has no shape."""
    if not isinstance(value, Tensor) or is_lazy(value):
        return f"a {type(value).__name__}"
    if value.is_nested:
        return f"a nested {dtype_name(value.dtype)} tensor"
    kind = "" if value.layout is torch.strided else f"{str(value.layout).removeprefix('torch.')} "
    return f"{kind}{dtype_name(value.dtype)} {list(value.shape)}"


def shown(value: object) -> str:
    """What came, for an error message about what need be no tensor."""
    return describe(value) if isinstance(value, Tensor) else repr(value)


def is_dense(value: object) -> bool:
    """Whether this is a tensor with strides: not sparse, not nested."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested


def is_freed(tensor: Tensor) -> bool:
    """Whether the memory of a dense tensor, or a part of it, is gone, as FSDP frees it between uses.

    PyTorch's own functions would read it all the same. Tensors without memory of their own, as tracing and
    transforms have them, are never freed.
    """
    own = type(tensor) in (Tensor, torch.nn.Parameter) and not torch.compiler.is_compiling()
    return own and not torch._C._functorch.is_functorch_wrapped_tensor(tensor) and is_memory_gone(tensor)


def is_memory_gone(tensor: Tensor) -> bool:
    """The same for a tensor that is known to have memory of its own."""
    if not tensor.numel():
        return False
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.untyped_storage().nbytes() < (tensor.storage_offset() + last + 1) * tensor.itemsize


def check_matrix(
    who: str, argument: str, value: Tensor, dtypes: Sequence[torch.dtype], shape: str = "[N, K]"
) -> None:
    """Raise unless `value` is a dense matrix of one of `dtypes`; `shape` names its sizes."""
    check_dense(who, argument, value, dtypes, shape, 2)


def check_dense(
    who: str, argument: str, value: Tensor, dtypes: Sequence[torch.dtype], shape: str, dims: int
) -> None:
    """Raise unless `value` is a dense tensor of so many dimensions and one of `dtypes`, with its memory."""
    message = f"{who}: {argument} must be {one_of(dtypes)} {shape}, got {describe(value)}"
    if not is_dense(value) or value.dtype not in dtypes:
        raise TypeError(message)
    if value.dim() != dims:
        raise ValueError(message)
    if is_freed(value):
        raise ValueError(f"{who}: {argument} must have memory, got {describe(value)} with freed storage")


@torch.no_grad()
def pack_int4(q: Tensor) -> Tensor:
    """Two values to a byte: int8 [N, K] in −8..7 to int8 [N, K/2], the even k in the low nibble.

    >>> pack_int4(torch.tensor([[1, -1]], dtype=torch.int8))
    tensor([[-15]], dtype=torch.int8)
    """
    check_matrix("pack_int4", "q", q, (torch.int8,), "[N, K] with K even")
    if q.shape[1] % 2:
        raise ValueError(f"pack_int4: q must be int8 [N, K] with K even, got {describe(q)}")
    if q.numel() and has_values(q):
        low, high = int(q.amin()), int(q.amax())
        if low < -8 or high > 7:
            raise ValueError(f"pack_int4: q must lie in -8..7, got values in {low}..{high}")
    return (q[:, 1::2] << 4).bitwise_or_(q[:, ::2] & 0x0F)


@torch.no_grad()
def unpack_int4(packed: Tensor) -> Tensor:
    """The inverse of pack_int4: int8 [N, K/2] to int8 [N, K] in −8..7."""
    check_matrix("unpack_int4", "packed", packed, (torch.int8,), "[N, K/2]")
    # On int8 a left shift drops the high nibble, and right shifts repeat the sign.
    return torch.stack(((packed << 4) >> 4, packed >> 4), dim=-1).flatten(1)


def int4_row_quantize_zp(
    x: Tensor, group_size: int = 128, *, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Asymmetric int4 with a float zero point.

    x: [N, K], bfloat16, float16 or float32, K even; group_size divides K, or is −1 for the whole row.
    Returns q int8 [N, K] in −8..7 (not packed), scale and zero_point [K/group_size, N] in `dtype`, which
    is x's if it is not given, all contiguous. NaN or Inf in x raises ValueError.
    """
    q, scale, zero_point = _quantize_groups("int4_row_quantize_zp", x, group_size, dtype, _asymmetric)
    return q, scale, zero_point


def int4_row_quantize(
    x: Tensor, group_size: int = 128, *, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Symmetric int4, zero points of 0: arguments and results as for int4_row_quantize_zp."""
    q, scale = _quantize_groups("int4_row_quantize", x, group_size, dtype, _symmetric)
    return q, scale


def int8_row_quantize(w: Tensor) -> tuple[Tensor, Tensor]:
    """Row-wise int8: w [N, K] to q int8 [N, K] in ±127 and scale float32 [N, 1].

    w: bfloat16, float16 or float32. NaN or Inf in it raises ValueError.
    """
    return _quantize_rows("int8_row_quantize", w, torch.int8)


def float8_row_quantize(w: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensor, Tensor]:
    """Row-wise float8: w [N, K] to q [N, K] of `dtype` and scale float32 [N, 1].

    w: bfloat16, float16 or float32. NaN or Inf in it raises ValueError.
    dtype: float8_e4m3fn or float8_e5m2, else ValueError.
    """
    if dtype not in FLOAT8_DTYPES:
        raise ValueError(f"float8_row_quantize: dtype must be {one_of(FLOAT8_DTYPES)}, got {shown(dtype)}")
    return _quantize_rows("float8_row_quantize", w, dtype)


@torch.no_grad()
def dequantize(
    qdata: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The weight [N, K] that quantised values stand for, in `dtype` (default: that of scale).

    int4: qdata int8 [N, K/2] as pack_int4 gives it, scale and zero_point [K/group_size, N], of
    one dtype; symmetric weights pass zeros. 8 bits: qdata int8 or float8 [N, K], scale [N, 1],
    no zero_point. Scales are bfloat16, float16 or float32. The result is rounded once.

    >>> q, scale = int8_row_quantize(torch.randn(4, 8))
    >>> dequantize(q, scale).shape
    torch.Size([4, 8])
    """
    if dtype is not None and dtype not in FLOAT_DTYPES:
        raise ValueError(f"dequantize: dtype must be {one_of(FLOAT_DTYPES)}, got {shown(dtype)}")
    if zero_point is not None:
        _check_int4(qdata, scale, zero_point)
        fields = (tensor.contiguous() for tensor in (qdata, scale, zero_point))
        return torch.ops.ao.dequantize_int4(*fields, dtype=dtype)
    _check_rows(qdata, scale)
    return rows_dequantized(dtype or scale.dtype, qdata.contiguous(), scale.contiguous())


def rows_dequantized(dtype: torch.dtype, qdata: Tensor, scale: Tensor) -> Tensor:
    """The operator `dequantize_rowwise`, its dtype first, as gradients pass it on."""
    return torch.ops.ao.dequantize_rowwise(qdata, scale, dtype=dtype)


def _check_int4(qdata: Tensor, scale: Tensor, zero_point: Tensor) -> None:
    """Raise unless these are the fields of an int4 weight, for dequantize."""
    check_matrix("dequantize", "qdata", qdata, (torch.int8,), "[N, K/2]")
    check_matrix("dequantize", "scale", scale, FLOAT_DTYPES, "[K/group_size, N]")
    check_matrix("dequantize", "zero_point", zero_point, (scale.dtype,), "like scale")
    rows, columns, groups = qdata.shape[0], 2 * qdata.shape[1], scale.shape[0]
    if scale.shape[1] != rows or columns == 0 or groups == 0 or columns % groups:
        raise ValueError(
            f"dequantize: scale must be [K/group_size, N] = [a divisor of {columns}, {rows}] "
            f"for a qdata {list(qdata.shape)}, got {list(scale.shape)}"
        )
    if zero_point.shape != scale.shape:
        raise ValueError(
            f"dequantize: zero_point must be {list(scale.shape)} like scale, got {list(zero_point.shape)}"
        )
    _check_device(qdata, scale=scale, zero_point=zero_point)


def _check_rows(qdata: Tensor, scale: Tensor) -> None:
    """Raise unless these are the fields of a row-scaled weight of 8 bits, for dequantize."""
    check_matrix("dequantize", "qdata", qdata, (torch.int8, *FLOAT8_DTYPES))
    if qdata.shape[1] == 0:
        raise ValueError(f"dequantize: qdata must be [N, K] with K not 0, got {describe(qdata)}")
    check_matrix("dequantize", "scale", scale, FLOAT_DTYPES, "[N, 1]")
    if scale.shape != (qdata.shape[0], 1):
        raise ValueError(
            f"dequantize: scale must be [N, 1] = [{qdata.shape[0]}, 1] for a qdata of 8 bits, "
            f"got {list(scale.shape)}"
        )
    _check_device(qdata, scale=scale)


def _check_device(qdata: Tensor, **others: Tensor) -> None:
    for name, tensor in others.items():
        if tensor.device != qdata.device:
            raise ValueError(
                f"dequantize: {name} must be on qdata's device {qdata.device}, got {tensor.device}"
            )


def _asymmetric(groups: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    low, high = groups.amin(dim=-1, keepdim=True), groups.amax(dim=-1, keepdim=True)
    # The divisor is a tensor, because by a Python number some devices multiply with the reciprocal,
    # which can differ in the last bit.
    fifteen = torch.full_like(high, 15)
    spread = high - low
    wide = spread.isinf()
    scale = held(torch.where(wide, high / fifteen - low / fifteen, spread / fifteen), dtype)
    flat = spread == 0
    scale = scale.masked_fill_(flat, 0)
    zero_point = low + 8 * scale
    step = scale.masked_fill(flat, 1)
    if has_values(wide) and bool(wide.any()):  # an eighth of it all, which is exact, has its differences
        groups, low, step = groups.mul_(0.125), low * 0.125, step * 0.125
        zero_point = torch.where(wide, (low + scale) * 8, zero_point)
    middle = torch.full_like(low, 8).masked_fill_(flat, 0)
    q = groups.sub_(low).div_(step).round_().clamp_(0, 15).sub_(middle)
    return q, scale, zero_point


def _symmetric(groups: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    low, high = groups.amin(dim=-1, keepdim=True), groups.amax(dim=-1, keepdim=True)
    largest = torch.maximum(high, -low)
    # An eighth is exact in binary, so a Python number divides alike on every device.
    magnitude = held(largest / 8, dtype)
    scale = torch.where(high > -low, -magnitude, magnitude)
    q = groups.div_(scale).round_().clamp_(-8, 7)
    return q, scale.masked_fill_(largest == 0, 0)


def held(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Scales ≥ 0 as they are where they are normal numbers of `dtype`, smaller ones rounded up; NaN stays.

    Smaller ones are the smallest normal number where the program has them flushed to 0.
    """
    limits = torch.finfo(dtype)
    step = limits.smallest_normal * limits.eps
    rounded_up = (scale / step).ceil_().clamp_(min=1).mul_(step)
    rounded_up = torch.where(rounded_up > 0, rounded_up, limits.smallest_normal)
    return torch.where(scale < limits.smallest_normal, rounded_up, scale)


@torch.no_grad()
def _quantize_groups(
    who: str, x: Tensor, group_size: int, dtype: torch.dtype | None, rule: GroupRule
) -> tuple[Tensor, ...]:
    """Apply `rule` to every group of x: q int8 [N, K], and the rest [K/G, N] in `dtype` or x's."""
    check_matrix(who, "x", x, FLOAT_DTYPES, "[N, K] with K even")
    dtype = x.dtype if dtype is None else dtype
    if dtype not in FLOAT_DTYPES:
        raise ValueError(f"{who}: dtype must be {one_of(FLOAT_DTYPES)}, got {dtype}")
    if x.shape[1] == 0 or x.shape[1] % 2:
        raise ValueError(
            f"{who}: x must be {one_of(FLOAT_DTYPES)} [N, K] with K even and not 0, got {describe(x)}"
        )
    check_group_size(who, group_size, x.shape[1])
    if group_size == WHOLE_ROW:
        group_size = x.shape[1]
    q = torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)
    parameters: list[tuple[Tensor, ...]] = []
    for rows in row_blocks(x):
        # copy=True, because the rule overwrites its groups and a float32 x must stay as it is.
        block = x[rows].to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        values, *rest = rule(block.unflatten(1, (-1, group_size)), dtype)
        q[rows] = values.flatten(1)
        parameters.append(tuple(parameter.squeeze(-1) for parameter in rest))
    columns = [torch.cat(blocks).t().contiguous() for blocks in zip(*parameters, strict=True)]
    require_finite(who, "x", columns[0])
    return q, *(in_dtype(who, "x", column, dtype) for column in columns)


@torch.no_grad()
def _quantize_rows(who: str, w: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    check_matrix(who, "w", w, FLOAT_DTYPES)
    if w.shape[1] == 0:
        raise ValueError(f"{who}: w must be [N, K] with K not 0, got {describe(w)}")
    q, scale = torch.ops.ao.quantize_rowwise(w, dtype)
    require_finite(who, "w", scale)
    # The operator, which serves activations, takes no scale below the smallest normal number.
    small = (scale <= torch.finfo(scale.dtype).smallest_normal).flatten()
    if has_values(scale) and bool(small.any()):
        rows = w[small].to(torch.float32)
        largest = 127.0 if dtype is torch.int8 else torch.finfo(dtype).max
        scale[small] = held(rows.abs().amax(1, keepdim=True) / largest, scale.dtype)
        values = rows / scale[small]
        values = values.round_() if dtype is torch.int8 else values
        q[small] = values.clamp_(-largest, largest).to(dtype)
    return q, scale


def check_group_size(who: str, group_size: int, columns: int | None = None) -> None:
    """Raise unless group_size is −1, or a positive int that divides `columns`, where that is given."""
    if not isinstance(group_size, int) or isinstance(group_size, bool):
        raise TypeError(f"{who}: group_size must be an int, got {describe(group_size)}")
    if group_size == WHOLE_ROW:
        return
    if group_size < 1 or (columns is not None and columns % group_size):
        divide = "" if columns is None else f" and divide K = {columns}"
        raise ValueError(
            f"{who}: group_size must be positive{divide}, or {WHOLE_ROW} for the whole row, got {group_size}"
        )


def has_values(tensor: Tensor) -> bool:
    """Whether a dense tensor has numbers to look at: not on the meta device, in FakeTensorMode, or traced."""
    if tensor.is_meta or torch.compiler.is_compiling():
        return False
    from torch._subclasses.fake_tensor import is_fake  # an internal, which importing aoext shall not need

    return not is_fake(tensor)


def is_surely_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or Inf. Copies nothing."""
    low, high = tensor.detach().amin(), tensor.detach().amax()  # not aminmax, which fewer devices have
    return bool(low.isfinite() & high.isfinite())


def require_finite(who: str, argument: str, scale: Tensor) -> None:
    """Every NaN or Inf in a weight shows in its scale."""
    if has_values(scale) and not bool(scale.isfinite().all()):
        raise ValueError(f"{who}: {argument} must be finite, got NaN or Inf")


def in_dtype(who: str, argument: str, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Finite scales or zero points of a weight in the dtype that keeps them; ValueError where it cannot."""
    kept = numbers.to(dtype)
    lost = numbers.isfinite() & ~kept.isfinite()
    if has_values(kept) and bool(lost.any()):
        raise ValueError(
            f"{who}: {argument} must have scales and zero points that {dtype_name(dtype)} holds, "
            f"got {float(numbers[lost][0]):.3g}"
        )
    return kept


def row_blocks(matrix: Tensor, multiple: int = 1) -> Iterator[slice]:
    """Slices over the rows of a matrix [N, K], of about BLOCK_ELEMENTS each; one if N = 0.

    All but the last are of a multiple of so many rows.
    """
    rows, columns = matrix.shape
    step = max(1, BLOCK_ELEMENTS // max(1, columns * multiple)) * multiple
    for begin in range(0, max(1, rows), step):
        yield slice(begin, begin + step)

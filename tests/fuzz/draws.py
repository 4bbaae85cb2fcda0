"""What cases are drawn from: sizes, numbers, dtypes and tensors of many forms."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aoext.formats.checks import describe
from aoext.formats.dtypes import dtype_name

DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
]
SIZES = [0, 1, 2, 3, 4, 5, 8, 16, 31, 32, 33, 64]
HUGE_SIZES = [2**31, 2**32 + 1, 2**48, 2**57, 2**58, 2**60, 2**62]
INTEGERS = [-(2**63), -32, -1, 0, 1, 2, 3, 4, 8, 16, 32, 33, 64, 128, 2**31, 2**63 - 1]

# How a tensor may lie in memory and read as it was, and what it may be else.
LAYOUTS = ["dense", "transposed", "strided", "offset"]
WITHOUT_STRIDES = ["sparse", "compressed", "mkldnn", "nested", "jagged"]
FORMS = [
    *LAYOUTS,
    "dense",
    "expanded",
    *WITHOUT_STRIDES,
    "quantized",
    "meta",
    "freed",
    "conjugated",
    "inference",
]

Answer = str  # "ran" or "raised"


class Draw(random.Random):
    """Random numbers of one case, and tensors made of them."""

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.getrandbits(62))

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def shape(self) -> list[int]:
        return [self.choice(SIZES) for _ in range(self.randint(0, 4))]

    def tensor(self) -> Tensor:
        """Any tensor; a few claim a size that no memory has."""
        if self.chance(0.1):
            return self.huge()
        numbers = torch.randint(0, 256, self.shape(), generator=self.generator())
        return formed(numbers.to(self.choice(DTYPES)), self.choice(FORMS))

    def huge(self, dtype: torch.dtype | None = None, dims: int | None = None) -> Tensor:
        """A tensor without memory, or with one element of it, of sizes as large as PyTorch takes them."""
        dtype, dims = dtype or self.choice(DTYPES), dims or self.randint(1, 3)
        shape = [self.choice([*HUGE_SIZES, 0, 1, 2, 64]) for _ in range(dims)]
        shape[self.randrange(dims)] = self.choice([0, 1])
        if 0 in shape:
            return sized(shape, dtype)
        try:
            return torch.ones(1, dtype=dtype).expand(shape)
        except RuntimeError:  # more elements than PyTorch counts
            return sized([0] * dims, dtype)


def sized(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of no elements, of this shape where PyTorch takes it and of other sizes where it does not."""
    try:
        return torch.empty(shape, dtype=dtype)
    except (RuntimeError, TypeError):
        return torch.empty([min(size, 64) for size in shape], dtype=dtype)


def formed(tensor: Tensor, form: str) -> Tensor:
    """`tensor` in one of FORMS, or as it is where it has no such form."""
    if form == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if form == "strided" and tensor.dim() >= 1:
        return torch.stack([tensor, tensor], -1)[..., 1]
    if form == "offset" and tensor.numel():
        return torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape)
    if form == "expanded" and tensor.dim() >= 1 and tensor.shape[0]:
        return tensor[:1].expand(tensor.shape)
    if form == "sparse" and tensor.dtype in (torch.float32, torch.int8, torch.bfloat16):
        return tensor.to_sparse()
    if form == "meta":
        return tensor.to("meta")
    if form == "freed":
        return freed(tensor)
    if form == "conjugated" and tensor.is_complex():
        return tensor.conj()
    layouts = {"nested": torch.strided, "jagged": torch.jagged}
    if (
        form in layouts
        and tensor.dim() == 2
        and tensor.shape[0]
        and tensor.dtype in (torch.float32, torch.int8)
    ):
        return torch.nested.nested_tensor([tensor, tensor], layout=layouts[form])
    if form == "compressed" and tensor.dim() == 2 and tensor.dtype in (torch.float32, torch.int8):
        return tensor.to_sparse_csr()
    if form == "mkldnn" and tensor.dim() and tensor.numel() and tensor.dtype in (torch.float32, torch.int8):
        return tensor.to_mkldnn()
    if form == "quantized" and tensor.is_floating_point():
        return torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8)
    if form == "inference":
        with torch.inference_mode():
            return tensor.clone()
    return tensor


def freed(tensor: Tensor) -> Tensor:
    """A copy whose storage was freed, as fully_shard frees what it has gathered."""
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def is_freed(value: Any) -> bool:
    """Whether this is a dense tensor of elements that are gone."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type != "meta"
        and not value.is_nested
        and type(value) is Tensor
        and value.numel() > 0
        and value.untyped_storage().nbytes() == 0
    )


def is_changeable(value: Any) -> bool:
    """Whether this is a tensor that can be copied and cut: dense, with memory, and not of a huge size."""
    return (
        type(value) is Tensor
        and value.layout is torch.strided
        and not (value.is_nested or value.is_quantized)
        and value.device.type != "meta"
        and value.numel() < 2**20
        and not is_freed(value)
    )


def told(value: Any) -> str:
    """An argument in words: what a tensor is and how it lies, but no values."""
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, list):
        return f"[{', '.join(map(told, value))}]"
    if not isinstance(value, Tensor):
        return repr(value)
    text = describe(value)
    if value.layout is torch.strided and not value.is_nested:
        if not value.is_contiguous():
            text += f" with strides {list(value.stride())}"
        if value.storage_offset():
            text += f" at {value.storage_offset()}"
        if value.device.type != "cpu":
            text += f" on {value.device}"
        if is_freed(value):
            text += ", freed"
    return text


def told_call(name: str, arguments: Sequence[Any], options: dict[str, Any] | None = None) -> str:
    """A call in words."""
    parts = [told(argument) for argument in arguments]
    parts += [f"{key}={told(value)}" for key, value in (options or {}).items()]
    return f"{name}({', '.join(parts)})"


def refusal(error: Exception, name: str = "") -> str:
    """The text of an error that refuses a call; AssertionError if it says nothing or admits a fault.

    name: what the text must have, but for a lack of memory, which PyTorch tells of
    """
    text = str(error)
    assert name in text or "can't allocate memory" in text, text
    assert text, f"a {type(error).__name__} without a text"
    assert "INTERNAL ASSERT" not in text, text
    assert "API call failed" not in text, text  # the C shim's own words
    return text

"""Weights as other libraries store them, packed value by value, and what they stand for in float64.

Each function makes random codes, scales and zeros of a weight [N, K], and returns the tensors that a
checkpoint has of it, by their names behind the layer's, with the weight in float64. Nothing here is shared
with what reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

Stored = tuple[dict[str, Tensor], Tensor]


def int32_words(rows: Sequence[Sequence[int]], bits: int = 4) -> Tensor:
    """Codes of so many bits to words of 32 along the last dimension: one stream, the first one lowest."""
    words = []
    for row in rows:
        stream = sum(int(code) << (bits * i) for i, code in enumerate(row))
        parts = [stream >> (32 * i) & 0xFFFFFFFF for i in range(-(-len(row) * bits // 32))]
        words.append([word - (1 << 32) if word >= 1 << 31 else word for word in parts])
    return torch.tensor(words, dtype=torch.int32)


def int32_planes(rows: Sequence[Sequence[int]], bits: int) -> Tensor:
    """32 codes after 32 codes to words of 32: those of their lowest 4, 2 or 1 bits, then of the next."""
    planes = {3: [2, 1], 5: [4, 1], 6: [4, 2], 7: [4, 2, 1]}.get(bits, [bits])
    words = []
    for row in rows:
        assert len(row) % 32 == 0
        parts: list[int] = []
        for i in range(0, len(row), 32):
            for at, width in enumerate(planes):
                low = sum(planes[:at])
                plane = [int(code) >> low & (1 << width) - 1 for code in row[i : i + 32]]
                parts += int32_words([plane], width)[0].tolist()
        words.append(parts)
    return torch.tensor(words, dtype=torch.int32)


def _grouped(rows: int, columns: int, group: int, bits: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [N, K], scales float16 [N, K/g] and integer zeros [N, K/g]."""
    codes = torch.randint(2**bits, (rows, columns))
    scales = (torch.rand(rows, columns // group) * 0.1 + 0.001).half()
    zeros = torch.randint(2**bits, (rows, columns // group))
    return codes, scales, zeros


def _exact(codes: Tensor, scales: Tensor, zeros: Tensor, group_of: Tensor) -> Tensor:
    """(code - zero)·scale, with the group of each column."""
    return (codes - zeros[:, group_of]).double() * scales[:, group_of].double()


def gptq(
    rows: int,
    columns: int,
    group: int,
    bits: int = 4,
    *,
    form: str = "gptq",
    act_order: bool | Tensor = False,
    symmetric: bool = False,
) -> Stored:
    """act_order: whether columns of a group lie apart, or the group of each column"""
    codes, scales, zeros = _grouped(rows, columns, group, bits)
    if symmetric:
        zeros = torch.full_like(zeros, 2 ** (bits - 1))
    group_of = act_order if isinstance(act_order, Tensor) else _groups(columns, group, act_order)
    words = int32_planes if form == "gptq_p" else int32_words
    # Zeros minus one, in the range of codes; where these fill words, each word is one number.
    stored_zeros = (zeros - 1) % 2**bits if form == "gptq" and bits == 3 else zeros
    qzeros = words(stored_zeros.t().tolist(), bits)
    if form == "gptq" and bits != 3:
        qzeros = qzeros - sum(1 << at for at in range(0, 32, bits))
    tensors = {
        "qweight": words(codes.tolist(), bits).t().contiguous(),
        "qzeros": qzeros,
        "scales": scales.t().contiguous(),
        "g_idx": group_of.int(),
    }
    return tensors, _exact(codes, scales, zeros, group_of)


def awq(rows: int, columns: int, group: int, bits: int = 4) -> Stored:
    codes, scales, zeros = _grouped(rows, columns, group)
    if bits == 8:
        codes, zeros = torch.randint(256, codes.shape), torch.randint(256, zeros.shape)
    order = {4: [0, 2, 4, 6, 1, 3, 5, 7], 8: [0, 2, 1, 3]}[bits]
    count = len(order)

    def mixed(lines: list[list[int]]) -> list[list[int]]:
        return [[line[count * (i // count) + order[i % count]] for i in range(len(line))] for line in lines]

    tensors = {
        "qweight": int32_words(mixed(codes.t().tolist()), bits),
        "qzeros": int32_words(mixed(zeros.t().tolist()), bits),
        "scales": scales.t().contiguous(),
    }
    return tensors, _exact(codes, scales, zeros, torch.arange(columns) // group)


def hqq(rows: int, columns: int, group: int, bits: int = 4) -> Stored:
    codes, scales, _ = _grouped(rows, columns, group, bits)
    zeros = (torch.rand(rows, columns // group) * (2**bits - 1)).half()
    matrix = codes.view(-1, group)
    count = {2: 4, 3: 10, 4: 2}.get(bits, 1)  # of codes that are packed together, those of 3 bits in words
    parts = torch.nn.functional.pad(matrix, (0, 0, 0, -len(matrix) % count)).chunk(count)
    W_q = sum(part << (bits * i) for i, part in enumerate(reversed(parts)))
    assert isinstance(W_q, Tensor)
    tensors = {
        "W_q": W_q.to(torch.int32 if bits == 3 else torch.uint8),
        "scale": scales.view(-1, 1),
        "zero": zeros.view(-1, 1),
        "shape": torch.tensor([rows, columns]),
        "nbits": torch.tensor(bits),
    }
    return tensors, _exact(codes, scales, zeros.double(), torch.arange(columns) // group)


def pack_quantized(
    rows: int,
    columns: int,
    group: int,
    bits: int = 4,
    *,
    symmetric: bool = True,
    act_order: bool = False,
) -> Stored:
    codes, scales, zeros = _grouped(rows, columns, group, bits)
    group_of = _groups(columns, group, act_order)
    tensors = {
        "weight_packed": int32_words(codes.tolist(), bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor([rows, columns]),
    }
    if symmetric:
        zeros = torch.full_like(zeros, 2 ** (bits - 1))
    else:  # along N
        tensors["weight_zero_point"] = int32_words(zeros.t().tolist(), bits).t().contiguous()
    if act_order:
        tensors["weight_g_idx"] = group_of.int()
    return tensors, _exact(codes, scales, zeros, group_of)


def int_quantized(rows: int, columns: int) -> Stored:
    q = torch.randint(-128, 128, (rows, columns)).to(torch.int8)
    scale = torch.rand(rows, 1) * 0.1
    return {"weight": q, "weight_scale": scale}, q.double() * scale.double()


def float_quantized(rows: int, columns: int, *, whole: bool = False) -> Stored:
    q = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scale = torch.rand(1) if whole else torch.rand(rows, 1)
    return {"weight": q, "weight_scale": scale}, q.double() * scale.double()


def gemma(rows: int, columns: int, bits: int, *, embedding: bool = False, groups: int = 1) -> Stored:
    """Integers of 2, 4 or 8 bits; the activations' scales say that they were not fixed."""
    half = 1 << (bits - 1)
    codes = torch.randint(-half, half, (rows, columns))
    scales = (torch.rand(rows, groups) + 0.5) / half
    packed = sum((codes[:, i :: 8 // bits] + half) << (bits * i) for i in range(8 // bits))
    tensors = {
        "embedding_quantized" if embedding else "weight": codes.to(torch.int8)
        if bits == 8
        else torch.as_tensor(packed).to(torch.uint8),
        "embedding_scale" if embedding else "weight_scale": scales,
    }
    if not embedding:
        tensors |= {f"{where}_activation_scale": torch.tensor(0.0) for where in ("input", "output")}
    return tensors, codes.double() * scales.double().repeat_interleave(columns // groups, 1)


def bitsandbytes_int8(rows: int, columns: int) -> Stored:
    q = torch.randint(-127, 128, (rows, columns)).to(torch.int8)
    largest = torch.rand(rows) + 0.1
    tensors = {"weight": q, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, q.double() * (largest.double()[:, None] / 127)


def in_blocks(values: Tensor, scale: Tensor, block: Sequence[int]) -> Tensor:
    """Each value times the scale of its block, in float64."""
    rows, columns = values.shape
    at_rows = torch.arange(rows) // block[0]
    at_columns = torch.arange(columns) // block[1]
    return values.double() * scale.double()[at_rows[:, None], at_columns[None, :]]


def _scales(rows: int, columns: int, block: Sequence[int]) -> Tensor:
    """Random float32 ones for the blocks of a weight, the last of which may be partial."""
    return torch.rand(-(-rows // block[0]), -(-columns // block[1])) * 0.1 + 0.001


def _exponents(rows: int, columns: int, block: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Random exponents in uint8, and the powers of two that they stand for, in float64."""
    codes = torch.randint(110, 130, _scales(rows, columns, block).shape, dtype=torch.uint8)
    return codes, torch.tensor(
        [[2.0 ** (int(code) - 127) for code in row] for row in codes.tolist()]
    ).double()


def fp8(rows: int, columns: int, block: Sequence[int], scales: str = "float") -> Stored:
    """scales: "float", "powers" (float32 that are powers of two), "e8m0" or "bytes"."""
    q = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    stored: Tensor
    if scales == "float":
        stored = _scales(rows, columns, block)
        exact = stored
    else:
        codes, exact = _exponents(rows, columns, block)
        stored = {"powers": exact.float(), "e8m0": codes.view(torch.float8_e8m0fnu), "bytes": codes}[scales]
    return {"weight": q, "weight_scale_inv": stored}, in_blocks(q, exact, block)


def fp8_whole(rows: int, columns: int) -> Stored:
    q = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scale = torch.rand(())
    tensors = {"weight": q, "weight_scale": scale, "input_scale": torch.rand(())}
    return tensors, q.double() * scale.double()


def _bytes_of_two(codes: Tensor, *, high_first: bool = False) -> Tensor:
    """Codes of 4 bits [N, K], two to a byte, the first one low."""
    shifts = (4, 0) if high_first else (0, 4)
    rows = [
        [row[i] << shifts[0] | row[i + 1] << shifts[1] for i in range(0, len(row), 2)]
        for row in codes.tolist()
    ]
    return torch.tensor(rows, dtype=torch.uint8)


def _e2m1(codes: Tensor) -> Tensor:
    """The values by their bits: sign, two of exponent, one of mantissa."""

    def value(code: int) -> float:
        exponent, mantissa = code >> 1 & 3, code & 1
        magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2 ** (exponent - 1)
        return -magnitude if code & 8 else magnitude

    return torch.tensor([[value(code) for code in row] for row in codes.tolist()])


def nvfp4(rows: int, columns: int, *, divided: bool = False) -> Stored:
    """With one more scale that multiplies, as ModelOpt has it, or divides, as compressed-tensors does."""
    codes = torch.randint(16, (rows, columns))
    scale = (torch.rand(rows, columns // 16) * 400 + 1).to(torch.float8_e4m3fn)
    divisor = torch.rand(1) * 900 + 100
    exact, packed = in_blocks(_e2m1(codes), scale, (1, 16)), _bytes_of_two(codes)
    if divided:
        tensors = {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": divisor}
        return tensors, exact / divisor.double()
    whole = 1 / divisor
    return {"weight": packed, "weight_scale": scale, "weight_scale_2": whole[0]}, exact * whole.double()


def mxfp4(rows: int, columns: int) -> Stored:
    codes = torch.randint(16, (rows, columns))
    exponents, scale = _exponents(rows, columns, (1, 32))
    tensors = {"weight_packed": _bytes_of_two(codes), "weight_scale": exponents}
    return tensors, in_blocks(_e2m1(codes), scale, (1, 32))


def quantized_by_blocks(rows: int, columns: int, block: Sequence[int], kind: str = "float") -> Stored:
    """float- or int-quantized, or as "mxfp8" those whose scales are exponents."""
    if kind == "int":
        q = torch.randint(-128, 128, (rows, columns)).to(torch.int8)
    else:
        q = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    stored = scale = _scales(rows, columns, block).bfloat16()
    if kind == "mxfp8":
        stored, scale = _exponents(rows, columns, block)
    return {"weight": q, "weight_scale": stored}, in_blocks(q, scale, block)


# Zeros of 8 bits: of symmetric weights, those that take the values out of int8, and those that codes can be
# moved by, as all values of a weight are then in a range of 256 around 0.
ZEROS = {"128": (128, 129), "any": (0, 256), "within": (100, 156)}


def _codes_8(rows: int, columns: int, group_of: Tensor, zeros: str) -> tuple[Tensor, Tensor]:
    """Codes [N, K] and zeros [N, K/g], both in 0..255."""
    groups = int(group_of.max()) + 1
    codes, zero = torch.randint(256, (rows, columns)), torch.randint(*ZEROS[zeros], (rows, groups))
    if zeros == "within":
        of_column = zero[:, group_of]
        codes = codes.clamp(of_column - 128, of_column + 127).clamp(0, 255)
    return codes, zero


def pack_quantized_8(
    rows: int, columns: int, group: int, zeros: str = "128", *, act_order: bool = False
) -> Stored:
    group_of = _groups(columns, group, act_order)
    codes, zero = _codes_8(rows, columns, group_of, zeros)
    scale = _scales(rows, columns, (1, group)).bfloat16()
    filled = [row + [0] * (-columns % 4) for row in codes.tolist()]
    tensors = {
        "weight_packed": int32_words(filled, 8),
        "weight_scale": scale,
        "weight_shape": torch.tensor([rows, columns]),
    }
    if zeros != "128":  # along N, filled up with zeros
        lines = [line + [0] * (-rows % 4) for line in zero.t().tolist()]
        tensors["weight_zero_point"] = int32_words(lines, 8).t().contiguous()
    if act_order:
        tensors["weight_g_idx"] = group_of.int()
    return tensors, _exact(codes, scale, zero, group_of)


def int_quantized_zeros(
    rows: int, columns: int, group: int, zeros: str = "any", *, act_order: bool = False, whole: bool = False
) -> Stored:
    """whole: one scale and one zero for all of the weight"""
    group_of = _groups(columns, group, act_order)
    codes, zero = _codes_8(rows, columns, group_of, zeros)
    scale = _scales(rows, columns, (1, group))
    if whole:
        scale, zero = (t[:1].expand(rows, 1) for t in (scale, zero))
    kept = slice(1) if whole else slice(None)
    tensors = {
        "weight": (codes - 128).to(torch.int8),
        "weight_scale": scale[kept].clone(),
        "weight_zero_point": (zero - 128)[kept].to(torch.int8),
    }
    if act_order:
        tensors["weight_g_idx"] = group_of.int()
    return tensors, _exact(codes, scale, zero, group_of)


def int_quantized_blocks(rows: int, columns: int, block: Sequence[int]) -> Stored:
    """With a zero for each block."""
    q = torch.randint(-128, 128, (rows, columns))
    scale = _scales(rows, columns, block).bfloat16()
    zero = torch.randint(-128, 128, scale.shape).to(torch.int8)
    tensors = {"weight": q.to(torch.int8), "weight_scale": scale, "weight_zero_point": zero}
    return tensors, in_blocks(q - in_blocks(torch.ones(rows, columns), zero, block), scale, block)


def _groups(columns: int, group: int, act_order: bool) -> Tensor:
    """The group of each column."""
    group_of = torch.arange(columns) // group
    return group_of[torch.randperm(columns)] if act_order else group_of


def gptq_8(
    rows: int, columns: int, group: int, zeros: str = "128", *, form: str = "gptq", act_order: bool = False
) -> Stored:
    group_of = _groups(columns, group, act_order)
    codes, zero = _codes_8(rows, columns, group_of, zeros)
    scales = (torch.rand(rows, columns // group) * 0.1 + 0.001).half()
    words = int32_words(zero.t().tolist(), 8)
    tensors = {
        "qweight": int32_words(codes.tolist(), 8).t().contiguous(),
        "qzeros": words - 0x01010101 if form == "gptq" else words,  # each word as one number
        "scales": scales.t().contiguous(),
        "g_idx": group_of.int(),
    }
    return tensors, _exact(codes, scales, zero, group_of)


def gptq_partial(rows: int, columns: int, group: int, bits: int, *, act_order: bool = False) -> Stored:
    """GPTQ's first format with a last group that has fewer columns."""
    group_of = _groups(columns, group, act_order)
    codes = torch.randint(2**bits, (rows, columns))
    zeros = torch.randint(1, 2**bits, (rows, -(-columns // group)))
    scales = (torch.rand(zeros.shape) * 0.1 + 0.001).half()
    tensors = {
        "qweight": int32_words(codes.tolist(), bits).t().contiguous(),
        "qzeros": int32_words((zeros - 1).t().tolist(), bits),
        "scales": scales.t().contiguous(),
        "g_idx": group_of.int(),
    }
    return tensors, _exact(codes, scales, zeros, group_of)


def bitsandbytes_4(
    rows: int, columns: int, block: int = 64, *, kind: str = "nf4", nested: bool = False
) -> Stored:
    """Blocks of the flat matrix, the first value in the high nibble."""
    codes = torch.randint(16, (rows, columns))
    table = torch.linspace(-1, 1, 16) ** 3
    blocks = -(-rows * columns // block)
    said = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [rows, columns]}
    tensors = {"weight.quant_map": table}
    if nested:
        stored = torch.randint(256, (blocks,), dtype=torch.uint8)
        outer, outer_table = torch.rand(-(-blocks // 256)) + 0.1, torch.linspace(-1, 1, 256)
        offset = 0.6
        said |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        tensors |= {"weight.nested_absmax": outer, "weight.nested_quant_map": outer_table}
        scale = torch.tensor(
            [
                float(outer_table[code]) * float(outer[i // 256]) + offset
                for i, code in enumerate(stored.tolist())
            ],
            dtype=torch.float64,
        )
    else:
        stored = torch.rand(blocks) + 0.1
        scale = stored.double()
    tensors["weight"] = _bytes_of_two(codes.view(1, -1), high_first=True).view(-1, 1)
    tensors["weight.absmax"] = stored
    tensors[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(
        list(json.dumps(said).encode()), dtype=torch.uint8
    )
    flat = table.double()[codes.flatten()] * scale[torch.arange(rows * columns) // block]
    return tensors, flat.view(rows, columns)

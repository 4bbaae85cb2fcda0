"""Draws calls of every operator, mostly bad ones, by the thousand; run by test_bad_input.

Each call must either raise an error that Python can catch, in the contract's form where it is ours, or
give a result of the right shape. A crash ends the process, which the caller sees.
"""

from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import aoext
from reference import ALL_CALLS, EIGHT_BIT, HIGH_PRECISION, Problem

SEED = int(os.environ.get("AOEXT_TEST_SEED", torch.seed() % 2**31))
DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
]
SIZES = [0, 1, 2, 3, 4, 5, 8, 16, 31, 32, 33, 64]
INTEGERS = [-(2**63), -32, -1, 0, 1, 2, 3, 4, 8, 16, 32, 33, 64, 128, 2**31, 2**63 - 1]
FORMS = ["dense", "dense", "dense", "transposed", "strided", "expanded", "sparse", "meta", "offset"]

counts = {"calls": 0, "raised": 0, "ran": 0}


def make_tensor(shape: list[int], dtype: torch.dtype, form: str) -> torch.Tensor:
    t = torch.randint(0, 256, [2 * n for n in shape[:1]] + shape[1:]).to(dtype)
    t = t[: shape[0]] if shape else t
    if form == "transposed" and t.dim() >= 2:
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if form == "strided" and t.dim() >= 1:
        return torch.stack([t, t], -1)[..., 1]
    if form == "expanded" and t.dim() >= 1 and t.shape[0]:
        return t[:1].expand(t.shape)
    if form == "sparse" and dtype in (torch.float32, torch.int8, torch.bfloat16):
        return t.to_sparse()
    if form == "meta":
        return t.to("meta")
    if form == "offset":
        return torch.cat([t.flatten(), t.flatten()[:1]])[1:].view(t.shape) if t.numel() else t
    return t


tensors = st.builds(
    make_tensor,
    st.lists(st.sampled_from(SIZES), max_size=4),
    st.sampled_from(DTYPES),
    st.sampled_from(FORMS),
)


@st.composite
def near_good_calls(draw: st.DrawFn) -> tuple[str, list[object], dict[str, object]]:
    """A good call with zero, one or two arguments replaced, or one size changed."""
    operator = draw(st.sampled_from(aoext.ops.operators()))
    groups, group_size = draw(st.integers(1, 4)), draw(st.sampled_from([2, 3, 6, 16, 32, 64]))
    K = groups * group_size * (2 if group_size % 2 else 1)
    problem = Problem(
        draw(st.sampled_from(SIZES)),
        draw(st.sampled_from(SIZES)),
        K,
        group_size,
        draw(st.sampled_from(HIGH_PRECISION)),
        draw(st.sampled_from(HIGH_PRECISION)),
        draw(st.sampled_from(EIGHT_BIT)),
    )
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    kwargs: dict[str, object] = {}
    if operator == "quantize_rowwise":
        args: list[object] = [
            torch.randn(problem.M, K, generator=g).to(problem.dtype),
            problem.eight_bit,
        ]
    else:
        call = ALL_CALLS[operator](problem, g)
        args, kwargs = list(call.args), dict(call.kwargs)
    for _ in range(draw(st.integers(0, 2))):
        i = draw(st.integers(0, len(args) - 1))
        kind = draw(st.sampled_from(["tensor", "narrow", "none", "dtype", "transpose"]))
        if kind == "tensor" and not isinstance(args[i], torch.dtype):
            # PyTorch takes a number for a dtype and crashes on one out of range, for its own operators too.
            args[i] = draw(tensors)
        elif kind == "none":
            args[i] = None
        elif isinstance(args[i], int):
            args[i] = draw(st.sampled_from(INTEGERS))
        elif kind == "dtype":
            args[i] = (
                args[i].to(draw(st.sampled_from(DTYPES)))
                if isinstance(args[i], torch.Tensor)
                else draw(st.sampled_from(DTYPES))
            )
        elif isinstance(args[i], torch.Tensor) and args[i].dim() >= 1 and args[i].layout is torch.strided:
            if kind == "narrow" and args[i].shape[-1]:
                args[i] = args[i].narrow(-1, 0, args[i].shape[-1] - 1)
            elif kind == "transpose":
                args[i] = args[i].transpose(0, -1)
    return operator, args, kwargs


@seed(SEED)
@settings(max_examples=3000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(near_good_calls(), st.booleans())
def draw_operator_calls(call: tuple[str, list[object], dict[str, object]], generic: bool) -> None:
    operator, args, kwargs = call
    counts["calls"] += 1
    # The generic twin is asked of dense CPU tensors alone: it is called past the dispatcher.
    twin = (
        generic
        and isinstance(args[0], torch.Tensor)
        and all(
            isinstance(a, (torch.dtype, int)) or (isinstance(a, torch.Tensor) and a.device.type == "cpu")
            for a in args
        )
    )
    kernel = aoext.ops.generic(operator) if twin else getattr(torch.ops.ao, operator)
    try:
        result = kernel(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError) as error:  # ValueError: PyTorch's own argument parser
        counts["raised"] += 1
        text = str(error)
        assert text, "an error without a text"
        assert "INTERNAL ASSERT" not in text, text
        return
    counts["ran"] += 1
    first = result[0] if isinstance(result, tuple) else result
    if operator not in ("dequantize_int4", "convert_weight_to_int4pack"):
        assert first.shape[:-1] == args[0].shape[:-1]


if __name__ == "__main__":
    print(f"AOEXT_TEST_SEED={SEED}", flush=True)
    draw_operator_calls()
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))

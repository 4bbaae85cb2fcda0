"""Shapes of weights to measure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A weight [N, K] and where it occurs."""

    N: int
    K: int
    layer: str = ""

    def __str__(self) -> str:
        return f"{self.N}x{self.K}"


# The linear layers of Llama 3 8B: 4096 wide, 32 query and 8 key/value heads of 128, 14336 in the MLP.
# Inference engines fuse q, k and v, and gate and up.
LLAMA_3_8B = (
    Shape(4096, 4096, "q_proj, o_proj"),
    Shape(1024, 4096, "k_proj, v_proj"),
    Shape(6144, 4096, "qkv fused"),
    Shape(14336, 4096, "gate_proj, up_proj"),
    Shape(28672, 4096, "gate and up fused"),
    Shape(4096, 14336, "down_proj"),
)

# The same of Llama 3 8B and 70B (8192 wide, 64 query heads, 28672 in the MLP), with the fused layers that
# inference engines run.
LLAMA_3_8B_AND_70B = (
    Shape(4096, 4096, "8B q_proj, o_proj"),
    Shape(6144, 4096, "8B qkv fused"),
    Shape(28672, 4096, "8B gate and up fused"),
    Shape(4096, 14336, "8B down_proj"),
    Shape(8192, 8192, "70B q_proj, o_proj"),
    Shape(10240, 8192, "70B qkv fused"),
    Shape(57344, 8192, "70B gate and up fused"),
    Shape(8192, 28672, "70B down_proj"),
)

# Those of the former that differ: square, wide and long.
LLAMA_3_8B_IN_BRIEF = (LLAMA_3_8B[0], LLAMA_3_8B[3], LLAMA_3_8B[5])

# A small and a middle one of them, for a quick look.
QUICK = LLAMA_3_8B[:2]


def named(N: int, K: int) -> Shape:
    """The shape of these sizes, with its layer if it is one of the above."""
    known = (*LLAMA_3_8B, *LLAMA_3_8B_AND_70B)
    return next((shape for shape in known if (shape.N, shape.K) == (N, K)), Shape(N, K))

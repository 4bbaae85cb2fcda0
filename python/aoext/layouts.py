"""Weights between layouts without loss: the public names of aoext.packing.layouts."""

from aoext.packing.layouts import (
    float64,
    plain_int32_to_plain,
    plain_int32_to_tinygemm,
    plain_to_plain_int32,
    plain_to_tinygemm,
    tinygemm_to_plain,
    tinygemm_to_plain_int32,
    tinygemm_unpack,
)

__all__ = [
    "float64",
    "plain_int32_to_plain",
    "plain_int32_to_tinygemm",
    "plain_to_plain_int32",
    "plain_to_tinygemm",
    "tinygemm_to_plain",
    "tinygemm_to_plain_int32",
    "tinygemm_unpack",
]

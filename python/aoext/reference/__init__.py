"""Random calls of every operator with their float64 results, for tests, `aoext report` and benchmarks.

A reference never calls an operator of aoext: it repeats the contract's formulas (docs/operators.md) in
float64 on the same quantised values. Whoever brings a kernel for another device can hold it to these:

>>> import torch
>>> from aoext.reference import CALLS, Problem, assert_close
>>> call = CALLS["int8_mm"](Problem(M=3, N=8, K=16, group_size=16), torch.Generator())
>>> assert_close(call.run(torch.device("cpu"), torch.ops.ao.int8_mm), call.reference)
"""

from .calls import (
    ACTIVATION_CALLS,
    ALL_CALLS,
    BIAS_CALLS,
    BLOCKWISE_CALLS,
    CALLS,
    DEQUANTIZE_CALLS,
    GROUPED,
    GROUPED_CALLS,
    INPUT_CALLS,
    INT4_CALLS,
    OPTIONAL_BIAS_CALLS,
    PACKED_CALLS,
    QUANTIZE,
    TINYGEMM_CALLS,
    Call,
    bf16i4bf16_rowwise,
    call_of,
    moved,
    op,
    operator_of,
    weight_int4pack_mm,
    without_bias,
)
from .compare import Sample, assert_close, bound
from .stored import Stored
from .subject import Problem, Subject, Tensors, full_name
from .subjects import SUBJECTS, subject
from .values import (
    EIGHT_BIT,
    HIGH_PRECISION,
    int4_float64,
    int4_weight,
    quantized,
    quantized_blocks,
    quantized_max,
    randn,
    routed,
    rowwise_values,
    scales_of_both_signs,
    sorted_by_expert,
    tinygemm_bytes,
    tinygemm_float64,
    tinygemm_pack,
    unpack_int4,
)

__all__ = [
    "ACTIVATION_CALLS",
    "ALL_CALLS",
    "BIAS_CALLS",
    "BLOCKWISE_CALLS",
    "CALLS",
    "DEQUANTIZE_CALLS",
    "EIGHT_BIT",
    "GROUPED",
    "GROUPED_CALLS",
    "HIGH_PRECISION",
    "INPUT_CALLS",
    "INT4_CALLS",
    "OPTIONAL_BIAS_CALLS",
    "PACKED_CALLS",
    "QUANTIZE",
    "SUBJECTS",
    "TINYGEMM_CALLS",
    "Call",
    "Problem",
    "Sample",
    "Stored",
    "Subject",
    "Tensors",
    "assert_close",
    "bf16i4bf16_rowwise",
    "bound",
    "call_of",
    "full_name",
    "int4_float64",
    "int4_weight",
    "moved",
    "op",
    "operator_of",
    "quantized",
    "quantized_blocks",
    "quantized_max",
    "randn",
    "routed",
    "rowwise_values",
    "scales_of_both_signs",
    "sorted_by_expert",
    "subject",
    "tinygemm_bytes",
    "tinygemm_float64",
    "tinygemm_pack",
    "unpack_int4",
    "weight_int4pack_mm",
    "without_bias",
]

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
`ao::quantize`.

Large weights pass through float32 in blocks of rows, so that a call needs little more memory than
its result. Wrong types and dtypes raise TypeError, wrong shapes and values ValueError. Tensors on
the meta device, fake ones and those that are traced have no values: there only shapes and dtypes are
checked.
"""

from aoext.packing.dequantized import dequantize
from aoext.packing.int4 import int4_row_quantize, int4_row_quantize_zp, pack_int4, unpack_int4
from aoext.packing.rows import float8_row_quantize, int8_row_quantize

__all__ = [
    "dequantize",
    "float8_row_quantize",
    "int4_row_quantize",
    "int4_row_quantize_zp",
    "int8_row_quantize",
    "pack_int4",
    "unpack_int4",
]

"""Better numbers at the same bits: where scales lie, and which codes are chosen, beyond rounding to nearest.

A grid (grid.py) is what a weight can be once its scales are chosen; all else chooses scales and values on it.
Formats, layouts and kernels stay as they are.
"""

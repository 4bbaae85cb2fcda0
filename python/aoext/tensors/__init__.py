"""Quantised weights as tensor subclasses; they stand in for the weight of an nn.Linear.

fields.py, base.py: the table of fields that a format declares, and what follows from it
products.py, views.py, copies.py, averages.py, flat.py, distributed.py: operations of PyTorch that they know
int4.py, rowwise.py, int8.py, float8.py: the formats
"""

import torch.distributed

from aoext.tensors import averages as averages  # these register operations
from aoext.tensors import copies as copies
from aoext.tensors import products as products
from aoext.tensors import views as views
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.float8 import Float8Tensor
from aoext.tensors.int4 import Int4Tensor
from aoext.tensors.int8 import Int8Tensor

if torch.distributed.is_available():
    from aoext.tensors import distributed as distributed

__all__ = ["Float8Tensor", "Int4Tensor", "Int8Tensor", "QuantizedTensor"]

"""Quantised weights as tensor subclasses; they stand in for the weight of an nn.Linear.

fields.py, base.py: the table of fields that a format declares, and what follows from it
products.py, grouped.py, lookups.py, views.py, experts.py, copies.py, plain.py, encoder_layer.py, flat.py,
distributed.py: the operations of PyTorch that quantised weights know
recording.py: what torch.export sees of them
memory.py, parameters.py, pickles.py, fully_shard.py: what modules, files and other libraries ask of them
computing.py, each_expert.py: what the operators make of them, and of those of experts one by one
groups.py, intx.py, int4.py, rowwise.py, int8.py, float8.py, blockwise.py, lut4.py, nested.py, gguf.py: the
formats
int8_training.py, in_training.py: weights that train, and what changes them
"""

import torch.distributed

from aoext.tensors import copies as copies  # these register operations
from aoext.tensors import encoder_layer as encoder_layer
from aoext.tensors import experts as experts
from aoext.tensors import fully_shard as fully_shard
from aoext.tensors import grouped as grouped
from aoext.tensors import in_training as in_training
from aoext.tensors import lookups as lookups
from aoext.tensors import memory as memory
from aoext.tensors import parameters as parameters
from aoext.tensors import pickles as pickles
from aoext.tensors import plain as plain
from aoext.tensors import products as products
from aoext.tensors import views as views
from aoext.tensors.base import QuantizedTensor
from aoext.tensors.blockwise import BlockwiseTensor
from aoext.tensors.float8 import Float8Tensor
from aoext.tensors.gguf import GGUF_TYPES, GGUFTensor
from aoext.tensors.groups import GroupsTensor
from aoext.tensors.int4 import Int4Tensor
from aoext.tensors.int8 import Int8Tensor
from aoext.tensors.int8_training import Int8TrainingTensor
from aoext.tensors.intx import INTX_TYPES, Int2Tensor, Int3Tensor, Int5Tensor, Int6Tensor, Int7Tensor
from aoext.tensors.lut4 import Lut4Tensor
from aoext.tensors.nested import NestedLut4Tensor

if torch.distributed.is_available():
    from aoext.tensors import distributed as distributed

# Integers in groups with float zero points, by their bits.
GROUPS_TYPES: dict[int, type[GroupsTensor]] = {4: Int4Tensor, **INTX_TYPES}

# By the names that files have.
_TYPES: list[type[QuantizedTensor]] = [
    *(Int8Tensor, Int8TrainingTensor, Float8Tensor, BlockwiseTensor, Lut4Tensor, NestedLut4Tensor),
    *GROUPS_TYPES.values(),
    *GGUF_TYPES.values(),
]
TENSOR_TYPES = {kind.__name__: kind for kind in _TYPES}

__all__ = [
    "GGUF_TYPES",
    "GROUPS_TYPES",
    "TENSOR_TYPES",
    "BlockwiseTensor",
    "Float8Tensor",
    "GGUFTensor",
    "Int2Tensor",
    "Int3Tensor",
    "Int4Tensor",
    "Int5Tensor",
    "Int6Tensor",
    "Int7Tensor",
    "Int8Tensor",
    "Int8TrainingTensor",
    "Lut4Tensor",
    "NestedLut4Tensor",
    "QuantizedTensor",
]

"""Quantised models in safetensors files.

A quantised weight `layer.weight` is stored as one tensor for each of its fields, as in
`layer.weight.qdata` and `layer.weight.scale`, and everything else under its own name. The file's
metadata has

    aoext_format_version   "2"
    aoext_weights          JSON: for each quantised weight its type, dtype, shape, group size and
                           further attributes, and what its bits mean (dtype of qdata, packing, sign,
                           zero point)
    aoext_tied             JSON: names that share the tensor of another name
    aoext_not_persistent   JSON: names of buffers that are no part of the model's state dict
    aoext_crc32            JSON: for each stored tensor the CRC-32 of its bytes, in hexadecimal digits
    aoext_dtypes           JSON: dtype and shape of tensors that are stored as bytes, because safetensors
                           has no name for their dtype

so that a reader that knows nothing of aoext can make sense of the numbers. Version 1 had the first three.

saving.py and loading.py are the entrances. container.py reads and writes one safetensors file, replacing.py
makes files appear whole, checkpoint.py knows which files belong together, contents.py what they say,
placing.py how tensors get into a model.
"""

from __future__ import annotations

from aoext.serialization.checkpoint import DEFAULT_INDEX, files_in, write_file
from aoext.serialization.container import forms_in, metadata_of, names_in, tensor_in, tensors_in
from aoext.serialization.contents import (
    FORMAT_VERSION,
    WEIGHTS_KEY,
    assembled,
    described_attributes,
    descriptions_in,
    flattened,
    has_quantised,
)
from aoext.serialization.loading import load_model
from aoext.serialization.saving import save_model
from aoext.tensors import TENSOR_TYPES

__all__ = [
    "DEFAULT_INDEX",
    "FORMAT_VERSION",
    "TENSOR_TYPES",
    "WEIGHTS_KEY",
    "assembled",
    "described_attributes",
    "descriptions_in",
    "files_in",
    "flattened",
    "forms_in",
    "has_quantised",
    "load_model",
    "metadata_of",
    "names_in",
    "save_model",
    "tensor_in",
    "tensors_in",
    "write_file",
]

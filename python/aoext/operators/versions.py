"""`ao::_count_write`: tells autograd of a write that compiled code has made.

PyTorch does not see what Inductor's kernels write. It counts a write in the tensor that the program knows,
which is the outer one of a quantised weight, while a backward pass has saved the weight's fields.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The operator lives as long as this object.
_library = torch.library.Library("ao", "FRAGMENT")
_library.define("_count_write(Tensor(a!) written) -> ()")


def _count_write(written: Tensor) -> None:
    if not written.is_inference():  # nothing of inference mode is saved for a backward pass
        torch.autograd.graph.increment_version(written)


_library.impl("_count_write", _count_write, "CompositeExplicitAutograd")
torch.library.register_fake("ao::_count_write", lambda written: None)

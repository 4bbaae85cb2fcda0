"""tools/cuda_sanitizer.py: its calls are good ones, as a CPU shows; a GPU is what the rest takes."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).parent.parent / "tools"
pytestmark = pytest.mark.skipif(not TOOLS.is_dir(), reason="needs the project's sources")
CALLS = 130  # of all operators: about half of what there is


def test_its_calls_are_right_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import cuda_sanitizer

    seen = set()
    forced = ((problem, call) for _, problem, call in cuda_sanitizer.calls_by_kernel())
    for problem, call in itertools.chain(forced, itertools.islice(cuda_sanitizer.calls(), CALLS)):
        seen.add(call.operator)
        result = getattr(torch.ops.ao, call.operator)(*call.args, **call.kwargs)
        assert cuda_sanitizer.is_right(call, result), (call.operator, problem)
    assert {"bf16i4bf16_rowwise", "bf16lut4bf16_blockwise", "scaled_linear_int4", "scaled_mm_int4"} <= seen
    sys.modules.pop("cuda_sanitizer")

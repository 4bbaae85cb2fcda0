"""What tools/arm_loops.py reads in machine code."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

arm_loops = importlib.import_module("arm_loops")

CODE = """
0000000000000010 <void aoext::cpu::(anonymous namespace)::dot<2>()>:
  10:\tmov\tx0, #0x0
  14:\tldp\tq1, q2, [x1], #32
  18:\tldr\tq3, [x2, x0]
  1c:\tshl\tv4.16b, v3.16b, #4
  20:\tsdot\tv0.4s, v4.16b, v1.16b
  24:\tsdot\tv0.4s, v4.16b, v2.16b
  28:\tadd\tx0, x0, #0x10
  2c:\tb.ne\t18 <void aoext::cpu::(anonymous namespace)::dot<2>()+0x8>
  30:\tstr\tq0, [x3]
  34:\tcbnz\tx4, 14 <void aoext::cpu::(anonymous namespace)::dot<2>()+0x4>
  38:\tret
"""


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> list[arm_loops.Instruction]:  # type: ignore[name-defined]
    done = subprocess.CompletedProcess([], 0, stdout=CODE)
    monkeypatch.setattr(arm_loops.subprocess, "run", lambda *arguments, **options: done)
    [(name, code)] = arm_loops.functions(Path("dot.o"))
    assert name == "void dot<2>()"
    [inner] = arm_loops.inner_loops(code)
    return inner


def test_the_inner_loop_is_found_and_counted(loop) -> None:  # type: ignore[no-untyped-def]
    assert [i.name for i in loop] == ["ldr", "shl", "sdot", "sdot", "add", "b.ne"]
    cost = arm_loops.cost_of(loop)
    assert (cost.instructions, cost.products, cost.loads, cost.stores) == (6, 2, 1, 0)
    assert cost.others == {"shift": 1}


def test_the_fullest_resource_bounds_a_loop(loop) -> None:  # type: ignore[no-untyped-def]
    cost = arm_loops.cost_of(loop)
    wide = arm_loops.Core("wide", dispatched=6, vectors=3, loads=2, halves={})
    assert cost.clocks(wide) == 1  # dispatch and vector units
    assert cost.clocks(arm_loops.Core("narrow", dispatched=2, vectors=3, loads=2, halves={})) == 3
    assert cost.clocks(arm_loops.Core("shifts", dispatched=6, vectors=4, loads=2, halves={"shift": 8})) == 4

"""Which cases of the test bodies run: none that shows nothing new; with `pytest -m quick` one of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

# Files and bodies that `-m quick` leaves out: they build, compile or start programs, seconds or minutes each.
LEFT_OUT = frozenset(
    {
        "test_aoti.py",
        "test_aoti_docs.py",
        "test_benchmarks.py",
        "test_cpu_isa.py",
        "test_demo.py",
        "test_distributed.py",
        "test_fuzz.py",
        "test_inductor_compile.py",
        "test_inductor_xpu.py",
        "test_install.py",
        "test_int4pack_shim.py",
        "test_isa.py",
        "test_selection.py",
        "test_tensor_parallel.py",
        "test_third_party_device.py",
        "test_tiny_lm.py",
        "test_xpu_library.py",
        "test_bench.py::test_bench_runs_on_xpu",
        "test_contract.py::test_inductor_runs_an_operator_between_its_own_kernels",
        "test_report.py::test_speeds_of_a_busy_machine_are_not_valid",
        "test_report.py::test_wrong_result_fails",
        "test_report.py::test_wrong_result_while_timing_leaves_the_other_operators",
        "test_tensor_protocols.py::test_another_process_loads_weights_after_importing_aoext_alone",
        "test_transformers.py::test_a_release_that_aoext_does_not_know_can_still_be_imported",
        "test_xpu.py::test_the_kernels_of_the_matrix_engine_are_right_with_lanes_in_its_place",
        "test_xpu.py::test_the_operators_are_right_on_another_vector_width",
        "test_xpu.py::test_warming_up_names_every_family_and_all_pass_their_self_check",
    }
)


def body(item: pytest.Item) -> str:
    """The file and the test function of a case, such as test_packing.py::test_x."""
    return f"{item.path.name}::{getattr(item, 'originalname', None) or item.name}"


def parameters(item: pytest.Item) -> dict[str, Any]:
    """The parameters of a case, by name."""
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def repetitions(items: Sequence[pytest.Item], simulated: bool) -> list[pytest.Item]:
    """Cases that show nothing which others do not.

    A generic kernel is made of ATen operators, and a simulated XPU hands these to the CPU: there one case of
    each body and operator is enough.
    """
    seen, found = set(), []
    for item in items if simulated else ():
        given = parameters(item)
        if (given.get("device"), given.get("kernel_of")) == ("xpu", "generic"):
            key = (body(item), given.get("operator"))
            if key in seen:
                found.append(item)
            seen.add(key)
    return found


def longest_first(items: list[pytest.Item]) -> None:
    """What builds or starts programs comes first, so that no process is left with it when others end."""
    items.sort(key=lambda item: not {body(item), item.path.name} & LEFT_OUT)


def mark_quick(items: Iterable[pytest.Item]) -> None:
    """Mark the first case of each body, which the order of devices makes one of the CPU."""
    seen = set()
    for item in items:
        name = body(item)
        if name not in seen and not {name, item.path.name} & LEFT_OUT:
            item.add_marker("quick")
        seen.add(name)

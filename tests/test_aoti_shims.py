"""The C functions by which compiled code calls the operators, called as that does; nothing is compiled."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
import subprocess
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C import _aoti

import aoext
from aoext.formats.table import Code
from aoext.reference import ALL_CALLS, EIGHT_BIT, Problem, moved, randn, routed
from formats import KIND_OF, OPERATORS, bits

ROOT = Path(__file__).parent.parent

LIBRARY = ctypes.CDLL(str(aoext.library_path()))
TORCH = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
PROBLEM = Problem(5, 24, 64, 32)
# Optional arguments that weights of the format that is called have in any case.
NEEDED = ("zero_point",)

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def tensor(handle: ctypes.c_void_p) -> Tensor:
    """The tensor of a handle, which is used up."""
    # The function for one of them leaks it.
    return _aoti.alloc_tensors_by_stealing_from_void_ptrs([_capsule(handle, None, None)])[0]


def new_handles(tensors: list[Tensor]) -> list[ctypes.c_void_p]:
    """A handle to each tensor, for who takes it over."""
    return [ctypes.c_void_p(_pointer(c, None)) for c in _aoti.unsafe_alloc_void_ptrs_from_tensors(tensors)]


@contextmanager
def handles(tensors: list[Tensor]) -> Iterator[list[ctypes.c_void_p]]:
    """A handle to each tensor, as long as this lasts."""
    made = new_handles(tensors)
    yield made
    for handle in made:
        tensor(handle)


def dtype_number(dtype: torch.dtype) -> int:
    name = str(dtype).removeprefix("torch.")
    return getattr(TORCH, f"aoti_torch_dtype_{name}")()


def call(device: str, operator: str, *values: Any, missing: int | None = None) -> tuple[int, list[Tensor]]:
    """The code that the shim returns for an operator's arguments in schema's order, and its results.

    missing: the number of the result that it is given no place for.
    """
    schema = getattr(torch.ops.ao, operator).default._schema
    with handles([v for v in values if isinstance(v, Tensor)]) as given:
        left = iter(given)
        arguments: list[Any] = []
        for value, argument in zip(values, schema.arguments, strict=True):
            optional = isinstance(argument.real_type, torch.OptionalType)
            if "List" in str(argument.real_type):
                numbers = (ctypes.c_int64 * len(value or []))(*(value or []))
                first: Any = ctypes.cast(numbers, ctypes.POINTER(ctypes.c_int64)) if optional else numbers
                place = None if value is None else ctypes.byref(first) if optional else first
                arguments += [place, ctypes.c_int64(len(numbers))]
                continue
            if value is None:
                arguments.append(None)
                continue
            if isinstance(value, bool):
                c = ctypes.c_int32(value)
            elif isinstance(value, Tensor):
                c = next(left)
            elif isinstance(value, torch.dtype):
                c = ctypes.c_int32(dtype_number(value))
            else:
                c = ctypes.c_int64(value)
            arguments.append(ctypes.byref(c) if optional else c)
        results = [ctypes.c_void_p() for _ in schema.returns]
        places = [None if i == missing else ctypes.byref(r) for i, r in enumerate(results)]
        code = getattr(LIBRARY, f"aoti_torch_{device}_{operator}")(*arguments, *places)
    return code, [tensor(r) for r in results if r.value]


def arguments(operator: str, device: torch.device, generator: torch.Generator) -> list[list[Any]]:
    """Calls of an operator, all of its arguments in schema's order: with what may be None, and without."""
    if operator == "quantize":
        x = randn(generator, 3, 64).to(device)
        return [[x, dtype, block, True] for dtype in EIGHT_BIT for block in (None, [1, 24])]
    if operator == "sort_by_expert":
        return [[routed(5, 2, 4, generator).to(device), 4]]
    call = ALL_CALLS[KIND_OF[operator]](PROBLEM, generator)
    schema = getattr(torch.ops.ao, operator).default._schema.arguments
    given = call.named() | call.kwargs
    values = [moved(given.get(a.name), device) for a in schema]
    without = [
        None if isinstance(a.real_type, torch.OptionalType) and a.name not in NEEDED else v
        for a, v in zip(schema, values, strict=True)
    ]
    if operator == "bf16i4bf16_rowwise_bias":
        return [values]
    return [values, without]


def by_dispatcher(operator: str, values: list[Any]) -> list[Tensor]:
    schema = getattr(torch.ops.ao, operator).default._schema
    kwargs = {a.name: v for a, v in zip(schema.arguments, values, strict=True) if a.kwarg_only}
    result = getattr(torch.ops.ao, operator)(*values[: len(values) - len(kwargs)], **kwargs)
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_shim_gives_the_bits_that_the_dispatcher_gives(operator, device, generator):
    for values in arguments(operator, device, generator):
        code, results = call(device.type, operator, *values)
        expected = by_dispatcher(operator, values)
        assert code == 0
        assert len(results) == len(expected)
        for result, other in zip(results, expected, strict=True):
            assert result.device == other.device
            assert result.dtype is other.dtype
            assert torch.equal(bits(result), bits(other))


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_shim_of_another_device_refuses_and_gives_nothing(operator, device, generator, capfd):
    for other in {"cpu", "cuda", "xpu"} - {device.type}:
        code, results = call(other, operator, *arguments(operator, device, generator)[0])
        assert code == 1
        assert results == []
        expected = rf"ao::{operator}: its first tensor must be on {other}, .*, got {device.type}"
        assert re.search(expected, failure(capfd))


def failure(capfd: pytest.CaptureFixture) -> str:
    """What PyTorch tells of the last failure: from 2.13 on to who asks, before on stderr."""
    try:
        what = TORCH.torch_exception_get_what_without_backtrace
    except AttributeError:
        return capfd.readouterr().err
    what.restype = ctypes.c_char_p
    return what().decode()


def test_a_refused_call_gives_a_code_and_leaves_the_operators_text(device, generator, capfd):
    x, weight = (
        randn(generator, 3, 64).bfloat16().to(device),
        torch.zeros(8, 7, dtype=torch.int8, device=device),
    )
    scale = torch.ones(8, 1, device=device)
    code, results = call(device.type, "weight_only_linear", x, weight, scale, Code.INT8, *[None] * 6)
    assert (code, results) == (1, [])
    text = failure(capfd)
    with pytest.raises(RuntimeError, match=r"^ao::weight_only_linear: weight must be") as error:
        torch.ops.ao.weight_only_linear(x, weight, scale, code=Code.INT8)
    assert str(error.value).splitlines()[0] in text


def test_no_tensor_where_one_is_needed_is_a_failure_and_no_crash(capfd):
    result = ctypes.c_void_p()
    assert LIBRARY.aoti_torch_cpu_int8_mm(None, None, ctypes.byref(result)) == 1
    assert not result.value
    assert "given no tensor where it needs one" in failure(capfd)


@pytest.mark.parametrize("operator", OPERATORS)
def test_no_place_for_a_result_is_a_failure_and_no_crash(operator, device, generator, capfd):
    """One of the places at a time, where there are several; nothing is written to the others."""
    values = arguments(operator, device, generator)[0]
    for missing in range(len(getattr(torch.ops.ao, operator).default._schema.returns)):
        code, results = call(device.type, operator, *values, missing=missing)
        assert (code, results) == (1, [])
        assert "given no place for its result" in failure(capfd)


def test_inputs_live_no_longer_for_a_call_that_worked_or_failed(generator):
    numpy = pytest.importorskip("numpy")
    for columns, expected in ((32, 0), (31, 1)):
        memory = numpy.zeros((3, 32), dtype=numpy.int8)
        alive = weakref.ref(memory)
        x = torch.from_numpy(memory)
        code, _ = call("cpu", "int8_mm", x, torch.zeros(4, columns, dtype=torch.int8))
        assert code == expected
        del x, memory
        gc.collect()
        assert alive() is None


def test_results_are_the_callers_to_free(generator):
    megabytes = 16
    x = randn(generator, 1024, megabytes * 1024)

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    assert call("cpu", "quantize", x, torch.int8, None, False)[0] == 0
    before = peak()
    for _ in range(20):
        call("cpu", "quantize", x, torch.int8, None, False)
    assert peak() - before < 5 * megabytes, "20 results of 16 MB each were not all freed"


def exported(library: Path) -> set[str]:
    command = ["nm", "-D", "--defined-only", str(library)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[-1] for line in lines}


def test_the_library_exports_a_shim_of_every_operator_and_device_and_nothing_else():
    devices = ("cpu", "cuda", "xpu")
    operators = aoext.ops.operators()
    shims = {f"aoti_torch_{device}_{operator}" for device in devices for operator in operators}
    assert exported(aoext.library_path()) == shims


def test_no_shim_has_the_name_of_one_of_torchs():
    ours = exported(aoext.library_path())
    for library in (Path(torch.__file__).parent / "lib").glob("libtorch_*.so"):
        assert not ours & exported(library), library


def test_every_own_kernel_is_registered_for_its_shim_too():
    """What goes to the dispatcher alone leaves its shim with the generic kernel; private names have none."""
    sources = [file for device in ("cpu", "cuda", "sycl") for file in (ROOT / "csrc" / device).glob("*.cpp")]
    alone = {file.name for file in sources if "AOEXT_LIBRARY_IMPL" in file.read_text()}
    assert sources
    assert alone == {"explain.cpp", "plans.cpp", "quantize_weight.cpp", "warmup.cpp"}

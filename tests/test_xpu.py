"""What is an XPU's own: queues, alignment, self-checks. The tests of the operators are every device's."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import pytest
import torch

import aoext
from aoext import reference
from aoext.library.info import build_config
from aoext.reference import ALL_CALLS, CALLS, Problem, assert_close, operator_of, randn
from conftest import XPU_SIM, on_the_device_alone
from formats import BY_ATEN_ON_XPU

BF16, FP16, FP32 = reference.HIGH_PRECISION

pytestmark = [
    pytest.mark.skipif(not torch.xpu.is_available(), reason="there is no XPU, real or simulated (xpu_sim)"),
    pytest.mark.skipif(build_config()["sycl"] != "ON", reason="aoext was built without SYCL"),
]
# Kinds of calls with a kernel of this device.
OWN = [kind for kind in [*ALL_CALLS, "quantize rows", "sort_by_expert"] if kind not in BY_ATEN_ON_XPU]
needs_simulator = pytest.mark.skipif(XPU_SIM is None, reason="the XPU is a real one")


def call_of(operator: str, generator: torch.Generator, M: int = 3, **options) -> reference.Call:
    if operator == "quantize rows":
        x = randn(generator, M, 256, dtype=BF16)
        return reference.Call("quantize", (x, torch.int8), {}, x)
    if operator == "sort_by_expert":
        expert = reference.routed(M, 2, 37, generator)
        return reference.Call(operator, (expert, 37), {}, expert)
    return ALL_CALLS[operator](Problem(M, 96, 256, 128, BF16, BF16, **options), generator)


def in_a_process(code: str, **environment: str) -> str:
    """The output of code that runs after the simulator was installed."""
    prelude = "import torch, xpu_sim\nxpu_sim.install()\nimport aoext\nao = torch.ops.ao\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        cwd=os.path.dirname(__file__),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# ---- own kernels ----------------------------------------------------------------------------------------


def test_every_operator_has_a_kernel_for_xpu():
    for operator in [*OWN, "_warmup"]:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"ao::{operator_of(operator)}", "XPU"), operator


@pytest.mark.parametrize("M", [1, 5, 80])
@pytest.mark.parametrize("operator", OWN)
def test_no_operator_computes_by_aten(operator, M, generator):
    call = call_of(operator, generator, M)
    args = call.on("xpu")
    with on_the_device_alone():
        getattr(torch.ops.ao, operator_of(operator))(*args, **call.kwargs)
    assert aoext.explain(operator_of(operator), *args, **call.kwargs).device == "xpu"


@needs_simulator
@pytest.mark.parametrize("operator", OWN)
def test_no_operator_waits_for_the_device(operator, generator):
    call = call_of(operator, generator)
    args = call.on("xpu")
    op = getattr(torch.ops.ao, operator_of(operator))
    op(*args, **call.kwargs)  # builds its kernels
    before = XPU_SIM.host_waits()
    result = op(*args, **call.kwargs)
    assert XPU_SIM.host_waits() == before
    del result


# ---- alignment ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("M", [1, 6, 70])
@pytest.mark.parametrize("offset", [1, 2, 8, 16])
@pytest.mark.parametrize("operator", reference.INPUT_CALLS)
def test_operands_may_start_anywhere(operator, offset, M, generator):
    """Contiguous views that begin `offset` elements into their storage."""

    def shifted(t):
        if not isinstance(t, torch.Tensor):
            return t
        storage = torch.zeros(t.numel() + offset, dtype=t.dtype, device="xpu")
        view = storage[offset:].view(t.shape)
        view.copy_(t)
        return view

    call = CALLS[operator](Problem(M, 64, 256, 64, BF16, BF16), generator)
    with on_the_device_alone() if operator in OWN else contextlib.nullcontext():
        result = getattr(torch.ops.ao, operator_of(operator))(*map(shifted, call.args), **call.kwargs)
    assert_close(result, call.reference)


# ---- queues ---------------------------------------------------------------------------------------------


@needs_simulator
@pytest.mark.parametrize("operator", OWN)
def test_work_goes_to_the_current_stream(operator, generator):
    """The operands arrive late on a side stream: a kernel on any other queue would read them too early."""
    call = call_of(operator, generator)
    op = getattr(torch.ops.ao, operator_of(operator))
    ready = call.on("xpu")
    expected = op(*ready, **call.kwargs)
    late = [torch.zeros_like(a) if isinstance(a, torch.Tensor) else a for a in ready]
    torch.xpu.synchronize()
    stream = torch.xpu.Stream()
    with torch.xpu.stream(stream):
        XPU_SIM.delay(stream, 300)
        for a, b in zip(late, ready, strict=True):
            if isinstance(a, torch.Tensor):
                a.copy_(b)
        result = op(*late, **call.kwargs)
    stream.synchronize()
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (result, expected)), strict=True):
        assert torch.equal(a.cpu().view(torch.uint8), b.cpu().view(torch.uint8))


@needs_simulator
def test_work_goes_to_the_device_of_the_tensors(generator):
    call = call_of("bf16i4bf16_rowwise", generator)
    assert torch.xpu.device_count() == 2
    with torch.xpu.device(0):
        result = call.run(torch.device("xpu:1"), torch.ops.ao.bf16i4bf16_rowwise)
    assert result.device == torch.device("xpu:1")
    assert_close(result, call.reference)


def test_threads_may_call_at_once(generator):
    """Also while the kernels are being built: in a process of its own, all threads start together."""
    calls = [CALLS[op](Problem(M, 64, 256, 128), generator) for op in CALLS for M in (1, 7)]
    failures: list[BaseException] = []

    def work(call):
        try:
            for _ in range(5):
                assert_close(
                    call.run(torch.device("xpu"), getattr(torch.ops.ao, call.operator)), call.reference
                )
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@pytest.mark.parametrize("M", [1, 9, 100])
@pytest.mark.parametrize("operator", OWN)
def test_the_same_call_gives_the_same_bits(operator, M, generator):
    call = call_of(operator, generator, M)
    args = call.on("xpu")

    def bits():
        result = getattr(torch.ops.ao, operator_of(operator))(*args, **call.kwargs)
        return [r.cpu().view(torch.uint8) for r in (result if isinstance(result, tuple) else (result,))]

    first = bits()
    for _ in range(3):
        assert all(map(torch.equal, bits(), first))


# ---- self-checks ----------------------------------------------------------------------------------------

CALL = """
w = torch.randint(-128, 128, (64, 64), dtype=torch.int8, device="cpu").to("xpu")
s = torch.rand(1, 64).bfloat16().to("xpu")
x = torch.randn(1, 128).bfloat16().to("xpu")
call = ("bf16i4bf16_rowwise", x, w, s, s)
"""


@needs_simulator
def test_a_family_that_differs_from_the_generic_kernel_is_turned_off_and_named_once():
    output = in_a_process(
        CALL
        + """
with xpu_sim.inject_fault("aten::mm") as fault:
    assert "int4_tile" not in aoext.explain(*call).kernel
    assert fault.hits > 0
for _ in range(3):
    ao.bf16i4bf16_rowwise(*call[1:])
assert aoext.explain(call[0], x.float(), *call[2:]).kernel == "int4_tile.lanes_fp32"
expected = aoext.ops.generic("bf16i4bf16_rowwise")(*call[1:]).float()
result = ao.bf16i4bf16_rowwise(*call[1:]).float()
assert (result - expected).norm() <= 5e-3 * expected.norm()
""",
        AOEXT_XPU_SELF_CHECK="all",
    )
    assert output.count("int4_tile.lanes_bf16/int4_tile_m1_g128 gives wrong results") == 1, output
    assert "aoext report" in output


@needs_simulator
def test_warming_up_names_every_family_and_all_pass_their_self_check():
    """With no compiler of SYCL code in the process."""
    output = in_a_process(
        """
with torch.inference_mode():
    print(aoext.warmup("xpu"))
print("libsycl-jit" in open("/proc/self/maps").read())
""",
        AOEXT_XPU_SELF_CHECK="all",
    )
    verdicts, compiler = map(eval, output.splitlines())
    assert {"int4_tile.lanes_bf16", "quantize_rowwise.lanes"} <= verdicts.keys()
    assert set(verdicts.values()) == {"ok"}, verdicts
    assert not compiler


@pytest.mark.skipif(XPU_SIM is not None, reason="the test above warms up the simulated XPU")
def test_warming_up_a_gpu_names_every_family():
    assert {"int4_tile.lanes_bf16", "quantize_rowwise.lanes"} <= aoext.warmup("xpu").keys()


def test_a_cpu_has_nothing_to_warm_up():
    assert aoext.warmup("cpu") == {}


@needs_simulator
def test_a_wrong_wish_for_self_checks_is_named():
    output = in_a_process(
        CALL
        + """
try:
    aoext.explain(*call)
except RuntimeError as error:
    print(error)
""",
        AOEXT_XPU_SELF_CHECK="maybe",
    )
    assert "AOEXT_XPU_SELF_CHECK must be gpu, all or off, got maybe" in output


# ---- other devices --------------------------------------------------------------------------------------


def run_tests(files: str, select: str, **environment: str) -> None:
    """In a process of its own, most of whose time compiling kernels takes: nothing is optimised."""
    paths = [os.path.join(os.path.dirname(__file__), f"test_{file}.py") for file in files.split()]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *paths, "-k", f"xpu and ({select})", "-p", "no:cacheprovider"],
        env={**os.environ, "SYCL_PROGRAM_COMPILE_OPTIONS": "-cl-opt-disable", **environment},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


@needs_simulator
@pytest.mark.skipif(
    "AVX512" not in torch.backends.cpu.get_cpu_capability(), reason="this CPU has no other width"
)
def test_the_operators_are_right_on_another_vector_width():
    """The CPU device as one without AVX-512: sub-groups of 16 are then two vectors wide."""
    run_tests("operators", "own and within_the_bound", CL_CONFIG_CPU_TARGET_ARCH="core-avx2")


@needs_simulator
@pytest.mark.parametrize(
    ("file", "select", "tiles"),
    [
        (
            "operators",
            "(within_the_bound or outlier or nan_and_inf) and not (int2 or int5 or q4_k)",
            "not blocks_tile and not planes_tile",
        ),
        (
            "blockwise",
            "every_block or pair_of_blocks or int4_under or scale_that_is_nan or exponents",
            "blocks_tile",
        ),
        ("grouped", "(within_the_bound or stay_in) and (int5 or q4_k)", "planes_tile or every_code"),
    ],
)
def test_the_kernels_of_the_matrix_engine_are_right_with_lanes_in_its_place(file, select, tiles):
    """What a GPU with DPAS runs, but for DPAS itself: by the plan of such a GPU, and each kernel forced."""
    run_tests(
        f"{file} xpu_plans",
        f"own and ({select}) or forced_tile and {tiles}",
        AOEXT_XPU_PRETEND="matrix",
        AOEXT_XPU_SELF_CHECK="off",
    )


@needs_simulator
def test_blocks_of_fast_sizes_get_a_tile_kernel():
    output = in_a_process(
        """
x = torch.ones(3, 256, dtype=torch.bfloat16, device="xpu")
codes = torch.zeros(40, 128, dtype=torch.uint8, device="xpu")
table = torch.ones(16, device="xpu")
for k in (16, 32, 128):
    scale = torch.ones(40, 256 // k, device="xpu")
    print(aoext.explain("weight_only_linear", x, codes, scale, 4, None, [1, k], None, table).kernel)
w = torch.ones(40, 256, dtype=torch.int8, device="xpu")
scale = torch.ones(40, 8, device="xpu")
print(aoext.explain("weight_only_linear", x, w, scale, 1, None, [1, 32]).kernel)
print(aoext.explain("weight_only_linear", x, w, torch.ones(1, 2, device="xpu"), 1, None, [128, 128]).kernel)
print(aoext.explain("scaled_linear", x, w, scale, 1, None, [1, 32], [1, 32]).kernel)
zero = torch.zeros(8, 40, device="xpu")
int4 = codes.view(torch.int8)
print(aoext.explain("scaled_linear", x, int4, zero, zero_point=zero, code=0).kernel)
print(aoext.explain("weight_only_linear", x, w, torch.ones(40, 16, device="xpu"), 1, None, [1, 16]).kernel)
""",
        AOEXT_XPU_PRETEND="matrix",
        AOEXT_XPU_SELF_CHECK="off",
    )
    assert output.split() == [
        *["blocks_tile.emulated_lut4_bf16"] * 3,
        *["blocks_tile.emulated_int8_bf16"] * 2,
        "blocks_tile.emulated_int8_int8",
        "int4_scaled_tile.emulated_int8",
        "linear_any",
    ]


@needs_simulator
def test_another_process_takes_the_kernels_that_one_has_compiled(tmp_path):
    """But for one that is damaged, and where other options are asked for."""
    program = (
        CALL
        + """
expected = aoext.ops.generic(call[0])(*call[1:]).float()
result = ao.bf16i4bf16_rowwise(*call[1:]).float()
assert (result - expected).norm() <= 5e-3 * expected.norm()
"""
    )

    def kept(**environment: str) -> dict[str, int]:
        environment = {"XPU_SIM_PROGRAMS": str(tmp_path), "AOEXT_XPU_SELF_CHECK": "off"} | environment
        in_a_process(program, **environment)
        return {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}

    first = kept()
    assert first
    assert kept() == first
    damaged = tmp_path / next(iter(first))
    damaged.write_bytes(damaged.read_bytes()[:20])
    again = kept()
    assert again.keys() == first.keys()
    assert {name for name in first if again[name] != first[name]} == {damaged.name}
    assert kept(SYCL_PROGRAM_COMPILE_OPTIONS="-cl-opt-disable").keys() > again.keys()


@needs_simulator
def test_a_device_without_what_kernels_need_gets_the_generic_ones():
    output = in_a_process(
        CALL
        + """
assert str(aoext.explain(*call)) == "generic: ATen operators"
expected = aoext.ops.generic(call[0])(*call[1:])
assert torch.equal(ao.bf16i4bf16_rowwise(*call[1:]), expected)
assert aoext.warmup("xpu") == {}
values, scales = ao.quantize(x, torch.int8)
given = {"zero_point": s, "code": 0}
assert torch.equal(ao.dequantize(w, s, **given), aoext.ops.generic("dequantize")(w, s, **given))
ones = torch.ones(8, 128, device="xpu")
y = ao.scaled_linear(x, ones.to(torch.int8), ones[:, :1].contiguous(), code=1)
print(y.shape)
""",
        AOEXT_XPU_PRETEND="bare",
    )
    assert "torch.Size([1, 8])" in output

"""What a device repository tests against aoext: its own kernel, and that everything else works too.

Results are held against aoext's float64 references (aoext.reference).
"""

import os

import pytest
import torch
from aoext import reference
from aoext.reference import ALL_CALLS, CALLS, EIGHT_BIT, Problem, assert_close
from aoext.reference.values import blockwise_float64, lut4_float64

import hostdev

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SEED = int(os.environ.get("AOEXT_TEST_SEED", torch.seed() % 2**31))

PROBLEMS = [
    Problem(1, 32, 64, 32),
    Problem(3, 33, 96, 6, FP16, FP32, torch.float8_e5m2),
    Problem(5, 64, 256, 256, FP32, BF16, torch.float8_e4m3fn),
    Problem(8, 40, 130, 26, BF16, FP16, leading=(2, 1, 4)),
    Problem(2, 3, 6, 3, FP32, FP16),  # a group that starts in the middle of a byte
    Problem(1, 48, 128, 64, FP16, BF16, leading=()),
]


@pytest.fixture
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """Random numbers that differ from run to run; AOEXT_TEST_SEED repeats a run."""
    return torch.Generator().manual_seed(SEED + sum(request.node.nodeid.encode()))


@pytest.fixture(scope="module", autouse=True)
def print_seed() -> None:
    print(f"AOEXT_TEST_SEED={SEED}")


def int4_call(generator: torch.Generator, problem: Problem = PROBLEMS[0]) -> list[torch.Tensor]:
    """Arguments of bf16i4bf16_rowwise on the device."""
    return [t.to("hostdev") for t in CALLS["bf16i4bf16_rowwise"](problem, generator).args]


def registered_kernel(operator: str) -> str:
    """What the dispatcher has for the device: where it was registered, and what as."""
    table = torch._C._dispatch_dump_table(f"ao::{operator}").splitlines()
    return next(line.partition(": ")[2] for line in table if line.startswith("PrivateUse1: "))


def run_and_check(kind: str, generator: torch.Generator) -> int:
    """Runs calls of a kind on the device against their reference; how many that took, of experts one each."""
    function = reference.op(kind)
    if kind in reference.QUANTIZE:
        for dtype in EIGHT_BIT:
            x = reference.randn(generator, 7, 50)
            if kind == "quantize rows":
                results, quantized = function(x.to("hostdev"), dtype), reference.quantized(x, dtype)
            else:
                results = function(x.to("hostdev"), dtype, [1, 16])
                quantized = reference.quantized_blocks(x, dtype, 16)
            for result, expected in zip(results, quantized, strict=True):
                assert result.device.type == "hostdev"
                assert torch.equal(result.cpu().float(), expected.float())
        return len(EIGHT_BIT)
    calls = 0
    for problem in PROBLEMS:
        call = ALL_CALLS[kind](problem, generator)
        offsets = call.named().get("offsets")
        calls += 1 if offsets is None else int(offsets.diff(prepend=offsets.new_zeros(1)).count_nonzero())
        result = call.run(torch.device("hostdev"), function)
        assert result.device.type == "hostdev"
        assert_close(result, call.reference)
    return calls


@pytest.mark.parametrize("kind", [*ALL_CALLS, *reference.QUANTIZE])
def test_every_operator_runs_on_the_device_by_the_expected_kernel(kind, generator):
    before = hostdev.kernel_calls()
    calls = run_and_check(kind, generator)
    own_calls = hostdev.kernel_calls() - before
    operator = reference.operator_of(kind)
    kernel = registered_kernel(operator)
    print(f"{kind}: answered by the kernel {kernel},")
    print(f"    hostdev's own kernel ran in {own_calls} of {calls} calls")

    # The generic kernels of int4 call the operator that the device has itself, for experts too.
    assert own_calls == (calls if kind.startswith(("bf16i4bf16_rowwise", "weight_only_linear int4")) else 0)
    assert ("default backend kernel" in kernel) == (operator != "bf16i4bf16_rowwise")


@pytest.mark.parametrize("scale_dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_own_kernel_serves_every_dtype_and_strided_inputs(dtype, scale_dtype, generator):
    problem = Problem(6, 20, 64, 16, dtype, scale_dtype)
    call = CALLS["bf16i4bf16_rowwise"](problem, generator)
    x, *weight = (t.to("hostdev") for t in call.args)
    strided = x.t().contiguous().t()
    assert not strided.is_contiguous()
    assert_close(torch.ops.ao.bf16i4bf16_rowwise(strided, *weight), call.reference)


def test_an_outlier_keeps_the_bound_of_its_row(generator):
    x, *weight = CALLS["bf16i4bf16_rowwise"](Problem(4, 64, 256, 32, FP32, FP32), generator).args
    x[0, 37] *= 1000
    result = torch.ops.ao.bf16i4bf16_rowwise(*(t.to("hostdev") for t in (x, *weight)))
    assert_close(result, x.double() @ reference.int4_float64(*weight).t())


@pytest.mark.parametrize(("M", "N"), [(0, 8), (3, 0)])
def test_empty_problems_give_empty_results(M, N, generator):
    args = int4_call(generator, Problem(M, N, 64, 32))
    assert torch.ops.ao.bf16i4bf16_rowwise(*args).shape == (M, N)


@pytest.mark.parametrize(
    ("argument", "bad", "message"),
    [
        (0, lambda t: t.int(), "input must be"),
        (0, lambda t: t[:, :-1], "input must be"),
        (0, lambda t: t[:, :0], "input must be"),
        (1, lambda t: t.short(), "weight must be int8"),
        (1, lambda t: t[:, :-1].contiguous(), "weight must be int8"),
        (1, lambda t: t.t().contiguous().t(), "contiguous"),
        (1, lambda t: t.cpu(), "must be on hostdev"),
        (2, lambda t: t[:0], "scale must be"),
        (2, lambda t: t.double(), "scale must be"),
        (3, lambda t: t.float(), "zero_point must have"),
    ],
)
def test_own_kernel_refuses_bad_arguments_before_it_runs(argument, bad, message, generator):
    args = int4_call(generator)
    args[argument] = bad(args[argument])
    before = hostdev.kernel_calls()
    with pytest.raises(RuntimeError, match=f"ao::bf16i4bf16_rowwise: .*{message}"):
        torch.ops.ao.bf16i4bf16_rowwise(*args)
    assert hostdev.kernel_calls() == before


def test_gradient_flows_to_the_input(generator):
    x, *weight = int4_call(generator, Problem(5, 24, 64, 32, FP32, FP32))
    x.requires_grad_()
    before = hostdev.kernel_calls()
    y = torch.ops.ao.bf16i4bf16_rowwise(x, *weight)
    assert hostdev.kernel_calls() == before + 1
    grad = torch.randn(y.shape, generator=generator)
    y.backward(grad.to("hostdev"))
    assert x.grad.device.type == "hostdev"
    expected = grad.double() @ reference.int4_float64(*(t.cpu() for t in weight))
    assert_close(x.grad, expected)


def test_compiled_graphs_reach_the_own_kernel(generator):
    args = int4_call(generator)
    compiled = torch.compile(torch.ops.ao.bf16i4bf16_rowwise, backend="aot_eager", fullgraph=True)
    compiled(*args)
    before = hostdev.kernel_calls()
    assert torch.equal(compiled(*args).cpu(), torch.ops.ao.bf16i4bf16_rowwise(*args).cpu())
    assert hostdev.kernel_calls() == before + 2


CONFIGS = {
    "Int4WeightOnlyConfig": 1,
    "Int8WeightOnlyConfig": 0,
    "Int8DynamicActivationInt8WeightConfig": 0,
    "Float8WeightOnlyConfig": 0,
    "Float8DynamicActivationFloat8WeightConfig": 0,
    "MXDynamicActivationMXWeightConfig": 0,
    "NVFP4WeightOnlyConfig": 0,
}


@pytest.mark.parametrize("quantized_on", ["hostdev", "cpu"])
@pytest.mark.parametrize("config", CONFIGS)
def test_a_quantized_linear_layer_runs_on_the_device(config, quantized_on, generator):
    quantize_ = pytest.importorskip("aoext").quantize_
    make = getattr(pytest.importorskip("aoext.configs"), config)
    layer = torch.nn.Linear(256, 96)
    for parameter in layer.parameters():
        parameter.data = reference.randn(generator, *parameter.shape)
    layer.to(quantized_on)
    quantize_(layer, make())
    layer.to("hostdev")
    assert layer.weight.qdata.device.type == "hostdev"
    x = reference.randn(generator, 4, 256)
    before = hostdev.kernel_calls()
    y = layer(x.to("hostdev"))
    assert hostdev.kernel_calls() - before == CONFIGS[config]
    assert y.device.type == "hostdev"

    # A dynamic scheme rounds the activation too, by the reference's formula.
    x64 = x.double()
    fields = {name: tensor.cpu() for name, tensor in layer.weight.named_fields()}
    if config.startswith("MX"):
        q, scales = reference.quantized_blocks(x, layer.weight.qdata.dtype, 32, power_of_two=True)
        x64 = q.double() * scales.double().repeat_interleave(32, 1)
    elif "Dynamic" in config:
        values, scales = reference.quantized(x, layer.weight.qdata.dtype)
        x64 = values.double() * scales.double()
    if config.startswith("Int4"):
        w64 = reference.int4_float64(fields["qdata"], fields["scale"], fields["zero_point"])
    elif config.startswith(("MX", "NVFP4")):
        values = fields["qdata"].double()
        if "table" in fields:
            values = lut4_float64(fields["qdata"], fields["table"]) * fields["global_scale"].double()
        w64 = blockwise_float64(values, fields["scale"], layer.weight.block_size, slice(None))
    else:
        w64 = layer.weight.qdata.cpu().double() * layer.weight.scale.cpu().double()
    assert_close(y, x64 @ w64.t() + layer.bias.detach().cpu().double())

"""The device as PyTorch sees it: tensors, operators, gradients, torch.compile, files."""

from __future__ import annotations

import copy
import io

import pytest
import torch

xpu_sim = pytest.importorskip("xpu_sim")

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]
DTYPES = [*FLOATS, *FLOAT8, *INTS, torch.complex64]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers on the CPU that fill the dtype's usual range."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, shape).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the bit, wherever they are."""
    a, b = a.cpu().contiguous(), b.cpu().contiguous()
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("device", ["xpu:0", "xpu:1"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_travel_and_are_made(dtype, device):
    x = draw(5, 7, dtype=dtype)
    there = x.to(device)
    assert there.device == torch.device(device)
    assert same(there, x)
    assert same(there.t()[1:5:2].contiguous(), x.t()[1:5:2])
    assert same(torch.empty_like(there).copy_(there), x)
    assert same(torch.zeros(3, 4, dtype=dtype, device=device), torch.zeros(3, 4, dtype=dtype))
    assert same(torch.ones(9, dtype=dtype, device=device), torch.ones(9, dtype=dtype))
    assert same(torch.full((3,), 1, dtype=dtype, device=device), torch.full((3,), 1, dtype=dtype))
    assert torch.empty(0, 3, dtype=dtype, device=device).cpu().shape == (0, 3)


@pytest.mark.parametrize("to", [*FLOATS, *FLOAT8, torch.int8], ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32], ids=str)
def test_copies_convert_dtypes_and_strides_in_all_directions(dtype, to):
    x = draw(6, 5, dtype=dtype).abs()
    want = x.t().to(to)
    places = {"cpu": x, "xpu:0": x.to("xpu:0"), "xpu:1": x.to("xpu:1")}
    for source in places.values():
        for target in places:
            result = torch.empty(10, 12, dtype=to, device=target)[::2, ::2]
            result.copy_(source.t())
            assert same(result, want), (source.device, target)


def test_copy_broadcasts_and_transposes():
    row, x = draw(6), draw(20)
    assert same(torch.empty(4, 6, device="xpu").copy_(row), row.expand(4, 6))
    square = x.to("xpu")[:16].view(4, 4)
    square.copy_(square.t().clone())
    assert same(square, x[:16].view(4, 4).t())


def test_conjugate_and_negative_views_are_resolved():
    z = draw(8, dtype=torch.complex64)
    assert same(z.to("xpu").conj(), z.conj().resolve_conj())
    assert same(z.to("xpu").conj().imag, z.conj().imag.resolve_neg())


def test_views_share_memory_with_their_base():
    def write_through_views(device: str) -> torch.Tensor:
        x = torch.zeros(4, 6, device=device)
        x.view(24)[3] = 1.0
        x[1:3, ::2].fill_(2.0)
        x.unfold(0, 2, 2)[1, :, 1] += 3.0
        x.view(torch.int32)[3, 5] = 0x40A00000  # 5.0
        x.t()[0].mul_(10)
        return x

    assert same(write_through_views("xpu"), write_through_views("cpu"))
    assert write_through_views("xpu")[3].tolist() == [30, 3, 3, 3, 3, 5]


def test_results_go_where_the_caller_says_and_are_resized():
    a, b = draw(3, 4), draw(4, 5)
    outs = [torch.empty(size, device="xpu") for size in ((0,), (3, 5), (5, 3))]
    for out in (*outs[:2], outs[2].t()):
        result = torch.mm(a.to("xpu"), b.to("xpu"), out=out)
        assert result is out
        torch.testing.assert_close(out.cpu(), a @ b)
    x = a.to("xpu")
    before = x.data_ptr()
    assert x.resize_(2, 3).data_ptr() == before
    assert same(x.flatten(), a.flatten()[:6])
    x.resize_(100)
    assert same(x[:12], a.flatten())
    x.untyped_storage().resize_(4000)
    assert x.untyped_storage().nbytes() == 4000
    assert same(x[:12], a.flatten())


def test_operators_fall_back_and_are_counted_and_native_ones_are_not():
    x, y = draw(4, 4), draw(4, 4)
    a, b = x.to("xpu"), y.to("xpu")
    a.clone().fill_(1).zero_()
    a.cpu(), a[0, 0].item(), torch.empty_like(a), a.t().contiguous()
    assert xpu_sim.fallbacks() == {}
    torch.testing.assert_close((a @ b * a).cpu(), x @ y * x)
    a.mul_(b)
    torch.testing.assert_close(a.cpu(), x * y)
    assert xpu_sim.fallbacks() == {"aten::mm": 1, "aten::mul": 2}
    xpu_sim.reset_fallbacks()
    assert xpu_sim.fallbacks() == {}


def test_operators_of_lists_indices_tuples_and_numbers_fall_back():
    x = draw(5, 6)
    a = x.to("xpu")
    index = torch.tensor([3, 0, 3])
    assert same(torch.cat([a, a[:2]]), torch.cat([x, x[:2]]))
    assert same(a[index.to("xpu")], x[index])
    assert same(a[index], x[index])
    assert same(a[a > 0], x[x > 0])
    for got, want in zip(a.sort(dim=1), x.sort(dim=1), strict=True):
        assert same(got, want)
    for got, want in zip(torch._foreach_add([a, a[1]], 2.0), [x + 2, x[1] + 2], strict=True):
        assert same(got, want)
    assert torch.equal(a, x.to("xpu"))
    assert a.tolist() == x.tolist()
    assert same(torch.arange(7, device="xpu:1"), torch.arange(7))
    assert torch.tril_indices(3, 3, device="xpu:1").device == torch.device("xpu:1")


def test_results_with_strides_of_the_kernels_own_choice_come_back_whole():
    a, b = draw(5, 3), draw(5, 3)
    with xpu_sim.canaries():
        results = torch.linalg.lstsq(a.to("xpu"), b.to("xpu"))
        xpu_sim.check_canaries()
    torch.testing.assert_close(results.solution.cpu(), torch.linalg.lstsq(a, b).solution)
    for got, want in zip(torch.linalg.qr(a.to("xpu")), torch.linalg.qr(a), strict=True):
        torch.testing.assert_close(got.cpu(), want)
    with pytest.raises(RuntimeError, match="only strided ones are simulated"):
        a.to("xpu").to_sparse()


def test_convolution_and_attention_have_gradients():
    x, weight = draw(2, 3, 6, 6).requires_grad_(), draw(4, 3, 3, 3).requires_grad_()
    qkv = [draw(2, 2, 5, 4).requires_grad_() for _ in range(3)]
    mask = torch.rand(5, 5) > 0.3
    mask[:, 0] = True

    def losses(x, weight, q, k, v, mask):
        attention = torch.nn.functional.scaled_dot_product_attention
        yield torch.nn.functional.conv2d(x, weight, stride=2).square().sum()
        yield attention(q, k, v, is_causal=True).square().sum() + attention(q, k, v, attn_mask=mask).sum()

    host = [x, weight, *qkv]
    device = [t.detach().to("xpu").requires_grad_() for t in host]
    for got, want in zip(losses(*device, mask.to("xpu")), losses(*host, mask), strict=True):
        got.backward()
        want.backward()
    for got, want in zip(device, host, strict=True):
        torch.testing.assert_close(got.grad.cpu(), want.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("other", ["xpu:1", "cpu"])
def test_tensors_of_two_devices_do_not_mix(other):
    a = draw(3).to("xpu:0")
    with pytest.raises(RuntimeError, match=f"same device.*xpu:0 and {other}"):
        a + draw(3).to(other)
    assert same(a + torch.tensor(1.0), a.cpu() + 1)  # a number may come from the CPU


def test_operators_of_others_without_a_kernel_do_not_run():
    with torch.library._scoped_library("xpu_sim_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CPU")
        assert torch.ops.xpu_sim_test.twice(torch.ones(1)).item() == 2
        with pytest.raises(NotImplementedError, match=r"xpu_sim_test::twice has no kernel for XPU"):
            torch.ops.xpu_sim_test.twice(torch.ones(1, device="xpu"))


def test_both_devices_are_real():
    assert torch.xpu.device_count() == torch.accelerator.device_count() == 2
    assert torch.xpu.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("xpu")
    with torch.xpu.device(1):
        assert torch.xpu.current_device() == torch.accelerator.current_device_index() == 1
        x = torch.randn(3, device="xpu")
        assert x.device == torch.device("xpu:1")
    assert torch.xpu.current_device() == 0
    assert (x + 1).device == torch.device("xpu:1")
    assert same(x.to("xpu:0").to("xpu:1"), x)
    assert x.xpu(0).device == torch.device("xpu:0")
    with pytest.raises(RuntimeError, match="device index must be 0 to 1, got 2"):
        torch.empty(1, device="xpu:2")
    torch.xpu.set_device("xpu:1")
    assert torch.empty(1, device="xpu").device.index == 1
    torch.accelerator.set_device_index(0)


def test_device_facts_are_those_of_the_opencl_device():
    properties = torch.xpu.get_device_properties("xpu:1")
    assert properties.total_memory > 2**20
    assert properties.sub_group_sizes
    assert torch.xpu.get_device_name() == properties.name
    assert torch.xpu.get_device_capability()["max_compute_units"] == properties.max_compute_units
    free, total = torch.xpu.mem_get_info()
    assert 0 < free <= total == properties.total_memory


def test_random_numbers_repeat_with_the_seed():
    def numbers():
        return torch.randn(50, device="xpu"), torch.rand(50, device="xpu"), torch.randperm(50, device="xpu")

    torch.manual_seed(5)
    first, other = numbers(), numbers()
    torch.manual_seed(5)
    again = numbers()
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert not any(same(a, b) for a, b in zip(first, other, strict=True))
    torch.xpu.manual_seed_all(5)
    assert same(torch.randn(50, device="xpu"), first[0])
    state = torch.xpu.get_rng_state()
    a = torch.randn(50, device="xpu")
    torch.xpu.set_rng_state(state)
    assert same(torch.randn(50, device="xpu"), a)


def test_tensors_print_copy_deeply_and_pin():
    x = draw(3, 3)
    a = x.to("xpu")
    assert repr(a) == repr(x)[:-1] + ", device='xpu:0')"
    deep = copy.deepcopy(a)
    a.zero_()
    assert same(deep, x)
    assert x.pin_memory().is_pinned()
    assert not x.is_pinned()


@pytest.mark.parametrize("target", [None, "cpu", "xpu:0", "xpu:1"])
def test_files_load_where_asked(target):
    x = draw(4, 5).to("xpu:1")
    file = io.BytesIO()
    torch.save({"base": x, "view": x[1:, ::2]}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=target)
    assert same(loaded["base"], x)
    assert same(loaded["view"], x[1:, ::2])
    assert loaded["view"].device == torch.device(target or "xpu:1")
    file = io.BytesIO()
    torch.save(x.cpu(), file)
    file.seek(0)
    assert torch.load(file, map_location="xpu").device == torch.device("xpu:0")


@pytest.mark.parametrize("device", ["xpu:0", "xpu:1"])
def test_modules_train_as_on_the_cpu(device):
    nn = torch.nn
    host = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    model = copy.deepcopy(host).to(device)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in (host, model)]
    for _ in range(3):
        x = draw(5, 6)
        for m, optimizer in zip((host, model), optimizers, strict=True):
            optimizer.zero_grad()
            m(x.to(next(m.parameters()).device)).square().mean().backward()
            optimizer.step()
    for got, want in zip(model.parameters(), host.parameters(), strict=True):
        assert got.grad.device == torch.device(device)
        torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-3)


def test_autocast_lowers_the_precision():
    layer = torch.nn.Linear(4, 4, device="xpu")
    with torch.autocast("xpu", dtype=torch.bfloat16):
        assert layer(draw(2, 4).to("xpu")).dtype == torch.bfloat16


def test_compiled_models_run_by_aot_eager():
    layer = torch.nn.Linear(6, 4).to("xpu")
    compiled = torch.compile(lambda x: layer(x).relu() * 2, backend="aot_eager", fullgraph=True)
    x = draw(3, 6).to("xpu").requires_grad_()
    assert same(compiled(x), layer(x).relu() * 2)
    compiled(x).sum().backward()
    (want,) = torch.autograd.grad((layer(x).relu() * 2).sum(), x)
    assert same(x.grad, want)


INDUCTOR = """
import torch, xpu_sim
xpu_sim.install_triton()
xpu_sim.install_triton()

def function(x, y):
    a = torch.softmax(x.float(), -1) + torch.erf(x.float()) + x.abs().float().pow(y.float()[0, 0])
    b = x.float() * 3  # or Inductor would round once, and eager twice
    return a.to(torch.bfloat16), b.to(torch.float8_e4m3fn), b.to(torch.float8_e5m2), a.sum(0)

x, y = torch.randn(9, 70).bfloat16(), torch.rand(9, 70).bfloat16()
x[0, :4] = torch.tensor([1e-40, -1e-39, 0, 5.2])
compiled = torch.compile(function, fullgraph=True)
results = compiled(x.to("xpu"), y.to("xpu"))
assert not xpu_sim.fallbacks(), xpu_sim.fallbacks()
for result, expected in zip(results, function(x, y)):
    assert result.device.type == "xpu" and result.dtype == expected.dtype
    torch.testing.assert_close(result.cpu().float(), expected.float(), rtol=8e-3, atol=1e-6)
"""


def test_inductor_runs_by_tritons_interpreter(run_python):
    pytest.importorskip("triton")
    done = run_python(INDUCTOR)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("factor", [1.5, -3.0])
def test_an_injected_fault_falsifies_one_operator(factor):
    x, y = draw(4, 4), draw(4, 4)
    a, b = x.to("xpu"), y.to("xpu")
    with xpu_sim.inject_fault("aten::mm", factor) as fault:
        assert fault.hits == 0
        torch.testing.assert_close((a @ b).cpu(), x @ y * factor)
        torch.testing.assert_close((a * b).cpu(), x * y)
        assert fault.hits == 1
    torch.testing.assert_close((a @ b).cpu(), x @ y)
    with xpu_sim.inject_fault("aten::mul", factor):
        a.mul_(b)
    torch.testing.assert_close(a.cpu(), x * y * factor)


def test_a_fault_needs_an_operator_and_ends_with_an_error():
    with pytest.raises(ValueError, match="there is no operator aten::mn"), xpu_sim.inject_fault("aten::mn"):
        pass
    with pytest.raises(ZeroDivisionError), xpu_sim.inject_fault("aten::mul"):
        raise ZeroDivisionError
    assert (torch.ones(1, device="xpu") * 1).item() == 1

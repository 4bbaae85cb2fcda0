"""The allocator and its modes: canaries, guard pages, memory in use."""

from __future__ import annotations

import ctypes
import gc
import random

import pytest
import torch

xpu_sim = pytest.importorskip("xpu_sim")
_C = pytest.importorskip("xpu_sim._C")

SIZES = [1, 3, 64, 257, 4096, 10_001]


def overwrite(tensor: torch.Tensor, offset: int, count: int = 1) -> None:
    """Changes bytes at an offset from the tensor's first, on the device, as a wrong kernel would."""
    address = tensor.data_ptr() + offset
    changed = torch.tensor(list(ctypes.string_at(address, count)), dtype=torch.uint8).to("xpu") ^ 0xA5
    _C.copy_bytes(address, changed.data_ptr(), count)


def test_memory_in_use_follows_the_tensors_of_each_device():
    gc.collect()
    before = [xpu_sim.memory_in_use(0), xpu_sim.memory_in_use("xpu:1")]
    x = torch.empty(1000, device="xpu:0")
    y = torch.empty(2, 500, dtype=torch.float64, device="xpu:1")
    view = x[10:20]
    assert xpu_sim.memory_in_use() - before[0] == 4000
    assert torch.xpu.memory_allocated("xpu:1") - before[1] == 8000
    del x
    assert xpu_sim.memory_in_use() - before[0] == 4000
    del view, y
    assert [xpu_sim.memory_in_use(0), xpu_sim.memory_in_use("xpu:1")] == before
    assert torch.xpu.max_memory_allocated() >= before[0] + 4000


@pytest.mark.parametrize("device", ["xpu:0", "xpu:1"])
@pytest.mark.parametrize("size", SIZES)
def test_blocks_are_aligned_and_new_memory_is_garbage_in_canary_mode(size, device):
    for mode in (xpu_sim.canaries, xpu_sim.guard_pages):
        with mode():
            x = torch.empty(size, dtype=torch.uint8, device=device)
            floats = torch.empty(size, dtype=torch.bfloat16, device=device)
        assert x.data_ptr() % 64 == floats.data_ptr() % 64 == 0
        assert (x == 0xFF).all()
        assert floats.isnan().all()


@pytest.mark.parametrize("mode", ["canaries", "guard_pages"])
@pytest.mark.parametrize("size", SIZES)
def test_a_byte_overwritten_beside_a_block_is_reported_once(size, mode):
    with getattr(xpu_sim, mode)():
        x = torch.zeros(size, dtype=torch.uint8, device="xpu:1")
    # A guard page may follow at once: then there is no byte behind to overwrite.
    last = 64 if mode == "canaries" else -size % 64
    xpu_sim.check_canaries()
    if last:
        offset = random.Random(torch.initial_seed()).randrange(last)
        overwrite(x, size + offset)
        text = f"block of {size} bytes on xpu:1: 1 bytes .* after its end, the nearest at offset {offset}$"
        with pytest.raises(RuntimeError, match=text):
            xpu_sim.check_canaries()
        xpu_sim.check_canaries()
    if mode == "canaries" or x.data_ptr() % 4096 >= 5:
        overwrite(x, -5, 2)
        with pytest.raises(RuntimeError, match=r"2 bytes .* before its start, the nearest at offset 4$"):
            xpu_sim.check_canaries()
    assert (x == 0).all()


def test_damage_of_a_freed_block_is_not_lost():
    with xpu_sim.canaries():
        x, y = torch.zeros(100, device="xpu"), torch.zeros(30, device="xpu")
    overwrite(x, 400)
    overwrite(y, -1)
    del x, y
    torch.zeros(5, device="xpu").add_(1).cpu()
    with pytest.raises(RuntimeError, match=r"(?s)block of 400 bytes.*block of 120 bytes"):
        xpu_sim.check_canaries()


def test_a_kernel_that_writes_after_its_block_was_freed_is_seen():
    ones = torch.ones(8, dtype=torch.uint8, device="xpu")
    with xpu_sim.canaries():
        x = torch.zeros(100, dtype=torch.uint8, device="xpu")
    address, side = x.data_ptr(), torch.xpu.Stream()
    xpu_sim.delay(side, 30)
    with torch.xpu.stream(side):
        _C.copy_bytes(address + 110, ones.data_ptr(), 8)
    del x  # while its stream is busy: the block stays until that is over
    with pytest.raises(RuntimeError, match="after its end, the nearest at offset 10"):
        xpu_sim.check_canaries()


def test_modes_end_with_their_block_and_nest():
    def damaged(tensor) -> bool:
        overwrite(tensor, tensor.numel())
        try:
            xpu_sim.check_canaries()
        except RuntimeError:
            return True
        return False

    def block():
        return torch.zeros(100, dtype=torch.uint8, device="xpu")

    with xpu_sim.canaries():
        with xpu_sim.canaries(False), xpu_sim.guard_pages():
            assert damaged(block())
        with xpu_sim.canaries():
            pass
        assert damaged(block())
    xpu_sim.canaries()
    assert damaged(block())
    xpu_sim.canaries(False)
    with pytest.raises(ValueError, match="power of 2"):
        xpu_sim.guard_pages(alignment=48)


def test_everything_runs_in_every_mode():
    for mode in (xpu_sim.canaries, xpu_sim.guard_pages):
        with mode():
            layer = torch.nn.Linear(33, 17, device="xpu")
            x = torch.randn(5, 33, device="xpu", requires_grad=True)
            layer(x).square().sum().backward()
            want = torch.nn.functional.linear(x.cpu(), layer.weight.cpu(), layer.bias.cpu())
            torch.testing.assert_close(layer(x).cpu(), want)
            x.detach().clone().resize_(1000)
            torch.randn(7).pin_memory().to("xpu", non_blocking=True)
        xpu_sim.check_canaries()


READ = """
import ctypes, torch, xpu_sim
from xpu_sim import _C
xpu_sim.install()
result = torch.zeros(8192, dtype=torch.uint8, device="xpu")
with xpu_sim.guard_pages(alignment={alignment}):
    x = torch.zeros({size}, dtype=torch.uint8, device="xpu")
print("before", flush=True)
if "{reader}" == "host":
    ctypes.string_at(x.data_ptr() + {offset}, 1)
else:
    _C.copy_bytes(result.data_ptr(), x.data_ptr() + {offset}, 1)
    torch.xpu.synchronize()
print("after", flush=True)
"""


@pytest.mark.parametrize(
    ("reader", "size", "offset", "alignment"),
    [("device", 1000, 1024, 64), ("device", 1000, 1000, 8), ("host", 4096, -1, 64)],
)
def test_reading_beyond_a_guarded_block_crashes(reader, size, offset, alignment, run_python):
    done = run_python(READ.format(reader=reader, size=size, offset=offset, alignment=alignment))
    assert "before" in done.stdout, done.stderr
    assert "after" not in done.stdout
    assert done.returncode != 0


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_a_guarded_block_can_be_read_to_its_end(alignment):
    result = torch.zeros(20_000, dtype=torch.uint8, device="xpu")
    for size in SIZES:
        with xpu_sim.guard_pages(alignment=alignment):
            x = torch.arange(size).to(torch.uint8).to("xpu")
        slack = -size % alignment
        _C.copy_bytes(result.data_ptr(), x.data_ptr(), size + slack)
        assert torch.equal(result[:size], x)
        assert x.data_ptr() % alignment == 0
        assert (x.data_ptr() + size + slack) % 4096 == 0


def test_unchecked_damage_is_told_at_the_end_of_the_process(run_python):
    done = run_python(
        "import ctypes, torch, xpu_sim\n"
        "xpu_sim.install()\n"
        "xpu_sim.canaries()\n"
        "x = torch.zeros(10, device='xpu')\n"
        "ctypes.c_uint8.from_address(x.data_ptr() + 47).value ^= 1\n"
    )
    assert done.returncode == 0
    assert "never checked: block of 40 bytes on xpu:0: 1 bytes overwritten after its end" in done.stderr

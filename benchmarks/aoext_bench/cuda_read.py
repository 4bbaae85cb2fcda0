"""How long an NVIDIA GPU takes to read so many bytes that no cache holds: the floor below small kernels.

A large weight runs at the memory's bandwidth, a small one mostly waits for its first bytes. So reads are
timed at many sizes, by a kernel that does nothing else. It is compiled at run time by the NVRTC that PyTorch
brings, for which PyTorch wants the CUDA toolkit's folder; where that fails, PyTorch's own sum has to do,
which is slower on small sizes: the floor is then too high.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch import Tensor

from aoext_bench.clocks import Candidate
from aoext_bench.devices import Device
from aoext_bench.timing import interleaved

# Bytes of one read, in MB (10⁶): weights of 4 bits from 2048×2048 to beyond 57344×8192 in bfloat16.
SIZES_MB = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
SECONDS = 0.004  # for each loop of each size

# 16 bytes a thread and load, DEPTH loads in flight. The sum is written only if it has one of 2³² values, so
# that the loads must happen and next to nothing is written.
SOURCE = """
extern "C" __global__ void read_only(const uint4* from, int count, unsigned* to) {
  unsigned sum = 0;
  const int step = gridDim.x * blockDim.x;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + (DEPTH - 1) * step < count; i += DEPTH * step) {
    uint4 v[DEPTH];
#pragma unroll
    for (int j = 0; j < DEPTH; ++j)
      asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v[j].x), "=r"(v[j].y), "=r"(v[j].z), "=r"(v[j].w) : "l"(from + i + j * step));
#pragma unroll
    for (int j = 0; j < DEPTH; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < count; i += step) {
    const uint4 v = from[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x9e3779b9u) *to = sum;
}
"""

Read = Callable[[Tensor], object]

THREADS, BLOCKS, DEPTHS = (256, 512, 1024), (1, 2, 4), (4, 8)  # blocks of a multiprocessor
MOST_THREADS = 2048  # of a multiprocessor


def _reads(device: torch.device) -> Iterator[tuple[str, Read]]:
    """Kernels that only read, with what tells them apart."""
    sink = torch.zeros(1, dtype=torch.int32, device=device)
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count

    def bound(kernel: Callable[..., object], blocks: int, threads: int) -> Read:
        grid, block = (blocks * multiprocessors, 1, 1), (threads, 1, 1)
        return lambda part: kernel(grid, block, [part, part.nbytes // 16, sink])

    for depth in DEPTHS:
        kernel = torch.cuda._compile_kernel(SOURCE.replace("DEPTH", str(depth)), "read_only")
        for threads, blocks in product(THREADS, BLOCKS):
            if threads * blocks <= MOST_THREADS:
                name = f"{depth} loads of 16 bytes, {blocks} blocks of {threads} threads"
                yield name, bound(kernel, blocks, threads)


def read_table(device: Device, pool_bytes: int) -> tuple[dict[int, float], str]:
    """Seconds of the fastest loop by bytes, each size from memory that no cache holds; and what loops ran."""
    with torch.cuda.device(device.device):
        try:
            reads = dict(_reads(device.device))
            what = f"the best of {len(reads)} loops of 16-byte loads at each size"
        except (AttributeError, RuntimeError, OSError):
            reads, what = {"sum": torch.sum}, "sum of int32, for want of NVRTC: small sizes are too slow"
        largest = max(SIZES_MB) * 10**6
        memory = torch.empty(max(pool_bytes, 2 * largest) // 4, dtype=torch.int32, device=device.device)
        memory.random_()
        return {mb * 10**6: _fastest(device, reads, memory, mb * 10**6, pool_bytes) for mb in SIZES_MB}, what


def _fastest(device: Device, reads: dict[str, Read], memory: Tensor, size: int, pool_bytes: int) -> float:
    """The typical time of the loop that reads fastest."""
    copies = max(2, -(-pool_bytes // size))
    parts = memory[: copies * size // 4].split(size // 4)

    def candidate(read: Read) -> Candidate:
        turn = iter(range(2**62))
        return Candidate(lambda: lambda: read(parts[next(turn) % copies]), copies)

    candidates = {name: candidate(read) for name, read in reads.items()}
    return min(timing.seconds for timing in interleaved(candidates, device, SECONDS).values())

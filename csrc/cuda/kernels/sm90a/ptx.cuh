// Hopper's own instructions: bulk tensor copies, distributed shared memory, products of a warpgroup.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/kernels/ptx.cuh"

namespace aoext::cuda {

// ---- Bulk tensor copies: coordinates in elements, innermost first; what lies outside the tensor arrives as zero. ----

__device__ inline void prefetch_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

__device__ inline void copy_tile(uint32_t destination, const CUtensorMap* map, uint32_t barrier, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
                   destination),
               "l"(map), "r"(barrier), "r"(x), "r"(y)
               : "memory");
}

// Cache hints for L2 (as createpolicy makes them): what is read once is evicted first.
constexpr uint64_t kEvictNormal = 0x1000000000000000, kEvictFirst = 0x12f0000000000000;

__device__ inline void copy_tile(uint32_t destination, const CUtensorMap* map, uint32_t barrier, int x, int y, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], "
      "%5;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(policy)
      : "memory");
}

// The same for matrix z of many.
__device__ inline void copy_matrix_tile(uint32_t destination, const CUtensorMap* map, uint32_t barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
          destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// To L2 alone: nothing is read yet.
__device__ inline void prefetch_tile(const CUtensorMap* map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y) : "memory");
}

__device__ inline void copy_bytes(uint32_t destination, const void* source, uint32_t barrier, uint32_t bytes) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %3, [%2];" ::"r"(destination),
               "l"(source), "r"(barrier), "r"(bytes)
               : "memory");
}

// ---- Clusters ----

// The cluster's place among all along x, and the block's in it.
__device__ inline int cluster_index() {
  int index;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}

__device__ inline int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(rank));
  return rank;
}

// Tells another block that this one has finished reading. (It does not order writes: see cluster_arrive_initialised.)
__device__ inline void barrier_arrive_remote(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Four of ptx.cuh's at once.
__device__ inline void store_remote(uint32_t address, uint32_t barrier, const float (&v)[4]) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
               "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier)
               : "memory");
}

// ---- Warps ----

// This thread's warp. The compiler knows it to be uniform: what depends on it is computed once for the warp, and descriptors of
// matrices, which must be uniform, need no broadcast.
__device__ inline int warp_index() { return __shfl_sync(~0u, threadIdx.x / 32, 0); }

// ---- Matrix products of a warpgroup (wgmma.cuh) ----

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// A matrix in shared memory without swizzle, in cores of 8 rows by 16 bytes: bytes from one to the next along k, and along rows.
// 18 bits of an address count; in a cluster those above tell the block.
__device__ inline uint64_t matrix_descriptor(uint32_t address, int k_bytes, int row_bytes) {
  return uint64_t(row_bytes >> 4) << 32 | uint64_t(k_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Waits until at most `kPending` committed groups still run.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// ---- Registers: what one warpgroup releases, another may claim. ----

template <int kRegisters>
__device__ inline void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ inline void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- Others ----

// Four 8 x 8 tiles of 16-bit elements, each transposed: lane 8 i + j gives the address of row j of tile i.
__device__ inline void store_transposed(uint32_t address, const uint32_t (&tiles)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(tiles[0]),
               "r"(tiles[1]), "r"(tiles[2]), "r"(tiles[3])
               : "memory");
}

__device__ inline void sync_threads_of(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ inline void store_shared_16(uint32_t address, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}

__device__ inline void add_shared_16(float (&sums)[4], uint32_t address) {
  float v[4];
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(address)
               : "memory");
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] += v[i];
}

__device__ inline float load_shared(uint32_t address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}

__device__ inline uint32_t load_shared_half(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

__device__ inline uint32_t load_shared_byte(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

}  // namespace aoext::cuda

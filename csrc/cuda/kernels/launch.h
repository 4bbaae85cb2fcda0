// Launching a kernel, with as much shared memory as a block can have, and with what Hopper adds: clusters, and starting while the
// stream's last kernel ends.
//
// A kernel that does that calls wait_for_last_kernel before it reads or writes memory, and start_next_kernel at any time.
// In a graph that saves 1.1 µs after a kernel that lets it start early, and costs 0.2 µs after any other (H200): so it is asked
// for after our own alone, which can be told while a graph is captured; elsewhere the host takes longer to launch than there is
// to save.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

namespace aoext::cuda {

enum class Overlap {
  never,       // the kernel calls neither
  after_ours,  // where the last node of the stream's capture is a kernel of ours that does
  always,      // the last kernel of the stream is known to
};

struct Grid {
  dim3 blocks, threads;
  size_t shared_memory;  // bytes, dynamic
  cudaStream_t stream;
  unsigned cluster;  // neighbouring blocks along x that form one
  Overlap overlap;
};

// Whether this thread's last call of `remember_last` was for what the stream's capture would depend on next.
bool follows_ours(cudaStream_t stream);
void remember_last(cudaStream_t stream);

// Asks for all that a block of the kernel can have beside what it declares, not for what one launch needs: another thread may ask
// for less before that.
cudaError_t allow_shared_memory(const void* kernel);

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), const Grid& grid, Arguments&&... arguments) {
  if (grid.shared_memory > 0) {  // 48 KiB go unasked, but with what the kernel declares
    const cudaError_t error = allow_shared_memory(reinterpret_cast<const void*>(kernel));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (grid.cluster > 1) {
    cudaLaunchAttribute& a = attributes[count++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = grid.cluster, a.val.clusterDim.y = 1, a.val.clusterDim.z = 1;
  }
  if (grid.overlap == Overlap::always || (grid.overlap == Overlap::after_ours && follows_ours(grid.stream))) {
    cudaLaunchAttribute& a = attributes[count++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks, config.blockDim = grid.threads, config.dynamicSmemBytes = grid.shared_memory;
  config.stream = grid.stream, config.attrs = attributes, config.numAttrs = count;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  if (grid.overlap != Overlap::never) remember_last(grid.stream);
  return error;
}

}  // namespace aoext::cuda

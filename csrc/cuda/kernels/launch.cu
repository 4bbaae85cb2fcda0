#include "cuda/kernels/launch.h"

#include <set>
#include <utility>

namespace aoext::cuda {
namespace {

// The one node that the stream's next one would depend on, in the capture of that number; null where there is none such.
struct Last {
  unsigned long long capture;
  cudaGraphNode_t node;
};

Last last_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status;
  unsigned long long capture = 0;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, &capture, nullptr, &nodes, &edges, &count) != cudaSuccess) {
    cudaGetLastError();  // the launch says it, where it matters
    return {};
  }
  return status == cudaStreamCaptureStatusActive && count == 1 ? Last{capture, nodes[0]} : Last{};
}

thread_local Last ours{};

}  // namespace

cudaError_t allow_shared_memory(const void* kernel) {
  thread_local std::set<std::pair<int, const void*>> allowed;  // on which device
  int device = 0, most = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess || allowed.count({device, kernel}) > 0) return error;
  cudaFuncAttributes own{};
  if ((error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) != cudaSuccess) return error;
  if ((error = cudaFuncGetAttributes(&own, kernel)) != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most - static_cast<int>(own.sharedSizeBytes));
  if (error == cudaSuccess) allowed.insert({device, kernel});
  return error;
}

bool follows_ours(cudaStream_t stream) {
  if (ours.node == nullptr) return false;
  const Last last = last_of(stream);
  return last.node == ours.node && last.capture == ours.capture;
}

void remember_last(cudaStream_t stream) { ours = last_of(stream); }

}  // namespace aoext::cuda

#include "cuda/kernels/launch.h"

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

bool follows_ours(cudaStream_t stream) {
  if (ours.node == nullptr) return false;
  const Last last = last_of(stream);
  return last.node == ours.node && last.capture == ours.capture;
}

void remember_last(cudaStream_t stream) { ours = last_of(stream); }

}  // namespace aoext::cuda

#include "cuda/device.h"

#include <stdexcept>
#include <string>

#include "common/portability.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

using GetStream = int32_t(int32_t device, void** stream);

bool is_captured(const Tensor& t) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(Launch(t).stream(), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}
[[maybe_unused]] const auto captures = is_captured_on[static_cast<int>(Key::CUDA)] = &is_captured;

}  // namespace

Launch::Launch(const Tensor& t) : guard_(t.get_device_index()) {
  static GetStream* const get_stream = find_function<GetStream>("aoti_torch_get_current_cuda_stream", "torch_cuda");
  const int device = t.get_device_index();
  void* stream = nullptr;
  if (get_stream == nullptr || get_stream(device, &stream) != 0)
    throw std::runtime_error("aoext: PyTorch gave no stream for cuda:" + std::to_string(device));
  stream_ = static_cast<cudaStream_t>(stream);
  // The guard restores PyTorch's current device; this library's own copy of the CUDA runtime is told beside it.
  check(cudaSetDevice(device), "cudaSetDevice");
}

}  // namespace aoext::cuda

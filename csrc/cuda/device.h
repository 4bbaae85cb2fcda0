// The CUDA device of a tensor, and PyTorch's current stream there.
#pragma once

#include <cuda_runtime_api.h>

#include <torch/csrc/stable/accelerator.h>

#include "common/torch_api.h"

namespace aoext::cuda {

enum class Family { none, sm80, sm90 };  // whose kernels a device runs: from compute capability 8.0, exactly 9.0

struct Device {
  int multiprocessors;
  int shared_memory;  // bytes, of a block that asks for all it may have
  bool float8_units;  // mma.sync multiplies float8 faster than fp16
  Family family;      // AOEXT_CUDA_FAMILY=sm80 has newer devices run the kernels of older ones
};

// Asked once per device.
const Device& device_of(const Tensor& t);

// Makes the device of a tensor the current one for as long as it lives, and knows the current stream there.
class Launch {
 public:
  explicit Launch(const Tensor& t);

  cudaStream_t stream() const { return stream_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_ = nullptr;
};

// RuntimeError that names what was tried.
void check(cudaError_t error, const char* what);

}  // namespace aoext::cuda

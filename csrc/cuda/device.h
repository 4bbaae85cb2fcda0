// The CUDA device of a tensor, and PyTorch's current stream there.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include "common/torch_api.h"
#include "cuda/properties.h"

namespace aoext::cuda {

inline const Device& device_of(const Tensor& t) { return device_of(t.get_device_index()); }

// Makes the device of a tensor the current one for as long as it lives, and knows the current stream there.
class Launch {
 public:
  explicit Launch(const Tensor& t);

  cudaStream_t stream() const { return stream_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace aoext::cuda

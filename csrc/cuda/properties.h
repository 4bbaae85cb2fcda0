// A CUDA device as far as the choice of a kernel depends on it. It knows nothing of torch.
#pragma once

#include <cuda_runtime_api.h>

namespace aoext::cuda {

enum class Family { none, sm80, sm90 };  // whose kernels a device runs: from compute capability 8.0, exactly 9.0

struct Device {
  int multiprocessors;
  int shared_memory;  // bytes, of a block that asks for all it may have
  bool float8_units;  // mma.sync multiplies float8 faster than fp16
  Family family;      // AOEXT_CUDA_FAMILY=sm80 has newer devices run the kernels of older ones
};

// Asked once per device.
const Device& device_of(int index);

// RuntimeError that names what was tried.
void check(cudaError_t error, const char* what);

}  // namespace aoext::cuda

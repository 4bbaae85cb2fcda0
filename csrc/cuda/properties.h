// A CUDA device as far as the choice of a kernel depends on it. It knows nothing of torch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace aoext::cuda {

struct Fits;  // cuda/fits.h

enum class Family { none, sm80, sm90 };  // whose kernels a device runs: from compute capability 8.0, exactly 9.0

struct Peaks {
  double bf16, fp8, int8;  // 10^12 operations a second, dense
};

struct Device {
  std::string name;
  int capability;  // 10 times the major compute capability, and the minor
  int multiprocessors;
  int shared_memory;                     // bytes, of a block that asks for all it may have
  int shared_memory_per_multiprocessor;  // bytes
  int64_t l2_bytes;
  double bandwidth;  // bytes a microsecond that reading memory reaches
  Peaks peaks;
  bool float8_units;  // mma.sync multiplies float8 faster than fp16
  const Fits* fits;   // the constants of its kernels' models of time
  Family family;      // AOEXT_CUDA_FAMILY=sm80 has newer devices run the kernels of older ones

  bool is_hopper() const { return family == Family::sm90; }
};

// Asked once per device.
const Device& device_of(int index);

// A GPU of gpus.h as it would be here: what plans can be asked about without having one. RuntimeError for another name.
const Device& device_named(const std::string& name);

// RuntimeError that names what was tried.
void check(cudaError_t error, const char* what);

}  // namespace aoext::cuda

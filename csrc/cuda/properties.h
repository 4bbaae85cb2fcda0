// A CUDA device as far as the choice of a kernel depends on it. It knows nothing of torch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace aoext::cuda {

struct Fits;  // cuda/fits.h

// What a device has beyond compute capability 8.0, as far as kernels ask for it.
struct Features {
  bool wgmma = false;     // code for sm_90a: compute capability 9.0 and nowhere else
  bool clusters = false;  // of blocks that read each other's shared memory: from 9.0 on
  bool overlap = false;   // a kernel may start while the stream's last one ends (kernels/launch.h): from 9.0 on

  constexpr bool cover(const Features& needs) const {
    return wgmma >= needs.wgmma && clusters >= needs.clusters && overlap >= needs.overlap;
  }
};

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
  bool has_kernels;   // runs those of this folder: from compute capability 8.0 on
  Features features;  // AOEXT_CUDA_FAMILY=sm80 has newer devices do without
};

// Asked once per device.
const Device& device_of(int index);

// A GPU of gpus.h as it would be here: what plans can be asked about without having one. RuntimeError for another name.
const Device& device_named(const std::string& name);

// RuntimeError that names what was tried.
void check(cudaError_t error, const char* what);

}  // namespace aoext::cuda

// Numbers of 8 bits as ones of 16, exactly.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/element.h"

namespace aoext::cuda {

struct Widen {
  const void* from;  // [count] of `type`: int8, e4m3 or e5m2, at a multiple of 16 bytes
  void* to;          // of `output`: bf16 or fp16, likewise
  int64_t count;
  Element type, output;
};

cudaError_t launch_widen(const Widen& p, cudaStream_t stream);

}  // namespace aoext::cuda

// Which kernel a problem gets on a CUDA device: the only place where shapes choose code.
#pragma once

#include "common/explanation.h"
#include "common/problem.h"
#include "cuda/kernels/int4_batch.h"
#include "cuda/kernels/int4_decode.h"
#include "cuda/kernels/int4_mma.h"
#include "cuda/kernels/int4_ring.h"
#include "cuda/kernels/int4_wgmma.h"
#include "cuda/properties.h"

namespace aoext::cuda {

enum class Algorithm {
  ring,     // few rows of x: a ring of weights in shared memory for each warp (kernels/int4_ring.cuh)
  decode,   // few rows: weights from memory straight to registers (kernels/int4_decode.cuh)
  batch,    // up to 64, on compute capability 9.0 (kernels/sm90a/int4_batch.cuh)
  wgmma,    // more, there (kernels/sm90a/int4_wgmma.cuh)
  mma,      // more, anywhere (kernels/int4_mma.cuh)
  any,      // every size, type and alignment (kernels/int4_any.cu)
  generic,  // ATen operators, where nothing else serves
};

struct Plan {
  Algorithm algorithm = Algorithm::generic;
  ScalarType scale = ScalarType::BFloat16;  // what scales and zeros are converted to first, where they are of another type
  RingConfig ring = {};
  DecodeConfig decode = {};
  BatchConfig batch = {};
  WgmmaConfig wgmma = {};
  MmaConfig mma = {};
};

Element element(ScalarType dtype);

// The problem as kernels see it, without its pointers.
Int4Linear int4_linear(const LinearProblem& p);

// bf16i4bf16_rowwise: `aligned` says so of the weight, its scales and zeros.
Plan plan_int4(const LinearProblem& p, const Device& device, bool aligned);

bool takes_one_pass(int64_t K, const Device& device);  // quantize_rowwise, dequantize_int4, packing

// For aoext.explain.
Explanation explain(const Plan& plan);
Explanation explain_wgmma(const char* kernel, const WgmmaConfig& config);
inline Explanation explain_kernel(const char* kernel) { return {"cuda", kernel}; }

}  // namespace aoext::cuda

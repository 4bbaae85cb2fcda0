// Which kernel a problem gets on a CUDA device: the only place where shapes choose code. A plan is one value, made once for each
// problem, that can be compared, printed and forced (fields.h, forced.h).
#pragma once

#include <string>

#include "common/explanation.h"
#include "common/formats.h"
#include "cuda/fields.h"
#include "cuda/properties.h"

namespace aoext::cuda {

struct Int4Plan {
  Int4Kernel kernel = Generic{};
  ScalarType scale = ScalarType::BFloat16;  // what scales and zeros are converted to first, where they are of another type

  bool operator==(const Int4Plan&) const = default;
};

Element element(ScalarType dtype);

// The problem as kernels see it, without its pointers; with scales as they are, or converted to another type.
Int4Linear int4_linear(const LinearProblem& p);
Int4Linear int4_linear(const LinearProblem& p, ScalarType scale);

// bf16i4bf16_rowwise: `aligned` says so of the weight, its scales and zeros.
Int4Plan plan_int4(const LinearProblem& p, const Device& device, bool aligned);

bool takes_one_pass(int64_t K, const Device& device);  // quantize_rowwise, dequantize_int4, packing

std::string text(const Int4Plan& plan);

// "M = 1, N = 4096, K = 4096, group_size = 128", for messages.

// For aoext.explain.
Explanation explain(const Int4Plan& plan);
Explanation explain_wgmma(const char* kernel, const WgmmaConfig& config);
inline Explanation explain_kernel(const char* kernel) { return {"cuda", kernel}; }

// Of int4 for few rows.
template <class Config>
Explanation explain_few_rows(const char* kernel, const Config& c) {
  return explain_kernel(kernel)
      .with("tile_n", c.tiles * c.warp_tiles * 16)
      .with("k_splits", c.k_splits)
      .with("cluster", c.cluster);
}

}  // namespace aoext::cuda

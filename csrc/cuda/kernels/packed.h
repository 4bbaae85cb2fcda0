// Products with weights whose codes lie in blocks of bytes (common/layout.h), as their kernels see them: raw device memory,
// everything contiguous, nothing empty.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "common/layout.h"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {

// y[m, n] = row_scale[m] · sum_k x[m, k] · w[n, k] + bias[n], where w is code · scale + zero of groups that lie beside the codes,
// or of those in a block, times one scale for all.
struct PackedLinear {
  const void* x;           // [M, K] of `type`; or its limbs, [M, limbs, K], whose sum it is
  const uint8_t* weight;   // [N, K / values, bytes]
  const void* scale;       // beside codes: [K / group_size, N] of `scale_type`, or [1] of float32
  const void* zero;        // beside codes
  const float* row_scale;  // [M], or null
  const float* x_scale;    // [M, ceil(K / x_group)], or null: of an x of 8 bits, which packed_any alone takes
  const void* bias;        // [N] of `bias_type`, or null
  void* y;                 // [M, N] of `output`
  int64_t M, N, K, row_bytes, group_size, x_group;
  int limbs;
  Code code;
  Element type, scale_type, bias_type, output;
  // As in RowwiseLinear; scale and zero have a first dimension [experts] more, too.
  const int32_t* ends;
  int64_t experts;
};

// The codes that kernels of this family are compiled for: those of planes and blocks.
constexpr Code kPackedCodes[] = {Code::int2, Code::int3,   Code::int5,   Code::int6,  Code::int7, Code::q4_0, Code::q4_1,
                                 Code::q5_0, Code::q5_1,   Code::q8_0,   Code::q2_k,  Code::q3_k, Code::q4_k, Code::q5_k,
                                 Code::q6_k, Code::iq4_nl, Code::iq4_xs, Code::tq2_0, Code::tq1_0};

// f.operator()<code>() of one of them.
template <class F>
cudaError_t with_packed_code(Code code, const F& f) {
  cudaError_t error = cudaErrorInvalidValue;
  [&]<size_t... i>(std::index_sequence<i...>) {
    static_cast<void>(((code == kPackedCodes[i] && (error = f.template operator()<kPackedCodes[i]>(), true)) || ...));
  }(std::make_index_sequence<std::size(kPackedCodes)>());
  return error;
}

constexpr bool has_scales_beside(Code code) { return layout_of(code).group == 0; }

}  // namespace aoext::cuda

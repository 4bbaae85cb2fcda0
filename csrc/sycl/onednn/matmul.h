// Matrix products by oneDNN on a SYCL queue: plain structs and pointers, no tensors.
//
//   y[m, n] = row_scale[m] · Σ_k x[m, k] · (w[n, k] − zero_point[g, n]) · scale[g, n]  +  bias[n]  +  addend[m, n]
//
// with g = k / group_size, accumulated in float32 (int8 × int8: int32) and rounded once. The engine is asked,
// never assumed: implementation() is empty where the queue's device has nothing but a reference loop for a
// product, and a plan then takes another kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

namespace aoext::xpu::onednn {

// s4 is the plain int4 layout as it lies: two's complement nibbles, the even k in the low one. It needs neither
// a copy nor an exclusive or, as u4 with a zero point of 8 would.
enum class Type { none, bf16, f16, f32, s32, s8, s4, f8_e4m3, f8_e5m2 };

// The product that is wanted. Every matrix is dense.
struct Matmul {
  int64_t M = 0, N = 0, K = 0;
  Type input = Type::none;   // [M, K]
  Type weight = Type::none;  // [N, K]
  Type output = Type::none;  // [M, N]

  bool weight_is_kn = false;  // the weight lies as [K, N]

  Type scale = Type::none;   // of the weight's scales [K / group_size, N]; none: no scales
  int64_t group_size = 0;    // K for one scale per output column
  bool zero_points = false;  // int8 [K / group_size, N]

  bool row_scales = false;   // float32 [M]
  Type bias = Type::none;    // [N]
  Type addend = Type::none;  // [M, N]
};

// Where its operands lie: USM that the queue's device reads. Unused ones are null.
struct Arguments {
  const void* input = nullptr;
  const void* weight = nullptr;
  const void* scale = nullptr;
  const void* zero_point = nullptr;
  const void* row_scale = nullptr;
  const void* bias = nullptr;
  const void* addend = nullptr;
  void* output = nullptr;
  void* scratchpad = nullptr;  // scratchpad_bytes() bytes, kept until the product has run
};

// oneDNN's GPU kernels take the alignment of a matrix from its row pitch alone and trust its base to be as good
// (src/gpu/intel/gemm/jit/pd.hpp, eff_align_a), up to the 64 bytes of a 2D block load. A plan sends operands that
// are less aligned, such as some views, to other kernels.
constexpr size_t kAlignment = 64;
bool is_aligned(const Arguments& arguments);

// oneDNN's name for what this queue's device would run, such as "jit:gemm:any"; empty where it has nothing faster
// than a reference loop. Cheap after the first call with a problem; on a GPU that one may compile.
std::string implementation(sycl::queue& queue, const Matmul& problem);

size_t scratchpad_bytes(sycl::queue& queue, const Matmul& problem);

// Submits the product and returns without waiting. It runs after `dependencies`, and on an in-order queue (all of
// PyTorch's are) after whatever that queue was given before. Needs a problem with an implementation().
//
// Any thread may call any of these. Errors are std::runtime_error, "oneDNN matmul: …".
sycl::event run(sycl::queue& queue, const Matmul& problem, const Arguments& arguments,
                const std::vector<sycl::event>& dependencies = {});

}  // namespace aoext::xpu::onednn

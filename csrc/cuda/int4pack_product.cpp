#include "cuda/int4pack_product.h"

namespace aoext::cuda {
namespace {

// The problem as bf16i4bf16_rowwise would have it.
LinearProblem plain_problem(const TinygemmLinear& linear) {
  LinearProblem p{};
  p.M = linear.M, p.N = linear.N, p.K = linear.K, p.group_size = linear.group_size;
  p.input = p.scale = p.output = ScalarType::BFloat16;
  p.code = Code::int4, p.has_zero_point = true;
  return p;
}

// N·K/2 bytes are written and read once more, which many rows of x pay for.
cudaError_t unpack_and_multiply(const TinygemmLinear& linear, const Device& device, const Allocate& allocate,
                                cudaStream_t stream) {
  const LinearProblem p = plain_problem(linear);
  const int64_t scales = p.K / p.group_size * p.N;
  void* const weight = allocate(static_cast<size_t>(p.N * p.K / 2));
  void* const scale = weight == nullptr ? nullptr : allocate(static_cast<size_t>(2 * scales));
  void* const zero_point = scale == nullptr ? nullptr : allocate(static_cast<size_t>(2 * scales));
  if (zero_point == nullptr) return cudaErrorMemoryAllocation;

  const Int4Plan plan = plan_int4(p, device, true);
  Int4Linear plain = int4_linear(p);
  plain.x = linear.x, plain.y = linear.y;
  plain.weight = static_cast<const uint8_t*>(weight), plain.scale = scale, plain.zero_point = zero_point;
  const size_t bytes = workspace_bytes(plan.kernel, plain);
  void* const space = bytes == 0 ? nullptr : allocate(bytes);
  if (bytes > 0 && space == nullptr) return cudaErrorMemoryAllocation;

  cudaError_t error = launch_tinygemm_unpack(linear.weight, weight, p.N, p.K, linear.inner_k_tiles, stream);
  if (error == cudaSuccess) error = launch_tinygemm_split(linear.scale_and_zero, scale, zero_point, scales, stream);
  return error == cudaSuccess ? launch_kernel(plan.kernel, plain, space, stream) : error;
}

}  // namespace

cudaError_t launch_int4pack(const TinygemmLinear& linear, const TinygemmPlan& plan, const Device& device,
                            const Allocate& allocate, cudaStream_t stream) {
  if (const auto* const config = std::get_if<TinygemmConfig>(&plan.kernel))
    return KernelOf<TinygemmConfig>::launch(linear, *config, nullptr, stream);
  return is_generic(plan.kernel) ? cudaErrorNotSupported : unpack_and_multiply(linear, device, allocate, stream);
}

}  // namespace aoext::cuda

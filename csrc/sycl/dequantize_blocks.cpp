#include "sycl/dequantize_blocks.h"

#include <limits>

#include "common/dispatcher.h"
#include "common/sizes.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

bool is_served(sycl::queue& queue, const LinearProblem& p) {
  return p.K <= std::numeric_limits<int>::max() / 2 && serves(queue, "dequantize_blocks.lanes");
}

}  // namespace

Explanation explain_dequantize_blocks(const Call& call) {
  return is_served(current_queue(call.tensor(0)), call.problem) ? Explanation{"xpu", "dequantize_blocks"} : generic_explanation();
}

OptionalTensor dequantize_blocks(const LinearProblem& p, const Tensor& weight, const Tensor& scale, const OptionalTensor& table,
                                 const OptionalTensor& global_scale) {
  sycl::queue& queue = current_queue(weight);
  if (!is_served(queue, p)) return std::nullopt;
  const Tensor out = aten::empty({p.N, p.K}, p.output, weight);
  if (p.N == 0) return out;
  const Tensor codes = aten::contiguous(weight), scales = aten::contiguous(scale);
  const OptionalTensor values = contiguous(table);
  constexpr int64_t kRows = 32;  // of w for a work-group: kernels/dequantize_blocks.cpp
  constexpr size_t kWidth = kSubGroups * kLanes;
  launch(
      queue, {"dequantize_blocks.lanes", "dequantize_blocks"},
      sycl::nd_range<2>({static_cast<size_t>(ceil_div(p.N, kRows)), static_cast<size_t>(ceil_div(p.K, int64_t{kWidth})) * kWidth},
                        {1, kWidth}),
      out.mutable_data_ptr(), codes.const_data_ptr(), static_cast<const float*>(data_of(values)), scales.const_data_ptr(),
      static_cast<const float*>(data_of(global_scale)), p.N, p.block_n, static_cast<int>(p.K), static_cast<int>(p.group_size),
      int{element(storage(p.code))}, int{element(p.output)}, int{element(p.scale)});
  return out;
}

}  // namespace aoext::xpu

#include "sycl/quantize.h"

#include <algorithm>
#include <limits>

#include "common/sizes.h"
#include "generic/products.h"
#include "generic/register.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

constexpr int64_t kMaxWorkGroups = int64_t{1} << 20;    // a work-group goes on with further rows, or blocks, where there are more
constexpr int64_t kMaxTeam = 64, kKept = 2, kWide = 8;  // of kernels/quantize_rowwise.cpp

bool quantize_serves(sycl::queue& queue, const LinearProblem& p) {
  return p.K <= std::numeric_limits<int>::max() / 2 && serves(queue, Source::quantize_rowwise);
}

void quantize_rows(sycl::queue& queue, const LinearProblem& p, const Tensor& x, const Tensor& values, const Tensor& scales) {
  static const Module &wide_kernel = module("quantize_rowwise.lanes", "quantize_rowwise_wide"),
                      &any_kernel = module("quantize_rowwise.lanes", "quantize_rowwise_any");
  const bool wide = is_aligned(x, 16) && p.K % kWide == 0;
  const int64_t pieces = wide ? p.K / kWide : p.K;
  const int64_t most = std::min<int64_t>(kMaxTeam, device_of(queue).work_group / kLanes);
  const int64_t sub_groups = std::min(ceil_div(pieces, kKept * kLanes), most);
  const int64_t rows = std::clamp<int64_t>(kSubGroups / sub_groups, 1, std::max<int64_t>(most / sub_groups, 1));
  const auto width = static_cast<size_t>(rows * sub_groups * kLanes);
  const auto work_groups = static_cast<size_t>(std::min(ceil_div(p.M, rows), kMaxWorkGroups));
  launch(queue, wide ? wide_kernel : any_kernel, sycl::nd_range<2>({work_groups, width}, {1, width}), values.mutable_data_ptr(),
         static_cast<float*>(scales.mutable_data_ptr()), x.const_data_ptr(), p.M, static_cast<int>(p.K), element(p.input),
         element(values.scalar_type()), static_cast<int>(sub_groups));
}

void quantize_blocks(sycl::queue& queue, const LinearProblem& p, const Tensor& x, const Tensor& values, const Tensor& scales) {
  static const Module& kernel = module("quantize_rowwise.lanes", "quantize_blockwise");
  constexpr size_t kWidth = kSubGroups * kLanes;
  const int64_t blocks = p.M * ceil_div(p.K, p.input_group_size);
  const auto work_groups = static_cast<size_t>(std::min(ceil_div(blocks, kSubGroups), kMaxWorkGroups));
  launch(queue, kernel, sycl::nd_range<2>({1, work_groups * kWidth}, {1, kWidth}), values.mutable_data_ptr(),
         static_cast<float*>(scales.mutable_data_ptr()), x.const_data_ptr(), p.M, static_cast<int>(p.K),
         static_cast<int>(p.input_group_size), element(p.input), element(values.scalar_type()), static_cast<int>(p.power_of_two));
}

std::tuple<Tensor, Tensor> quantize(const Tensor& input, ScalarType dtype, const OptionalIntegers& block_size,
                                    bool power_of_two) {
  return quantized(check_quantize(input, dtype, block_size, power_of_two), input, dtype);
}

Explanation explain_quantize(const Call& call) {
  return quantize_serves(current_queue(call.tensor(0)), call.problem) ? Explanation{"xpu", "quantize"} : generic_explanation();
}

}  // namespace

std::tuple<Tensor, Tensor> quantized(const LinearProblem& p, const Tensor& input, ScalarType dtype) {
  sycl::queue& queue = current_queue(input);
  if (!quantize_serves(queue, p))
    return generic::quantize(input, dtype, OptionalIntegers(generic::input_block(p)), p.power_of_two);
  const Tensor values = aten::empty(output_sizes(input, p.K), dtype, input);
  const Tensor scales = aten::empty(output_sizes(input, ceil_div(p.K, p.input_group_size)), ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  const bool by_rows = p.input_group_size == p.K && !p.power_of_two;
  (by_rows ? quantize_rows : quantize_blocks)(queue, p, aten::contiguous(input), values, scales);
  return {values, scales};
}

AOEXT_REGISTER(XPU, quantize, &explain_quantize, &quantize)

}  // namespace aoext::xpu

// Weights to high precision on an XPU: int4 by groups, formats whose scales are by blocks, and others (kernels/planes.h).
#include <algorithm>
#include <limits>

#include "common/checks.h"
#include "common/sizes.h"
#include "generic/nested_scales.h"
#include "generic/register.h"
#include "sycl/dequantize.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/queue.h"
#include "sycl/tiles.h"

namespace aoext::xpu {
namespace {

constexpr int64_t kRows = 32;  // of w for a work-group: kernels/dequantize_int4.cpp and dequantize_blocks.cpp

Source dequantize_source(const LinearProblem& p) {
  return p.code == Code::int4 ? Source::dequantize_int4 : Source::dequantize_blocks;
}

bool dequantize_serves(sycl::queue& queue, const LinearProblem& p) {
  return p.K <= std::numeric_limits<int>::max() / 2 && knows(Key::XPU, p.code) && serves(queue, dequantize_source(p));
}

void dequantize_groups(sycl::queue& queue, const LinearProblem& p, const Weight& w, const Tensor& out) {
  static const Module &wide_kernel = module("dequantize_int4.lanes", "dequantize_int4_wide"),
                      &any_kernel = module("dequantize_int4.lanes", "dequantize_int4_any");
  const bool wide = p.group_size % 8 == 0 && is_aligned(w.values, 4) && is_aligned(out, 16);
  const int64_t sub_groups = ceil_div(p.K, kLanes * (wide ? 8 : 2));
  const auto width = static_cast<size_t>(kLanes * std::min(sub_groups, kSubGroups));
  const auto columns = static_cast<size_t>(ceil_div(sub_groups * kLanes, width)) * width;
  launch(queue, wide ? wide_kernel : any_kernel,
         sycl::nd_range<2>({static_cast<size_t>(ceil_div(p.N, kRows)), columns}, {1, width}), out.mutable_data_ptr(),
         w.values.const_data_ptr(), w.scale.const_data_ptr(), w.zero_point->const_data_ptr(), p.N, static_cast<int>(p.K),
         static_cast<int>(p.group_size), element(p.output), element(p.scale));
}

void dequantize_blocks(sycl::queue& queue, const LinearProblem& p, const Weight& w, const Tensor& out) {
  static const Module& kernel = module("dequantize_blocks.lanes", "dequantize_blocks");
  const OptionalTensor table = contiguous(w.table), global_scale = contiguous(w.global_scale),
                       zero_point = contiguous(w.zero_point);
  constexpr size_t kWidth = kSubGroups * kLanes;
  launch(
      queue, kernel,
      sycl::nd_range<2>({static_cast<size_t>(ceil_div(p.N, kRows)), static_cast<size_t>(ceil_div(p.K, int64_t{kWidth})) * kWidth},
                        {1, kWidth}),
      out.mutable_data_ptr(), w.values.const_data_ptr(), floats_of(table), w.scale.const_data_ptr(),
      static_cast<const int8_t*>(data_of(zero_point)), floats_of(global_scale), p.N, p.block_n, static_cast<int>(p.K),
      static_cast<int>(p.group_size), element(p.code), element(p.output), element(p.scale));
}

bool is_of_planes(const LinearProblem& p) { return tiles_of(p).source == Source::planes_tile; }

Tensor dequantize(const Tensor& weight, const Tensor& scale, int64_t code, const OptionalIntegers& block_size,
                  const OptionalTensor& zero_point, const OptionalTensor& table, const OptionalTensor& global_scale,
                  std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize(weight, scale, code, block_size, zero_point, table, global_scale, dtype);
  sycl::queue& queue = current_queue(weight);
  if (!dequantize_serves(queue, p))
    return generic::dequantize(weight, scale, code, block_size, zero_point, table, global_scale, dtype);
  const Tensor out = aten::empty({p.N, p.K}, p.output, weight);
  if (p.N == 0) return out;
  const generic::WithFloatScales of(p, {weight, scale, pointer_to(zero_point), pointer_to(table), pointer_to(global_scale)});
  const Tensor codes = aten::contiguous(weight), scales = aten::contiguous(of.weight.scale);
  const Weight w{codes, scales, of.weight.zero_point, of.weight.table, of.weight.global_scale};
  if (is_of_planes(p)) {
    dequantize_planes(queue, p, codes, scales, contiguous(w.zero_point), out);
  } else {
    (p.code == Code::int4 ? dequantize_groups : dequantize_blocks)(queue, p, w, out);
  }
  return out;
}

Explanation explain_dequantize(const Call& call) {
  const LinearProblem& p = call.problem;
  if (!dequantize_serves(current_queue(call.tensor(0)), p)) return generic_explanation();
  return {"xpu", p.code == Code::int4 ? "dequantize_int4" : is_of_planes(p) ? "dequantize_planes" : "dequantize_blocks"};
}

}  // namespace

void dequantize_planes(sycl::queue& queue, const LinearProblem& p, const Tensor& weight, const Tensor& scale,
                       const OptionalTensor& zero_point, const Tensor& out) {
  static const Module &wide_kernel = module("dequantize_blocks.lanes", "dequantize_planes_wide"),
                      &any_kernel = module("dequantize_blocks.lanes", "dequantize_planes_any");
  const bool wide = p.K % kStep == 0 && p.group_size % 8 == 0 && is_aligned(weight, 4) && is_aligned(out, 16);
  const int64_t sub_groups = ceil_div(p.K, kLanes * (wide ? kStep : 1));
  const auto width = static_cast<size_t>(kLanes * std::min(sub_groups, kSubGroups));
  const auto columns = static_cast<size_t>(ceil_div(sub_groups * kLanes, width)) * width;
  launch(queue, wide ? wide_kernel : any_kernel,
         sycl::nd_range<2>({static_cast<size_t>(ceil_div(p.N, kRows)), columns}, {1, width}), out.mutable_data_ptr(),
         weight.const_data_ptr(), scale.const_data_ptr(), data_of(zero_point), p.N, static_cast<int>(p.K),
         static_cast<int>(p.group_size), p.code, element(p.output), element(p.scale));
}

AOEXT_REGISTER(XPU, dequantize, &explain_dequantize, &dequantize)

}  // namespace aoext::xpu

#include "sycl/linear.h"

#include "common/checks.h"
#include "sycl/arrange_input.h"
#include "sycl/linear_any.h"
#include "sycl/plan.h"
#include "sycl/product.h"
#include "sycl/queue.h"
#include "sycl/tiles.h"

namespace aoext::xpu {
namespace {

// The work-items that compute y.
sycl::nd_range<2> tile_range(const Plan& plan, const LinearProblem& p) {
  const size_t width = static_cast<size_t>(plan.sub_groups) * kLanes;
  return {{static_cast<size_t>(row_tiles(p, plan.family.rows)), static_cast<size_t>(ceil_div(p.N, plan.columns)) * width},
          {1, width}};
}

void tile(sycl::queue& queue, const LinearProblem& p, const Plan& plan, const Tensor& y, const Dense& o) {
  const Tensor x = arranged(p, plan, queue, o.input, o.offsets);
  const auto run = [&](const auto&... arguments) {
    launch(queue, *plan.kernel, tile_range(plan, p), y.mutable_data_ptr(), x.const_data_ptr(), o.weight.const_data_ptr(),
           ints_of(o.offsets), static_cast<int>(p.experts), arguments..., element(p.output), element(p.scale), element(p.bias));
  };
  const void *const scale = data_of(o.scale), *const zero_point = data_of(o.zero_point), *const bias = data_of(o.bias);
  const int K = static_cast<int>(p.K), group_size = static_cast<int>(p.group_size);
  const int input_group_size = static_cast<int>(o.input_scale ? p.input_group_size : p.K);
  switch (plan.family.source) {
    case Source::int4_tile: return run(scale, zero_point, bias, p.M, p.N, K, group_size);
    case Source::int4_scaled_tile: return run(floats_of(o.input_scale), scale, zero_point, bias, p.M, p.N, K, group_size);
    case Source::rowwise_tile: return run(floats_of(o.input_scale), scale, bias, p.M, p.N, K);
    case Source::planes_tile:
      return run(scale, zero_point, floats_of(o.input_scale), bias, p.M, p.N, K, group_size, input_group_size, p.code,
                 element(p.input));
    default:
      return run(floats_of(o.table), scale, floats_of(o.global_scale), static_cast<int>(p.global_scales),
                 floats_of(o.input_scale), bias, p.M, p.N, static_cast<int>(p.block_n), K, group_size, input_group_size);
  }
}

Explanation explain(const LinearProblem& p, const Tensor& input, const Tensor& weight) {
  sycl::queue& queue = current_queue(input);
  // An input with gaps becomes a copy, which is aligned.
  const int alignment = input.is_contiguous() ? alignment_of({&input, &weight}) : alignment_of({&weight});
  return explain(plan_linear(p, queue, alignment), queue);
}

}  // namespace

OptionalTensor linear(const LinearProblem& p, const Operands& operands) {
  const Weight& w = operands.weight;
  const bool is_scaled = p.output != ScalarType::Int;
  const Dense o{aten::contiguous(operands.input), aten::contiguous(w.values), contiguous(is_scaled ? &w.scale : nullptr),
                contiguous(w.zero_point),         contiguous(w.table),        contiguous(w.global_scale),
                contiguous(operands.input_scale), contiguous(operands.bias),  optional(operands.offsets)};
  sycl::queue& queue = current_queue(o.input);
  const Plan plan = plan_linear(p, queue, alignment_of({&o.input, &o.weight}));
  if (plan.algorithm == Algorithm::generic) return std::nullopt;
  const Tensor y = aten::empty(output_sizes(o.input, p.N), p.output, o.input);
  if (p.M == 0 || p.N == 0) return y;
  switch (plan.algorithm) {
    case Algorithm::tile: tile(queue, p, plan, y, o); break;
    case Algorithm::onednn: product(queue, p, plan.product, y, o); break;
    default: linear_any(queue, p, y, o);
  }
  return y;
}

Explanation explain_linear(const Call& call) { return explain(call.problem, call.tensor(0), call.tensor(1)); }

Explanation explain_quantized(const Call& call) {
  LinearProblem p = call.problem;
  p.input = p.quantized;
  return explain(p, call.tensor(0), call.tensor(1));
}

}  // namespace aoext::xpu

#include "sycl/linear_any.h"

#include <algorithm>

#include "common/sizes.h"
#include "sycl/launch.h"
#include "sycl/tiles.h"

namespace aoext::xpu {
namespace {

sycl::nd_range<2> any_range(const LinearProblem& p) {
  constexpr int64_t kRows = 4, kColumns = 2;  // of y for a sub-group: kernels/linear_any.cpp
  // Sub-groups of a work-group read the same rows of x.
  const int64_t sub_groups = ceil_div(p.N, kColumns), in_a_work_group = std::min(sub_groups, kSubGroups);
  const auto width = static_cast<size_t>(in_a_work_group * kLanes);
  return {{static_cast<size_t>(row_tiles(p, kRows)), static_cast<size_t>(ceil_div(sub_groups, in_a_work_group)) * width},
          {1, width}};
}

}  // namespace

void linear_any(sycl::queue& queue, const LinearProblem& p, const Tensor& y, const Dense& o) {
  static const Module &rows = module("linear_any.lanes", "linear_any"), &blocks = module("linear_any.lanes", "linear_any_blocks"),
                      &planes = module("linear_any.lanes", "linear_any_planes");
  const Source source = tiles_of(p).source;
  const int K = static_cast<int>(p.K), group_size = static_cast<int>(p.group_size);
  const int input_group_size = static_cast<int>(o.input_scale ? p.input_group_size : p.K);
  const auto run = [&](const Module& kernel, const auto&... arguments) {
    launch(queue, kernel, any_range(p), y.mutable_data_ptr(), o.input.const_data_ptr(), o.weight.const_data_ptr(),
           ints_of(o.offsets), static_cast<int>(p.experts), arguments..., element(p.output), element(p.scale), element(p.bias));
  };
  if (source == Source::planes_tile) {
    run(planes, data_of(o.scale), data_of(o.zero_point), floats_of(o.input_scale), data_of(o.bias), p.M, p.N, K, group_size,
        input_group_size, p.code, element(p.input));
  } else if (source == Source::blocks_tile) {
    run(blocks, floats_of(o.table), data_of(o.scale), data_of(o.zero_point), floats_of(o.global_scale),
        static_cast<int>(p.global_scales), floats_of(o.input_scale), data_of(o.bias), p.M, p.N, p.block_n, K, group_size,
        input_group_size, element(p.input), element(p.code));
  } else {
    run(rows, data_of(o.scale), data_of(o.zero_point), floats_of(o.input_scale), data_of(o.bias), p.M, p.N, K, group_size,
        element(p.input), element(p.code));
  }
}

}  // namespace aoext::xpu

// Which kernel a problem gets on an XPU: the only place where shapes choose code.
//
// A plan takes the first candidate that the device can run, that the tensors' alignment allows and that is
// trusted on this device (self_check.h).
#pragma once

#include <functional>
#include <string>

#include "common/checks.h"
#include "common/explain.h"
#include "sycl/device.h"
#include "sycl/kernels/shape.h"
#include "sycl/launch.h"
#include "sycl/onednn/matmul.h"

namespace aoext::xpu {

enum class Algorithm {
  tile,     // a kernel of ours that splits K over the sub-groups of a work-group (kernels/split_k.h)
  any,      // a kernel of ours for every size and alignment (kernels/linear_any.cpp)
  onednn,   // oneDNN's product, with kernels of ours for what it cannot do
  generic,  // ATen operators, where nothing else serves
};

struct Plan {
  Algorithm algorithm = Algorithm::generic;
  KernelName kernel = {};       // tile
  int rows = 0, columns = 0;    // tile: of y that a work-group computes
  int sub_groups = 0;           // tile: that split K
  bool arranged = false;        // tile: of x as arrange_input leaves it
  onednn::Matmul product = {};  // onednn
};

// The largest power of two, up to oneDNN's kAlignment, at whose multiples all these tensors start.
int alignment_of(std::initializer_list<const Tensor*> tensors);

Plan plan_int4(const LinearProblem& p, sycl::queue& queue, int alignment);         // bf16i4bf16_rowwise
Plan plan_rowwise(const LinearProblem& p, sycl::queue& queue, int alignment);      // 8-bit weights with one scale a row
Plan plan_blocks(const LinearProblem& p, sycl::queue& queue, int alignment);       // weights with a scale a block
Plan plan_scaled_int4(const LinearProblem& p, sycl::queue& queue, int alignment);  // scaled_mm_int4

// tile: the work-items that compute y.
sycl::nd_range<2> tile_range(const Plan& plan, const LinearProblem& p);

// For aoext.explain: of a plan; of operators by one of the plans above; and of those that one image of their name serves.
Explanation explain(const Plan& plan, sycl::queue& queue);
Explanation explain_product(const Call& call, Plan (*plan)(const LinearProblem&, sycl::queue&, int));
template <Plan (*kPlan)(const LinearProblem&, sycl::queue&, int)>
Explanation explain(const Call& call) {
  return explain_product(call, kPlan);
}
// Of the product, once its input is quantised as the weight is.
template <Plan (*kPlan)(const LinearProblem&, sycl::queue&, int)>
Explanation explain_quantized(const Call& call) {
  LinearProblem p = call.problem;
  p.input = storage(p.code);
  return explain<kPlan>({call.op, call.tensors, p});
}
Explanation explain_one_pass(const Call& call);

// What the plans use.

// The first candidate that serves: a tile, on the matrix engine if there is one, and oneDNN, in an order that M decides; then
// the kernel for any size. tile(plan, variant of the image) and product(plan) fill in the plan and return whether they serve.
Plan choose(const LinearProblem& p, sycl::queue& queue, int alignment, const std::function<bool(Plan&, const std::string&)>& tile,
            const std::function<bool(Plan&)>& product);

// oneDNN may round each dequantised weight to the input's type, and the tile kernels round a table's numbers to it. Over fewer
// columns than this an output row may be so small beside its terms that the rounding shows.
constexpr int64_t kProductColumns = 32;

// Whether a kernel, or all of an image's, may run on the queue's device: it has what they need, and they are trusted there.
bool serves(sycl::queue& queue, const KernelName& kernel);
bool serves(sycl::queue& queue, const std::string& image);
int tile_rows(int64_t M, bool matrix);  // of y for a work-group: the kernels' _m<rows>
int tile_sub_groups(const LinearProblem& p, const Device& device, int rows, int columns);
const char* type_name(ScalarType t);  // in the names of kernels, images and families
std::string type_names(ScalarType weight, ScalarType input);

// oneDNN's products by int4, and by 8-bit weights, as trusted() knows them.
std::string product_family(ScalarType input);
std::string product_family(ScalarType weight, ScalarType input);

}  // namespace aoext::xpu

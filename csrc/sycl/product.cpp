#include "sycl/product.h"

#include "common/sizes.h"
#include "sycl/dequantize.h"
#include "sycl/int4_correction.h"
#include "sycl/launch.h"
#include "sycl/tiles.h"

namespace aoext::xpu {
namespace {

// The scratchpad comes from the allocator of `like`'s device.
void multiply(sycl::queue& queue, const onednn::Matmul& product, onednn::Arguments arguments, const Tensor& like) {
  const auto bytes = static_cast<int64_t>(onednn::scratchpad_bytes(queue, product));
  const Tensor scratchpad = aten::empty({bytes}, ScalarType::Byte, like);
  arguments.scratchpad = scratchpad.mutable_data_ptr();
  onednn::run(queue, product, arguments);
}

// oneDNN knows integer zero points alone. w = q · s + z is (q − zp) · s + r with the integer zp next to −z / s and
// the rest r = z + zp · s, at most half a scale. oneDNN multiplies by the first; the second, times the sums of x
// over each group, is a small float32 product that is added before the one rounding. (With zp = 0 it would be as
// exact in sum, but oneDNN rounds (q − zp) · s to the input's type, and where it cancels against z an outlier in x
// shows the difference.)
void int4_product(sycl::queue& queue, const LinearProblem& p, const onednn::Matmul& product, const Tensor& y, const Dense& o) {
  const Int4Zeros zeros = split_zeros(queue, p, *o.scale, *o.zero_point);
  const Tensor sums = group_sums(queue, p, o.input);
  const Tensor correction = aten::empty({p.M, p.N}, ScalarType::Float, y);

  onednn::Matmul add;
  add.M = p.M, add.N = p.N, add.K = p.K / p.group_size;
  add.input = add.weight = add.output = onednn::Type::f32;
  add.weight_is_kn = true;
  onednn::Arguments arguments;
  arguments.input = sums.const_data_ptr();
  arguments.weight = zeros.rest.const_data_ptr();
  arguments.output = correction.mutable_data_ptr();
  multiply(queue, add, arguments, y);

  arguments = {};
  arguments.input = o.input.const_data_ptr();
  arguments.weight = o.weight.const_data_ptr();
  arguments.scale = (product.scale == onednn_type(p.scale) ? *o.scale : zeros.scale).const_data_ptr();
  arguments.zero_point = zeros.integers.const_data_ptr();
  arguments.addend = correction.const_data_ptr();
  arguments.bias = data_of(o.bias);
  arguments.output = y.mutable_data_ptr();
  multiply(queue, product, arguments, y);
}

// By a weight that is dequantised to the input's type.
void dequantized_product(sycl::queue& queue, const LinearProblem& p, const onednn::Matmul& product, const Tensor& y,
                         const Dense& o) {
  const Tensor weight = aten::empty({p.N, p.K}, p.input, y);
  LinearProblem of_weight = p;
  of_weight.output = p.input;
  dequantize_planes(queue, of_weight, o.weight, *o.scale, o.zero_point, weight);
  onednn::Arguments arguments;
  arguments.input = o.input.const_data_ptr();
  arguments.weight = weight.const_data_ptr();
  arguments.bias = data_of(o.bias);
  arguments.output = y.mutable_data_ptr();
  multiply(queue, product, arguments, y);
}

// Scales and bias where the product has left them out.
void scale_rows(sycl::queue& queue, const LinearProblem& p, const Tensor& y, const Tensor& sums, const Dense& o) {
  constexpr int64_t kWorkGroup = 256, kValues = 4;  // of a work-item, in wide rows
  static const Module& kernel = module("scale_rows.lanes", "scale_rows");
  const auto groups = static_cast<size_t>(ceil_div(p.N, kWorkGroup * kValues));
  launch(queue, kernel, sycl::nd_range<2>({static_cast<size_t>(p.M), groups * kWorkGroup}, {1, kWorkGroup}), y.mutable_data_ptr(),
         static_cast<const int*>(sums.const_data_ptr()), floats_of(o.input_scale), data_of(o.scale), data_of(o.bias), p.N,
         element(p.output), element(p.scale), element(p.bias));
}

void rowwise_product(sycl::queue& queue, const LinearProblem& p, const onednn::Matmul& product, const Tensor& y, const Dense& o) {
  const bool unscaled = product.output == onednn::Type::s32 && p.output != ScalarType::Int;
  const Tensor result = unscaled ? aten::empty({p.M, p.N}, ScalarType::Int, y) : y;
  OptionalTensor scale;  // kept until the product is submitted
  if (product.scale != onednn::Type::none)
    scale = product.scale == onednn_type(p.scale) ? *o.scale : aten::to(*o.scale, ScalarType::Float);
  onednn::Arguments arguments;
  arguments.input = o.input.const_data_ptr();
  arguments.weight = o.weight.const_data_ptr();
  arguments.scale = data_of(scale);
  if (product.row_scales) arguments.row_scale = data_of(o.input_scale);
  if (product.bias != onednn::Type::none) arguments.bias = data_of(o.bias);
  arguments.output = result.mutable_data_ptr();
  multiply(queue, product, arguments, y);
  if (unscaled) scale_rows(queue, p, y, result, o);
}

}  // namespace

onednn::Type onednn_type(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::BFloat16: return onednn::Type::bf16;
    case ScalarType::Half: return onednn::Type::f16;
    case ScalarType::Float: return onednn::Type::f32;
    case ScalarType::Int: return onednn::Type::s32;
    case ScalarType::Char: return onednn::Type::s8;
    case ScalarType::Float8_e4m3fn: return onednn::Type::f8_e4m3;
    case ScalarType::Float8_e5m2: return onednn::Type::f8_e5m2;
    default: return onednn::Type::none;
  }
}

bool onednn_has(sycl::queue& queue, const onednn::Matmul& product) { return !onednn::implementation(queue, product).empty(); }

void product(sycl::queue& queue, const LinearProblem& p, const onednn::Matmul& product, const Tensor& y, const Dense& o) {
  const bool of_planes = tiles_of(p).source == Source::planes_tile;
  (of_planes ? dequantized_product : p.code == Code::int4 ? int4_product : rowwise_product)(queue, p, product, y, o);
}

}  // namespace aoext::xpu

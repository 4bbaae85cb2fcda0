#include "generic/dequantize_int4.h"

#include "generic/generic.h"

namespace aoext::generic {
namespace {

// [K/group_size, N] as float32 [count, K/group_size, 1].
Tensor group_column(const Tensor& t, int64_t first, int64_t count) {
  return aten::unsqueeze(aten::to(aten::transpose(aten::narrow(t, 1, first, count)), ScalarType::Float), 2);
}

// Signed nibbles by arithmetic shifts of int8: the low one is moved up first, so that its sign bit leads.
Tensor unpack(const Tensor& packed) {
  const Tensor four = aten::scalar_like(4, ScalarType::Char, packed);
  const auto sign_extend = [&](const Tensor& high) { return call("aten::bitwise_right_shift", "Tensor", high, four); };
  const Tensor low = sign_extend(call("aten::bitwise_left_shift", "Tensor", packed, four));
  return aten::stack_last(low, sign_extend(packed));
}

}  // namespace

Tensor dequantize_int4(const Tensor& weight, const Tensor& scale, const Tensor& zero_point, std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize_int4(weight, scale, zero_point, dtype);
  Tensor out = aten::empty({p.N, p.K}, p.output, weight);
  for_row_blocks(p.N, p.K, [&](int64_t first, int64_t count) {
    aten::copy_(aten::narrow(out, 0, first, count), dequantize_int4_rows(p, weight, scale, zero_point, first, count));
  });
  return out;
}

Tensor unpack_int4_rows(const Tensor& weight, int64_t first, int64_t count) {
  return aten::reshape(aten::to(unpack(aten::narrow(weight, 0, first, count)), ScalarType::Float), {count, 2 * weight.size(1)});
}

Tensor dequantize_int4_rows(const LinearProblem& p, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                            int64_t first, int64_t count) {
  const Tensor q = aten::reshape(unpack_int4_rows(weight, first, count), {count, p.K / p.group_size, p.group_size});
  const Tensor w = aten::add(aten::mul(q, group_column(scale, first, count)), group_column(zero_point, first, count));
  return aten::reshape(w, {count, p.K});
}

}  // namespace aoext::generic

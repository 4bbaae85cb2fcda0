#include "common/quantize_weight.h"

#include "common/checker.h"

namespace aoext {

LinearProblem check_quantize_weight(const WeightWrite& w) {
  const Checker check("_quantize_weight_", "weight", w.weight);
  LinearProblem p{};
  p.code = check.code(w.code);
  check.weight(p, {w.weight, w.scale, pointer_to(w.zero_point), pointer_to(w.table), pointer_to(w.global_scale)}, w.block_size);
  check.operand("source", w.source);
  const bool shape_ok = w.source.dim() == 2 && w.source.size(0) == p.N && w.source.size(1) == p.K && w.source.stride(1) == 1;
  check.require(is_high_precision(dtype_of(w.source)) && shape_ok, "source",
                text(kHighPrecision, " [", p.N, ", ", p.K, "] whose rows are contiguous"), w.source);
  p.input = dtype_of(w.source);
  const bool known = p.code == Code::int4 || (p.code <= Code::lut4 && !p.subtracts_zero_point && !p.has_nested_scale);
  if (!known) check.fail("code", "a format whose scales stand alone", format_of(p.code).name);
  const bool whole_bytes = !is_packed(p.code) || p.group_size % 2 == 0;
  if (!whole_bytes) check.fail("block_size", "blocks of whole bytes", std::to_string(p.group_size));
  if (w.global_scale && p.scale != ScalarType::Float8_e4m3fn)
    check.fail("scale", "float8_e4m3fn beside a global_scale", dtype_name(p.scale));
  return p;
}

}  // namespace aoext

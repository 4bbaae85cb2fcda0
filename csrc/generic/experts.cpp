// Products of rows that are sorted by expert.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/dispatcher.h"
#include "generic/products.h"

namespace aoext::generic {
namespace {

bool asked_to_check() {
  const char* const wish = std::getenv("AOEXT_CHECK_OFFSETS");
  const std::string text = wish == nullptr ? "" : wish;
  if (!text.empty() && text != "0" && text != "1")
    throw std::runtime_error("aoext: AOEXT_CHECK_OFFSETS must be 0 or 1, got " + text);
  return text == "1";
}

}  // namespace

void check_offsets(const char* op, const LinearProblem& p, const Operands& of) {
  static const bool asked = asked_to_check();
  if (!asked) return;
  const std::optional<Key> key = key_of(of.input);
  const IsCaptured is_captured = key ? is_captured_on[static_cast<int>(*key)] : nullptr;
  if (is_captured == nullptr || !is_captured(of.input)) ends_of(op, *of.offsets, p.M);
}

std::vector<int64_t> ends_of(const char* op, const Tensor& offsets, int64_t rows) {
  const Tensor on_host = offsets.is_cpu() ? offsets : aten::contiguous(aten::on_cpu(offsets));
  const auto* const first = static_cast<const int32_t*>(on_host.const_data_ptr());
  std::vector<int64_t> ends(first, first + on_host.numel());
  int64_t last = 0;
  for (const int64_t end : ends) {
    if (end < last || end > rows)
      throw std::runtime_error(std::string(op) + ": offsets must be ends that do not decrease, from 0 to T = " +
                               std::to_string(rows) + ", got " + std::to_string(end) + " behind " + std::to_string(last));
    last = end;
  }
  return ends;
}

Tensor by_expert(const char* op, const LinearProblem& p, const Operands& of) {
  const Tensor y = aten::empty({p.M, p.N}, p.output, of.input);
  const OptionalIntegers block(weight_block(p)), block_of_input(input_block(p));
  const int64_t code = static_cast<int64_t>(p.code);
  const OptionalTensor none;
  int64_t begin = 0, expert = 0;
  for (const int64_t end : ends_of(op, *of.offsets, p.M)) {
    const auto rows = [&](const Tensor& t) { return aten::narrow(t, 0, begin, end - begin); };
    const auto of_expert = [&](const Tensor* t) { return t == nullptr ? none : OptionalTensor(aten::select(*t, 0, expert)); };
    if (end > begin && p.N > 0) {
      const Tensor x = rows(of.input), weight = *of_expert(&of.weight.values), scale = *of_expert(&of.weight.scale);
      const OptionalTensor zero_point = of_expert(of.weight.zero_point), bias = of_expert(of.bias),
                           global_scale =
                               p.global_scales > 1 ? of_expert(of.weight.global_scale) : optional(of.weight.global_scale);
      const Tensor product = of.input_scale == nullptr ? call(op, "", x, weight, scale, code, bias, block, zero_point,
                                                              optional(of.weight.table), global_scale, none)
                                                       : call(op, "", x, weight, rows(*of.input_scale), scale, code, bias,
                                                              block_of_input, block, zero_point, none, std::optional(p.output));
      aten::copy_(rows(y), product);
    }
    begin = end, ++expert;
  }
  if (begin < p.M) aten::copy_(aten::narrow(y, 0, begin, p.M - begin), aten::zeros({1, 1}, p.output, of.input));
  return y;
}

}  // namespace aoext::generic

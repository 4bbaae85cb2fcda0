// Products of rows that are sorted by expert: one after the other, each by the device's own kernel for one weight. The host waits
// for the offsets.
#include <stdexcept>
#include <string>
#include <vector>

#include "common/dispatcher.h"
#include "generic/generic.h"

namespace aoext::generic {
namespace {

// For each expert where its rows end.
std::vector<int64_t> ends_of(const Tensor& offsets, int64_t rows) {
  const Tensor on_host = aten::contiguous(aten::on_cpu(offsets));
  const auto* const first = static_cast<const int32_t*>(on_host.const_data_ptr());
  std::vector<int64_t> ends(first, first + on_host.numel());
  int64_t last = 0;
  for (const int64_t end : ends) {
    if (end < last || end > rows)
      throw std::runtime_error("ao::bf16i4bf16_rowwise_grouped: offsets must be ends that do not decrease, from 0 to T = " +
                               std::to_string(rows) + ", got " + std::to_string(end) + " behind " + std::to_string(last));
    last = end;
  }
  return ends;
}

}  // namespace

Tensor bf16i4bf16_rowwise_grouped(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                                  const Tensor& offsets, const OptionalTensor& bias) {
  const LinearProblem p = check_bf16i4bf16_rowwise_grouped(input, weight, scale, zero_point, offsets, bias);
  const Tensor y = aten::empty({p.M, p.N}, p.output, input);
  int64_t begin = 0, expert = 0;
  for (const int64_t end : ends_of(offsets, p.M)) {
    const auto of_expert = [&](const Tensor& t) { return aten::select(t, 0, expert); };
    if (end > begin && p.N > 0) {
      const Tensor x = aten::narrow(input, 0, begin, end - begin);
      aten::copy_(aten::narrow(y, 0, begin, end - begin),
                  bias ? call("ao::bf16i4bf16_rowwise_bias", "", x, of_expert(weight), of_expert(scale), of_expert(zero_point),
                              of_expert(*bias))
                       : call("ao::bf16i4bf16_rowwise", "", x, of_expert(weight), of_expert(scale), of_expert(zero_point)));
    }
    begin = end, ++expert;
  }
  if (begin < p.M) aten::copy_(aten::narrow(y, 0, begin, p.M - begin), aten::zeros({1, 1}, p.output, input));
  return y;
}

}  // namespace aoext::generic

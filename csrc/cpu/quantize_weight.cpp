// Writing a plain matrix into a quantised weight, on a CPU: threads take blocks of rows. Whether a weight holds the matrix
// already the host sees for itself here.
#include "common/quantize_weight.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "common/dispatcher.h"
#include "common/formats.h"
#include "common/library.h"
#include "common/sizes.h"
#include "cpu/isa.h"
#include "cpu/packed_x.h"
#include "cpu/parallel.h"

namespace aoext::cpu {
namespace {

constexpr float kE4m3Max = 448, kSmallestLargest = 0x1p-64f, kLift = 0x1p64f;

bool all_zeros(const Tensor& t) {
  const char* const bytes = static_cast<const char*>(t.const_data_ptr());
  const auto value = [&](int64_t i) -> float {
    float f;
    kernels().to_float(element(t.scalar_type()), bytes + i * static_cast<int64_t>(t.element_size()), &f, 1);
    return f;
  };
  for (int64_t i = 0; i < t.numel(); ++i)
    if (value(i) != 0) return false;
  return true;
}

uint32_t largest_magnitude(const WeightToWrite& w) {
  std::atomic<uint32_t> largest = 0;
  kParallelFor(w.N, grain(1, w.K), [&](int64_t begin, int64_t end) {
    uint32_t own = 0;
    for (int64_t m = begin; m < end; ++m) own = std::max(own, kernels().largest_magnitude(w.type, w.x + m * w.pitch, w.K));
    for (uint32_t seen = largest; seen < own && !largest.compare_exchange_weak(seen, own);) {
    }
  });
  return largest;
}

// The order of a table's values, what lies between them, and the largest of them.
void set_table(WeightToWrite& w, const float* table) {
  const bool ties_to_even = w.scale_type == Element::e8m0 || w.scale_type == Element::e4m3;
  std::iota(w.order, w.order + 16, uint8_t{0});
  std::stable_sort(w.order, w.order + 16, [&](uint8_t a, uint8_t b) {
    if (table[a] != table[b]) return table[a] < table[b];
    return ties_to_even && std::signbit(table[a]) > std::signbit(table[b]);  // −0 before 0
  });
  for (int i = 0; i < 15; ++i) {
    const uint8_t below = w.order[i], above = w.order[i + 1];
    w.borders[i] = (table[below] + table[above]) / 2;
    const bool alike = (below & 1) == (above & 1);
    w.by_sign[i] = ties_to_even && alike && w.borders[i] == 0;
    w.up[i] = ties_to_even && (alike ? w.borders[i] > 0 : (below & 1) != 0);
  }
  static constexpr float kE2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  w.is_e2m1 = ties_to_even;
  for (int i = 0; i < 16; ++i) {
    const float value = i < 8 ? kE2m1[i] : -kE2m1[i - 8];
    w.is_e2m1 = w.is_e2m1 && table[i] == value && std::signbit(table[i]) == (i >= 8);
    w.limit = std::max(w.limit, std::fabs(table[i]));
  }
}

// The scale of all of the weight, with scales of e4m3.
float set_whole(WeightToWrite& w, float largest) {
  w.lift = largest < kSmallestLargest ? kLift : 1;
  float scale = std::max(largest * w.lift / (kE4m3Max * w.limit) / w.lift, std::numeric_limits<float>::denorm_min());
  if (largest == 0) scale = 1;
  if (!std::isfinite(largest)) scale = std::numeric_limits<float>::quiet_NaN();
  w.whole = scale * w.lift;
  return scale;
}

Tensor write(const LinearProblem& p, const WeightWrite& of) {
  if (of.rtol >= 0) throw std::runtime_error("ao::_quantize_weight_: rtol must be negative on a CPU, got another number");
  const auto bytes = [](const Tensor& t) { return static_cast<char*>(t.mutable_data_ptr()); };
  WeightToWrite w{};
  w.x = static_cast<const char*>(of.source.const_data_ptr());
  w.pitch = of.source.stride(0) * static_cast<int64_t>(of.source.element_size());
  w.N = p.N, w.K = p.K, w.type = element(p.input);
  w.codes = bytes(of.weight), w.scale = bytes(of.scale);
  w.zero_point = of.zero_point ? bytes(*of.zero_point) : nullptr;
  w.code = element(p.code), w.scale_type = element(p.scale);
  w.block_n = p.block_n, w.block_k = p.group_size;
  w.whole = w.lift = 1;
  if (of.table)
    set_table(w, static_cast<const float*>(of.table->const_data_ptr()));
  else if (p.code != Code::int4)
    w.limit = quantized_max(storage(p.code));
  const Tensor status = aten::zeros({kWeightStatuses}, ScalarType::Int, of.weight);
  auto* const told = static_cast<int32_t*>(status.mutable_data_ptr());
  if (p.code == Code::int4) {
    w.symmetric = of.symmetric < 0 ? all_zeros(*of.zero_point) : of.symmetric != 0;
    told[kAsymmetric] = !w.symmetric;
  }
  if (of.check || of.global_scale) {
    const uint32_t largest = largest_magnitude(w);
    // Where scales of float16 may not hold it, or a range is infinite, the rule is more than this.
    const float most = of.check ? (w.scale_type == Element::fp16 ? 0x1p14f : 0x1p124f) : std::numeric_limits<float>::max();
    float magnitude;
    std::memcpy(&magnitude, &largest, sizeof magnitude);
    std::memcpy(told + kLargest, &largest, sizeof largest);
    told[kRefused] = !(magnitude <= most);
    if (of.check && told[kRefused]) return status;
    if (of.global_scale) *static_cast<float*>(of.global_scale->mutable_data_ptr()) = set_whole(w, magnitude);
  }
  std::atomic<bool> broken = false;
  kParallelFor(ceil_div(p.N, w.block_n), grain(w.block_n, p.K), [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> space(w.block_k);
    if (kernels().write_weight(w, begin, end, space.data())) broken = true;
  });
  if (broken) told[kRefused] = 1;
  return status;
}

AOEXT_LIBRARY_IMPL(CPU, m) { m.impl("_quantize_weight_", AOEXT_BOX(&quantize_weight<&write>)); }

}  // namespace
}  // namespace aoext::cpu

// ao::_quantize_weight_, with which a plain matrix takes a quantised weight's place in its memory, in the rules of
// python/aoext/packing. It has kernels on devices that write a weight in one pass; elsewhere Python goes by them.
#pragma once

#include "common/problem.h"
#include "common/torch_api.h"

namespace aoext {

// What it tells: int32 words, 0 or 1 but for the last.
enum WeightStatus : int64_t {
  kDiffers,     // the weight did not hold the source already, where that was asked
  kRefused,     // the source has NaN or Inf, or what scales may not hold
  kAsymmetric,  // a zero point is not 0
  kLargest,     // the largest magnitude of the source, as the bits of a float
  kWeightStatuses
};

// Its arguments: a source [N, K] of rows that are contiguous, and the weight that it becomes. What else there is to say:
// symmetric, 1 or 0, or −1 for as the zero points are; rtol, at which a weight that holds the source already stays as it is, or a
// negative number; `check`, whether it does so too where kRefused is said.
struct WeightWrite {
  const Tensor &source, &weight, &scale;
  int64_t code;
  const OptionalIntegers& block_size;
  const OptionalTensor &zero_point, &table, &global_scale;
  int64_t symmetric;
  double rtol, atol;
  bool check;
};

// RuntimeError for arguments that are none, and for formats that no kernel knows.
LinearProblem check_quantize_weight(const WeightWrite& w);

// The operator, by a device's own function of a checked problem.
template <Tensor (*kWrite)(const LinearProblem& p, const WeightWrite& w)>
Tensor quantize_weight(const Tensor& source, const Tensor& weight, const Tensor& scale, int64_t code,
                       const OptionalIntegers& block_size, const OptionalTensor& zero_point, const OptionalTensor& table,
                       const OptionalTensor& global_scale, int64_t symmetric, double rtol, double atol, bool check) {
  const WeightWrite w{source, weight, scale, code, block_size, zero_point, table, global_scale, symmetric, rtol, atol, check};
  return kWrite(check_quantize_weight(w), w);
}

}  // namespace aoext

// The checks of a call, in the order of its arguments; memory is not touched before all of them hold.
#include <cstdio>
#include <cstring>

#include "common/int4pack.h"
#include "common/sizes.h"
#include "int4pack_shim/status.h"

namespace aoext::int4pack::detail {
namespace {

const char* name(DType dtype) {
  return dtype == DType::bfloat16 ? "bfloat16" : dtype == DType::int32 ? "int32" : "another dtype";
}

const char* name(DeviceType device) {
  return device == DeviceType::cpu    ? "cpu"
         : device == DeviceType::cuda ? "cuda"
         : device == DeviceType::xpu  ? "xpu"
                                      : "another device";
}

std::string list(const int64_t* values, int64_t count) {
  std::string text = "[";
  for (int64_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text + "]";
}

std::string describe(const View& t) {
  if (t.dim > kMostDimensions) return std::string(name(t.dtype)) + " of " + std::to_string(t.dim) + " dimensions";
  return std::string(name(t.dtype)) + " " + list(t.sizes, t.dim);
}

void require(bool condition, const char* argument, const std::string& must, const std::string& got) {
  if (!condition) throw Failed(Failure::bad_argument, std::string(argument) + " must be " + must + ", got " + got);
}

int64_t elements(const View& t) {
  int64_t count = 1;
  for (int64_t d = 0; d < t.dim; ++d) count *= t.sizes[d];
  return count;
}

bool is_contiguous(const View& t) {
  if (elements(t) == 0) return true;
  int64_t expected = 1;
  for (int64_t d = t.dim - 1; d >= 0; --d) {
    if (t.sizes[d] != 1 && t.strides[d] != expected) return false;
    expected *= t.sizes[d];
  }
  return true;
}

void countable(const char* argument, const View& t) { require(is_countable(t.sizes, t.dim), argument, kCountable, describe(t)); }

// Where a tensor lies, and that its memory can be read as it is.
void memory(const char* argument, const View& t, const View& self, int64_t element_size) {
  require(t.device == self.device && t.device_index == self.device_index, argument,
          std::string("on the device of self, ") + name(self.device) + ":" + std::to_string(self.device_index),
          std::string(name(t.device)) + ":" + std::to_string(t.device_index));
  require(is_contiguous(t), argument, "contiguous", describe(t) + " with strides " + list(t.strides, t.dim));
  require(elements(t) == 0 || t.data != nullptr, argument, "a tensor with memory", "a null pointer");
  require(reinterpret_cast<uintptr_t>(t.data) % element_size == 0, argument,
          "at a multiple of " + std::to_string(element_size) + " bytes", "memory between two elements");
}

bool has(const View& t, DType dtype, int64_t dim) {
  if (t.dtype != dtype || t.dim != dim) return false;
  for (int64_t d = 0; d < dim; ++d)
    if (t.sizes[d] < 0) return false;
  return true;
}

void check_null(const Call& call) {
  const auto present = [](bool here, const char* argument) {
    if (!here) throw Failed(Failure::null_argument, std::string(argument) + " must not be null");
  };
  present(call.self != nullptr, "self");
  present(call.mat2 != nullptr, "mat2");
  present(call.scale_and_zero != nullptr, "qScaleAndZeros");
  present(call.has_result, "ret0");
}

void check_call(const Call& call, Problem* p) {
  check_null(call);
  const View &self = *call.self, &mat2 = *call.mat2, &pairs = *call.scale_and_zero;
  require(self.device == call.device, "self", std::string("on ") + name(call.device), name(self.device));
  require(has(self, DType::bfloat16, 2), "self", "bfloat16 [M, K]", describe(self));
  countable("self", self);
  require(self.sizes[1] > 0, "self", "[M, K] with K > 0", describe(self));
  memory("self", self, self, 2);
  p->M = self.sizes[0], p->K = self.sizes[1];

  const std::string weight = weight_must_be(p->K);
  require(has(mat2, DType::int32, 4), "mat2", weight, describe(mat2));
  countable("mat2", mat2);
  require(is_weight(mat2.dim, mat2.sizes, p->K), "mat2", weight, describe(mat2));
  memory("mat2", mat2, self, 4);
  p->N = rows_of(mat2.sizes), p->inner_k_tiles = inner_k_tiles_of(mat2.sizes);
  const int64_t result[] = {p->M, p->N};
  require(is_countable(result, 2), "self", std::string("[M, K] with so few rows that the result is ") + kCountable,
          std::to_string(p->M) + " rows for N = " + std::to_string(p->N));

  require(is_group_size(call.group_size, p->K), "qGroupSize", group_size_must_be(p->K), std::to_string(call.group_size));
  p->group_size = call.group_size;
  const int64_t groups = p->K / p->group_size;
  require(has(pairs, DType::bfloat16, 3) && is_scale_and_zero(pairs.dim, pairs.sizes, groups, p->N), "qScaleAndZeros",
          scale_and_zero_must_be(groups, p->N), describe(pairs));
  memory("qScaleAndZeros", pairs, self, 2);

  p->x = self.data, p->weight = mat2.data, p->scale_and_zero = pairs.data;
  p->device_index = self.device_index;
}

}  // namespace

Status failed(Failure failure, const char* symbol, const char* what) noexcept {
  Status status;
  status.failure = failure;
  std::snprintf(status.message, sizeof status.message, "%s: %s", symbol, what);
  return status;
}

Status unreadable(const char* symbol, const char* argument) noexcept {
  Status status;
  status.failure = Failure::bad_argument;
  std::snprintf(status.message, sizeof status.message, "%s: %s cannot be read as a tensor", symbol, argument);
  return status;
}

Status no_memory(const char* symbol, const char* what) noexcept {
  Status status;
  status.failure = Failure::out_of_memory;
  std::snprintf(status.message, sizeof status.message, "%s: no memory for %s", symbol, what);
  return status;
}

Status check(const Call& call, Problem* problem) noexcept {
  return guarded(call.symbol, [&] { check_call(call, problem); });
}

}  // namespace aoext::int4pack::detail

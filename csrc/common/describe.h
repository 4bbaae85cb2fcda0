// Tensors in words, for error messages; and what the stable ABI tells of them without raising.
#pragma once

#include <string>
#include <utility>

#include "common/torch_api.h"

namespace aoext {

ScalarType dtype_of(const Tensor& t);  // of the enumeration, whatever its value
// Where the elements of a dense tensor lie.
struct Strided {
  Sizes sizes, strides;
  int64_t offset;
};
std::optional<Strided> strided(const Tensor& t);  // none of a tensor that has no strides: sparse, nested
// Whether its storage still holds its elements: FSDP frees storages between uses, and their tensors do not know. True of a
// tensor without a storage.
bool is_in_storage(const Tensor& t, const Strided& lies);
int64_t storage_bytes(const Tensor& t);
std::pair<int32_t, int32_t> device_of(const Tensor& t);  // type and index

const char* dtype_name(ScalarType dtype);  // as PyTorch writes it: "float8_e4m3fn"
std::string device_name(const Tensor& t);  // "cuda:0"
std::string list(Sizes sizes);             // "[4, 7]"
std::string describe(const Tensor& t);     // "int8 [4, 7]"

}  // namespace aoext

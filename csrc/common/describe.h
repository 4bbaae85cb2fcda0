// Tensors in words, for error messages; and what the stable ABI tells of them without raising.
#pragma once

#include <string>
#include <utility>

#include "common/torch_api.h"

namespace aoext {

ScalarType dtype_of(const Tensor& t);  // of the enumeration, whatever its value
bool is_strided(const Tensor& t);
// Whether its storage still holds its elements: who resizes a storage, as FSDP does between uses, does not ask its tensors. True
// of a tensor without a storage.
bool is_in_storage(const Tensor& t);
int64_t storage_bytes(const Tensor& t);
std::pair<int32_t, int32_t> device_of(const Tensor& t);  // type and index

const char* dtype_name(ScalarType dtype);  // as PyTorch writes it: "float8_e4m3fn"
std::string device_name(const Tensor& t);  // "cuda:0"
std::string list(Sizes sizes);             // "[4, 7]"
std::string describe(const Tensor& t);     // "int8 [4, 7]"

}  // namespace aoext

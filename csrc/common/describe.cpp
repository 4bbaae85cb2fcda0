#include "common/describe.h"

#include <sstream>
#include <stdexcept>

#include "common/portability.h"

namespace aoext {

ScalarType dtype_of(const Tensor& t) {
  int32_t dtype =
      0;  // PyTorch's number: Tensor::scalar_type() raises for dtypes that the stable ABI of torch 2.10 has no name for
  aoti_torch_get_dtype(t.get(), &dtype);
  return static_cast<ScalarType>(dtype);
}

const char* dtype_name(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::Half: return "float16";
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::ComplexHalf: return "complex32";
    case ScalarType::ComplexFloat: return "complex64";
    case ScalarType::ComplexDouble: return "complex128";
    case ScalarType::Bool: return "bool";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Float8_e4m3fn: return "float8_e4m3fn";
    case ScalarType::Float8_e5m2: return "float8_e5m2";
    case ScalarType::Float8_e4m3fnuz: return "float8_e4m3fnuz";
    case ScalarType::Float8_e5m2fnuz: return "float8_e5m2fnuz";
    case ScalarType::UInt16: return "uint16";
    case ScalarType::UInt32: return "uint32";
    case ScalarType::UInt64: return "uint64";
    case ScalarType::Float8_e8m0fnu: return "float8_e8m0fnu";
    case ScalarType::Float4_e2m1fn_x2: return "float4_e2m1fn_x2";
    case ScalarType::UInt1: return "uint1";
    case ScalarType::UInt2: return "uint2";
    case ScalarType::UInt3: return "uint3";
    case ScalarType::UInt4: return "uint4";
    case ScalarType::UInt5: return "uint5";
    case ScalarType::UInt6: return "uint6";
    case ScalarType::UInt7: return "uint7";
    case ScalarType::Int1: return "int1";
    case ScalarType::Int2: return "int2";
    case ScalarType::Int3: return "int3";
    case ScalarType::Int4: return "int4";
    case ScalarType::Int5: return "int5";
    case ScalarType::Int6: return "int6";
    case ScalarType::Int7: return "int7";
    default: return "another dtype";
  }
}

std::pair<int32_t, int32_t> device_of(const Tensor& t) {
  int32_t type = 0, index = 0;
  aoti_torch_get_device_type(t.get(), &type);
  aoti_torch_get_device_index(t.get(), &index);
  return {type, index};
}

std::string device_name(const Tensor& t) {
  const auto [type, index] = device_of(t);
  std::string name = type == aoti_torch_device_type_cpu()           ? "cpu"
                     : type == aoti_torch_device_type_cuda()        ? "cuda"
                     : type == aoti_torch_device_type_xpu()         ? "xpu"
                     : type == aoti_torch_device_type_mps()         ? "mps"
                     : type == aoti_torch_device_type_meta()        ? "meta"
                     : type == aoti_torch_device_type_privateuse1() ? "privateuseone"
                                                                    : "device type " + std::to_string(type);
  return index < 0 || name == "cpu" ? name : name + ":" + std::to_string(index);
}

std::string list(Sizes sizes) {
  std::ostringstream out;
  out << '[';
  for (size_t d = 0; d < sizes.size(); ++d) out << (d ? ", " : "") << sizes[d];
  out << ']';
  return out.str();
}

bool is_strided(const Tensor& t) {
  int32_t layout = 0;
  aoti_torch_get_layout(t.get(), &layout);
  return layout == aoti_torch_layout_strided();
}

int64_t storage_bytes(const Tensor& t) {
  int64_t bytes = -1;
  return aoti_torch_get_storage_size(t.get(), &bytes) == AOTI_TORCH_SUCCESS ? bytes : -1;
}

bool is_in_storage(const Tensor& t) {
  const Sizes sizes = t.sizes(), strides = t.strides();
  int64_t end = t.storage_offset() + 1;  // behind the last element
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return true;
    int64_t length = 0;
    if (mul_overflow(sizes[d] - 1, strides[d], &length) || add_overflow(end, length, &end)) return false;
  }
  const int64_t bytes = storage_bytes(t);
  return bytes < 0 || end <= bytes / static_cast<int64_t>(t.element_size());
}

std::string describe(const Tensor& t) { return std::string(dtype_name(dtype_of(t))) + " " + list(t.sizes()); }

}  // namespace aoext

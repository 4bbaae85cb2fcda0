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
    case ScalarType::QInt8: return "qint8";
    case ScalarType::QUInt8: return "quint8";
    case ScalarType::QInt32: return "qint32";
    case ScalarType::QUInt4x2: return "quint4x2";
    case ScalarType::QUInt2x4: return "quint2x4";
    case ScalarType::Bits1x8: return "bits1x8";
    case ScalarType::Bits2x4: return "bits2x4";
    case ScalarType::Bits4x2: return "bits4x2";
    case ScalarType::Bits8: return "bits8";
    case ScalarType::Bits16: return "bits16";
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

// A nested tensor says that its layout is strided, and raises when it is asked for its sizes.
std::optional<Strided> strided(const Tensor& t) {
  int32_t layout = 0;
  int64_t dim = 0, offset = 0, *sizes = nullptr, *strides = nullptr;
  const bool has = aoti_torch_get_layout(t.get(), &layout) == AOTI_TORCH_SUCCESS && layout == aoti_torch_layout_strided() &&
                   aoti_torch_get_dim(t.get(), &dim) == AOTI_TORCH_SUCCESS &&
                   aoti_torch_get_sizes(t.get(), &sizes) == AOTI_TORCH_SUCCESS &&
                   aoti_torch_get_strides(t.get(), &strides) == AOTI_TORCH_SUCCESS &&
                   aoti_torch_get_storage_offset(t.get(), &offset) == AOTI_TORCH_SUCCESS;
  if (!has) return std::nullopt;
  return Strided{Sizes(sizes, dim), Sizes(strides, dim), offset};
}

int64_t storage_bytes(const Tensor& t) {
  int64_t bytes = -1;
  return aoti_torch_get_storage_size(t.get(), &bytes) == AOTI_TORCH_SUCCESS ? bytes : -1;
}

bool is_in_storage(const Tensor& t, const Strided& lies) {
  int64_t end = lies.offset + 1;  // behind the last element
  for (size_t d = 0; d < lies.sizes.size(); ++d) {
    if (lies.sizes[d] == 0) return true;
    int64_t length = 0;
    if (mul_overflow(lies.sizes[d] - 1, lies.strides[d], &length) || add_overflow(end, length, &end)) return false;
  }
  const int64_t bytes = storage_bytes(t);
  return bytes < 0 || end <= bytes / static_cast<int64_t>(t.element_size());
}

std::string describe(const Tensor& t) {
  int64_t dim = 0, *sizes = nullptr;
  const bool has_sizes =
      aoti_torch_get_dim(t.get(), &dim) == AOTI_TORCH_SUCCESS && aoti_torch_get_sizes(t.get(), &sizes) == AOTI_TORCH_SUCCESS;
  return std::string(dtype_name(dtype_of(t))) + " " + (has_sizes ? list(Sizes(sizes, dim)) : "without sizes");
}

}  // namespace aoext

#include "common/describe.h"

#include <sstream>
#include <stdexcept>

namespace aoext {

ScalarType dtype_of(const Tensor& t) {
  try {
    return t.scalar_type();
  } catch (const std::exception&) {  // a dtype that the stable ABI has no name for
    return ScalarType::Undefined;
  }
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

std::string describe(const Tensor& t) { return std::string(dtype_name(dtype_of(t))) + " " + list(t.sizes()); }

}  // namespace aoext

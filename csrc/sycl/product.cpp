#include "sycl/product.h"

#include "common/dispatcher.h"

namespace aoext::xpu {

onednn::Type onednn_type(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::BFloat16: return onednn::Type::bf16;
    case ScalarType::Half: return onednn::Type::f16;
    case ScalarType::Float: return onednn::Type::f32;
    case ScalarType::Int: return onednn::Type::s32;
    case ScalarType::Char: return onednn::Type::s8;
    case ScalarType::Float8_e4m3fn: return onednn::Type::f8_e4m3;
    case ScalarType::Float8_e5m2: return onednn::Type::f8_e5m2;
    default: return onednn::Type::none;
  }
}

bool onednn_has(sycl::queue& queue, const onednn::Matmul& product) { return !onednn::implementation(queue, product).empty(); }

void multiply(sycl::queue& queue, const onednn::Matmul& product, onednn::Arguments arguments, const Tensor& like) {
  const auto bytes = static_cast<int64_t>(onednn::scratchpad_bytes(queue, product));
  const Tensor scratchpad = aten::empty({bytes}, ScalarType::Byte, like);
  arguments.scratchpad = scratchpad.mutable_data_ptr();
  onednn::run(queue, product, arguments);
}

}  // namespace aoext::xpu

#include "cpu/element.h"

#include <stdexcept>

namespace aoext::cpu {

Element element(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::BFloat16: return Element::bf16;
    case ScalarType::Half: return Element::f16;
    case ScalarType::Float: return Element::f32;
    case ScalarType::Char: return Element::i8;
    case ScalarType::Float8_e4m3fn: return Element::e4m3;
    case ScalarType::Float8_e5m2: return Element::e5m2;
    case ScalarType::Int: return Element::i32;
    case ScalarType::Float8_e8m0fnu: return Element::e8m0;
    default: throw std::runtime_error("aoext: no CPU element for this dtype");
  }
}

}  // namespace aoext::cpu

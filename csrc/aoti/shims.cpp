// AOTInductor's C shims of every operator: aoti_torch_{cpu,cuda,xpu}_<operator>. One line an operator: how many parameters
// the C function has (arguments and results; the compiler refuses a wrong number), and its name.
#include "aoti/shim.h"

namespace aoext::aoti {

template <auto* kGeneric, size_t i>
using Parameter = std::tuple_element_t<i, typename Shim<kGeneric>::C>;

#define AOEXT_PARAMETERS_1(op) Parameter<&generic::op, 0> p0
#define AOEXT_PARAMETERS_2(op) AOEXT_PARAMETERS_1(op), Parameter<&generic::op, 1> p1
#define AOEXT_PARAMETERS_3(op) AOEXT_PARAMETERS_2(op), Parameter<&generic::op, 2> p2
#define AOEXT_PARAMETERS_4(op) AOEXT_PARAMETERS_3(op), Parameter<&generic::op, 3> p3
#define AOEXT_PARAMETERS_5(op) AOEXT_PARAMETERS_4(op), Parameter<&generic::op, 4> p4
#define AOEXT_PARAMETERS_6(op) AOEXT_PARAMETERS_5(op), Parameter<&generic::op, 5> p5
#define AOEXT_PARAMETERS_7(op) AOEXT_PARAMETERS_6(op), Parameter<&generic::op, 6> p6
#define AOEXT_VALUES_3 p0, p1, p2
#define AOEXT_VALUES_4 AOEXT_VALUES_3, p3
#define AOEXT_VALUES_5 AOEXT_VALUES_4, p4
#define AOEXT_VALUES_6 AOEXT_VALUES_5, p5
#define AOEXT_VALUES_7 AOEXT_VALUES_6, p6

#define AOEXT_SHIM(device, key, count, op)                                                               \
  extern "C" AOTI_TORCH_EXPORT AOTITorchError aoti_torch_##device##_##op(AOEXT_PARAMETERS_##count(op)) { \
    return Shim<&generic::op>::call(Key::key, #op, {AOEXT_VALUES_##count});                              \
  }
#define AOEXT_SHIMS(count, op)      \
  AOEXT_SHIM(cpu, CPU, count, op)   \
  AOEXT_SHIM(cuda, CUDA, count, op) \
  AOEXT_SHIM(xpu, XPU, count, op)

AOEXT_SHIMS(5, bf16i4bf16_rowwise)
AOEXT_SHIMS(6, bf16i4bf16_rowwise_bias)
AOEXT_SHIMS(5, dequantize_int4)
AOEXT_SHIMS(3, convert_weight_to_int4pack)
AOEXT_SHIMS(5, weight_int4pack_mm)
AOEXT_SHIMS(4, bf16i8bf16_rowwise)
AOEXT_SHIMS(5, bf16i8bf16_rowwise_bias)
AOEXT_SHIMS(4, bf16f8bf16_rowwise)
AOEXT_SHIMS(5, bf16f8bf16_rowwise_bias)
AOEXT_SHIMS(3, int8_mm)
AOEXT_SHIMS(7, scaled_mm_rowwise)
AOEXT_SHIMS(4, quantize_rowwise)
AOEXT_SHIMS(5, scaled_linear_rowwise)

}  // namespace aoext::aoti

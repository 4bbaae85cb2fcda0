// AOTInductor's C shims of every operator: aoti_torch_{cpu,cuda,xpu}_<operator>. The compiler refuses a wrong number of
// parameters in the table.
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
#define AOEXT_PARAMETERS_8(op) AOEXT_PARAMETERS_7(op), Parameter<&generic::op, 7> p7
#define AOEXT_PARAMETERS_9(op) AOEXT_PARAMETERS_8(op), Parameter<&generic::op, 8> p8
#define AOEXT_PARAMETERS_10(op) AOEXT_PARAMETERS_9(op), Parameter<&generic::op, 9> p9
#define AOEXT_PARAMETERS_11(op) AOEXT_PARAMETERS_10(op), Parameter<&generic::op, 10> p10
#define AOEXT_PARAMETERS_12(op) AOEXT_PARAMETERS_11(op), Parameter<&generic::op, 11> p11
#define AOEXT_PARAMETERS_13(op) AOEXT_PARAMETERS_12(op), Parameter<&generic::op, 12> p12
#define AOEXT_PARAMETERS_14(op) AOEXT_PARAMETERS_13(op), Parameter<&generic::op, 13> p13
#define AOEXT_VALUES_3 p0, p1, p2
#define AOEXT_VALUES_4 AOEXT_VALUES_3, p3
#define AOEXT_VALUES_5 AOEXT_VALUES_4, p4
#define AOEXT_VALUES_6 AOEXT_VALUES_5, p5
#define AOEXT_VALUES_7 AOEXT_VALUES_6, p6
#define AOEXT_VALUES_8 AOEXT_VALUES_7, p7
#define AOEXT_VALUES_9 AOEXT_VALUES_8, p8
#define AOEXT_VALUES_10 AOEXT_VALUES_9, p9
#define AOEXT_VALUES_11 AOEXT_VALUES_10, p10
#define AOEXT_VALUES_12 AOEXT_VALUES_11, p11
#define AOEXT_VALUES_13 AOEXT_VALUES_12, p12
#define AOEXT_VALUES_14 AOEXT_VALUES_13, p13

#define AOEXT_SHIM(device, key, count, op)                                                          \
  extern "C" AOEXT_EXPORT AOTITorchError aoti_torch_##device##_##op(AOEXT_PARAMETERS_##count(op)) { \
    return Shim<&generic::op>::call(Key::key, #op, {AOEXT_VALUES_##count});                         \
  }
#define AOEXT_SHIMS(count, op)      \
  AOEXT_SHIM(cpu, CPU, count, op)   \
  AOEXT_SHIM(cuda, CUDA, count, op) \
  AOEXT_SHIM(xpu, XPU, count, op)

#define AOEXT_OPERATOR(name, result, parameters, c_parameters, schema) AOEXT_SHIMS(c_parameters, name)
#include "operators.inc"

}  // namespace aoext::aoti

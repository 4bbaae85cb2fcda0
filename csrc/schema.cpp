// The operators of the namespace ao, by their table, and what the library tells of itself. A fragment, not an owner of the
// namespace: python/aoext/library/loading.py makes sure that nobody else has defined these names, and says who did.
#include "common/library.h"

AOEXT_LIBRARY_DEFINE(m) {
#define AOEXT_OPERATOR(name, result, parameters, c_parameters, schema) m.def(#name schema);
#include "operators.inc"

  // The names of the above, a line each.
  m.def("_operators() -> str");
  // The rows of common/formats.h, a line each: name, storage, codes in a byte, layout of scales, kind of zero point, and whether
  // codes look a table up.
  m.def("_formats() -> str");

  // What an operator raises for arguments that it refuses, for fake kernels, which know no more than shapes and dtypes.
  m.def("_check_call(str operator, Tensor?[] tensors, int[] numbers, ScalarType? dtype) -> ()");

  // A source of high precision into a weight that is in use; common/quantize_weight.h says what of.
  m.def(
      "_quantize_weight_(Tensor source, Tensor(a!) weight, Tensor(b!) scale, int code, int[]? block_size, "
      "Tensor(c!)? zero_point, Tensor? table, Tensor(d!)? global_scale, int symmetric, float rtol, float atol, bool check) "
      "-> Tensor");

  // Behind aoext.explain, aoext.warmup and aoext.show_config: what a device would run for a call, getting its kernels
  // ready, and how the library was built.
  m.def("_explain(str operator, Tensor?[] tensors, int[] numbers, ScalarType? dtype) -> str");
  m.def("_warmup(Tensor like) -> str");
  m.def("_build_config() -> str");

  // Behind aoext.ops.plan and aoext.ops.with_plan: the plan of a call on a device by name, in its first line, with a second for
  // the instance of a CUDA kernel's template; and the plan that the calling thread forces, of which the one before is returned.
  m.def("_plan(str device, str operator, Tensor?[] tensors, int[] numbers, ScalarType? dtype) -> str");
  m.def("_force_plan(str plan) -> str");

  // Where the library has kernels for CUDA: what a forced kernel's configuration is chosen among, for those who fit the models
  // (benchmarks/cuts), and what instances there are, a line each.
  m.def("_considered(str gpu, str operator, Tensor?[] tensors, int[] numbers, ScalarType? dtype, Tensor constants) -> Tensor");
  m.def("_kernel_instances() -> str");

  // The kernels that a CPU's instruction set has, a line each.
  m.def("_cpu_kernels(str instruction_set) -> str");

  // The kernels for XPUs of this build, a line each; one that this process has built for a device says so.
  m.def("_xpu_kernels() -> str");
}

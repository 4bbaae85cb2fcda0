// Every operator of the namespace ao. docs/operators.md and the README's table are tested against it.
//
// Weights are [N, K], one row per output channel; `input` is [..., K]. common/checks.h says what each
// argument must be. A fragment, not an owner of the namespace: python/aoext/_library.py makes sure that
// nobody else has defined these names, and says who did.
#include "common/library.h"

AOEXT_LIBRARY_DEFINE(m) {
  // int4 weights, two to a byte; this schema is the contract that other device repositories register against.
  m.def("bf16i4bf16_rowwise(Tensor input, Tensor weight, Tensor scale, Tensor zero_point) -> Tensor");
  m.def("bf16i4bf16_rowwise_bias(Tensor input, Tensor weight, Tensor scale, Tensor zero_point, Tensor bias) -> Tensor");
  m.def("dequantize_int4(Tensor weight, Tensor scale, Tensor zero_point, *, ScalarType? dtype=None) -> Tensor");

  // int4 weights in the layout of PyTorch's tinygemm, as torch.ops.aten knows them with a leading underscore.
  m.def("convert_weight_to_int4pack(Tensor weight, int inner_k_tiles) -> Tensor");
  m.def("weight_int4pack_mm(Tensor input, Tensor weight, int group_size, Tensor scale_and_zero) -> Tensor");

  // 8-bit weights, input in high precision.
  m.def("bf16i8bf16_rowwise(Tensor input, Tensor weight, Tensor scale) -> Tensor");
  m.def("bf16i8bf16_rowwise_bias(Tensor input, Tensor weight, Tensor scale, Tensor bias) -> Tensor");
  m.def("bf16f8bf16_rowwise(Tensor input, Tensor weight, Tensor scale) -> Tensor");
  m.def("bf16f8bf16_rowwise_bias(Tensor input, Tensor weight, Tensor scale, Tensor bias) -> Tensor");

  // 8-bit weights and 8-bit input.
  m.def("int8_mm(Tensor input, Tensor weight) -> Tensor");
  m.def(
      "scaled_mm_rowwise(Tensor input, Tensor weight, Tensor input_scale, Tensor weight_scale, Tensor? bias=None, *, "
      "ScalarType? out_dtype=None) -> Tensor");
  m.def("quantize_rowwise(Tensor input, ScalarType dtype) -> (Tensor, Tensor)");
  m.def("scaled_linear_rowwise(Tensor input, Tensor weight, Tensor weight_scale, Tensor? bias=None) -> Tensor");

  // What an operator raises for arguments that it refuses, for fake kernels, which know no more than shapes and dtypes.
  m.def("_check_call(str operator, Tensor[] tensors, int? number, ScalarType? dtype) -> ()");

  // Behind aoext.explain, aoext.warmup and aoext.show_config: what a device would run for a call, getting its kernels
  // ready, and how the library was built.
  m.def("_explain(str operator, Tensor[] tensors) -> str");
  m.def("_warmup(Tensor like) -> str");
  m.def("_build_config() -> str");
}

// The ATen operators that a device cannot do without: making tensors, copying, and views. All others
// run on the CPU by PyTorch's own fallback. None of this knows of aoext.
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

namespace hostdev {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided, "hostdev: tensors must be strided, got ", *layout);
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "hostdev: only CPU memory can be pinned");
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> /*device: there is one*/, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  check_options(layout, pin_memory);
  return at::detail::empty_generic(size, c10::GetAllocator(at::kPrivateUse1), kKeys, c10::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> /*device: there is one*/,
                         std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(at::kPrivateUse1), kKeys,
                                           c10::dtype_or_default(dtype));
}

// The same memory as a CPU tensor. A real device has no such thing; it copies through its driver.
at::Tensor as_cpu(const at::Tensor& t) {
  if (t.is_cpu()) return t;
  at::Tensor alias = at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options().device(at::kCPU));
  alias._set_conj(t.is_conj());
  alias._set_neg(t.is_neg());
  return alias;
}

// What copy_ calls when either side is on the device; it converts dtypes and strides too.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool /*non_blocking*/) {
  as_cpu(dst).copy_(as_cpu(self));
  return dst;
}

// What the CPU fallback calls for results that it has to write back.
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  at::native::resize_(dst, self.sizes());
  return copy_from(self, dst, false);
}

void cpu_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  // PyTorch's own, which touch sizes, strides and host memory alone.
  m.impl("_local_scalar_dense", &at::native::_local_scalar_dense_cpu);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("resize_", &at::native::resize_);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("view", &at::native::view);
}

// PyTorch resolves lazy conjugates and negatives by a copy, which must therefore take them as they are.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>()); }

}  // namespace
}  // namespace hostdev

// The ATen operators that make tensors, look at them otherwise, and read one number.
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "host.h"

namespace xpu_sim {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::XPU);

c10::Device check_options(std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided, "xpu_sim: tensors must be strided, got ", *layout);
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "xpu_sim: only CPU memory can be pinned");
  const c10::DeviceIndex index = device && device->has_index() ? device->index() : current_device();
  check_device(index);
  return {c10::kXPU, index};
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  const c10::DeviceGuard guard(check_options(layout, device, pin_memory));
  return at::detail::empty_generic(size, c10::GetAllocator(at::kXPU), kKeys, c10::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory) {
  const c10::DeviceGuard guard(check_options(layout, device, pin_memory));
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(at::kXPU), kKeys, c10::dtype_or_default(dtype));
}

// The zeros of gradients that nobody has to compute: a tensor without memory.
at::Tensor efficient_zeros(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                           std::optional<at::Device> device, std::optional<bool> pin_memory) {
  at::native::ZeroTensorAllocator allocator(check_options(layout, device, pin_memory));
  return at::detail::empty_generic(size, &allocator, kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
                                   c10::dtype_or_default(dtype), {});
}

// Growing copies the old bytes on the host.
const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> memory_format) {
  const c10::DeviceGuard guard(self.device());
  wait_quietly(stream_for(self));
  return at::native::resize_(self, size, memory_format);
}

at::Tensor& set_(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  at::Storage storage(at::Storage::use_byte_size_t(), 0, c10::GetAllocator(at::kXPU), /*resizable=*/true);
  return at::native::set_storage_cpu_(self, storage, 0, {0}, {});
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  wait_counted(stream_for(self));
  return at::_local_scalar_dense(on_host(self));
}

// Nothing to remember: memory is given back when every stream is done with it (allocator.h).
void record_stream(at::Tensor& self, at::Stream stream) {
  TORCH_CHECK(stream.device() == self.device(), "xpu_sim: record_stream of a tensor on ", self.device(), " with ", stream);
}

TORCH_LIBRARY_IMPL(aten, XPU, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &efficient_zeros);
  m.impl("resize_", &resize_);
  m.impl("set_", &set_);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("record_stream", &record_stream);
  // PyTorch's own, which touch sizes and strides alone.
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("is_set_to", &at::native::is_set_to);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("unfold", &at::native::unfold);
  m.impl("view", &at::native::view);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("view_as_real", &at::native::view_as_real);
}

}  // namespace
}  // namespace xpu_sim

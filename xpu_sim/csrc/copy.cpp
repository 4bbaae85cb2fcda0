// Copies in all directions, and fills.
//
// What a real device does without its host (copies within a device of equal layout, fills, copies from and to
// pinned memory with non_blocking=True) is queued and returns at once, so that order matters here as there.
// Everything else waits for the current stream and copies on the host, which converts dtypes and strides.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include "allocator.h"
#include "host.h"

namespace xpu_sim {

at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.is_xpu()) return tensor;
  at::Tensor alias = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  alias._set_conj(tensor.is_conj());
  alias._set_neg(tensor.is_neg());
  return alias;
}

namespace {

bool is_pinned(const at::Tensor& tensor) { return device_of(tensor.const_data_ptr()) == Block::kPinned; }

// Whether the bytes of one are the bytes of the other.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* pa = static_cast<const std::byte*>(a.const_data_ptr());
  const auto* pb = static_cast<const std::byte*>(b.const_data_ptr());
  return pa < pb + b.nbytes() && pb < pa + a.nbytes();
}

void copy_within(const at::Tensor& to, const at::Tensor& from) {
  if (same_layout(to, from) && !overlap(to, from)) {
    copy_bytes(stream_for(to), to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  } else {
    wait_quietly(stream_for(to));
    on_host(to).copy_(on_host(from));
  }
}

void copy_across(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const bool between_devices = to.is_xpu() && from.is_xpu();
  const at::Tensor& host_side = to.is_xpu() ? from : to;
  const at::Tensor& device_side = to.is_xpu() ? to : from;
  if (!between_devices && non_blocking && same_layout(to, from) && is_pinned(host_side)) {
    return copy_bytes(stream_for(device_side), to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  }
  if (!between_devices && !non_blocking) count_host_wait();
  for (const at::Tensor& side : {to, from}) {
    if (side.is_xpu()) wait_quietly(stream_for(side));
  }
  on_host(to).copy_(on_host(from));
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  TORCH_CHECK(source.defined(), "xpu_sim: copy_ from an undefined tensor");
  for (const at::Tensor& side : {self, source}) {
    TORCH_CHECK((side.is_xpu() || side.is_cpu()) && side.layout() == at::kStrided && !side.is_quantized(),
                "xpu_sim: copy_ takes strided tensors of XPU and CPU, got one on ", side.device(), ", ", side.layout());
  }
  if (self.is_same(source)) return self;
  TORCH_CHECK(!self._is_zerotensor(), "xpu_sim: a tensor of zeros without memory cannot be written");
  if (source._is_zerotensor()) return self.zero_();
  const at::Tensor from = source.expand(self.sizes());
  if (self.numel() == 0) return self;
  if (self.device() == from.device()) {
    copy_within(self, from);
  } else {
    copy_across(self, from, non_blocking);
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  at::Tensor target = to;
  return copy_(target, self, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Tensor& fill_(at::Tensor& self, const at::Scalar& value) {
  if (self.numel() == 0) return self;
  if (self.is_non_overlapping_and_dense() && !self.is_conj() && !self.is_neg()) {
    const at::Tensor element = at::scalar_tensor(value, self.options().device(at::kCPU));
    fill_elements(stream_for(self), self.mutable_data_ptr(), element.const_data_ptr(), self.element_size(), self.numel());
  } else {
    wait_quietly(stream_for(self));
    on_host(self).fill_(value);
  }
  return self;
}

at::Tensor& zero_(at::Tensor& self) { return xpu_sim::fill_(self, 0); }

TORCH_LIBRARY_IMPL(aten, XPU, m) {
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("fill_.Scalar", &fill_);
  m.impl("zero_", &zero_);
}

// PyTorch resolves lazy conjugates and negatives by a copy, which must therefore take them as they are.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace
}  // namespace xpu_sim

// A device's own kernel in place of the generic one: for PyTorch's dispatcher, and for who calls it directly (aoti/).
#pragma once

#include "common/explain.h"
#include "common/library.h"
#include "common/operands.h"
#include "generic/generic.h"

namespace aoext {

enum class Key { CPU, CUDA, XPU };           // the dispatch keys of the devices that have kernels of their own
std::optional<Key> key_of(const Tensor& t);  // none for a tensor on another device

// Whether a device's folder knows weights of this code.
constexpr bool knows(Key key, Code code) { return (format_of(code).folders >> static_cast<int>(key) & 1) != 0; }
static_assert(1 << static_cast<int>(Key::CUDA) == kCuda && 1 << static_cast<int>(Key::XPU) == kSycl);

// The kernel of an operator for each key; the operator goes by its generic kernel, as in kernel_of<&generic::int8_mm>. The
// library fills this in while it is loaded. A device that a build leaves out keeps the generic kernel.
template <auto* kGeneric>
inline decltype(kGeneric) kernel_of[] = {kGeneric, kGeneric, kGeneric};

// Whether what runs on a tensor's device now is captured into a graph, so that the host cannot wait for it; null where none are.
using IsCaptured = bool (*)(const Tensor& t);
inline IsCaptured is_captured_on[] = {nullptr, nullptr, nullptr};

// Nested scales as floats of their shape (generic/nested_scales.h), by a device's own kernel; null where it has none.
using FloatScales = OptionalTensor (*)(const LinearProblem& p, const Weight& w);
inline FloatScales float_scales_on[] = {nullptr, nullptr, nullptr};

// What explains the operator on a device, for aoext.explain; null where the device has no kernel of its own.
Explain explain_of(Key key, const std::string& op);
bool set_explain(Key key, const char* op, Explain explain);  // true

}  // namespace aoext

// AOEXT_REGISTER(CPU, int8_mm, &explain, &function) in a namespace of aoext: `function` is what ao::int8_mm runs on a CPU, and
// `explain` says what that would choose.
#define AOEXT_REGISTER(key, op, explain, ...)                                                                           \
  AOEXT_LIBRARY_IMPL(key, m) { m.impl(#op, AOEXT_BOX((__VA_ARGS__))); }                                                 \
  [[maybe_unused]] static const bool explained_##op = ::aoext::set_explain(::aoext::Key::key, #op, explain);            \
  [[maybe_unused]] static const auto own_##op = ::aoext::kernel_of<&generic::op>[static_cast<int>(::aoext::Key::key)] = \
      __VA_ARGS__;

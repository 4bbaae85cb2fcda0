#include "fallback.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <mutex>
#include <optional>

#include "host_call.h"

namespace xpu_sim {
namespace {

struct Fault {
  double factor;
  int64_t hits = 0;
};

struct Records {
  std::mutex mutex;
  std::map<std::string, int64_t> calls;
  std::map<std::string, Fault> faults;
};

Records& records() {
  static auto* leaked = new Records;
  return *leaked;
}

// The factor for this call's results, which counts as a hit.
std::optional<double> fault_of(const std::string& op) {
  std::lock_guard lock(records().mutex);
  const auto found = records().faults.find(op);
  if (found == records().faults.end()) return {};
  ++found->second.hits;
  return found->second.factor;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  // As on the real device: another library's operator without a kernel for XPU does not run there.
  TORCH_CHECK_NOT_IMPLEMENTED(name.rfind("aten::", 0) == 0, "xpu_sim: ", op.operator_name(),
                              " has no kernel for XPU. Only operators of aten fall back to the CPU.");
  {
    std::lock_guard lock(records().mutex);
    ++records().calls[name];
  }
  ChangeResult change;
  if (const auto factor = fault_of(name)) {
    change = [factor](const at::Tensor& result) {
      result.copy_(result.to(result.is_complex() ? at::kComplexDouble : at::kDouble).mul(*factor));
    };
  }
  call_on_host(op, stack, change);
}

// Those that have a kernel for every device, which only says that the device must bring one.
TORCH_LIBRARY_IMPL(aten, XPU, m) {
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(_, XPU, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace

std::map<std::string, int64_t> fallbacks() {
  std::lock_guard lock(records().mutex);
  return records().calls;
}

void reset_fallbacks() {
  std::lock_guard lock(records().mutex);
  records().calls.clear();
}

void set_fault(const std::string& op, double factor) {
  bool known = false;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) known |= name.name == op;
  TORCH_CHECK_VALUE(known, "xpu_sim: there is no operator ", op);
  std::lock_guard lock(records().mutex);
  TORCH_CHECK_VALUE(records().faults.emplace(op, Fault{factor}).second, "xpu_sim: ", op, " has a fault already");
}

void clear_fault(const std::string& op) {
  std::lock_guard lock(records().mutex);
  records().faults.erase(op);
}

int64_t fault_hits(const std::string& op) {
  std::lock_guard lock(records().mutex);
  const auto found = records().faults.find(op);
  return found == records().faults.end() ? 0 : found->second.hits;
}

}  // namespace xpu_sim

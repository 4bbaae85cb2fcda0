// What aoext.explain tells on every device, and what operators refuse. A device without kernels that need to get ready answers
// aoext.warmup with nothing.
#include "common/explain.h"

#include <map>

#include "common/describe.h"
#include "common/formats.h"
#include "common/library.h"
#include "generic/register.h"

namespace aoext {
namespace {

std::map<std::pair<Key, std::string>, Explain>& explains() {
  static std::map<std::pair<Key, std::string>, Explain> all;
  return all;
}

// A line for the device, one for the kernel, and one for each choice: "name: value".
std::string lines_of(const Explanation& e) {
  std::string lines = "device: " + e.device + "\nkernel: " + e.kernel + "\n";
  for (const auto& [name, value] : e.choices) lines += name + ": " + value + "\n";
  return lines;
}

// Empty for a device that this library has no kernel of the operator for.
std::string explain(const std::string& op, const std::vector<OptionalTensor>& tensors, const Integers& numbers,
                    std::optional<ScalarType> dtype) {
  const LinearProblem problem = check_by_name(op, {tensors, numbers, dtype});
  const std::optional<Key> key = key_of(*tensors[0]);
  const Explain of_device = key ? explain_of(*key, op) : nullptr;
  if (of_device == nullptr) return "";
  return lines_of(knows(*key, problem.code) ? of_device({op, tensors, problem}) : generic_explanation());
}

std::string formats() {
  using Scales = Format::Scales;
  using Zero = Format::Zero;
  std::string lines;
  for (const Format& f : kFormats) {
    const char* scales = f.scales == Scales::groups ? "groups" : f.scales == Scales::blocks ? "blocks" : "inside";
    const Layout& layout = aoext::layout(f.code);
    const std::string sizes =
        std::to_string(layout.values) + " " + std::to_string(layout.bytes) + " " + std::to_string(layout.group);
    const char* zero = f.zero == Zero::none ? "none" : f.zero == Zero::added ? "added" : "subtracted";
    lines += std::string(f.name) + " " + dtype_name(f.storage) + " " + sizes + " " + scales + " " + zero +
             (f.has_table ? " table\n" : " values\n");
  }
  return lines;
}

std::string warmup(const Tensor& /*like*/) { return ""; }

void check_call(const std::string& op, const std::vector<OptionalTensor>& tensors, const Integers& numbers,
                std::optional<ScalarType> dtype) {
  check_by_name(op, {tensors, numbers, dtype});
}

}  // namespace

std::optional<Key> key_of(const Tensor& t) {
  switch (t.device().type()) {
    case torch::headeronly::DeviceType::CPU: return Key::CPU;
    case torch::headeronly::DeviceType::CUDA: return Key::CUDA;
    case torch::headeronly::DeviceType::XPU: return Key::XPU;
    default: return std::nullopt;
  }
}

Explain explain_of(Key key, const std::string& op) {
  const auto found = explains().find({key, op});
  return found == explains().end() ? nullptr : found->second;
}

bool set_explain(Key key, const char* op, Explain explain) {
  explains()[{key, op}] = explain;
  return true;
}

AOEXT_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("_explain", AOEXT_BOX(&explain));
  m.impl("_warmup", AOEXT_BOX(&warmup));
  m.impl("_check_call", AOEXT_BOX(&check_call));
  m.impl("_operators", AOEXT_BOX(&operator_names));
  m.impl("_formats", AOEXT_BOX(&formats));
}

}  // namespace aoext

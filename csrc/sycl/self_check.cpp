#include "sycl/self_check.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "sycl/launch.h"
#include "sycl/probes.h"

namespace aoext::xpu {
namespace {

enum class Where { gpu, all, off };

Where where() {
  const char* const wish = std::getenv("AOEXT_XPU_SELF_CHECK");
  const std::string text = wish == nullptr ? "gpu" : wish;
  if (text == "gpu") return Where::gpu;
  if (text == "all") return Where::all;
  if (text == "off") return Where::off;
  throw std::runtime_error("aoext: AOEXT_XPU_SELF_CHECK must be gpu, all or off, got " + text);
}

bool is_checked_here(const Device& device) {
  static const Where wish = where();
  return wish == Where::all || (wish == Where::gpu && device.gpu);
}

struct Verdicts {
  std::mutex mutex;
  std::map<std::pair<const Device*, Family>, std::string> known;  // empty where right
};

Verdicts& verdicts() {
  static Verdicts all;
  return all;
}

void warn(const Device& device, const Family& family, const std::string& reason) {
  const std::string text = "aoext: " + name(family) + " gives wrong results on " + device.name + " and is turned off: " + reason +
                           ". Slower kernels serve instead. Please report this with the output of `aoext report`.";
  aoti_torch_warn("trusted", "aoext", 0, text.c_str());
}

// Empty where the family's kernels are right.
std::string check(sycl::queue& queue, const Family& family) {
  try {
    return probe(queue, family);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

Trust trusted(sycl::queue& queue, const Family& family) {
  if (is_probing()) return is_probed(family) ? Trust::yes : Trust::no;
  const Device& device = device_of(queue);
  if (!is_checked_here(device)) return Trust::yes;
  const std::lock_guard lock(verdicts().mutex);
  const std::pair key(&device, family);
  auto known = verdicts().known.find(key);
  if (known == verdicts().known.end()) {
    if (is_recording(queue)) return Trust::unknown;
    known = verdicts().known.emplace(key, check(queue, family)).first;
    if (!known->second.empty()) warn(device, family, known->second);
  }
  return known->second.empty() ? Trust::yes : Trust::no;
}

std::map<std::string, std::string> check_all(sycl::queue& queue) {
  Target& target = target_of(queue);
  std::map<std::string, std::string> results;
  for (const Family& family : families(target.device)) {
    if (is_tile(family.source)) target.kernel(*module(family));
    if (!has_probes(queue, family)) continue;
    std::string& result = results.try_emplace(image(family), "ok").first->second;
    if (!is_checked_here(target.device)) {
      result = "not checked";
    } else if (trusted(queue, family) != Trust::yes) {
      result = verdicts().known[{&target.device, family}];
    }
  }
  return results;
}

}  // namespace aoext::xpu

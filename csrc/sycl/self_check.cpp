#include "sycl/self_check.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "sycl/device.h"
#include "sycl/launch.h"
#include "sycl/modules.h"
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

bool is_recording(const sycl::queue& queue) {
  return queue.ext_oneapi_get_state() == sycl::ext::oneapi::experimental::queue_state::recording;
}

struct Verdicts {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, std::string> known;  // device and family -> empty where right
};

Verdicts& verdicts() {
  static Verdicts all;
  return all;
}

void warn(const std::string& device, const std::string& family, const std::string& reason) {
  const std::string text = "aoext: " + family + " gives wrong results on " + device + " and is turned off: " + reason +
                           ". Slower kernels serve instead. Please report this with the output of `aoext report`.";
  aoti_torch_warn("trusted", "aoext", 0, text.c_str());
}

// Empty where the family's kernels are right.
std::string check(sycl::queue& queue, const std::string& family) {
  try {
    return probe(queue, family);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

bool trusted(sycl::queue& queue, const std::string& family) {
  if (const std::string* const forced = forced_family()) return *forced == family;
  const Device& device = device_of(queue);
  if (!is_checked_here(device)) return true;
  const std::lock_guard lock(verdicts().mutex);
  const auto key = std::make_pair(device.name, family);
  auto known = verdicts().known.find(key);
  if (known == verdicts().known.end()) {
    if (is_recording(queue)) return false;
    known = verdicts().known.emplace(key, check(queue, family)).first;
    if (!known->second.empty()) warn(device.name, family, known->second);
  }
  return known->second.empty();
}

std::map<std::string, std::string> check_all(sycl::queue& queue) {
  const Device& device = device_of(queue);
  std::map<std::string, std::string> results;
  for (const Module& module : modules())
    if (runs(device, module.image)) kernel(queue, {module.image, module.kernel});
  for (const std::string& family : families(queue)) {
    std::string& result = results.try_emplace(family.substr(0, family.find('/')), "ok").first->second;
    if (!is_checked_here(device)) {
      result = "not checked";
    } else if (!trusted(queue, family)) {
      result = verdicts().known[{device.name, family}];
    }
  }
  return results;
}

}  // namespace aoext::xpu

#include "cuda/kernel_list.h"

namespace aoext::cuda {

void check_on_device(const Forced& f, const Device& device) {
  for (const auto& [name, value] : f.fields) {
    const auto must_be = [&](const std::string& what) {
      refuse_plan(name + " must be " + what + " on " + device.name + ", got " + std::to_string(value));
    };
    if (name == "cluster" && value > 1 && !device.features.clusters) must_be("1");
    if (name == "overlaps" && value > 0 && !device.features.overlap) must_be("0");
    if (name == "shared_memory" && value > device.shared_memory) must_be("at most " + std::to_string(device.shared_memory));
    if (name == "float8" && value > 0 && device.capability < 89) must_be("0");
  }
}

}  // namespace aoext::cuda

#include "cuda/forced.h"

namespace aoext::cuda {

void check_on_device(const Forced& f, const Device& device) {
  for (const auto& [name, value] : f.fields) {
    if ((name == "cluster" && value > 1 && !device.is_hopper()) || (name == "overlaps" && value > 0 && !device.is_hopper()))
      refuse_plan(name + " must be " + (name == "cluster" ? "1" : "0") + " on " + device.name + ", got " + std::to_string(value));
    if (name == "shared_memory" && value > device.shared_memory)
      refuse_plan(name + " must be at most " + std::to_string(device.shared_memory) + " on " + device.name + ", got " +
                  std::to_string(value));
    if (name == "float8" && value > 0 && device.capability < 89)
      refuse_plan(name + " must be 0 on " + device.name + ", got " + std::to_string(value));
  }
}

}  // namespace aoext::cuda

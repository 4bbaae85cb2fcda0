// What each device tells of its plans, for aoext.ops.plan and aoext.ops.with_plan.
#pragma once

#include <string>
#include <vector>

#include "common/by_name.h"
#include "common/forced.h"
#include "generic/register.h"

namespace aoext {

struct DevicePlans {
  Key key;
  std::vector<std::string> (*devices)();                             // by name, whether they are at hand or not
  std::string (*text)(const std::string& device, const Call& call);  // "kernel field=value …", and further lines
  std::vector<Forceable> (*kernels)();
};

// For a device folder, while the library is loaded; true.
bool add_plans(const DevicePlans& plans);

}  // namespace aoext

// How a device answers aoext.explain for a call of one of its operators.
#pragma once

#include "common/by_name.h"
#include "common/explanation.h"

namespace aoext {

using Explain = Explanation (*)(const Call& call);

}  // namespace aoext

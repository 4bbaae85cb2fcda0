#pragma once

#include "common/explain.h"

namespace aoext::cpu {

// For aoext.explain: what a call would run.
Explanation explain(const Call& call);

}  // namespace aoext::cpu

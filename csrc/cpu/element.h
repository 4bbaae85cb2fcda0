// torch's dtypes as kernels name them.
#pragma once

#include "common/problem.h"
#include "cpu/kernels/kernels.h"

namespace aoext::cpu {

Element element(ScalarType dtype);

}  // namespace aoext::cpu

// The operands of a weight with a scale a block, for device folders.
#pragma once

#include "common/torch_api.h"

namespace aoext::generic {

// There is no table for codes of 8 bits.
struct BlockwiseWeight {
  const Tensor &weight, &scale;
  OptionalTensor table = {}, global_scale = {}, zero_point = {};
};

}  // namespace aoext::generic

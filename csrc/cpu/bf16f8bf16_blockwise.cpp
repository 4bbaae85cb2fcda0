// Weight-only float8 with a scale a block.
#include "cpu/linear_8bit_blockwise.h"
#include "generic/register.h"

namespace aoext::cpu {

AOEXT_REGISTER(CPU, bf16f8bf16_blockwise, &explain<plan_blockwise>, &linear_8bit_blockwise<check_bf16f8bf16_blockwise>)

}  // namespace aoext::cpu

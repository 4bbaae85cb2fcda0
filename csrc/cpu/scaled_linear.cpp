// Dynamic quantisation of the input, then the scaled product: the two kernels in one call.
#include "cpu/explain.h"
#include "cpu/quantize.h"
#include "cpu/scaled_mm.h"
#include "generic/products.h"
#include "generic/register.h"

namespace aoext::cpu {

AOEXT_REGISTER(CPU, scaled_linear, &explain, (&generic::scaled_linear_by<quantize_rows, scaled_mm>))

}  // namespace aoext::cpu

// AVX2, FMA and F16C.
#define AOEXT_KERNELS kernels_avx2
#define AOEXT_NAME "avx2"
#define AOEXT_FLOATS 8
#include "cpu/kernels/rows.inc.h"

// AVX2, FMA and F16C.
#define AOEXT_KERNELS kernels_avx2
#define AOEXT_AVX2
#define AOEXT_NAME "avx2"
#define AOEXT_FLOATS 8
#define AOEXT_DEPTH 384
#include "cpu/kernels/rows.inc.h"

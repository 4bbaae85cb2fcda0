// AVX-512 F, BW, DQ, VL, VNNI and BF16.
#define AOEXT_KERNELS kernels_avx512
#define AOEXT_NAME "avx512"
#define AOEXT_FLOATS 16
#include "cpu/kernels/rows.inc.h"

// AVX-512 F, BW, DQ, VL, VBMI, VNNI and BF16.
#define AOEXT_KERNELS kernels_avx512
#define AOEXT_AVX512
#define AOEXT_NAME "avx512"
#define AOEXT_FLOATS 16
#define AOEXT_DEPTH 512
#include "cpu/kernels/rows.inc.h"

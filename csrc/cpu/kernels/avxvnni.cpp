// AVX2, FMA, F16C and AVX-VNNI: products of bytes in vectors of 32.
#define AOEXT_KERNELS kernels_avxvnni
#define AOEXT_AVX2
#define AOEXT_AVX_VNNI
#define AOEXT_NAME "avxvnni"
#define AOEXT_FLOATS 8
#define AOEXT_DEPTH 384
#include "cpu/kernels/rows.inc.h"

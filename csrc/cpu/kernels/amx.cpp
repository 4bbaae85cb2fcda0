// AVX-512 as in avx512.cpp, and AMX's tiles of bfloat16.
#define AOEXT_KERNELS kernels_amx
#define AOEXT_AVX512
#define AOEXT_AMX
#define AOEXT_NAME "amx"
#define AOEXT_FLOATS 16
#define AOEXT_DEPTH 512
#include "cpu/kernels/rows.inc.h"

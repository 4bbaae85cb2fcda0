// Any CPU that the compiler's baseline serves.
#define AOEXT_KERNELS kernels_portable
#define AOEXT_NAME "portable"
#define AOEXT_FLOATS 4
#define AOEXT_DEPTH 256
#include "cpu/kernels/rows.inc.h"

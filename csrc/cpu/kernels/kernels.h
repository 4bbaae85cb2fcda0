// The CPU kernels as a table of functions over rows; one table per instruction set.
//
// An instruction set is a translation unit that includes rows.inc.h with its own compiler flags. These
// files include no C++ library header: an inline function that the linker merged across them could run
// an instruction that the machine lacks.
#pragma once

#include <stdint.h>

namespace aoext::cpu {

// Elements in memory that kernels read or write.
enum class Element { bf16, f16, f32, i8, e4m3, e5m2, i32 };

// Weight rows of a tile of dot products.
constexpr int kTileRows = 4;

// Float scratch rows are padded with zeros to a multiple of this many elements, int8 ones of that many bytes.
constexpr int64_t kPad = 64;

// Arranged rows of x for int4 are padded with zeros to a multiple of this many elements.
constexpr int64_t kInt4Pad = 128;

// Rows of int4 weights: K/2 bytes, K/group_size scales and as many zero points each. Groups are of 2ⁿ·8 elements, or of a
// multiple of kInt4Pad.
struct Int4Rows {
  const uint8_t* packed;
  const float *scale, *zero_point;
  int64_t K, group_size;
};

struct Kernels {
  const char* name;

  void (*to_float)(Element from, const void* source, float* out, int64_t n);
  void (*from_float)(Element to, const float* source, void* out, int64_t n);  // ties to even, NaN kept

  // out[k] = q(k) · scale[k / group_size] + zero_point[k / group_size] for k in [0, K); `packed` K/2 bytes.
  void (*dequantize_int4)(const uint8_t* packed, const float* scale, const float* zero_point, int64_t group_size, int64_t K,
                          float* out);

  // acc[m][n] += Σ x[m][k] · w[n][k] over k in [0, K), K a multiple of kPad; n < kTileRows.
  void (*dot_f32)(const float* x, int64_t x_stride, int M, const float* w, int64_t w_stride, int64_t K, float (*acc)[kTileRows]);

  // The same on N <= kTileRows rows of K elements of another type, one after another; x rows are padded with zeros to kPad.
  void (*dot_values)(const float* x, int64_t x_stride, int M, Element type, const void* w, int N, int64_t K,
                     float (*acc)[kTileRows]);

  // A row of x in the order of dot_int4, and the sums of its groups.
  void (*arrange_int4)(const float* x, int64_t K, int64_t group_size, float* out, float* group_sums);

  // acc[m][n] = Σ x[m][k] · w[n][k] for M rows that arrange_int4 wrote and N <= kTileRows rows of w.
  void (*dot_int4)(const float* x, int64_t x_stride, const float* group_sums, int M, const Int4Rows& w, int N,
                   float (*acc)[kTileRows]);

  // acc[m][n] += Σ x[m][k] · w[n][k] on int8, exact, for M and N <= kTileRows rows, any K; x rows are padded with zeros to kPad.
  void (*dot_i8)(const int8_t* x, int64_t x_stride, int M, const int8_t* w, int64_t w_stride, int N, int64_t K,
                 int32_t (*acc)[kTileRows]);

  // out[n] = (acc[n] · row_scale) · column_scale[n] + bias[n]; the last two may be null.
  void (*scale_row)(Element to, const float* acc, float row_scale, const float* column_scale, const float* bias, void* out,
                    int64_t n);

  // The scale of one row as quantize_rowwise defines it, and the row's values; NaN in the scale gives zeros.
  float (*row_scale)(const float* row, int64_t n, float quantized_max);
  void (*quantize_row)(Element to, const float* row, float scale, void* out, int64_t n);
};

const Kernels& kernels_avx512();
const Kernels& kernels_avx2();
const Kernels& kernels_portable();

}  // namespace aoext::cpu

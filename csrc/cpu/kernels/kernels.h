// The CPU kernels of one instruction set: a table of functions that the drivers call (cpu/gemm.h, cpu/gemv.h).
//
// Words are BLIS's (docs/glossary.md): y[M, N] = x[M, K] · w[N, K]ᵀ, where a packed block of w, NC by KC, stays in the first
// cache while packed panels of x, MR rows each, pass by. A gemv is a product by few rows of x that reads w as it lies.
//
// An instruction set is a translation unit with its own compiler flags that includes vectors_<it>.inc.h and the algorithms that
// it uses, a file each; what a lesser one multiplies as fast, it takes from that one's table. These files include no C++ library
// header: an inline function that the linker merged across them could run an instruction that the machine lacks.
#pragma once

#include <stdint.h>
#include "common/element.h"
#include "common/portability.h"

namespace aoext::cpu {

// Output channels of a panel of w, which a thread takes at a time: a 64-byte line of 16-bit scales. Sums lie [M, kPanel].
constexpr int kPanel = 32;

// Macro-kernels take a multiple of so many output channels.
constexpr int kNR = 4;

// Rows that kernels multiply are padded with zeros to a multiple of this many elements.
constexpr int64_t kPad = 128;

constexpr int64_t kLine = 64;  // of a cache

// ---- int4 weights --------------------------------------------------------------------------------------

// A row of int4 weights: element k is q(k) · scale[k / group_size · kPanel] + zero_point[k / group_size · kPanel].
struct Int4Row {
  const uint8_t* packed;
  const float *scale, *zero_point;
  int64_t group_size;
};

// A panel of int4 weights, or less, whose scales and zero points lie as in memory, `stride` bytes from one group's to the next's.
struct Int4Panel {
  const uint8_t* packed;
  const char *scale, *zero_point;
  Element element;  // theirs
  int64_t element_bytes, stride, group_size;
};

// Up to so many groups a panel's scales and zero points are fetched while another panel is multiplied. Each lies in a page of its
// own: where translations of more do not stay at hand, they are fetched while their neighbours are read, from the same pages.
constexpr int64_t kGroupsAhead = 256;

// Scales that are next, or zero points: `groups` rows of `bytes` bytes. Each is a line or two of memory far from the others, so
// that nothing but a program can know what to fetch, and a burst of them stops all other reading: loops over weights take one as
// they go.
struct Ahead {
  const char* row;
  int64_t stride, groups, bytes;
};
struct ScalesAhead {
  Ahead scale, zero_point;
};

// A group's, into the second cache: where a stride is a power of two, all of them are of one set of the first.
static inline void fetch_group(Ahead* ahead) {
  if (ahead->groups <= 0) return;
  for (int64_t i = 0; i < ahead->bytes; i += kLine) __builtin_prefetch(ahead->row + i, 0, 2);
  ahead->row += ahead->stride;
  --ahead->groups;
}

static inline void fetch_group(ScalesAhead* ahead) { fetch_group(ahead->scale.groups > 0 ? &ahead->scale : &ahead->zero_point); }

// ---- weights with a scale a block ----------------------------------------------------------------------

// Rows of such a weight, `row_bytes` apart: element k of row i is value(code k) · scale_rows[i][k / group_size].
struct BlockwiseRows {
  Element type;        // of codes of 8 bits
  const float* table;  // of 16 values, where codes are of 4 bits, the even k low; else null
  const char* codes;
  int64_t row_bytes, group_size;
  const float* const* scale_rows;  // of each row; readable, and finite, for kScalesBeyond floats more
  const float* scale_columns;      // the same as [groups, kPanel], of a gemm that asks for it
  const float* zero_columns;       // zero points likewise, of a gemm that packs them; else null

  const char* row(int64_t i) const { return codes + i * row_bytes; }
  int64_t bytes(int64_t n) const { return table == nullptr ? n : n / 2; }  // of n elements
  BlockwiseRows from(int64_t i) const {
    return {type,
            table,
            row(i),
            row_bytes,
            group_size,
            scale_rows + i,
            scale_columns == nullptr ? nullptr : scale_columns + i,
            zero_columns == nullptr ? nullptr : zero_columns + i};
  }
};

constexpr int64_t kScalesBeyond = 16;

// ---- writing a weight ----------------------------------------------------------------------------------

// A matrix [N, K], rows `pitch` bytes apart, that becomes a weight of int4, int8, e4m3, e5m2 or lut4, in the rules of
// python/aoext/packing.
struct WeightToWrite {
  const char* x;
  int64_t pitch, N, K;
  Element type;                      // of x
  char *codes, *scale, *zero_point;  // blocks' scales row by row; of int4 [K/block_k, N], with zero points alike
  Element code, scale_type;
  int64_t block_n, block_k;  // no larger than the weight
  bool symmetric;            // of int4
  float limit;               // the largest number that codes stand for, but for int4's
  float whole, lift;         // with scales of e4m3: the scale of all of the weight, by what is lifted, or 1
  // lut4 is e2m1, or has 15 borders between the values in their order, a value equal to one goes up where that is said, with
  // `by_sign` by its sign, and which codes they have.
  bool is_e2m1;
  float borders[15];
  bool up[15], by_sign[15];
  uint8_t order[16];
};

// ---- gemm ----------------------------------------------------------------------------------------------

// How rows of w lie that become a block: so many, `stride` bytes apart. What is next, as many pieces of `next_bytes` bytes and
// `next_stride` apart, is fetched meanwhile.
struct BlockRows {
  int64_t count, stride;
  const char* next;
  int64_t next_stride, next_bytes;
};

static inline bool accepts_every_row(Element, const void*, int64_t) { return true; }
static inline void leave_sums(int64_t, void*) {}

// Block sizes, and how x is packed. An operand is what an instruction multiplies.
struct GemmShape {
  int64_t operand_bytes;
  int64_t NC;      // output channels of a packed block of w; divides kPanel
  int64_t KC;      // its depth along K, a multiple of kPad
  int64_t MR = 1;  // rows of a packed panel of x, which interleaves them, 4 bytes of each in turn

  // Operands whose sum an element of x is: a packed row has KC of each, one limb behind the other.
  int64_t limbs = 1;

  // Whether what is fetched ahead is the next panel of w, in the order in which it lies, or this panel's next block.
  bool fetch_next_panel = false;

  // n elements of each of `rows` rows of x, `stride` bytes apart, as one packed panel, padded along K. Adds to `starts`, one a
  // row, what sums start with, modulo 2³²: int32 bits where products are int8's.
  void (*pack_x)(Element from, const void* source, int64_t stride, int64_t rows, int64_t n, void* out, uint32_t* starts);

  // Whether a row's products have the precision that is promised; others go by float32.
  bool (*accepts)(Element from, const void* row, int64_t K) = accepts_every_row;

  // Brings M rows of sums, and those that fill up a panel of x, into the order [M, kPanel] once all of K has been multiplied.
  void (*order_sums)(int64_t M, void* acc) = leave_sums;

  int64_t whole_panels(int64_t M) const { return (M + MR - 1) / MR * MR; }  // in rows
};

// acc[m][n] += Σ x[m][k] · w[n][k], k < K <= KC (padded): float, or int32 where products are int8's. Rows of x are KC operands
// apart. N is a multiple of kNR; sums between it and NC may change, and what stands there in w and after the last row of x may be
// anything.
using MacroKernel = void (*)(const void* w, int N, const void* x, int64_t M, int64_t K, void* acc);

// n elements from `begin` on of int4 rows as a packed block.
using PackInt4 = void (*)(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n, void* out);

// 8-bit weights, whose scales meet the sums when all is done.
struct Gemm8Bit {
  GemmShape shape;
  void (*pack_w)(Element from, const void* source, const BlockRows& rows, int64_t n, void* out);  // n elements of each row
  MacroKernel macro_kernel;
};

// int4 that is packed as q · scale + zero_point, rounded to an operand.
struct GemmInt4 {
  GemmShape shape;
  PackInt4 pack_w;
  MacroKernel macro_kernel;

  // acc[m][n] += Σ x_sums[g][m] · terms[g][n], n < kPanel: what zero points have beside the packed weights (cpu/zero_points.h).
  // Sums of x over groups lie x_stride apart and are readable to the end of a packed panel.
  void (*add_group_terms)(const float* x_sums, int64_t x_stride, const float* terms, int64_t groups, int64_t M, void* acc);
};

// int4 that is packed as q + code_offset, exact: the scales of groups meet their sums within the macro-kernel. Zero points are
// zero_point − code_offset · scale there.
struct GemmInt4Codes {
  GemmShape shape;
  float code_offset = 0;
  PackInt4 pack_w;
  void (*macro_kernel)(const void* w, const void* x, const float* x_sums, int64_t x_stride, int64_t M, const Int4Row& first,
                       int64_t begin, int64_t n, void* acc);
};

// Scales of x and of a panel of weights along k, each for so many segments: those of x lie x_stride floats from one row's to the
// next's, those of weights [scales, kPanel].
struct SegmentScales {
  int64_t segment;  // elements of k
  const float* x;
  int64_t x_stride, segments_of_x;
  const float* w;
  int64_t segments_of_w;
};

// 8-bit weights by 8-bit x, both with a scale for each segment of k: the sum of a segment, or of its part in a block, is exact
// where products are int8's, and meets both scales in float32.
struct GemmSegments {
  GemmShape shape;
  int64_t block_bytes;  // of a packed block and what it brings beside weights
  void (*pack_w)(Element from, const void* source, const BlockRows& rows, int64_t segment, int64_t begin, int64_t n, void* out);
  void (*macro_kernel)(const void* w, const void* x, const SegmentScales& scales, int64_t M, int64_t begin, int64_t n, void* acc);
};

// Weights with a scale a block: packed as values times their scales, or as values whose sums over a group meet its scales within
// the macro-kernel.
struct GemmBlockwise {
  GemmShape shape;

  // The scales of a panel's rows as columns, from group `begin` to `end`; null where rows of them do.
  void (*columns_of_scales)(const float* const* scale_rows, int64_t begin, int64_t end, float* out) = nullptr;

  // As GemmInt4 has it, of a gemm that packs zero points with values; null where they go beside the product.
  void (*add_group_terms)(const float* x_sums, int64_t x_stride, const float* terms, int64_t groups, int64_t M,
                          void* acc) = nullptr;
  float code_offset = 0;  // such zero points are of q + code_offset

  // n elements from `begin` on of rows as a packed block, and its product.
  void (*pack_w)(const BlockwiseRows& first, const BlockRows& rows, int64_t begin, int64_t n, void* out);
  void (*macro_kernel)(const void* w, int N, const void* x, int64_t M, const BlockwiseRows& first, int64_t begin, int64_t n,
                       void* acc);
};

// ---- gemv ----------------------------------------------------------------------------------------------

// 8-bit weights by few rows of x.
struct Gemv8Bit {
  int64_t operand_bytes;

  // A row of n elements for `dot`, padded with zeros (by the caller) to kPad.
  void (*pack_x)(Element from, const void* row, int64_t n, void* out);

  // acc[m][n] = Σ x[m][k] · w[n][k] for M packed rows, x_stride operands apart, and N <= kPanel rows of K values, one after
  // another.
  void (*dot)(const void* x, int64_t x_stride, int64_t M, Element type, const void* w, int64_t N, int64_t K,
              float (*acc)[kPanel]);
};

// Weights with a scale a block by few rows of x, which `pack_x` brings into the order of `dot`, padded (by the caller) to kPad.
// Groups are of 2ⁿ·16 elements, of a multiple of kPad, or whole rows.
struct GemvBlockwise {
  int64_t operand_bytes;
  void (*pack_x)(Element from, const void* row, int64_t n, void* out);

  // acc[m][n] = Σ x[m][k] · w[n][k] for M packed rows, x_stride operands apart, and N <= kPanel rows of K elements.
  void (*dot)(const void* x, int64_t x_stride, int64_t M, const BlockwiseRows& w, int64_t N, int64_t K, float (*acc)[kPanel]);
};

// int8 by few rows of x of int8.
struct GemvI8 {
  // acc[m][n] = Σ x[m][k] · w[n][k], exact; all rows lie K elements one after another.
  void (*dot)(const int8_t* x, int64_t M, const int8_t* w, int64_t N, int64_t K, int32_t (*acc)[kPanel]);
};

// int4 by few rows of x in float32. Groups are of 2ⁿ·8 elements, or of a multiple of kPad.
struct GemvInt4 {
  // A row of x in the order of `dot`, and the sums of its groups.
  void (*pack_x)(const float* x, int64_t K, int64_t group_size, float* out, float* group_sums);

  // acc[m][n] = Σ x[m][k] · w[n][k] for M packed rows and N <= kPanel rows of int4, of which `first` is the first.
  void (*dot)(const float* x, int64_t x_stride, const float* group_sums, int64_t M, const Int4Row& first, int64_t N, int64_t K,
              float (*acc)[kPanel]);
};

// What products need of the groups of x in fixed point, one row's after another's: their scales, the sums of what the signs of
// nibbles add to products, and the sums of x.
struct GroupsOfX {
  const float *scales, *fixed_sums, *sums;
};

// x as int8 limbs, 16- or 23-bit fixed point, for int4 in groups of 32, 64 or a multiple of kPad elements.
struct Int8Limbs {
  int64_t count;  // 2 for results in bfloat16 and half, 3 for float32; 1 where x is of int8

  // A row of x, `count` bytes an element, padded with zeros (by the caller) to kPad elements, and what GroupsOfX has of it. False
  // where a group's range is too wide, or not finite.
  bool (*split)(const float* x, int64_t K, int64_t group_size, int8_t* out, float* scales, float* fixed_sums, float* group_sums);
};

// int4 by limbs, a panel at once.
struct GemvLimbs {
  Int8Limbs limbs;

  // acc[m][n] = Σ x[m][k] · w[n][k] for M rows in limbs, x_stride bytes apart, and N <= kPanel rows of w, of which all exist that
  // whole vectors read. Fetches what lies after them.
  void (*dot)(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N, int64_t K,
              float (*acc)[kPanel]);
};

// The same with matrix instructions, whose operand several rows of x in limbs are packed into.
struct GemvLimbsPacked {
  Int8Limbs limbs;
  int64_t (*packed_bytes)(int64_t M, int64_t K, int64_t group_size);
  void (*pack_x)(const int8_t* x, int64_t x_stride, const float* x_scales, int64_t M, int64_t K, int64_t group_size, char* out);
  void (*dot)(const char* packed_x, const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N, int64_t K,
              float (*acc)[kPanel]);
};

// Scales and zero points of a panel as floats.
struct StagedScales {
  float* scales;  // [kPanel / 8, K / group_size, 8]
  float* sums;    // [M, kPanel]: what zero points and the signs of nibbles add
};

// The panel after the one at hand, and where its scales go; N is 0 where there is none. All of the one at hand's rows exist then.
struct NextPanel {
  Int4Panel w;
  int64_t N;
  StagedScales scales;
};

// The same by staged scales: `dot` stages the next panel's on the way, `stage` the first one's.
struct GemvLimbsStaged {
  Int8Limbs limbs;
  void (*stage)(const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N, int64_t K, const StagedScales& out);
  void (*dot)(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Panel& w, int64_t N, int64_t K,
              const StagedScales& scales, const NextPanel& next, float (*acc)[kPanel]);
};

// Up to kPanel rows of a weight whose codes lie in planes (common/layout.h).
struct PlanesPanel {
  Code code;
  const uint8_t* blocks;
  int64_t row_bytes, segment;  // codes that share a scale of w and of x
  bool has_zero_points;
  float by;  // what multiplies scales that lie in blocks
  // Those that lie beside them, a row's for each segment after another's; or null.
  const float *scale_rows, *zero_rows;
  int64_t scales_of_row;
};

// Rows of x in int8 or in limbs: for each `vector` bytes of codes those of the first limb, then those of the next. Beside them
// scales, and what meets zero points, or scales of w where codes have a middle: a float for each segment, and zeros to the end
// of a vector of them. A row's have a factor in common that meets its results, so that no product with a scale of w is subnormal.
struct RowsByPlanes {
  const int8_t* x;
  const float *scales, *sums, *scales_of_rows;
  int64_t stride, numbers_stride;
};

// Weights whose codes lie in planes by few rows of x.
struct GemvPlanes {
  Int8Limbs limbs;  // a row in fixed point in the order of its elements, its fixed_sums as they are; null where x is of int8
  int64_t vector, longest_segment;  // segments are of 16 · 2ⁿ codes
  bool by_blocks = false;           // whether they are w's blocks, and sums of x those of its groups

  // Brings a row of x, padded with zeros to a `vector`, from the order of its elements into that in which `dot` meets codes; null
  // where it is the same.
  void (*arrange)(Code code, int8_t* x, int64_t K) = nullptr;

  // acc[m][n] = Σ x[m][k] · w[n][k] for M rows of x and N <= kPanel rows of w. Fetches what lies after them.
  void (*dot)(const PlanesPanel& w, int64_t N, int64_t K, const RowsByPlanes& x, int64_t M, float (*acc)[kPanel]);
};

// ---- the table -----------------------------------------------------------------------------------------

// What every instruction set has stands without a default: it compiles these with vectors of its own.
struct Kernels {
  void (*to_float)(Element from, const void* source, float* out, int64_t n);
  void (*from_float)(Element to, const float* source, void* out, int64_t n);  // ties to even, NaN kept

  // n <= kPanel columns of `rows` rows, `stride` bytes apart, as rows of kPanel floats. If rows are
  // more than kGroupsAhead, as many columns to the right of them are on their way afterwards.
  void (*columns_to_float)(Element from, const void* source, int64_t stride, int64_t rows, int64_t n, float* out);
  // kPanel rows of n elements as n rows of kPanel floats.
  void (*rows_to_columns)(Element from, const void* const* rows, int64_t n, float* out);

  // out[i] = table[codes[i]] · factor + offset, of 256 values; the product rounds, then the sum.
  void (*float_scales)(const uint8_t* codes, const float* table, float factor, float offset, int64_t n, float* out);

  // Zero points [groups, kPanel] and their scales, of codes from −reach on: whether one is beyond `reach` scales, so that all
  // weights of its group have its sign; and what such a one keeps within the weights, in its place, and what `beside` gets. The
  // former brings weights towards 0 and none away from it: of twice as many scales and more it is nothing.
  bool (*has_wide_zero_points)(const float* scale, const float* zero_point, float reach, int64_t groups);
  void (*split_zero_points)(const float* scale, float* zero_point, float reach, int64_t groups, float* beside);

  // zero_point −= offset · scale.
  void (*shift_zero_points)(const float* scale, float* zero_point, float offset, int64_t groups);

  // z · s of as many rows of scales and of zero points in int8, as columns.
  void (*zero_point_terms)(Element scale, const void* const* scales, const void* const* zero_points, int64_t groups, float* out);

  // Sums of a row's groups, `stride` floats apart.
  void (*group_sums)(Element from, const void* row, int64_t K, int64_t group_size, float* out, int64_t stride);

  // row[n] −= Σ x_sums[g] · terms[g][n], n < kPanel: what integer zero points take off (cpu/subtracted_zero_points.h).
  void (*subtract_group_terms)(const float* x_sums, const float* terms, int64_t groups, float* row);

  // out[n] = (acc[n] · row_scale) · column_scale[n] + bias[n]; the last two may be null.
  void (*scale_row)(Element to, const float* acc, float row_scale, const float* column_scale, const float* bias, void* out,
                    int64_t n);

  // Codes of 2 bits as nibbles.
  void (*widen_int2)(const uint8_t* packed, int64_t bytes, uint8_t* nibbles);

  // Blocks of codes in planes as int8, their middle taken off; and their scales and zero points by `by` where they have them: a
  // float for each group, and any up to kScalesBeyond more.
  void (*unpack_planes)(Code code, const uint8_t* blocks, int64_t count, char* out);
  void (*numbers_of_planes)(Code code, const uint8_t* blocks, int64_t count, float by, float* scales, float* zero_points);

  // Rows of kPanel floats as kPanel rows, `stride` floats apart, with as many zeros behind them as fill up a vector.
  void (*columns_to_rows)(const float* columns, int64_t count, float* rows, int64_t stride);

  // Elements [begin, begin + n) of a row, begin even, as fp32 or bf16.
  void (*dequantize_int4)(const Int4Row& row, int64_t begin, int64_t n, Element to, void* out);

  // Elements [begin, begin + n) of row i of weights with a scale a block, begin even.
  void (*dequantize_blockwise)(const BlockwiseRows& rows, int64_t i, int64_t begin, int64_t n, float* out);

  // The n values of one row of floats and the scales of its blocks as ao::quantize defines them; a scale of NaN has zeros.
  void (*quantize_row)(Element from, const void* row, int64_t n, int64_t block, bool power_of_two, Element to,
                       float quantized_max, void* out, float* scales);

  // The blocks of rows [begin, end) of blocks; `space` is for block_k bytes. Whether NaN or Inf was met, which makes a block NaN.
  bool (*write_weight)(const WeightToWrite& w, int64_t begin, int64_t end, uint8_t* space);

  // The largest magnitude of n floats of high precision, as the bits of a float.
  uint32_t (*largest_magnitude)(Element from, const void* row, int64_t n);

  // Micro-kernels, null where the instruction set has none.
#define AOEXT_KERNEL(type, name, instruction_sets) const type* name = nullptr;
#include "cpu/kernels/kernels.inc"
};

// What a library's table has of them: all, or in that of csrc/int4pack_shim/ those of weight_int4pack_mm. What no table names the
// compiler leaves out.
constexpr Kernels of_library(const Kernels& all) {
#ifdef AOEXT_INT4PACK_ALONE
  Kernels few{};
  few.to_float = all.to_float;
  few.has_wide_zero_points = all.has_wide_zero_points;
  few.split_zero_points = all.split_zero_points;
  few.shift_zero_points = all.shift_zero_points;
  few.group_sums = all.group_sums;
  few.scale_row = all.scale_row;
  few.gemm_int4_codes = all.gemm_int4_codes;
  few.gemm_int4_bf16 = all.gemm_int4_bf16;
  few.gemm_int4_f32 = all.gemm_int4_f32;
  return few;
#else
  return all;
#endif
}

const Kernels& kernels_amx();
const Kernels& kernels_avx512();
const Kernels& kernels_avx512_beside_amx();  // those that AMX does no better; gemm_i8 is null
const Kernels& kernels_avxvnni();
const Kernels& kernels_avx2();
const Kernels& kernels_i8mm();
const Kernels& kernels_dotprod();
const Kernels& kernels_neon();
const Kernels& kernels_portable();

}  // namespace aoext::cpu

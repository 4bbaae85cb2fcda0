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

// Weight rows that a thread takes at a time, a 64-byte line of 16-bit scales, and of those that a tile of products has.
constexpr int kTile = 32;
constexpr int kTileRows = 4;

// Rows that kernels multiply are padded with zeros to a multiple of this many elements.
constexpr int64_t kPad = 128;

constexpr int64_t kLine = 64;  // of a cache

// A row of int4 weights: element k is q(k) · scale[k / group_size · kTile] + zero_point[k / group_size · kTile].
struct Int4Row {
  const uint8_t* packed;
  const float *scale, *zero_point;
  int64_t group_size;
};

// Up to kTile rows of int4 weights and their scales and zero points as they lie, `stride` bytes from one group's to the next's:
// for Planes::dot of as many rows as whole vectors take.
struct Int4Tile {
  const uint8_t* packed;
  const char *scale, *zero_point;
  Element element;  // theirs
  int64_t element_bytes, stride, group_size;
};

// Of the groups of rows of x in fixed point, one row's after another's: their scales, the sums of what the signs of nibbles add
// to products, and those of x.
struct GroupsOfX {
  const float *scales, *fixed_sums, *sums;
};

// Scales and zero points of a tile as Planes::dot_staged takes them.
struct StagedScales {
  float* scales;  // [kTile / 4, K / group_size, 4]
  float* sums;    // [M, kTile]: what zero points and the signs of nibbles add
};

// The tile after the one at hand, and where its scales go; N is 0 where there is none. All of the one at hand's rows exist then.
struct NextTile {
  Int4Tile w;
  int64_t N;
  StagedScales scales;
};

// Up to so many groups a tile's scales and zero points are fetched while another tile is multiplied. Each lies in a page of its
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

// How rows of w lie that become a block: so many, `stride` bytes apart. What is next, as many pieces of `next_bytes` bytes and
// `next_stride` apart, is fetched meanwhile.
struct BlockRows {
  int64_t count, stride;
  const char* next;
  int64_t next_stride, next_bytes;
};

// Products of one kind: an operand is what an instruction multiplies.
struct Tiles {
  int64_t operand_bytes;
  int64_t rows;          // of a block of weights; they divide kTile
  int64_t depth;         // of a block along K, a multiple of kPad
  int64_t together = 1;  // rows of x that lie interleaved, 4 bytes of each in turn: a lot

  int64_t lots(int64_t M) const { return (M + together - 1) / together * together; }  // whole ones

  // n elements of each of `rows` rows of x, `stride` bytes apart, as one lot of operands, padded along K. Adds to `starts`, one a
  // row, what sums start with, modulo 2³²: int32 bits where products are int8's.
  void (*inputs)(Element from, const void* source, int64_t stride, int64_t rows, int64_t n, void* out, uint32_t* starts);

  // A block: n elements of each row of w as operands, padded.
  void (*weights)(Element from, const void* source, const BlockRows& rows, int64_t n, void* out) = nullptr;
  void (*weights_int4)(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n,
                       void* out) = nullptr;  // from `begin` on

  // acc[m][n] += Σ x[m][k] · w[n][k], k < K <= depth (padded), in rows of kTile sums: float, or int32 where products are int8's.
  // Lots of rows of x that lie together are `depth` operands a row apart. N is a multiple of kTileRows; sums between it and
  // `rows` may change, and what stands there in w and after the last row of x may be anything.
  void (*multiply)(const void* w, int N, const void* x, int64_t M, int64_t K, void* acc) = nullptr;

  // acc[m][n] += Σ x_sums[g][m] · terms[g][n], n < kTile, for sums of x over groups, x_stride rows apart and readable to the end
  // of a lot. Null where products are int8's.
  void (*add_of_groups)(const float* x_sums, int64_t x_stride, const float* terms, int64_t groups, int64_t M,
                        void* acc) = nullptr;

  // Null, or what brings sums, which start as zeros and of which there are so many rows as lie together in x, into that order
  // once all of K has been multiplied.
  void (*finish)(int64_t M, void* acc) = nullptr;

  // Whether the tile that is next is fetched, in the order in which it lies, or this one's next block.
  bool in_order = false;

  // Null, or, where weights_int4 makes operands of q + offset, without scales and zero points, what takes the place of `multiply`
  // and add_of_groups: for n elements from `begin` on of rows of which `first` is the first, whose zero points are
  // zero_point − offset · scale. They can't take rows of x for which `takes` is false.
  float offset = 0;
  void (*multiply_int4)(const void* w, const void* x, const float* x_sums, int64_t x_stride, int64_t M, const Int4Row& first,
                        int64_t begin, int64_t n, void* acc) = nullptr;
  bool (*takes)(Element from, const void* row, int64_t K) = nullptr;

  // Operands whose sum an element of x is, `limbs` rows of `depth` one behind the other.
  int64_t limbs = 1;
};

// int4 by a row of x in fixed point. Groups are of 32, 64 or a multiple of kPad elements.
struct Planes {
  int64_t bytes;  // of an element of x: 2 for results in bfloat16 and half, 3 for float32

  // A row of x for dot, so many bytes an element, padded with zeros (by the caller) to kPad elements, and what GroupsOfX has of
  // it. False where a group's range is too wide, or not finite.
  bool (*arrange)(const float* x, int64_t K, int64_t group_size, int8_t* out, float* scales, float* fixed_sums,
                  float* group_sums);

  // Null, or what lays M rows that `arrange` wrote, x_stride bytes apart, together with their scales, as `dot` then takes them in
  // place of x; and how many bytes that is.
  void (*join)(const int8_t* x, int64_t x_stride, const float* x_scales, int64_t M, int64_t K, int64_t group_size,
               char* out) = nullptr;
  int64_t (*joined_bytes)(int64_t M, int64_t K, int64_t group_size) = nullptr;

  // acc[m][n] = Σ x[m][k] · w[n][k] for M rows that `arrange` wrote, x_stride bytes apart, and N <= kTile rows of w. Fetches what
  // lies after them.
  void (*dot)(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Tile& w, int64_t N, int64_t K,
              float (*acc)[kTile]) = nullptr;

  // Null, or the same in its place by scales that `stage` or the call before brought: those of `next` it brings.
  void (*dot_staged)(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Tile& w, int64_t N, int64_t K,
                     const StagedScales& scales, const NextTile& next, float (*acc)[kTile]) = nullptr;
  void (*stage)(const GroupsOfX& of_x, int64_t M, const Int4Tile& w, int64_t N, int64_t K, const StagedScales& out) = nullptr;
};

// 8-bit values by few rows of x.
struct Values8 {
  int64_t operand_bytes;

  // A row of n elements for `dot`, padded with zeros (by the caller) to kPad.
  void (*input)(Element from, const void* row, int64_t n, void* out);

  // acc[m][n] = Σ x[m][k] · w[n][k] for M rows that `input` wrote, x_stride operands apart, and N <= kTile rows of K values, one
  // after another.
  void (*dot)(const void* x, int64_t x_stride, int64_t M, Element type, const void* w, int64_t N, int64_t K,
              float (*acc)[kTile]) = nullptr;
};

struct Kernels {
  const char* name;

  void (*to_float)(Element from, const void* source, float* out, int64_t n);
  // n <= kTile columns of `rows` rows, `stride` bytes apart, as rows of kTile floats. Of more than kGroupsAhead rows as many
  // columns to the right of them are on their way afterwards.
  void (*columns_to_float)(Element from, const void* source, int64_t stride, int64_t rows, int64_t n, float* out);
  void (*from_float)(Element to, const float* source, void* out, int64_t n);  // ties to even, NaN kept

  // Elements [begin, begin + n) of a row, begin even, as f32 or bf16.
  void (*dequantize_int4)(const Int4Row& row, int64_t begin, int64_t n, Element to, void* out);

  // Zero points [groups, kTile] and their scales: whether one is beyond 8 scales, so that all weights of its group have its sign;
  // and what such a one keeps within the weights, in its place, and what `beside` gets. The former brings weights towards 0 and
  // none away from it: of 16 scales and more it is nothing.
  bool (*has_wide_zero_points)(const float* scale, const float* zero_point, int64_t groups);
  void (*split_zero_points)(const float* scale, float* zero_point, int64_t groups, float* beside);

  // Sums of a row's groups, `stride` floats apart.
  void (*group_sums)(Element from, const void* row, int64_t K, int64_t group_size, float* out, int64_t stride);

  const Tiles *f32, *i8;

  // Null where no instruction multiplies bfloat16. int4 has tiles of its own, whose operands lie as its nibbles unpack best;
  // where these leave out scales, the former take groups of 8, 16 and 32 with them, too.
  const Tiles *bf16 = nullptr, *bf16_int4 = nullptr;

  // The same for inputs of float32 and half, by limbs of bfloat16; int4 in groups of 32 and more. Null where that is not known to
  // pay.
  const Tiles *limbs = nullptr, *limbs_int4 = nullptr;

  // Of floats, and of bfloat16: null where that is no faster.
  const Values8 *values_f32, *values_bf16 = nullptr;

  // A row of x in the order of dot_int4, and the sums of its groups.
  void (*arrange_int4)(const float* x, int64_t K, int64_t group_size, float* out, float* group_sums);

  // The same for M rows that arrange_int4 wrote and N <= kTile rows of int4, of which `first` is the first. Groups are of 2ⁿ·8
  // elements, or of a multiple of kPad.
  void (*dot_int4)(const float* x, int64_t x_stride, const float* group_sums, int64_t M, const Int4Row& first, int64_t N,
                   int64_t K, float (*acc)[kTile]);

  // Null where no instruction multiplies bytes, or none multiplies tiles of them; the latter take groups of 64 and more. Fine
  // ones are for float32 results.
  const Planes *planes = nullptr, *fine_planes = nullptr, *plane_tiles = nullptr;

  // The same of int8 by int8, exact, all rows K elements one after another; null where tiles are as good.
  void (*dot_i8)(const int8_t* x, int64_t M, const int8_t* w, int64_t N, int64_t K, int32_t (*acc)[kTile]) = nullptr;

  // out[n] = (acc[n] · row_scale) · column_scale[n] + bias[n]; the last two may be null.
  void (*scale_row)(Element to, const float* acc, float row_scale, const float* column_scale, const float* bias, void* out,
                    int64_t n);

  // The n values of one row of floats and their scale as quantize_rowwise defines them; a scale of NaN has zeros.
  float (*quantize_row)(Element from, const void* row, int64_t n, Element to, float quantized_max, void* out);
};

const Kernels& kernels_amx();
const Kernels& kernels_avx512();
const Kernels& kernels_avxvnni();
const Kernels& kernels_avx2();
const Kernels& kernels_portable();

}  // namespace aoext::cpu

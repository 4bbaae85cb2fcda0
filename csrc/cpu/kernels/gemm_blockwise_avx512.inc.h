// Weights with a scale a block for gemm_avx512.inc.h.
//
// Values that are bfloat16 exactly (8 bits, and tables of such numbers) are packed as they are, and a group's sums meet its scale
// in float32, as int4's do: no weight is rounded. Many rows of x by short groups of 4 bits, and tables of other numbers, take
// values times their scales, rounded.
#pragma once

#include "cpu/kernels/blockwise.inc.h"
#include "cpu/kernels/gemm_bf16_limbs_avx512.inc.h"
#include "cpu/kernels/gemm_int4_avx512.inc.h"

namespace aoext::cpu {
namespace {

constexpr int64_t kFour = 4;  // 8-bit values of a word

void pack_8bit_codes(const BlockwiseRows& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  pack_8bit(first.type, first.codes + begin, rows, n, out);
}

void pack_lut4_codes(const BlockwiseRows& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  pack_words(first.codes + begin / 2, rows, n / 2, out, LookedUpNibbles(first.table));
}

void pack_lut4_scaled(const BlockwiseRows& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  const ScaledNibbles<kWithoutZeroPoints> loader(load<F32>(first.table), first.group_size, first.scale_columns, nullptr, begin,
                                                 n);
  pack_scaled_nibbles(first.codes + begin / 2, rows, n, out, loader);
}

// 8-bit values times their scales, rounded: four of a word, in groups of 4 << shift, or all of one.
struct ScaledWords {
  static constexpr int kWords = 2;
  static constexpr int64_t kMultiple = kPad;
  int64_t skipped, last;  // words before the block, and its last one
  int shift = 0;
  __m512i in_turn = halves_in_turn();
  const float *scales, *zero_points;  // [groups, kPanel]

  ScaledWords(const BlockwiseRows& first, int64_t begin, int64_t n)
      : skipped(begin / kFour), last((n + kFour - 1) / kFour - 1), scales(first.scale_columns), zero_points(first.zero_columns) {
    while (kFour << shift < first.group_size) ++shift;
  }

  int64_t lanes(int64_t word, int vector) const {
    return ((skipped + (word < last ? word : last)) >> shift) * kPanel + vector * kFloats;
  }
  void put(F32 even, F32 odd, char* to) const {
    const __m512i two = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    store(to, _mm512_maskz_permutexvar_epi16(~__mmask32{0}, in_turn, two));
  }
};

template <Element kType>
struct ScaledWordsOf8Bit : ScaledWords {
  using ScaledWords::ScaledWords;

  void operator()(U32 words, int64_t word, int vector, char* to) const {
    const F32 scale = load<F32>(scales + lanes(word, vector));
    __m512i halves[2];
    halve<kType>(words, halves);
    for (int i = 0; i < 2; ++i)
      put((F32)((U32)halves[i] << 16) * scale, (F32)((U32)halves[i] & 0xffff0000u) * scale, to + i * kStepBytes);
  }
};

// Codes of up to 7 bits, and zero points: a code in the upper mantissa of 128 is 128 + q, which zero points undo.
constexpr float kCodeOffset = 128;

struct ScaledCodes : ScaledWords {
  using ScaledWords::ScaledWords;
  __m512i of_bytes = _mm512_maskz_broadcast_i32x4(0xffff, _mm_setr_epi8(0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0, 12, 0));

  void operator()(U32 words, int64_t word, int vector, char* to) const {
    const int64_t at = lanes(word, vector);
    const F32 scale = load<F32>(scales + at), zero_point = load<F32>(zero_points + at);
    const auto value = [&](int i) AOEXT_INLINE {
      constexpr __mmask64 kUpperMantissa = 0x4444444444444444u;
      const __m512i byte = (__m512i)((U32)of_bytes + (static_cast<uint32_t>(i) << 16));
      const F32 code = (F32)_mm512_mask_shuffle_epi8((__m512i)(F32{} + kCodeOffset), kUpperMantissa, (__m512i)words, byte);
      return multiply_add(code, scale, zero_point);
    };
    for (int i = 0; i < 2; ++i) put(value(2 * i), value(2 * i + 1), to + i * kStepBytes);
  }
};

void pack_8bit_scaled(const BlockwiseRows& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  const auto pack = [&](const auto& loader) { pack_words(first.codes + begin, rows, n, out, loader); };
  if (first.zero_columns != nullptr) return pack(ScaledCodes(first, begin, n));
  with_8bit_type(first.type, [&](auto of) { pack(ScaledWordsOf8Bit<decltype(of)::type>(first, begin, n)); });
}

// kStep: elements of the words that a loader makes at a time, a multiple of which groups are.
template <int kLimbs, int64_t kStep>
void macro_kernel_by_groups(const void* w, int, const void* x, int64_t M, const BlockwiseRows& first, int64_t begin, int64_t n,
                            void* acc) {
  const auto whole = [](int64_t elements) {
    return (elements + kStep - 1) / kStep * kStep;
  };  // of the last group, or the only one
  const Groups groups{first.scale_columns, nullptr, nullptr, 0, whole(first.group_size)};
  macro_kernel_groups<kLimbs, kWithoutZeroPoints>(w, x, groups, M, begin, whole(n), acc);
}

template <auto kPack, auto kPackX, int kLimbs, int64_t kStep>
constexpr GemmBlockwise kGemmByGroups{.shape = {.operand_bytes = sizeof(uint16_t),
                                                .NC = kPanel,
                                                .KC = kKCOf<DotBf16>,
                                                .limbs = kLimbs,
                                                .fetch_next_panel = true,
                                                .pack_x = kPackX,
                                                .accepts = kLimbs == 1 ? accepts_bf16 : accepts_limbs<kBy8Bit>},
                                      .columns_of_scales = columns_of_scales,
                                      .pack_w = kPack,
                                      .macro_kernel = macro_kernel_by_groups<kLimbs, kStep>};

constexpr GemmBlockwise kGemm8BitGroups = kGemmByGroups<pack_8bit_codes, pack_x_rows<RowsAsBf16>, kOneLimb, kFour>;
constexpr GemmBlockwise kGemm8BitGroupsLimbs = kGemmByGroups<pack_8bit_codes, pack_x_limbs<!kByInt4>, kTwoLimbs, kFour>;
constexpr GemmBlockwise kGemmLut4Groups = kGemmByGroups<pack_lut4_codes, pack_x_rows<RowsInEights>, kOneLimb, kEight>;
constexpr GemmBlockwise kGemmLut4GroupsLimbs = kGemmByGroups<pack_lut4_codes, pack_x_limbs<kByInt4>, kTwoLimbs, kEight>;

template <auto kPack>
constexpr GemmBlockwise kGemmOfScaled{.shape = kShapeBf16,
                                      .columns_of_scales = columns_of_scales,
                                      .add_group_terms = kPack == pack_8bit_scaled ? add_group_terms : nullptr,
                                      .code_offset = kCodeOffset,
                                      .pack_w = kPack,
                                      .macro_kernel = macro_kernel_of_scaled<macro_kernel_channels<DotBf16, kOneLimb>>};

}  // namespace
}  // namespace aoext::cpu

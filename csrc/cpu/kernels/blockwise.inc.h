// Rows of weights with a scale a block as floats, of any block, and what packs them for a gemm (gemm.inc.h).
#pragma once

#include "cpu/kernels/gemm.inc.h"

namespace aoext::cpu {
namespace {

// kFloats codes of 4 bits, one in the low bits of each lane.
inline U32 nibbles_in_turn(const uint8_t* packed) {
  constexpr int kOfWord = 8;
  U32 shifts;
  for (int i = 0; i < kFloats; ++i) shifts[i] = 4 * static_cast<uint32_t>(i % kOfWord);
  uint32_t word = 0;
  memcpy(&word, packed, kFloats < kOfWord ? kFloats / 2 : 4);
  U32 lanes = U32{} + word;
  if constexpr (kFloats > kOfWord) {
    uint32_t next;
    memcpy(&next, packed + 4, 4);
    const U32 second = U32{} + next;
    I32 lane;
    for (int i = 0; i < kFloats; ++i) lane[i] = i;
    lanes = lane < kOfWord ? lanes : second;
  }
  return lanes >> shifts;
}

// n values of codes that share a scale, from an even one on.
inline void look_up_scaled(const uint8_t* packed, const float* values, float scale, int64_t n, float* out) {
  float scaled[16];
  for (int i = 0; i < 16; ++i) scaled[i] = values[i] * scale;
  const Table table(scaled);
  int64_t k = 0;
  for (; k + kFloats <= n; k += kFloats) store(out + k, look_up(table, nibbles_in_turn(packed + k / 2)));
  for (; k < n; ++k) out[k] = scaled[k % 2 == 0 ? packed[k / 2] & 15 : packed[k / 2] >> 4];
}

template <Element kType>
inline void scaled_values(const char* codes, float scale, int64_t n, float* out) {
  constexpr int kVectors = Exact<kType>::kVectors;
  int64_t k = 0;
  for (F32 v[kVectors]; k + kVectors * kFloats <= n; k += kVectors * kFloats) {
    Exact<kType>::load(codes + k, v);
    for (int i = 0; i < kVectors; ++i) store(out + k + i * kFloats, v[i] * Exact<kType>::kFactor * scale);
  }
  if (k == n) return;
  to_float(kType, codes + k, out + k, n - k);
  for (; k < n; ++k) out[k] *= scale;
}

// f(scale, first, n) for the parts of [begin, begin + n) of a row that share a scale, counted from `begin`.
template <class F>
inline void each_scale(const BlockwiseRows& rows, int64_t i, int64_t begin, int64_t n, const F& f) {
  const float* scale = rows.scale_rows[i] + begin / rows.group_size;
  int64_t left = rows.group_size - begin % rows.group_size;  // of the group in hand
  for (int64_t k = 0, count; k < n; k += count, ++scale, left = rows.group_size) {
    count = left < n - k ? left : n - k;
    f(*scale, k, count);
  }
}

void dequantize_blockwise(const BlockwiseRows& rows, int64_t i, int64_t begin, int64_t n, float* out) {
  constexpr int64_t kShort = 16;  // groups to which calls of their own cost more than values do
  const char* const codes = rows.row(i) + rows.bytes(begin);
  const uint8_t* const packed = reinterpret_cast<const uint8_t*>(codes);
  if (rows.group_size < kShort || rows.group_size % 2 != 0) {
    if (rows.table == nullptr)
      to_float(rows.type, codes, out, n);
    else
      look_up_scaled(packed, rows.table, 1.0f, n, out);
    return each_scale(rows, i, begin, n, [&](float scale, int64_t k, int64_t count) {
      for (int64_t j = k; j < k + count; ++j) out[j] *= scale;
    });
  }
  if (rows.table == nullptr)
    with_8bit_type(rows.type, [&](auto of) {
      each_scale(rows, i, begin, n, [&](float scale, int64_t k, int64_t count) {
        scaled_values<decltype(of)::type>(codes + k, scale, count, out + k);
      });
    });
  else
    each_scale(rows, i, begin, n,
               [&](float scale, int64_t k, int64_t count) { look_up_scaled(packed + k / 2, rows.table, scale, count, out + k); });
}

// Loaders (gemm.inc.h).
struct BlockwiseAsF32 {
  using Operand = float;
  static void load(const BlockwiseRows& rows, int64_t i, int64_t begin, int64_t n, float* out) {
    dequantize_blockwise(rows, i, begin, n, out);
    pad_with_zeros(out, n);
  }
};

// Rounded once.
struct BlockwiseAsBf16 {
  using Operand = uint16_t;
  static void load(const BlockwiseRows& rows, int64_t i, int64_t begin, int64_t n, uint16_t* out) {
    constexpr int64_t kChunk = 256;
    float values[kChunk];
    for (int64_t k = 0; k < n; k += kChunk) {
      const int64_t count = n - k < kChunk ? n - k : kChunk;
      dequantize_blockwise(rows, i, begin + k, count, values);
      from_float(Element::bf16, values, out + k, count);
    }
    pad_with_zeros(out, n);
  }
};

template <class Loader, int64_t kKC>
void pack_blockwise_rows(const BlockwiseRows& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  using Operand = typename Loader::Operand;
  pack_rows<Operand, kKC>(rows, out, [&](int64_t r, Operand* to) { Loader::load(first, r, begin, n, to); });
}

// Multiplies weights that were packed with their scales.
template <MacroKernel kKernel>
void macro_kernel_of_scaled(const void* w, int N, const void* x, int64_t M, const BlockwiseRows&, int64_t, int64_t n, void* acc) {
  kKernel(w, N, x, M, (n + kPad - 1) / kPad * kPad, acc);
}

// A lane is an output channel, so its scales are a vector for each group: kFloats rows by kFloats groups at a time.
[[maybe_unused]] void columns_of_scales(const float* const* scale_rows, int64_t begin, int64_t end, float* out) {
  for (int vector = 0; vector < kPanelVectors; ++vector) {
    const char* rows[kFloats];
    for (int i = 0; i < kFloats; ++i) rows[i] = reinterpret_cast<const char*>(scale_rows[vector * kFloats + i]);
    for (int64_t g = begin; g < end; g += kFloats) {
      U32 words[kFloats];
      load_words(rows, g * static_cast<int64_t>(sizeof(float)), words);
      for (int64_t i = 0; i < kFloats && g + i < end; ++i) store(out + (g + i) * kPanel + vector * kFloats, words[i]);
    }
  }
}

template <int64_t kKC>
constexpr GemmBlockwise kGemmBlockwiseF32{.shape = kShapeF32<kKC>,
                                          .pack_w = pack_blockwise_rows<BlockwiseAsF32, kKC>,
                                          .macro_kernel = macro_kernel_of_scaled<macro_kernel<MultiplyF32, kKC>>};

}  // namespace
}  // namespace aoext::cpu

// Rows of weights with a scale a block as floats, of any block, and what packs them for a gemm (gemm.inc.h).
#pragma once

#include "cpu/kernels/gemm.inc.h"

namespace aoext::cpu {
namespace {

// kFloats codes of 4 bits, one in the low bits of each lane.
inline U32 nibbles_in_turn(const uint8_t* packed) {
  constexpr int kOfWord = 8;
  uint32_t words[2] = {};
  memcpy(words, packed, kFloats / 2);
  U32 lanes, shifts;
  for (int i = 0; i < kFloats; ++i) {
    lanes[i] = words[i / kOfWord];
    shifts[i] = 4 * static_cast<uint32_t>(i % kOfWord);
  }
  return lanes >> shifts;
}

inline void look_up_row(const uint8_t* packed, const float* values, int64_t n, float* out) {
  const Table table(values);
  int64_t k = 0;
  for (; k + kFloats <= n; k += kFloats) store(out + k, look_up(table, nibbles_in_turn(packed + k / 2)));
  for (; k < n; ++k) out[k] = values[k % 2 == 0 ? packed[k / 2] & 15 : packed[k / 2] >> 4];
}

void dequantize_blockwise(const BlockwiseRows& rows, int64_t i, int64_t begin, int64_t n, float* out) {
  const char* const codes = rows.row(i) + rows.bytes(begin);
  if (rows.table == nullptr)
    to_float(rows.type, codes, out, n);
  else
    look_up_row(reinterpret_cast<const uint8_t*>(codes), rows.table, n, out);
  const float* scale = rows.scale_rows[i] + begin / rows.group_size;
  int64_t left = rows.group_size - begin % rows.group_size;  // of the group in hand
  for (int64_t k = 0; k < n; ++scale, left = rows.group_size) {
    const int64_t end = left < n - k ? k + left : n;
    for (; k + kFloats <= end; k += kFloats) store(out + k, aoext::cpu::load<F32>(out + k) * *scale);
    for (; k < end; ++k) out[k] *= *scale;
  }
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

// Of weights that were packed with their scales.
template <MacroKernel kKernel>
void macro_kernel_of_scaled(const void* w, int N, const void* x, int64_t M, const BlockwiseRows&, int64_t, int64_t n, void* acc) {
  kKernel(w, N, x, M, (n + kPad - 1) / kPad * kPad, acc);
}

template <int64_t kKC>
constexpr GemmBlockwise kGemmBlockwiseF32{.shape = kShapeF32<kKC>,
                                          .pack_w = pack_blockwise_rows<BlockwiseAsF32, kKC>,
                                          .macro_kernel = macro_kernel_of_scaled<macro_kernel<MultiplyF32, kKC>>};

}  // namespace
}  // namespace aoext::cpu

// Weights in the tinygemm layout, as products and the packer see them.
//
// A block is 32 k of one row: packed, four words, one for each t = 0..3, `word_stride` apart; as rows, 16 bytes.
// Word t holds k = 8p + 2t in nibble p of its low half and k = 8p + 2t + 1 in nibble p of its high half, p = 0..3,
// which are byte 4p + t of the row.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/gemm.h"

namespace aoext::cpu {

struct Int4PackShape {
  int64_t K, blocks;  // blocks: side by side in a lane, inner_k_tiles / 2

  Int4PackShape(int64_t K_, int64_t inner_k_tiles) : K(K_), blocks(inner_k_tiles / 2) {}

  // Where the word of (row, block of 32 k, t) lies.
  int64_t word(int64_t row, int64_t block, int64_t t) const {
    return row / 8 * K + block / blocks * 32 * blocks + (row % 8 * 4 + t) * blocks + block % blocks;
  }
};

// Four nibbles in the low 16 bits to the low halves of four bytes, and back.
inline uint32_t spread_nibbles(uint32_t v) {
  v = (v | v << 8) & 0x00ff00ff;
  return (v | v << 4) & 0x0f0f0f0f;
}
inline uint32_t gather_nibbles(uint32_t v) {
  v = (v | v >> 4) & 0x00ff00ff;
  return (v | v >> 8) & 0xffff;
}

// The bytes of words t = 0..3 of a block to the 16 bytes of its row: a transposition, in 32-bit steps that the compiler
// turns into vectors over the blocks of a lane.
template <int Blocks>
void unpack_lanes(const uint32_t* words, uint32_t* out) {
  uint32_t bytes[4][Blocks];
  for (int t = 0; t < 4; ++t) {
    for (int b = 0; b < Blocks; ++b) {
      const uint32_t word = words[t * Blocks + b];
      bytes[t][b] = (spread_nibbles(word & 0xffff) | spread_nibbles(word >> 16) << 4) ^ 0x88888888;  // u − 8 is u XOR 8
    }
  }
  constexpr uint32_t kEven = 0x00ff00ff;
  for (int b = 0; b < Blocks; ++b) {
    const uint32_t even01 = (bytes[0][b] & kEven) | (bytes[1][b] & kEven) << 8;
    const uint32_t even23 = (bytes[2][b] & kEven) | (bytes[3][b] & kEven) << 8;
    const uint32_t odd01 = (bytes[0][b] >> 8 & kEven) | (bytes[1][b] & ~kEven);
    const uint32_t odd23 = (bytes[2][b] >> 8 & kEven) | (bytes[3][b] & ~kEven);
    out[4 * b] = (even01 & 0xffff) | even23 << 16;
    out[4 * b + 1] = (odd01 & 0xffff) | odd23 << 16;
    out[4 * b + 2] = even01 >> 16 | (even23 & 0xffff0000);
    out[4 * b + 3] = odd01 >> 16 | (odd23 & 0xffff0000);
  }
}

// A weight as a gemm asks for it (cpu/weights.h).
struct Int4PackWeight {
  static constexpr bool kInt4 = true, kBlockwise = false;
  const uint32_t* words;
  const char* scale_and_zero;  // bfloat16 [K/group_size, N, 2]
  Int4PackShape shape;
  int64_t N, K, group_size;

  class Panel {
   public:
    explicit Panel(const Int4PackWeight& w)
        : w_(w),
          groups_(w.K / w.group_size),
          line_(2 * kPanel),
          scale_(groups_ * kPanel),
          zero_(groups_ * kPanel),
          ones_(kPanel, 1.0f),
          plain_(kPanel * w.K / 8) {}

    void move(int64_t first, int64_t count, int64_t begin, int64_t end) {
      first_ = first;
      for (int64_t g = begin / w_.group_size; g * w_.group_size < end; ++g) {
        kernels().to_float(Element::bf16, w_.scale_and_zero + (g * w_.N + first) * 4, line_.data(), 2 * count);
        for (int64_t i = 0; i < count; ++i) {
          scale_[g * kPanel + i] = line_[2 * i];
          zero_[g * kPanel + i] = line_[2 * i + 1];
        }
      }
    }

    // By way of plain int4. Rows lie in pieces, and are not fetched ahead.
    template <class Gemm>
    void pack(const Gemm& gemm, const BlockOfPanel& block, const Fetch&, void* out) {
      for (int64_t r = 0; r < block.count; ++r) unpack(block.i + r, block.begin, block.n, &plain_[r * w_.K / 8]);
      gemm.pack_w(int4(block.i), {block.count, w_.K / 2, nullptr, 0, 0}, block.begin, block.n, out);
    }
    Int4Row int4(int64_t i) const {
      return {reinterpret_cast<const uint8_t*>(plain_.data()), &scale_[i], &zero_[i], w_.group_size};
    }
    ScalesAhead scales_ahead(int64_t first, int64_t begin, int64_t end) const {
      constexpr int64_t kBytes = 2 * kPanel;  // of scales and zeros in turn, half of a panel's
      const char* const at = w_.scale_and_zero + (begin / w_.group_size * w_.N + first) * 4;
      const int64_t groups = first < w_.N ? (end - 1) / w_.group_size + 1 - begin / w_.group_size : 0;
      return {{at, w_.N * 4, groups, kBytes}, {at + kBytes, w_.N * 4, groups, kBytes}};
    }
    ZeroPointsBeside take_zero_points_out(int64_t begin, int64_t end) {
      return cpu::take_zero_points_out(scale_, zero_, beside_, kReachOfInt4, w_.group_size, begin, end);
    }
    void shift_zero_points(float offset, int64_t begin, int64_t end) {
      cpu::shift_zero_points(scale_, zero_, offset, w_.group_size, begin, end);
    }
    const float* row_scales() const { return ones_.data(); }

   private:
    // At least the elements [begin, begin + n) of row i: rounds of all blocks that lie side by side.
    void unpack(int64_t i, int64_t begin, int64_t n, uint32_t* out) const {
      const int64_t lanes = 4 * w_.shape.blocks, step = 8 * lanes;  // words of a row, and from one round of them to the next
      const auto unpack_round = lanes == 16 ? unpack_lanes<4> : lanes == 8 ? unpack_lanes<2> : unpack_lanes<1>;
      const uint32_t* const words = w_.words + w_.shape.word(first_ + i, 0, 0);
      for (int64_t r = begin / step; r * step < begin + n; ++r) unpack_round(words + r * step, out + r * lanes);
    }

    const Int4PackWeight& w_;
    int64_t first_ = 0, groups_;
    std::vector<float> line_, scale_, zero_, beside_, ones_;
    std::vector<uint32_t> plain_;  // of the block in hand
  };
};

}  // namespace aoext::cpu

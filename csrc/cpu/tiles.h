// Algorithm::tiles: products of blocks of weights, unpacked in cache, and blocks of x (kernels/tiles.inc.h).
//
// x becomes operands once, kInputBytes of it at a time; where it fits, a weight is unpacked once. A thread takes kTile rows of
// the weight, cuts them into blocks and sends all rows of x past each: a block stays in the first cache, x comes from the
// others. Sums wait in [rows of x, kTile] between the blocks of a row.
//
// It knows nothing of torch: parallel_for(n, grain, f) is a parameter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "cpu/isa.h"

namespace aoext::cpu {

constexpr int64_t kInputBytes = int64_t{4} << 20;

inline int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

// Threads start to pay at about this many weights each.
inline int64_t grain(int64_t rows, int64_t K) { return std::max<int64_t>(1, (int64_t{1} << 15) / (rows * K)); }

// Memory at the start of a cache line, so that no vector of operands crosses one; not initialised.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : data_(static_cast<char*>(std::aligned_alloc(kLine, (bytes + kLine - 1) / kLine * kLine))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  char* operator+(int64_t bytes) const { return data_.get() + bytes; }

 private:
  static constexpr int64_t kLine = 64;
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> data_;
};

// x [M, K], contiguous.
struct InputRows {
  const void* data;
  Element element;
  int64_t element_size, M, K;
};

// Rows of x as operands, in blocks [rows, depth] along K: what meets a block of weights lies together, and rows do not fall into
// one set of the caches, as they would a power of two apart.
class TileInput {
 public:
  TileInput(const Tiles& tiles, const InputRows& x)
      : tiles_(tiles),
        source_(static_cast<const char*>(x.data)),
        element_(x.element),
        K_(x.K),
        element_size_(x.element_size),
        row_bytes_((x.K + tiles.depth - 1) / tiles.depth * tiles.depth * tiles.operand_bytes),
        most_(std::min(x.M, std::max<int64_t>(kTile, kInputBytes / row_bytes_))),
        rows_(tiles.lots(most_)),
        operands_(rows_ * row_bytes_),
        start_(most_) {}

  int64_t most() const { return most_; }  // rows at once
  const char* block(int64_t k) const { return operands_ + k * rows_ * tiles_.operand_bytes; }
  int32_t start(int64_t m) const { return start_[m]; }

  template <class ParallelFor>
  void load(int64_t first, int64_t count, const ParallelFor& parallel_for) {
    parallel_for(count, grain(1, K_), [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) {
        uint32_t start = 0;
        for (int64_t k = 0; k < K_; k += tiles_.depth)
          start += static_cast<uint32_t>(tiles_.inputs(element_, source_ + ((first + m) * K_ + k) * element_size_,
                                                       std::min(tiles_.depth, K_ - k), row(k, m)));
        start_[m] = static_cast<int32_t>(start);
      }
    });
  }

 private:
  char* row(int64_t k, int64_t m) const {
    const int64_t place = m % tiles_.together;
    return operands_ + (k * rows_ + (m - place) * tiles_.depth) * tiles_.operand_bytes + place * 4;
  }

  const Tiles& tiles_;
  const char* source_;
  Element element_;
  int64_t K_, element_size_, row_bytes_, most_, rows_;
  Scratch operands_;
  std::vector<int32_t> start_;
};

// Calls store(m, first, count, sums, row_scales) with the sums of columns [first, first + count) of row m, from several threads.
template <class Sum, class Weight, class ParallelFor, class Store>
void tile_product(const Tiles& tiles, const InputRows& input, int64_t N, const Weight& weight, const ParallelFor& parallel_for,
                  const Store& store) {
  const int64_t K = input.K;
  TileInput x(tiles, input);
  for (int64_t row = 0; row < input.M; row += x.most()) {
    const int64_t M = std::min(x.most(), input.M - row);
    x.load(row, M, parallel_for);
    parallel_for((N + kTile - 1) / kTile, grain(kTile, K), [&](int64_t begin, int64_t end) {
      typename Weight::Tile tile(weight);
      const Scratch block(tiles.rows * tiles.depth * tiles.operand_bytes);
      const auto block_row = [&](int64_t i) { return block + i * tiles.depth * tiles.operand_bytes; };
      const int64_t rows_of_sums = tiles.lots(M);
      const Scratch scratch(rows_of_sums * kTile * static_cast<int64_t>(sizeof(Sum)));
      Sum* const sums = reinterpret_cast<Sum*>(scratch + 0);
      for (int64_t t = begin; t < end; ++t) {
        const int64_t first = t * kTile, count = std::min<int64_t>(kTile, N - first);
        tile.move(first, count);
        for (int64_t m = 0; m < rows_of_sums; ++m)
          std::fill_n(sums + m * kTile, kTile, m < M ? static_cast<Sum>(x.start(m)) : Sum{});
        for (int64_t k = 0; k < K; k += tiles.depth) {
          const int64_t depth = std::min(tiles.depth, K - k);
          for (int64_t i = 0; i < count; i += tiles.rows) {
            const int64_t rows = std::min<int64_t>(tiles.rows, count - i);
            // The next block of these rows, or the first one of the next tile's, is on its way while this one is unpacked.
            const int64_t next = k + depth < K ? k + depth : 0, ahead = next > 0 ? i : kTile + i;
            const bool ready = first + ahead + rows <= N;
            for (int64_t r = 0; r < rows; ++r) {
              tile.operands(tiles, i + r, k, depth, block_row(r));
              if (ready) tile.ahead(ahead + r, next, std::min(tiles.depth, K - next));
            }
            const int64_t full = (rows + kTileRows - 1) / kTileRows * kTileRows;
            if (full > rows) std::memset(block_row(rows), 0, (full - rows) * tiles.depth * tiles.operand_bytes);
            tiles.multiply(block + 0, static_cast<int>(full), x.block(k), M, padded(depth), &sums[i]);
          }
        }
        if (tiles.finish != nullptr) tiles.finish(M, sums);
        for (int64_t m = 0; m < M; ++m) store(row + m, first, count, &sums[m * kTile], tile.row_scales());
      }
    });
  }
}

}  // namespace aoext::cpu

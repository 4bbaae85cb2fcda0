// Algorithm::tiles: products of blocks of weights, unpacked in cache, and blocks of x (kernels/tiles.inc.h).
//
// x becomes operands once, kInputBytes of it at a time; where it fits, a weight is unpacked once. A thread takes kTile rows of
// the weight, a tile, cuts them into blocks and sends all rows of x past each: a block stays in the first cache, x comes from the
// second. Sums wait in [rows of x, kTile] between the blocks of a tile.
//
// Where the second cache does not hold x, it is cut into slabs along K that fit, and a slab meets a group of tiles before the
// next one comes: x passes from the third cache once for each group, not for each tile, and the sums of the whole group wait.
//
// It knows nothing of torch: parallel_for(n, grain, f) is a parameter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "common/sizes.h"
#include "cpu/zero_points.h"

namespace aoext::cpu {

constexpr int64_t kInputBytes = int64_t{4} << 20;
constexpr int64_t kSlabBytes = int64_t{512} << 10;   // of x, in a second cache of 1 or 2 MB
constexpr int64_t kGroupBytes = int64_t{512} << 10;  // of a group's sums

inline int64_t padded(int64_t n) { return ceil_div(n, kPad) * kPad; }

// The parts of n, at most so large, without a small rest.
inline int64_t equal_part(int64_t n, int64_t most) { return ceil_div(n, ceil_div(n, most)); }

// Threads start to pay at about this many weights each.
inline int64_t grain(int64_t rows, int64_t K) { return std::max<int64_t>(1, (int64_t{1} << 15) / (rows * K)); }

// Memory at the start of a cache line, so that no vector of operands crosses one; not initialised.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : data_(static_cast<char*>(std::aligned_alloc(kLine, (bytes / kLine + 1) * kLine))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  char* operator+(int64_t bytes) const { return data_.get() + bytes; }

 private:
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
        bytes_(tiles.operand_bytes * tiles.limbs),
        row_bytes_(ceil_div(x.K, tiles.depth) * tiles.depth * bytes_),
        most_(std::min(x.M, equal_part(ceil_div(x.M, kTile), std::max<int64_t>(1, kInputBytes / row_bytes_ / kTile)) * kTile)),
        rows_(tiles.lots(most_)),
        operands_(rows_ * row_bytes_),
        start_(most_) {}

  int64_t most() const { return most_; }  // rows at once
  const char* block(int64_t k) const { return operands_ + k * rows_ * bytes_; }
  int32_t start(int64_t m) const { return static_cast<int32_t>(start_[m]); }

  // Of the rows at hand, [K/group_size, sums_stride()]. Where `load` did not bring them few weights ask for them: the first to do
  // so computes them.
  const float* group_sums(int64_t group_size) {
    std::call_once(*summed_, [&] {
      sums_.resize(K_ / group_size * rows_);
      sum_groups(group_size, 0, count_);
    });
    return sums_.data();
  }
  int64_t sums_stride() const { return rows_; }

  // With the sums of groups of so many, or of none.
  template <class ParallelFor>
  void load(int64_t first, int64_t count, int64_t group_size, const ParallelFor& parallel_for) {
    const int64_t together = tiles_.together;
    first_ = first;
    count_ = count;
    summed_.emplace();
    if (group_size > 0) std::call_once(*summed_, [&] { sums_.resize(K_ / group_size * rows_); });
    parallel_for(ceil_div(count, together), grain(together, K_), [&](int64_t begin, int64_t end) {
      std::fill(start_.begin() + begin * together, start_.begin() + std::min(end * together, count), 0);
      for (int64_t lot = begin * together; lot < std::min(end * together, count); lot += together)
        for (int64_t k = 0; k < K_; k += tiles_.depth)
          tiles_.inputs(element_, source_ + ((first + lot) * K_ + k) * element_size_, K_ * element_size_,
                        std::min(together, count - lot), std::min(tiles_.depth, K_ - k),
                        operands_ + (k * rows_ + lot * tiles_.depth) * bytes_, &start_[lot]);
      if (group_size > 0) sum_groups(group_size, begin * together, std::min(end * together, count));
    });
  }

 private:
  void sum_groups(int64_t group_size, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m)
      kernels().group_sums(element_, source_ + (first_ + m) * K_ * element_size_, K_, group_size, &sums_[m], rows_);
  }

  const Tiles& tiles_;
  const char* source_;
  Element element_;
  int64_t K_, element_size_, bytes_, row_bytes_, most_, rows_, first_ = 0, count_ = 0;
  Scratch operands_;
  std::optional<std::once_flag> summed_;
  std::vector<float> sums_;
  std::vector<uint32_t> start_;  // modulo 2³²
};

// Elements [begin, begin + n) of `count` rows of w, from row i of a tile on.
struct Piece {
  int64_t i, count, begin, n;
};

// What is fetched meanwhile: as many times n elements, `stride` apart, from `begin` on, counted from the tile's first.
struct Fetch {
  int64_t begin, stride, n;
};

// A tile of w, its place in its group, and the slab of K, [begin, end), that meets it.
struct Visit {
  int64_t tile, place, begin, end;
};

// The order in which a thread goes through its `count` tiles.
class Walk {
 public:
  Walk(const Tiles& tiles, int64_t M, int64_t K, int64_t sum_bytes) : K_(K) {
    const int64_t rows = tiles.lots(M), blocks = ceil_div(K, tiles.depth);
    const int64_t most = std::max<int64_t>(1, kSlabBytes / (rows * tiles.depth * tiles.operand_bytes * tiles.limbs));  // blocks
    slab_ = equal_part(blocks, most) * tiles.depth;
    slabs_ = ceil_div(K, slab_);
    group_ = slabs_ == 1 ? 1 : std::max<int64_t>(1, kGroupBytes / (rows * kTile * sum_bytes));
  }

  int64_t group() const { return group_; }  // tiles
  int64_t visits(int64_t count) const { return count * slabs_; }
  Visit visit(int64_t i, int64_t count) const {
    const int64_t first = i / (group_ * slabs_) * group_, tiles = std::min(group_, count - first), in_group = i - first * slabs_;
    const int64_t place = in_group % tiles, begin = in_group / tiles * slab_;
    return {first + place, place, begin, std::min(begin + slab_, K_)};
  }

 private:
  int64_t K_, slabs_, slab_, group_;
};

// The same for rows of x that `tiles` takes.
template <class Sum, class Weight, class ParallelFor, class Store>
void product_of_tiles(const Tiles& tiles, const InputRows& input, int64_t N, const Weight& weight,
                      const ParallelFor& parallel_for, const Store& store) {
  const int64_t K = input.K;
  TileInput x(tiles, input);
  for (int64_t row = 0; row < input.M; row += x.most()) {
    const int64_t M = std::min(x.most(), input.M - row);
    int64_t summed = 0;
    if constexpr (Weight::kInt4) summed = tiles.multiply_int4 != nullptr ? weight.group_size : 0;
    x.load(row, M, summed, parallel_for);
    const Walk walk(tiles, M, K, sizeof(Sum));
    parallel_for(ceil_div(N, kTile), grain(kTile, K), [&](int64_t begin, int64_t end) {
      typename Weight::Tile tile(weight);
      const Scratch block(tiles.rows * tiles.depth * tiles.operand_bytes);
      const int64_t rows_of_sums = tiles.lots(M), tile_sums = rows_of_sums * kTile;
      const Scratch scratch(std::min(walk.group(), end - begin) * tile_sums * static_cast<int64_t>(sizeof(Sum)));
      const int64_t visits = walk.visits(end - begin);
      for (int64_t v = 0; v < visits; ++v) {
        const Visit here = walk.visit(v, end - begin), then = walk.visit(std::min(v + 1, visits - 1), end - begin);
        const int64_t first = (begin + here.tile) * kTile, count = std::min<int64_t>(kTile, N - first);
        Sum* const sums = reinterpret_cast<Sum*>(scratch + 0) + here.place * tile_sums;
        tile.move(first, count, here.begin, here.end);
        const bool starts = here.begin == 0, ends = here.end == K;
        for (int64_t m = 0; starts && m < rows_of_sums; ++m)
          std::fill_n(sums + m * kTile, kTile, m < M ? static_cast<Sum>(x.start(m)) : Sum{});
        if constexpr (Weight::kInt4) {
          const ZeroPointsBeside beside = tile.beside(tiles, here.begin, here.end);
          if (beside.count > 0)
            tiles.add_of_groups(x.group_sums(weight.group_size) + beside.first * x.sums_stride(), x.sums_stride(), beside.terms,
                                beside.count, M, sums);
        }
        ScalesAhead scales{};
        int64_t scales_a_block = 0;  // rows of scales and zero points
        if constexpr (Weight::kInt4)
          if (v + 1 < visits) {
            scales = tile.scales_ahead((begin + then.tile) * kTile, then.begin, then.end);
            scales_a_block = ceil_div(2 * tiles.depth, weight.group_size);
          }
        // The next block of these rows, or the first one of the next visit's. Or a part of the next tile, all of which is fetched
        // so while this one is multiplied: rows that lie some pages apart are read at half the pace, and fall into few sets of
        // the first cache.
        const auto fetched = [&](const Piece& p, int64_t first_row) -> Fetch {
          const int64_t further = (then.tile - here.tile) * kTile, after = p.begin + p.n;
          const bool stays = after < here.end, in_order = tiles.in_order && here.end - here.begin == K;
          const int64_t row = in_order || !stays ? further + p.i : p.i;
          if (first_row + row + p.count > N) return {};
          if (in_order) return {row * K + p.begin * p.count, p.n, further > 0 ? p.n : 0};
          const int64_t next = stays ? after : then.begin;
          return {row * K + next, K, std::min(tiles.depth, K - next)};
        };
        for (int64_t k = here.begin; k < here.end; k += tiles.depth) {
          const int64_t depth = std::min(tiles.depth, K - k);
          for (int64_t i = 0; i < count; i += tiles.rows) {
            const Piece piece{i, std::min<int64_t>(tiles.rows, count - i), k, depth};
            tile.block(tiles, piece, fetched(piece, first), block + 0);
            for (int64_t r = i; r < std::min(i + piece.count, scales_a_block); ++r) fetch_group(&scales);
            if constexpr (Weight::kInt4)
              if (tiles.multiply_int4 != nullptr) {
                tiles.multiply_int4(block + 0, x.block(k), x.group_sums(weight.group_size), x.sums_stride(), M, tile.int4(i), k,
                                    depth, &sums[i]);
                continue;
              }
            const int64_t whole_rows = ceil_div(piece.count, kTileRows) * kTileRows;
            tiles.multiply(block + 0, static_cast<int>(whole_rows), x.block(k), M, padded(depth), &sums[i]);
          }
        }
        if (!ends) continue;
        if (tiles.finish != nullptr) tiles.finish(M, sums);
        for (int64_t m = 0; m < M; ++m) store(row + m, first, count, &sums[m * kTile], tile.row_scales());
      }
    });
  }
}

// Calls store(m, first, count, sums, row_scales) with the sums of columns [first, first + count) of row m, from several threads.
// Rows that `tiles` does not take, which are rare, meet those of floats.
template <class Sum, class Weight, class ParallelFor, class Store>
void tile_product(const Tiles& tiles, const InputRows& input, int64_t N, const Weight& weight, const ParallelFor& parallel_for,
                  const Store& store) {
  if (tiles.takes == nullptr) return product_of_tiles<Sum>(tiles, input, N, weight, parallel_for, store);
  const auto row = [&](int64_t m) { return static_cast<const char*>(input.data) + m * input.K * input.element_size; };
  const auto takes = [&](int64_t m) { return tiles.takes(input.element, row(m), input.K); };
  for (int64_t first = 0, end = 0; first < input.M; first = end) {
    const bool taken = takes(first);
    for (end = first + 1; end < input.M && takes(end) == taken;) ++end;
    const InputRows alike{row(first), input.element, input.element_size, end - first, input.K};
    product_of_tiles<Sum>(taken ? tiles : *kernels().f32, alike, N, weight, parallel_for,
                          [&](int64_t m, int64_t column, int64_t count, const Sum* sums, const float* row_scales) {
                            store(first + m, column, count, sums, row_scales);
                          });
  }
}

}  // namespace aoext::cpu

// What the tensors of weight_int4pack_mm must be, in plain integers and in words: for the operator's check and for the library
// of csrc/int4pack_shim/, which knows nothing of torch.
#pragma once

#include <cstdint>
#include <string>

namespace aoext::int4pack {

constexpr const char* kInnerKTiles = "2, 4 or 8";
inline bool is_inner_k_tiles(int64_t n) { return n == 2 || n == 4 || n == 8; }

// What the sizes of a packed weight, [N/8, K/(16 · inner_k_tiles), 32, inner_k_tiles/2], say.
inline int64_t inner_k_tiles_of(const int64_t* sizes) { return 2 * sizes[3]; }
inline int64_t rows_of(const int64_t* sizes) { return 8 * sizes[0]; }

// Whether a tensor's sizes are those of a packed weight for this K.
bool is_weight(int64_t dim, const int64_t* sizes, int64_t K);
std::string weight_must_be(int64_t K);

bool is_group_size(int64_t group_size, int64_t K);
std::string group_size_must_be(int64_t K);

// Whether a tensor's sizes are those of scales and zeros [K/group_size, N, 2].
bool is_scale_and_zero(int64_t dim, const int64_t* sizes, int64_t groups, int64_t N);
std::string scale_and_zero_must_be(int64_t groups, int64_t N);

}  // namespace aoext::int4pack

#include "common/int4pack.h"

namespace aoext::int4pack {

bool is_weight(int64_t dim, const int64_t* sizes, int64_t K) {
  return dim == 4 && is_inner_k_tiles(inner_k_tiles_of(sizes)) && sizes[2] == 32 && sizes[1] * 16 * inner_k_tiles_of(sizes) == K;
}

std::string weight_must_be(int64_t K) {
  return std::string("int32 [N/8, K/(16 * inner_k_tiles), 32, inner_k_tiles/2] with inner_k_tiles ") + kInnerKTiles +
         " for an input with K = " + std::to_string(K);
}

bool is_group_size(int64_t group_size, int64_t K) {
  const bool listed = group_size == 32 || group_size == 64 || group_size == 128 || group_size == 256;
  return listed && K % group_size == 0;
}

std::string group_size_must_be(int64_t K) { return "32, 64, 128 or 256 and divide K = " + std::to_string(K); }

bool is_scale_and_zero(int64_t dim, const int64_t* sizes, int64_t groups, int64_t N) {
  return dim == 3 && sizes[0] == groups && sizes[1] == N && sizes[2] == 2;
}

std::string scale_and_zero_must_be(int64_t groups, int64_t N) {
  return "bfloat16 [K/group_size, N, 2] = [" + std::to_string(groups) + ", " + std::to_string(N) + ", 2]";
}

}  // namespace aoext::int4pack

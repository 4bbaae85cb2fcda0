// The launchers of scaled_int4_wgmma.cuh, and the kernel that sums chunks of x before it.
#include "cuda/kernels/sm90a/scaled_int4_wgmma.cuh"

#include "cuda/kernels/chunk_sums.cuh"
#include "cuda/kernels/sm90a/scaled_wgmma_launch.h"

namespace aoext::cuda::wgmma {
namespace {

constexpr int kSumThreads = 256;

// Sums of chunks of x: a lane takes 16 bytes, and the lanes of a chunk add their sums by shuffles. Chunks behind K are zeros.
template <Element kType>
__global__ void __launch_bounds__(kSumThreads) sum_chunks(const uint8_t* x, const ChunkSums sums, int64_t M, uint32_t K) {
  start_next_kernel();
  wait_for_last_kernel();
  const uint32_t lanes = sums.chunk / 16, row_pieces = static_cast<uint32_t>(sums.lines) * kSumChunks * lanes;
  const int64_t piece = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x, m = piece / row_pieces;
  const uint32_t in_row = static_cast<uint32_t>(piece - m * row_pieces);
  int sum = 0;
  if (m < M && in_row * 16 < K) {
    const uint4 v = *reinterpret_cast<const uint4*>(x + m * K + in_row * 16);
    sum = sum_of_codes<kType>(v.x) + sum_of_codes<kType>(v.y) + sum_of_codes<kType>(v.z) + sum_of_codes<kType>(v.w);
  }
  sum = sum_over_lanes(sum, lanes);
  if (m < M && in_row % lanes == 0) store_sum<kType>(sums, m, in_row / lanes, sum);
}

cudaError_t launch_sums(const ScaledLinear& p, const ChunkSums& sums, cudaStream_t stream) {
  const int64_t blocks = ceil_div(p.M * sums.lines * kSumChunks * (sums.chunk / 16), kSumThreads);
  if (blocks > (int64_t{1} << 31) - 1) return cudaErrorInvalidConfiguration;
  const Grid grid{dim3(static_cast<unsigned>(blocks)), dim3(kSumThreads), 0, stream, 1, Overlap::after_ours};
  const auto kernel = p.type == Element::int8 ? sum_chunks<Element::int8> : sum_chunks<Element::e4m3>;
  return launch(kernel, grid, static_cast<const uint8_t*>(p.x), sums, p.M, static_cast<uint32_t>(p.K));
}

template <Element kType, class Output, int kBlockM, int kSub>
cudaError_t launch_product(const ScaledLinear& p, const WgmmaConfig& c, const ChunkSums& sums, cudaStream_t stream) {
  using Empty = ScaledInt4Layout<Output, kBlockM, 0, kSub>;
  constexpr int kSharedMemory = (227 << 10) - int(sizeof(BlockWork));
  constexpr int kStages = std::min(8, (kSharedMemory - Empty::kBytes) / (Empty::kStage + Empty::kStageScales + 16));
  using L = ScaledInt4Layout<Output, kBlockM, kStages, kSub>;
  constexpr int kChunk = kLine / kSub;

  ScaledInt4Params a{};
  a.rowwise = rowwise_params<TileScheduler>(without_scales(p), c);
  a.rowwise.p.row_scale = p.x_scale;
  a.zero = p.zero, a.scale_type = p.scale_type, a.scale_k = p.scale_k;
  a.groups = static_cast<int>(w_groups(p)), a.group_chunks = a.groups == 1 ? 1 << 30 : static_cast<int>(p.w_group / kChunk);
  a.chunks = static_cast<int>(ceil_div(p.K, kChunk)), a.sum_lines = static_cast<int>(sums.lines);

  const int64_t copied = a.rowwise.copy_rows, scale_bytes = p.scale_type == Element::fp32 ? 4 : 2, sums_row = a.sum_lines * kLine;
  const TensorMap x(CU_TENSOR_MAP_DATA_TYPE_UINT8, p.x, CU_TENSOR_MAP_SWIZZLE_128B, {p.K, p.M}, {p.K}, {kLine, copied}),
      w(CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight, CU_TENSOR_MAP_SWIZZLE_64B, {p.K / 2, p.N}, {p.K / 2}, {L::kWLine, kPairN}),
      scale(map_type(p.scale_type), p.scale, CU_TENSOR_MAP_SWIZZLE_NONE, {p.N, a.groups}, {p.N * scale_bytes}, {kPairN, 1}),
      sums_of_x(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, sums.sums, CU_TENSOR_MAP_SWIZZLE_128B, {sums_row / 2, p.M}, {sums_row},
                {kLine / 2, copied});
  if (!x.valid || !w.valid || !scale.valid || !sums_of_x.valid) return cudaErrorNotSupported;
  const Grid grid{static_cast<unsigned>(c.blocks),  kRowwiseThreads,    L::kBytes, stream,
                  static_cast<unsigned>(c.cluster), Overlap::after_ours};
  return launch(scaled_int4_wgmma<kType, Output, kBlockM, kStages, kSub>, grid, x.map, w.map, scale.map, sums_of_x.map, a);
}

template <Element kType, Element kOutput, int kSub>
cudaError_t launch_tile(const ScaledLinear& p, const WgmmaConfig& c, const ChunkSums& sums, cudaStream_t stream) {
  using Output = std::conditional_t<kOutput == Element::fp16, __half, __nv_bfloat16>;
  cudaError_t error = cudaErrorInvalidValue;
  for_each_scaled_tile([&](auto tile) {
    using T = decltype(tile);
    if constexpr (has_scaled_tile(ScaledBy::group, kType, kOutput, T::kBlockN, T::kBlockM) && kSub >= least_sub(kType, kOutput))
      if (T::is_of(c)) error = launch_product<kType, Output, T::kBlockM, kSub>(p, c, sums, stream);
  });
  return error;
}

template <Element kType>
cudaError_t launch_type(const ScaledLinear& p, const WgmmaConfig& c, const ChunkSums& sums, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  each<1, 2, 4>([&](auto sub) {
    if (scaled_kind(p).sub == sub)
      error = p.output == Element::fp16 ? launch_tile<kType, Element::fp16, sub>(p, c, sums, stream)
                                        : launch_tile<kType, Element::bf16, sub>(p, c, sums, stream);
  });
  return error;
}

}  // namespace

cudaError_t launch_scaled_int4(const ScaledLinear& p, const WgmmaConfig& c, void* workspace, cudaStream_t stream) {
  ChunkSums sums = p.sums;
  if (sums.sums == nullptr) {
    sums = scaled_sums(p), sums.sums = workspace;
    const cudaError_t error = launch_sums(p, sums, stream);
    if (error != cudaSuccess) return error;
  }
  return p.type == Element::int8 ? launch_type<Element::int8>(p, c, sums, stream)
                                 : launch_type<Element::e4m3>(p, c, sums, stream);
}

}  // namespace aoext::cuda::wgmma

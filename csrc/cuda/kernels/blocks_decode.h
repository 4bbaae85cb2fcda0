// Products with a scale a block of w for few rows of x: what rowwise_decode.cuh computes of blocks_decode.cuh's weights.
// Deterministic; needs no workspace; may be captured in a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/kernels/blocks.h"
#include "cuda/kernels/rowwise_decode.h"
#include "cuda/properties.h"

namespace aoext::cuda {

struct BlocksDecodeConfig : RowwiseDecodeConfig {
  bool operator==(const BlocksDecodeConfig&) const = default;
};

// M <= 16, rows of w of whole 16 bytes, block_k a multiple of 16 or all of K, x and weight at 16-byte alignment; x of bf16 or
// fp16.
bool blocks_decode_takes(const BlockLinear& p);
// Whether weights are multiplied as they are, and scales in float32.
bool blocks_decode_is_exact(const BlockLinear& p);
BlocksDecodeConfig choose_blocks_decode(const BlockLinear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool blocks_decode_fits(const BlockLinear& p, const BlocksDecodeConfig& c);
cudaError_t launch_blocks_decode(const BlockLinear& p, const BlocksDecodeConfig& c, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string blocks_decode_instances();
std::string blocks_decode_instance(const BlockLinear& p, const BlocksDecodeConfig& c);

}  // namespace aoext::cuda

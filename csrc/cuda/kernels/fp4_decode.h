// Products of codes of 4 bits with a power of two for 32 k, or an e4m3 for 16, for few rows of x in bf16: mxfp4 and nvfp4.
// Deterministic; needs no workspace; may be captured in a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/kernels/blocks.h"
#include "cuda/kernels/rowwise_decode.h"
#include "cuda/properties.h"

namespace aoext::cuda {

struct Fp4DecodeConfig : RowwiseDecodeConfig {
  bool operator==(const Fp4DecodeConfig&) const = default;
};

// M <= 16, x of bf16, blocks of one row by 32 k with scales of e8m0 or by 16 with e4m3, K a multiple of 128; x and weight at
// 16-byte alignment, scales at 8 bytes. It is fast where the table is e2m1's, and right for any.
bool fp4_decode_takes(const BlockLinear& p);
Fp4DecodeConfig choose_fp4_decode(const BlockLinear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool fp4_decode_fits(const BlockLinear& p, const Fp4DecodeConfig& c);
cudaError_t launch_fp4_decode(const BlockLinear& p, const Fp4DecodeConfig& c, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string fp4_decode_instances();
std::string fp4_decode_instance(const BlockLinear& p, const Fp4DecodeConfig& c);

}  // namespace aoext::cuda

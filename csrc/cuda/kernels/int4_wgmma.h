// The int4 product by wgmma, from 17 rows of x on: kernels/sm90a/weight_only_wgmma.cuh with int4_wgmma.cuh.
#pragma once

#include "cuda/kernels/int4.h"
#include "cuda/kernels/kernel.h"
#include "cuda/kernels/weight_only_wgmma.h"

namespace aoext::cuda {

template <>
struct KernelOf<Int4WgmmaConfig> : KernelTraits<Int4WgmmaConfig, Int4Linear> {
  static constexpr const char* kName = "int4_wgmma";
  static constexpr auto kFields = kWgmmaFields<Int4WgmmaConfig>;
  static constexpr Features kNeeds{.wgmma = true};
  // Whether the kernel reads a problem of these sizes at all; it also wants a 16-byte alignment of everything.
  static bool takes(const Int4Linear& p);
  static Choice<Int4WgmmaConfig> choose(const Int4Linear& p, const Device& device);
  static bool fits(const Int4Linear& p, const Int4WgmmaConfig& c);
  static size_t workspace(const Int4Linear& p, const Int4WgmmaConfig& c);
  static cudaError_t launch(const Int4Linear& p, const Int4WgmmaConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const Int4Linear& p, const Int4WgmmaConfig& c);
};

}  // namespace aoext::cuda

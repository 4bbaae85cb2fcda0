// The int4 kernels for CUDA by name and configuration, past the plan: what time_cuts.py calls.
#include <algorithm>
#include <vector>

#include "cuda/kernels/int4_batch.h"
#include "cuda/kernels/int4_decode.h"
#include "cuda/kernels/int4_mma.h"
#include "cuda/kernels/int4_wgmma.h"

using namespace aoext::cuda;

namespace {

enum Kernel { kDecode, kMma, kWgmma, kBatch };

// Configurations travel as the ints that they are made of.
template <class Config>
Config from_ints(const int* ints) {
  return *reinterpret_cast<const Config*>(ints);
}

template <class Config>
int to_ints(const Config& config, int* ints) {
  static_assert(sizeof(Config) % sizeof(int) == 0);
  constexpr int kCount = sizeof(Config) / sizeof(int);
  std::copy_n(reinterpret_cast<const int*>(&config), kCount, ints);
  return kCount;
}

}  // namespace

extern "C" {

// What the plan would take: how many ints it wrote, 0 where the kernel does not serve.
int choose(int kernel, const Int4Linear* p, int multiprocessors, int shared_memory, int hopper, int* config) {
  if (!serves_int4_mma(*p)) return 0;
  if (kernel == kDecode) return p->M > 16 ? 0 : to_ints(choose_int4_decode(*p, multiprocessors, shared_memory, hopper), config);
  if (kernel == kMma) return to_ints(choose_int4_mma(*p, multiprocessors), config);
#ifdef WITH_HOPPER
  if (kernel == kBatch && int4_batch_takes(*p)) return to_ints(choose_int4_batch(*p, multiprocessors, shared_memory), config);
  if (kernel == kWgmma && int4_wgmma_takes(*p)) return to_ints(choose_int4_wgmma(*p, multiprocessors), config);
#endif
  return 0;
}

size_t workspace_bytes(int kernel, const Int4Linear* p, const int* config) {
#ifdef WITH_HOPPER
  if (kernel == kBatch) return int4_batch_workspace(*p, from_ints<BatchConfig>(config));
  if (kernel == kWgmma) return int4_wgmma_workspace(*p, from_ints<WgmmaConfig>(config));
#endif
  return kernel == kMma ? int4_mma_workspace(*p, from_ints<MmaConfig>(config)) : 0;
}

// A cudaError_t.
int launch(int kernel, const Int4Linear* p, const int* config, void* workspace, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (kernel == kDecode) return launch_int4_decode(*p, from_ints<DecodeConfig>(config), on);
  if (kernel == kMma) return launch_int4_mma(*p, from_ints<MmaConfig>(config), workspace, on);
#ifdef WITH_HOPPER
  if (kernel == kBatch) return launch_int4_batch(*p, from_ints<BatchConfig>(config), workspace, on);
  return launch_int4_wgmma(*p, from_ints<WgmmaConfig>(config), workspace, on);
#else
  return cudaErrorNotSupported;
#endif
}

}  // extern "C"

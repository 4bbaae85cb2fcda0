// The CUDA kernels by name and configuration, past the plan: what time_cuts.py calls.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "cuda/kernels/int4_batch.h"
#include "cuda/kernels/int4_decode.h"
#include "cuda/kernels/int4_mma.h"
#include "cuda/kernels/int4_ring.h"
#include "cuda/kernels/int4_wgmma.h"
#include "cuda/kernels/rowwise_decode.h"
#include "cuda/kernels/rowwise_mma.h"
#include "cuda/kernels/rowwise_wgmma.h"
#include "cuda/kernels/weight_only_wgmma.h"
#include "cuda/properties.h"

using namespace aoext::cuda;

namespace {

// A problem is an Int4Linear or a RowwiseLinear; configurations travel as the ints that they are made of.
struct Kernel {
  const char* name;
  int (*choose)(const void* problem, const Device& device,
                int* config);                                   // how many ints it wrote, 0 where the kernel does not serve
  size_t (*workspace)(const void* problem, const int* config);  // bytes
  cudaError_t (*launch)(const void* problem, const int* config, void* workspace, cudaStream_t stream);
};

template <class T>
const T& as(const void* data) {
  return *static_cast<const T*>(data);
}

template <class Config>
int to_ints(const Config& config, int* ints) {
  static_assert(sizeof(Config) % sizeof(int) == 0);
  constexpr int kCount = sizeof(Config) / sizeof(int);
  std::copy_n(reinterpret_cast<const int*>(&config), kCount, ints);
  return kCount;
}

template <class Config>
int to_ints(const Choice<Config>& choice, int* ints) {
  return to_ints(choice.config, ints);
}

size_t no_workspace(const void*, const int*) { return 0; }

// Of kernels that have one: their functions differ in their names and configurations alone.
template <class Problem, class Config, bool (*kTakes)(const Problem&), auto kChoose,
          size_t (*kWorkspace)(const Problem&, const Config&),
          cudaError_t (*kLaunch)(const Problem&, const Config&, void*, cudaStream_t)>
Kernel tiled(const char* name) {
  return {name,
          [](const void* p, const Device& device, int* config) {
            return kTakes(as<Problem>(p)) ? to_ints(kChoose(as<Problem>(p), device), config) : 0;
          },
          [](const void* p, const int* config) { return kWorkspace(as<Problem>(p), as<Config>(config)); },
          [](const void* p, const int* config, void* workspace, cudaStream_t stream) {
            return kLaunch(as<Problem>(p), as<Config>(config), workspace, stream);
          }};
}

// Of kernels for few rows, which have none.
template <class Problem, class Config, bool (*kTakes)(const Problem&), auto kChoose,
          cudaError_t (*kLaunch)(const Problem&, const Config&, cudaStream_t)>
Kernel few_rows(const char* name) {
  return {name,
          [](const void* p, const Device& device, int* config) {
            return kTakes(as<Problem>(p)) ? to_ints(kChoose(as<Problem>(p), device), config) : 0;
          },
          no_workspace,
          [](const void* p, const int* config, void*, cudaStream_t stream) {
            return kLaunch(as<Problem>(p), as<Config>(config), stream);
          }};
}

const Kernel kKernels[] = {
    few_rows<Int4Linear, RingConfig, int4_ring_takes, choose_int4_ring, launch_int4_ring>("int4_ring"),
    few_rows<Int4Linear, DecodeConfig, int4_decode_takes, choose_int4_decode, launch_int4_decode>("int4_decode"),
    tiled<Int4Linear, MmaConfig, serves_int4_mma, choose_int4_mma, int4_mma_workspace, launch_int4_mma>("int4_mma"),
    few_rows<RowwiseLinear, RowwiseDecodeConfig, rowwise_decode_takes, choose_rowwise_decode, launch_rowwise_decode>(
        "rowwise_decode"),
    tiled<RowwiseLinear, RowwiseMmaConfig, rowwise_mma_takes, choose_rowwise_mma, rowwise_mma_workspace, launch_rowwise_mma>(
        "rowwise_mma"),
#ifdef WITH_HOPPER
    {"int4_batch",
     [](const void* p, const Device& device, int* config) {
       const auto& problem = as<Int4Linear>(p);
       return serves_int4_mma(problem) && int4_batch_takes(problem) ? to_ints(choose_int4_batch(problem, device), config) : 0;
     },
     [](const void* p, const int* config) { return int4_batch_workspace(as<Int4Linear>(p), as<BatchConfig>(config)); },
     [](const void* p, const int* config, void* workspace, cudaStream_t stream) {
       return launch_int4_batch(as<Int4Linear>(p), as<BatchConfig>(config), workspace, stream);
     }},
    tiled<Int4Linear, WgmmaConfig, int4_wgmma_takes, choose_int4_wgmma, int4_wgmma_workspace, launch_int4_wgmma>("int4_wgmma"),
    {"rowwise_wgmma",
     [](const void* p, const Device& device, int* config) {
       const auto& problem = as<RowwiseLinear>(p);
       return rowwise_wgmma_takes(problem) ? to_ints(choose_rowwise_wgmma(problem, device), config) : 0;
     },
     no_workspace,
     [](const void* p, const int* config, void*, cudaStream_t stream) {
       return launch_rowwise_wgmma(as<RowwiseLinear>(p), as<WgmmaConfig>(config), stream);
     }},
    tiled<RowwiseLinear, WgmmaConfig, weight_only_wgmma_takes, choose_weight_only_wgmma, weight_only_wgmma_workspace,
          launch_weight_only_wgmma>("weight_only_wgmma"),
#endif
};

}  // namespace

extern "C" {

// The number of a kernel, -1 where this GPU has it not.
int find_kernel(const char* name) {
  const auto found = std::find_if(std::begin(kKernels), std::end(kKernels),
                                  [&](const Kernel& kernel) { return std::strcmp(kernel.name, name) == 0; });
  return found == std::end(kKernels) ? -1 : static_cast<int>(found - std::begin(kKernels));
}

// What the plan takes on a device by its index.
int choose(int kernel, const void* problem, int device, int* config) {
  return kKernels[kernel].choose(problem, device_of(device), config);
}

size_t workspace_bytes(int kernel, const void* problem, const int* config) { return kKernels[kernel].workspace(problem, config); }

// A cudaError_t.
int launch(int kernel, const void* problem, const int* config, void* workspace, void* stream) {
  return kKernels[kernel].launch(problem, config, workspace, static_cast<cudaStream_t>(stream));
}

}  // extern "C"

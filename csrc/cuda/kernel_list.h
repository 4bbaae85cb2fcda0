// The kernels that plans are one of, and what goes over them: plans as text, for aoext.explain, forced ones, launches. A list is
// a std::variant of configurations; kernels/kernel.h says what each is beside.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <variant>

#include "common/explanation.h"
#include "common/forced.h"
#include "cuda/kernels/blocks_any.h"
#include "cuda/kernels/blocks_decode.h"
#include "cuda/kernels/blocks_mma.h"
#include "cuda/kernels/blocks_wgmma.h"
#include "cuda/kernels/fp4_decode.h"
#include "cuda/kernels/int4_any.h"
#include "cuda/kernels/int4_batch.h"
#include "cuda/kernels/int4_decode.h"
#include "cuda/kernels/int4_grouped_ring.h"
#include "cuda/kernels/int4_grouped_wgmma.h"
#include "cuda/kernels/int4_mma.h"
#include "cuda/kernels/int4_ring.h"
#include "cuda/kernels/int4_wgmma.h"
#include "cuda/kernels/packed_any.h"
#include "cuda/kernels/packed_decode.h"
#include "cuda/kernels/packed_mma.h"
#include "cuda/kernels/packed_tiles.h"
#include "cuda/kernels/packed_wgmma.h"
#include "cuda/kernels/rowwise_any.h"
#include "cuda/kernels/rowwise_decode.h"
#include "cuda/kernels/rowwise_mma.h"
#include "cuda/kernels/rowwise_wgmma.h"
#include "cuda/kernels/scaled_any.h"
#include "cuda/kernels/scaled_wgmma.h"
#include "cuda/kernels/tinygemm.h"
#include "cuda/kernels/weight_only_wgmma.h"

namespace aoext::cuda {

// ATen operators, where nothing else serves, whatever the operands are. Who sees this plan calls them.
struct Generic {
  bool operator==(const Generic&) const = default;
};
template <>
struct KernelOf<Generic> : AnyKernel<Generic, void*> {
  static constexpr const char* kName = "generic";
  static size_t workspace(const auto&, const Generic&) { return 0; }
  static cudaError_t launch(const auto&, const Generic&, void*, cudaStream_t) { return cudaErrorNotSupported; }
  static std::string instance(const auto&, const Generic&) { return ""; }
};

// The plain layout in a workspace, and what plan_int4 says for it (int4pack_product.h).
struct TinygemmUnpack {
  bool operator==(const TinygemmUnpack&) const = default;
};
template <>
struct KernelOf<TinygemmUnpack> : AnyKernel<TinygemmUnpack, TinygemmLinear> {
  static constexpr const char* kName = "tinygemm_unpack";
};

// The weight in the input's type in a workspace, and cuBLAS through ATen. Who sees this plan does that.
struct PackedDequantize {
  bool operator==(const PackedDequantize&) const = default;
};
template <>
struct KernelOf<PackedDequantize> : AnyKernel<PackedDequantize, PackedLinear> {
  static constexpr const char* kName = "packed_dequantize";
  static cudaError_t launch(const PackedLinear&, const PackedDequantize&, void*, cudaStream_t) { return cudaErrorNotSupported; }
};

using Int4Kernels = std::variant<Generic, Int4Any, RingConfig, DecodeConfig, BatchConfig, Int4WgmmaConfig, MmaConfig,
                                 GroupedRingConfig, GroupedWgmmaConfig>;
using RowwiseKernels =
    std::variant<Generic, RowwiseAny, RowwiseDecodeConfig, RowwiseWgmmaConfig, WeightOnlyWgmmaConfig, RowwiseMmaConfig>;
using BlocksKernels = std::variant<Generic, BlocksAny, BlocksDecodeConfig, Fp4DecodeConfig, BlocksWgmmaConfig, BlocksMmaConfig>;
using ScaledKernels = std::variant<Generic, ScaledAny, ScaledWgmmaConfig>;
using PackedKernels =
    std::variant<Generic, PackedAny, PackedDecodeConfig, PackedMmaConfig, PackedTilesConfig, PackedWgmmaConfig, PackedDequantize>;
using TinygemmKernels = std::variant<Generic, TinygemmUnpack, TinygemmConfig>;

// Those for products of experts: some serve one weight for all rows as well, others do not.
using ExpertsToo =
    std::variant<Generic, Int4Any, RowwiseAny, RowwiseDecodeConfig, WeightOnlyWgmmaConfig, BlocksAny, BlocksDecodeConfig,
                 Fp4DecodeConfig, BlocksWgmmaConfig, RowwiseWgmmaConfig, ScaledAny, ScaledWgmmaConfig, RowwiseMmaConfig,
                 BlocksMmaConfig, PackedAny, PackedMmaConfig, PackedTilesConfig>;
using ExpertsAlone = std::variant<GroupedRingConfig, GroupedWgmmaConfig>;

template <class Config, class... Configs>
constexpr bool is_in(const std::variant<Configs...>* /*list*/) {
  return (std::is_same_v<Config, Configs> || ...);
}

// Whether a kernel is for products of so many experts, 0 where one weight is for all rows of x.
template <class Config>
constexpr bool serves(int64_t experts) {
  constexpr bool kAlone = is_in<Config>(static_cast<ExpertsAlone*>(nullptr));
  return experts == 0 ? !kAlone : kAlone || is_in<Config>(static_cast<ExpertsToo*>(nullptr));
}

// f(Config{}) of each kernel in a list.
template <class... Configs, class F>
void for_each_kernel(const std::variant<Configs...>& /*list*/, F&& f) {
  (f(Configs{}), ...);
}

// f(Config{}) of every kernel that there is; those in several lists come several times.
template <class F>
void for_each_kernel(F&& f) {
  for_each_kernel(Int4Kernels(), f), for_each_kernel(RowwiseKernels(), f), for_each_kernel(BlocksKernels(), f),
      for_each_kernel(ScaledKernels(), f), for_each_kernel(PackedKernels(), f), for_each_kernel(TinygemmKernels(), f);
}

template <class Kernels>
bool is_generic(const Kernels& kernel) {
  return std::holds_alternative<Generic>(kernel);
}

// "int4_mma block_n=128 block_m=32 splits=1"
template <class Config>
std::string text_of(const Config& c) {
  std::string all = KernelOf<Config>::kName;
  for (const Field<Config>& field : KernelOf<Config>::kFields)
    all += std::string(" ") + field.name + "=" + std::to_string(c.*field.member);
  return all;
}

template <class Kernels>
std::string text(const Kernels& kernel) {
  return std::visit([]<class Config>(const Config& c) { return text_of(c); }, kernel);
}

// The same for aoext.explain: what it prints, with_plan takes.
template <class Kernels>
Explanation explain(const Kernels& kernel) {
  if (is_generic(kernel)) return generic_explanation();
  return std::visit(
      []<class Config>(const Config& c) {
        Explanation e{"cuda", KernelOf<Config>::kName};
        for (const Field<Config>& field : KernelOf<Config>::kFields) e.with(field.name, int64_t{c.*field.member});
        return e;
      },
      kernel);
}

// The line of the instance that a launch runs, empty where there is but one (kernels/instances.h).
template <class Kernels, class Problem>
std::string instance(const Kernels& kernel, const Problem& p) {
  return std::visit([&]<class Config>(const Config& c) { return KernelOf<Config>::instance(p, c); }, kernel);
}

template <class Kernels, class Problem>
size_t workspace_bytes(const Kernels& kernel, const Problem& p) {
  return std::visit([&]<class Config>(const Config& c) { return KernelOf<Config>::workspace(p, c); }, kernel);
}

// `workspace` may be null where workspace_bytes is 0.
template <class Kernels, class Problem>
cudaError_t launch_kernel(const Kernels& kernel, const Problem& p, void* workspace, cudaStream_t stream) {
  return std::visit([&]<class Config>(const Config& c) { return KernelOf<Config>::launch(p, c, workspace, stream); }, kernel);
}

// ---- Forced kernels ----

// RuntimeError that names a field that a device lacks what it needs for.
inline void check_on_device(const Forced& f, const Device& device) {
  for (const auto& [name, value] : f.fields) {
    const auto must_be = [&](const std::string& what) {
      refuse_plan(name + " must be " + what + " on " + device.name + ", got " + std::to_string(value));
    };
    if (name == "cluster" && value > 1 && !device.features.clusters) must_be("1");
    if (name == "overlaps" && value > 0 && !device.features.overlap) must_be("0");
    if (name == "shared_memory" && value > device.shared_memory) must_be("at most " + std::to_string(device.shared_memory));
    if (name == "float8" && value > 0 && device.capability < 89) must_be("0");
  }
}

// What this thread forces if that is in a list, and for products of so many experts; others go on as ever.
template <class Kernels>
const Forced* forced_in(int64_t experts = 0) {
  const Forced* const f = forced();
  bool found = false;
  if (f != nullptr)
    for_each_kernel(Kernels(), [&]<class Config>(const Config&) {
      found = found || (f->kernel == KernelOf<Config>::kName && serves<Config>(experts));
    });
  return found ? f : nullptr;
}

// The forced kernel, with the configuration that it would be given but for the fields that are forced. `any`: whether kernels for
// any problem serve this one, `fast`: whether all others may. RuntimeError that names what does not fit; `problem` is for
// messages.
template <class Kernels, class Problem>
Kernels forced_kernel(const Forced& f, const std::string& problem, const Problem& p, const Device& device, bool any, bool fast) {
  Kernels kernel;
  for_each_kernel(kernel, [&]<class Config>(const Config&) {
    using K = KernelOf<Config>;
    if constexpr (!std::is_same_v<Config, Generic>) {
      if (f.kernel != K::kName) return;
      if (!(K::kAny ? any : fast && device.features.cover(K::kNeeds) && K::takes(p))) refuse_kernel(f, problem, device.name);
      check_on_device(f, device);
      const bool whole = f.fields.size() == K::kFields.size();  // leaves nothing to choose
      Config config = whole ? Config{} : K::choose(p, device).config;
      for (const Field<Config>& field : K::kFields) config.*field.member = f.field(field.name, config.*field.member);
      bool fits;
      if constexpr (requires { K::fits(p, config, device); })
        fits = K::fits(p, config, device);
      else
        fits = K::fits(p, config);
      if (!fits) refuse_config(f, problem, text_of(config));
      kernel = config;
    }
  });
  return kernel;
}

}  // namespace aoext::cuda

// Plans as text and back: the name of every kernel, and of every field of its configuration. Whoever prints, compares with what
// somebody asks for, or lists plans, reads these tables.
#pragma once

#include <array>
#include <string>
#include <variant>

#include "cuda/kernels/blocks_decode.h"
#include "cuda/kernels/blocks_mma.h"
#include "cuda/kernels/blocks_wgmma.h"
#include "cuda/kernels/fp4_decode.h"
#include "cuda/kernels/int4_batch.h"
#include "cuda/kernels/int4_decode.h"
#include "cuda/kernels/int4_grouped_ring.h"
#include "cuda/kernels/int4_grouped_wgmma.h"
#include "cuda/kernels/int4_mma.h"
#include "cuda/kernels/int4_ring.h"
#include "cuda/kernels/int4_wgmma.h"
#include "cuda/kernels/rowwise_decode.h"
#include "cuda/kernels/rowwise_mma.h"
#include "cuda/kernels/rowwise_wgmma.h"
#include "cuda/kernels/scaled_wgmma.h"
#include "cuda/kernels/tinygemm.h"
#include "cuda/kernels/weight_only_wgmma.h"

namespace aoext::cuda {

// What has nothing to be configured.
struct Generic {  // ATen operators, where nothing else serves
  bool operator==(const Generic&) const = default;
};
struct Int4Any {  // every size, type and alignment (kernels/int4_any.cu)
  bool operator==(const Int4Any&) const = default;
};
struct GroupedInt4Any {  // likewise (kernels/int4_grouped_any.cu)
  bool operator==(const GroupedInt4Any&) const = default;
};
struct RowwiseAny {  // likewise (kernels/rowwise_any.cu)
  bool operator==(const RowwiseAny&) const = default;
};
struct BlocksAny {  // likewise (kernels/blocks_any.cu)
  bool operator==(const BlocksAny&) const = default;
};

struct ScaledAny {  // likewise (kernels/scaled_any.cu)
  bool operator==(const ScaledAny&) const = default;
};
struct TinygemmUnpack {  // the plain layout in a workspace, and bf16i4bf16_rowwise's kernels for it
  bool operator==(const TinygemmUnpack&) const = default;
};

template <class Config>
struct Field {
  const char* name;
  int Config::* member;
};

template <class Config>
using NoFields = std::array<Field<Config>, 0>;

// kKernel: the kernel that a configuration is of, for people; kAll: its fields.
template <class Config>
struct Fields;

template <>
struct Fields<Generic> {
  static constexpr const char* kKernel = "generic";
  static constexpr NoFields<Generic> kAll{};
};
template <>
struct Fields<Int4Any> {
  static constexpr const char* kKernel = "int4_any";
  static constexpr NoFields<Int4Any> kAll{};
};
template <>
struct Fields<GroupedInt4Any> {
  static constexpr const char* kKernel = "int4_grouped_any";
  static constexpr NoFields<GroupedInt4Any> kAll{};
};
template <>
struct Fields<RowwiseAny> {
  static constexpr const char* kKernel = "rowwise_any";
  static constexpr NoFields<RowwiseAny> kAll{};
};
template <>
struct Fields<BlocksAny> {
  static constexpr const char* kKernel = "blocks_any";
  static constexpr NoFields<BlocksAny> kAll{};
};

template <>
struct Fields<ScaledAny> {
  static constexpr const char* kKernel = "scaled_any";
  static constexpr NoFields<ScaledAny> kAll{};
};
template <>
struct Fields<TinygemmUnpack> {
  static constexpr const char* kKernel = "tinygemm_unpack";
  static constexpr NoFields<TinygemmUnpack> kAll{};
};
template <class C, class... Own>
constexpr auto ring_fields(Own... own) {
  return std::to_array<Field<C>>({own...,
                                  {"warp_tiles", &C::warp_tiles},
                                  {"depth", &C::depth},
                                  {"tiles", &C::tiles},
                                  {"k_splits", &C::k_splits},
                                  {"cluster", &C::cluster},
                                  {"blocks", &C::blocks},
                                  {"shared_memory", &C::shared_memory},
                                  {"ahead", &C::ahead},
                                  {"overlaps", &C::overlaps}});
}
template <>
struct Fields<RingConfig> {
  static constexpr const char* kKernel = "int4_ring";
  static constexpr auto kAll = ring_fields<RingConfig>();
};
template <>
struct Fields<GroupedRingConfig> {
  using C = GroupedRingConfig;
  static constexpr const char* kKernel = "int4_grouped_ring";
  static constexpr auto kAll = ring_fields<C>(Field<C>{"block_m", &C::block_m});
};
template <>
struct Fields<DecodeConfig> {
  using C = DecodeConfig;
  static constexpr const char* kKernel = "int4_decode";
  static constexpr auto kAll = std::to_array<Field<C>>({{"block_m", &C::block_m},
                                                        {"warp_tiles", &C::warp_tiles},
                                                        {"stage_k_tiles", &C::stage_k_tiles},
                                                        {"tiles", &C::tiles},
                                                        {"k_splits", &C::k_splits},
                                                        {"cluster", &C::cluster},
                                                        {"blocks", &C::blocks},
                                                        {"shared_memory", &C::shared_memory},
                                                        {"overlaps", &C::overlaps}});
};
template <>
struct Fields<BatchConfig> {
  using C = BatchConfig;
  static constexpr const char* kKernel = "int4_batch";
  static constexpr auto kAll = std::to_array<Field<C>>({{"block_m", &C::block_m},
                                                        {"k_splits", &C::k_splits},
                                                        {"cluster", &C::cluster},
                                                        {"blocks", &C::blocks},
                                                        {"shared_memory", &C::shared_memory}});
};
template <>
struct Fields<MmaConfig> {
  using C = MmaConfig;
  static constexpr const char* kKernel = "int4_mma";
  static constexpr auto kAll =
      std::to_array<Field<C>>({{"block_n", &C::block_n}, {"block_m", &C::block_m}, {"splits", &C::splits}});
};
template <>
struct Fields<RowwiseMmaConfig> {
  using C = RowwiseMmaConfig;
  static constexpr const char* kKernel = "rowwise_mma";
  static constexpr auto kAll = std::to_array<Field<C>>(
      {{"block_n", &C::block_n}, {"block_m", &C::block_m}, {"splits", &C::splits}, {"float8", &C::float8}});
};
template <class Config>
constexpr auto kUnitFields = std::to_array<Field<Config>>({{"depth", &Config::depth},
                                                           {"tiles", &Config::tiles},
                                                           {"k_splits", &Config::k_splits},
                                                           {"cluster", &Config::cluster},
                                                           {"blocks", &Config::blocks},
                                                           {"shared_memory", &Config::shared_memory},
                                                           {"ahead", &Config::ahead},
                                                           {"overlaps", &Config::overlaps}});
template <>
struct Fields<RowwiseDecodeConfig> {
  static constexpr const char* kKernel = "rowwise_decode";
  static constexpr auto kAll = kUnitFields<RowwiseDecodeConfig>;
};
template <>
struct Fields<BlocksDecodeConfig> {
  static constexpr const char* kKernel = "blocks_decode";
  static constexpr auto kAll = kUnitFields<BlocksDecodeConfig>;
};
template <>
struct Fields<Fp4DecodeConfig> {
  static constexpr const char* kKernel = "fp4_decode";
  static constexpr auto kAll = kUnitFields<Fp4DecodeConfig>;
};
template <>
struct Fields<BlocksMmaConfig> {
  using C = BlocksMmaConfig;
  static constexpr const char* kKernel = "blocks_mma";
  static constexpr auto kAll =
      std::to_array<Field<C>>({{"block_n", &C::block_n}, {"block_m", &C::block_m}, {"splits", &C::splits}});
};
template <class Config>
constexpr auto kWgmmaFields = std::to_array<Field<Config>>({{"block_m", &Config::block_m},
                                                            {"cluster", &Config::cluster},
                                                            {"stream_k_blocks", &Config::stream_k_blocks},
                                                            {"blocks", &Config::blocks},
                                                            {"block_n", &Config::block_n},
                                                            {"x_is_left", &Config::x_is_left}});
template <>
struct Fields<Int4WgmmaConfig> {
  static constexpr const char* kKernel = "int4_wgmma";
  static constexpr auto kAll = kWgmmaFields<Int4WgmmaConfig>;
};
template <>
struct Fields<GroupedWgmmaConfig> {
  using C = GroupedWgmmaConfig;
  static constexpr const char* kKernel = "int4_grouped_wgmma";
  static constexpr auto kAll =
      std::to_array<Field<C>>({{"block_n", &C::block_n}, {"block_m", &C::block_m}, {"blocks", &C::blocks}});
};
template <>
struct Fields<WeightOnlyWgmmaConfig> {
  static constexpr const char* kKernel = "weight_only_wgmma";
  static constexpr auto kAll = kWgmmaFields<WeightOnlyWgmmaConfig>;
};
template <>
struct Fields<RowwiseWgmmaConfig> {
  static constexpr const char* kKernel = "rowwise_wgmma";
  static constexpr auto kAll = kWgmmaFields<RowwiseWgmmaConfig>;
};
template <>
struct Fields<BlocksWgmmaConfig> {
  static constexpr const char* kKernel = "blocks_wgmma";
  static constexpr auto kAll = kWgmmaFields<BlocksWgmmaConfig>;
};

template <>
struct Fields<ScaledWgmmaConfig> {
  static constexpr const char* kKernel = "scaled_wgmma";
  static constexpr auto kAll = kWgmmaFields<ScaledWgmmaConfig>;
};
template <>
struct Fields<TinygemmConfig> {
  using C = TinygemmConfig;
  static constexpr const char* kKernel = "tinygemm_mm";
  static constexpr auto kAll = std::to_array<Field<C>>({{"block_m", &C::block_m},
                                                        {"warps", &C::warps},
                                                        {"blocks", &C::blocks},
                                                        {"phase_chunks", &C::phase_chunks},
                                                        {"overlaps", &C::overlaps}});
};

// What the plans of operators are one of.
using Int4Kernel = std::variant<Generic, Int4Any, RingConfig, DecodeConfig, BatchConfig, Int4WgmmaConfig, MmaConfig>;
using GroupedInt4Kernel = std::variant<Generic, GroupedInt4Any, GroupedRingConfig, GroupedWgmmaConfig>;
using RowwiseKernel =
    std::variant<Generic, RowwiseAny, RowwiseDecodeConfig, RowwiseWgmmaConfig, WeightOnlyWgmmaConfig, RowwiseMmaConfig>;
using BlocksKernel = std::variant<Generic, BlocksAny, BlocksDecodeConfig, Fp4DecodeConfig, BlocksWgmmaConfig, BlocksMmaConfig>;
using ScaledKernel =
    std::variant<Generic, ScaledAny, ScaledWgmmaConfig, RingConfig, DecodeConfig, BatchConfig, Int4WgmmaConfig, MmaConfig>;
using TinygemmKernel = std::variant<Generic, TinygemmUnpack, TinygemmConfig>;

// "int4_mma block_n=128 block_m=32 splits=1"
template <class Config>
std::string text(const Config& c) {
  std::string all = Fields<Config>::kKernel;
  for (const Field<Config>& field : Fields<Config>::kAll)
    all += std::string(" ") + field.name + "=" + std::to_string(c.*field.member);
  return all;
}

template <class... Configs>
std::string text(const std::variant<Configs...>& kernel) {
  return std::visit([](const auto& config) { return text(config); }, kernel);
}

// For std::visit: one function of many.
template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

}  // namespace aoext::cuda

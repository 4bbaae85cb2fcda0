// Families of kernels: what plans choose among, what is trusted or not (self_check.h) and what probes try (probes.h), as values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/problem.h"
#include "sycl/device.h"
#include "sycl/modules.h"

namespace aoext::xpu {

// Where a kernel comes from: kernels/<source>.cpp, or oneDNN. A source of tile kernels has an image for each engine and types of
// its operands, any other has one.
enum class Source {
  int4_tile,
  int4_scaled_tile,
  rowwise_tile,
  blocks_tile,
  planes_tile,
  dequantize_blocks,
  dequantize_int4,
  int4_correction,
  int4pack_mm,
  linear_any,
  quantize_rowwise,
  scale_rows,
  sort_by_expert,
  onednn,
};

// One kernel of a tile source, all kernels of another source, or oneDNN's products by one pair of types.
struct Family {
  Source source = {};
  Engine engine = Engine::lanes;
  Code code = {};         // of the weight, and
  ScalarType input = {};  // of x: for tiles and oneDNN. A tile for several codes or types of x is called by one (tiles.h)
  int rows = 0;           // of y that a work-group computes: for tiles
  int group = 0;          // what the lengths of groups are multiples of: for tiles, where scales belong to groups

  auto operator<=>(const Family&) const = default;
};

bool is_tile(Source source);
std::string image(const Family& family);   // "int4_tile.dpas_bf16", "linear_any.lanes", "onednn.int8_bf16"
std::string name(const Family& family);    // the same; of a tile "int4_tile.dpas_bf16/int4_tile_m4_g128"
const Module* module(const Family& tile);  // null where this build has no such kernel

std::vector<Family> families(const Device& device);  // that this build has for it

}  // namespace aoext::xpu

#include "sycl/family.h"

#include <algorithm>

#include "common/formats.h"
#include "sycl/launch.h"
#include "sycl/tiles.h"

namespace aoext::xpu {
namespace {

constexpr Code kCodes[] = {Code::int4, Code::int8, Code::e4m3, Code::e5m2, Code::lut4, kPlanesCode};
constexpr ScalarType kInputs[] = {ScalarType::BFloat16, ScalarType::Half,          ScalarType::Float,
                                  ScalarType::Char,     ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2};

const char* source_name(Source source) {
  switch (source) {
    case Source::int4_tile: return "int4_tile";
    case Source::int4_scaled_tile: return "int4_scaled_tile";
    case Source::rowwise_tile: return "rowwise_tile";
    case Source::blocks_tile: return "blocks_tile";
    case Source::planes_tile: return "planes_tile";
    case Source::dequantize_blocks: return "dequantize_blocks";
    case Source::dequantize_int4: return "dequantize_int4";
    case Source::int4_correction: return "int4_correction";
    case Source::int4pack_mm: return "int4pack_mm";
    case Source::linear_any: return "linear_any";
    case Source::quantize_rowwise: return "quantize_rowwise";
    case Source::scale_rows: return "scale_rows";
    case Source::sort_by_expert: return "sort_by_expert";
    case Source::onednn: return "onednn";
  }
  return "";
}

const char* engine_name(Engine engine) {
  return engine == Engine::dpas ? "dpas" : engine == Engine::emulated ? "emulated" : "lanes";
}

const char* element_name(Element element) {
  constexpr const char* kNames[] = {"bf16", "fp16", "fp32", "int8", "e4m3", "e5m2", "int32", "e8m0", "lut4", "int4"};
  return kNames[static_cast<int>(element)];
}

// The types of a tile's or a product's operands; tiles of int4 and of planes are called after them already.
std::string types(const Family& f) {
  const std::string input = element_name(element(f.input));
  if (f.source == Source::onednn && f.code == kPlanesCode) return input + "_" + input;  // a weight that was dequantised
  const bool in_name = f.source == Source::int4_tile || f.source == Source::int4_scaled_tile || f.source == Source::planes_tile;
  return in_name ? input : element_name(element(f.code)) + ("_" + input);
}

std::string kernel_name(const Family& tile) {
  return source_name(tile.source) + ("_m" + std::to_string(tile.rows)) +
         (tile.group == 0 ? "" : "_g" + std::to_string(tile.group));
}

}  // namespace

bool is_tile(Source source) { return source <= Source::planes_tile; }

std::string image(const Family& f) {
  const std::string source = source_name(f.source);
  if (f.source == Source::onednn) return source + "." + types(f);
  return source + "." + engine_name(f.engine) + (is_tile(f.source) ? "_" + types(f) : "");
}

std::string name(const Family& f) { return is_tile(f.source) ? image(f) + "/" + kernel_name(f) : image(f); }

const Module* module(const Family& tile) { return find_module(image(tile), kernel_name(tile)); }

std::vector<Family> families(const Device& device) {
  std::vector<Family> found;
  if (!device.usable) return found;
  for (const Code code : kCodes) {
    for (const ScalarType input : kInputs) {
      const bool scaled = input == storage(code) && code != Code::int4;
      if (code != Code::lut4 && (is_high_precision(input) || scaled))
        found.push_back({Source::onednn, Engine::lanes, code, input});
      for (const Tiles& tiles : kTiles) {
        if (!tiles.has(code)) continue;
        for (const Engine engine : {Engine::lanes, device.engine})
          for (const int rows : kTileRows)
            for (const int group : {tiles.group, tiles.long_group})
              found.push_back({tiles.source, engine, code, input, rows, group});
      }
    }
  }
  for (const Source source : {Source::dequantize_blocks, Source::dequantize_int4, Source::int4pack_mm, Source::linear_any,
                              Source::quantize_rowwise, Source::sort_by_expert})
    found.push_back({source});
  std::sort(found.begin(), found.end());  // a device without a matrix engine, and tiles of one kind of groups, come twice
  found.erase(std::unique(found.begin(), found.end()), found.end());
  const auto missing = [](const Family& f) { return is_tile(f.source) && module(f) == nullptr; };
  found.erase(std::remove_if(found.begin(), found.end(), missing), found.end());
  return found;
}

}  // namespace aoext::xpu

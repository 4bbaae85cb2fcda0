// A matrix of high precision into the memory of a quantised weight, block by block: what it is scaled by, then its codes while it
// is in cache. Codes are a byte each on their way; those of 4 bits are packed when a row of the block has them.
#pragma once

#include "cpu/kernels/quantize.inc.h"

namespace aoext::cpu {
namespace {
namespace weights {

constexpr float kSmallestAbsmax = 1e-38f, kLift = 0x1p64f, kMagic = 0x1.8p23f;

inline F32 chosen(I32 mask, F32 a, F32 b) { return (F32)(((U32)a & (U32)mask) | ((U32)b & ~(U32)mask)); }
inline F32 least(F32 a, F32 b) { return chosen(a < b, a, b); }
inline F32 most(F32 a, F32 b) { return chosen(a > b, a, b); }
inline F32 clamped(F32 v, float low, float high) { return most(least(v, broadcast(high)), broadcast(low)); }

// What takes elements to the codes' range. A moderate divisor leaves nothing to clamp but int4's 8.

template <class Quotient>
struct Shifted {
  F32 low;
  Quotient quotient;
  F32 operator()(F32 x) const { return quotient(x - low); }
};

struct ClampedRatio {
  F32 divisor;
  float low, high;
  F32 operator()(F32 x) const { return clamped(x / divisor, low, high); }
};

// An eighth of what it is shifted by and divided by: their difference may be infinite.
struct EighthRatio {
  F32 low, divisor;
  F32 operator()(F32 x) const { return clamped((x * 0.125f - low) / divisor, 0, 15); }
};

struct UpTo7 {
  Corrected quotient;
  F32 operator()(F32 x) const { return least(quotient(x), broadcast(7)); }
};

struct Times {
  F32 factor;
  F32 operator()(F32 x) const { return x * factor; }
};

struct LiftedTimes {
  F32 lift, factor;
  F32 operator()(F32 x) const { return x * lift * factor; }
};

template <class Product>
struct Clamped {
  Product product;
  float limit;
  F32 operator()(F32 x) const { return clamped(product(x), -limit, limit); }
};

// Codes of magnitudes are the least of three straight lines, each rounded once.
struct E2m1 {
  static constexpr bool kSigned = true;
  static U32 code(F32 v) {
    const F32 m = magnitude(v), low = least(m * 2.0f + kMagic, m + (kMagic + 2));
    return (U32)least(low, least(m * 0.5f + (kMagic + 4), broadcast(kMagic + 7)));
  }
};

// The place of a value among those of a table in their order.
struct Places {
  static constexpr bool kSigned = false;
  const WeightToWrite& w;
  U32 code(F32 v) const {
    I32 place = {};
    for (int i = 0; i < 15; ++i) {
      const F32 border = broadcast(w.borders[i]);
      place -= w.by_sign[i] ? (v > border) | ((v == border) & ((I32)v >= 0)) : w.up[i] ? v >= border : v > border;
    }
    return (U32)place;
  }
};

// Bytes of codes, two to a byte: of e2m1 three bits and the sign above.
template <bool kSigned>
inline void pack(const uint8_t* codes, int64_t n, uint8_t flip, char* out) {
  for (int64_t i = 0; i < n / 2; ++i) {
    const uint32_t low = codes[2 * i], high = codes[2 * i + 1];
    out[i] = static_cast<char>(kSigned ? (low & 7) | (low >> 4 & 8) | (high & 7) << 4 | (high & 0x80)
                                       : ((low & 15) | (high & 15) << 4) ^ flip);
  }
}

// A scale ≥ 0 as it is where that is a normal number of its type, a smaller one rounded up.
inline float held(float scale, Element type) {
  if (!(scale < (type == Element::fp16 ? 0x1p-14f : 0x1p-126f))) return scale;
  if (type == Element::fp32) return scale < 0x1p-149f ? 0x1p-149f : scale;
  const float steps = __builtin_ceilf(type == Element::fp16 ? scale * 0x1p24f : scale * 0x1p100f * 0x1p33f);
  return (steps < 1 ? 1 : steps) * (type == Element::fp16 ? 0x1p-24f : 0x1p-133f);
}

inline uint8_t e4m3_of(float v) {
  return static_cast<uint8_t>(Float8</*kMantissa=*/3, /*kMinExponent=*/-6>::code(broadcast(v))[0]);
}

inline void store_scale(char* p, int64_t i, float v, Element type) {
  const bool is_nan = v != v;
  switch (type) {
    case Element::fp32: return store(p + 4 * i, v);
    case Element::bf16: return store(p + 2 * i, float_to_bf16(v));
    case Element::fp16: return store(p + 2 * i, float_to_f16(v));
    case Element::e8m0: return store(p + i, static_cast<uint8_t>(is_nan ? 255 : bits(v) >> 23));
    default: store(p + i, static_cast<uint8_t>(is_nan ? 0x7f : e4m3_of(v)));
  }
}

// Rows of one block.
struct Tile {
  const char* x;
  int64_t pitch, rows, columns;
};

template <Element kFrom>
inline uint32_t largest_of(const void* row, int64_t n) {
  if constexpr (kFrom == Element::fp32) return largest<uint32_t>(row, n);
  return bits((kFrom == Element::bf16 ? bf16_to_float : f16_to_float)(largest<uint16_t>(row, n)));
}

template <Element kFrom>
inline uint32_t largest_of(const Tile& tile) {
  uint32_t absmax = 0;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const uint32_t own = largest_of<kFrom>(tile.x + r * tile.pitch, tile.columns);
    absmax = own > absmax ? own : absmax;
  }
  return absmax;
}

template <Element kFrom>
inline void range_of(const Tile& tile, float& low, float& high) {
  constexpr int64_t kBytes = kFrom == Element::fp32 ? 4 : 2;
  F32 lows = broadcast(from_bits(kInfinity)), highs = -lows;
  const auto add = [&](F32 v) { lows = least(v, lows), highs = most(v, highs); };
  for (int64_t r = 0; r < tile.rows; ++r) {
    const char* const row = tile.x + r * tile.pitch;
    int64_t i = 0;
    for (; i + kFloats <= tile.columns; i += kFloats) add(floats_at<kFrom>(row + i * kBytes));
    for (float v; i < tile.columns; ++i) {
      to_float(kFrom, row + i * kBytes, &v, 1);
      add(broadcast(v));
    }
  }
  low = lows[0], high = highs[0];
  for (int i = 1; i < kFloats; ++i) {
    low = lows[i] < low ? lows[i] : low;
    high = highs[i] > high ? highs[i] : high;
  }
}

template <Element kFrom>
struct Writer {
  const WeightToWrite& w;
  const Tile& tile;
  char* out;  // codes of the block's first row
  uint8_t* space;

  int64_t row_bytes() const { return w.code == Element::int4 || w.code == Element::lut4 ? w.K / 2 : w.K; }

  void zeros() const {
    for (int64_t r = 0; r < tile.rows; ++r)
      memset(out + r * row_bytes(), 0, static_cast<size_t>(row_bytes() == w.K ? tile.columns : tile.columns / 2));
  }

  template <class Format, class Quotient>
  void bytes(const Quotient& quotient) const {
    for (int64_t r = 0; r < tile.rows; ++r)
      quantize<kFrom, Format>(tile.x + r * tile.pitch, tile.columns, quotient, out + r * row_bytes());
  }

  template <class Quotient>
  void bytes_of_code(const Quotient& quotient) const {
    if (w.code == Element::int8) return bytes<Int8>(quotient);
    if (w.code == Element::e4m3) return bytes<Float8</*kMantissa=*/3, /*kMinExponent=*/-6>>(quotient);
    bytes<Float8</*kMantissa=*/2, /*kMinExponent=*/-14>>(quotient);
  }

  template <class Format, class Quotient>
  void nibbles(const Quotient& quotient, uint8_t flip, const Format& format) const {
    for (int64_t r = 0; r < tile.rows; ++r) {
      quantize<kFrom, Format>(tile.x + r * tile.pitch, tile.columns, quotient, reinterpret_cast<char*>(space), format);
      pack<Format::kSigned>(space, tile.columns, flip, out + r * row_bytes());
    }
  }

  // int4; gives the scale and the zero point.
  float int4(float& zero_point) const {
    float low, high;
    range_of<kFrom>(tile, low, high);
    if (w.symmetric) {
      const float largest = high > -low ? high : -low, magnitude = held(largest / 8, w.scale_type);
      const float scale = high > -low ? -magnitude : magnitude;
      zero_point = 0;
      if (largest == 0) return zeros(), 0.0f;
      if (Corrected::serves(magnitude))
        nibbles<Int8>(UpTo7{Corrected(scale)}, 0, {});
      else
        nibbles<Int8>(ClampedRatio{broadcast(scale), -8, 7}, 0, {});
      return scale;
    }
    const float spread = high - low;
    if (spread == 0) return zero_point = low + 0.0f, zeros(), 0.0f;
    const bool wide = bits(spread) == kInfinity;
    const float scale = held(wide ? high / 15 - low / 15 : spread / 15, w.scale_type);
    zero_point = wide ? (low * 0.125f + scale) * 8 : low + 8 * scale;
    if (wide)
      nibbles<Int8>(EighthRatio{broadcast(low * 0.125f), broadcast(scale * 0.125f)}, 0x88, {});
    else if (Corrected::serves(scale))
      nibbles<Int8>(Shifted<Corrected>{broadcast(low), Corrected(scale)}, 0x88, {});
    else
      nibbles<Int8>(Shifted<ClampedRatio>{broadcast(low), {broadcast(scale), 0, 15}}, 0x88, {});
    return scale;
  }

  template <class Product>
  void multiplied(const Product& product) const {
    if (w.code != Element::lut4) return bytes_of_code(Clamped<Product>{product, w.limit});
    if (w.is_e2m1) return nibbles<E2m1>(product, 0, {});
    bool in_order = true;
    for (int i = 0; i < 16; ++i) in_order = in_order && w.order[i] == i;
    if (in_order) return nibbles<Places>(product, 0, Places{w});
    for (int64_t r = 0; r < tile.rows; ++r) {
      quantize<kFrom, Places>(tile.x + r * tile.pitch, tile.columns, product, reinterpret_cast<char*>(space), Places{w});
      for (int64_t i = 0; i < tile.columns; ++i) space[i] = w.order[space[i]];
      pack<false>(space, tile.columns, 0, out + r * row_bytes());
    }
  }

  void multiply(float lift, float factor) const {
    if (lift == 1) return multiplied(Times{broadcast(factor)});
    multiplied(LiftedTimes{broadcast(lift), broadcast(factor)});
  }

  // Other codes; gives the scale.
  float scaled(float amax) const {
    if (w.scale_type == Element::e8m0) {
      const uint32_t ratio = bits(amax / w.limit);
      const uint32_t wanted = ratio <= 1u << 22 ? 0 : (ratio + (1u << 23) - 1) >> 23, u = wanted < 254 ? wanted : 254;
      multiply(1, e8m0_to_float(static_cast<uint8_t>(254 - u)));
      return e8m0_to_float(static_cast<uint8_t>(u));
    }
    if (w.scale_type == Element::e4m3) {
      const float wanted = amax * w.lift / w.limit / w.whole;
      const float scale = e4m3_to_float(e4m3_of(wanted < 0x1p-6f ? 0x1p-6f : wanted > 448 ? 448 : wanted));
      multiply(w.lift, 1.0f / w.whole / scale);
      return scale;
    }
    if (w.code == Element::lut4) {
      const float lift = amax < kSmallestAbsmax ? kLift : 1, lifted = amax * lift;
      multiply(lift, w.limit / (lifted < kSmallestAbsmax ? kSmallestAbsmax : lifted));
      return amax / w.limit;
    }
    const float scale = amax > 0 ? held(amax / w.limit, w.scale_type) : 1;
    if (Corrected::serves(scale))
      bytes_of_code(Corrected(scale));
    else
      bytes_of_code(ClampedRatio{broadcast(scale), -w.limit, w.limit});
    return scale;
  }
};

template <Element kFrom>
inline bool write_rows(const WeightToWrite& w, int64_t begin, int64_t end, uint8_t* space) {
  constexpr int64_t kBytes = kFrom == Element::fp32 ? 4 : 2;
  const bool is_int4 = w.code == Element::int4;
  const int64_t row_blocks = (w.K - 1) / w.block_k + 1;
  bool broken = false;
  for (int64_t n = begin; n < end; ++n)
    for (int64_t k = 0; k < row_blocks; ++k) {
      const int64_t row = n * w.block_n, column = k * w.block_k;
      const Tile tile{w.x + row * w.pitch + column * kBytes, w.pitch, w.N - row < w.block_n ? w.N - row : w.block_n,
                      w.K - column < w.block_k ? w.K - column : w.block_k};
      const int64_t at = row * w.K + column;
      const Writer<kFrom> writer{w, tile, w.codes + (is_int4 || w.code == Element::lut4 ? at / 2 : at), space};
      const uint32_t absmax = largest_of<kFrom>(tile);
      float scale = from_bits(0x7fc00000u), zero_point = scale;
      if (absmax >= kInfinity || w.whole != w.whole)
        writer.zeros(), broken = true;
      else
        scale = is_int4 ? writer.int4(zero_point) : writer.scaled(from_bits(absmax));
      store_scale(w.scale, is_int4 ? k * w.N + n : n * row_blocks + k, scale, w.scale_type);
      if (is_int4) store_scale(w.zero_point, k * w.N + n, zero_point, w.scale_type);
    }
  return broken;
}

}  // namespace weights

bool write_weight(const WeightToWrite& w, int64_t begin, int64_t end, uint8_t* space) {
  if (w.type == Element::bf16) return weights::write_rows<Element::bf16>(w, begin, end, space);
  if (w.type == Element::fp16) return weights::write_rows<Element::fp16>(w, begin, end, space);
  return weights::write_rows<Element::fp32>(w, begin, end, space);
}

uint32_t largest_magnitude(Element from, const void* row, int64_t n) {
  if (from == Element::bf16) return weights::largest_of<Element::bf16>(row, n);
  if (from == Element::fp16) return weights::largest_of<Element::fp16>(row, n);
  return weights::largest_of<Element::fp32>(row, n);
}

}  // namespace
}  // namespace aoext::cpu

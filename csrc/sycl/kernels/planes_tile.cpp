// y[M, N] = x[M, K] · w[N, K]ᵀ + bias[N] for few rows, where the codes of w lie as common/layout.h says, and
//
//   w = code · scale + zero_point by groups of K, which lie beside the codes or in their blocks
//   x has 16 or 32 bits, or 8 bits and a scale for input_group_size elements of a row
//
// Memory is walked as split_k.h says: a lane reads its own row of w, the bytes of a k-step at a time, each once for all rows of
// the work-group's tile. planes.h makes int8 of a k-step's codes, eight_bit.h the operands of these. Where groups are multiples
// of 32, lane l multiplies x at k = 2 l and 2 l + 1; where they are of 16, an operation multiplies 16 neighbours: operation j
// dwords 4 j to 4 j + 3 of w, as 16-bit floats the halves of dword 4 j + e at k = 16 j + 4 e + 0 and 2, then at 1 and 3. Two
// operations on int8 share the operand w, and each has half of the lanes' x.
//
// AOEXT_PRODUCT is the type of an operation's operands: bf16 for x of bf16 or e4m3, fp16, int8, and fp32, for x of any type.
#include "eight_bit.h"
#include "group_tile.h"
#include "planes.h"

namespace aoext::xpu {
namespace {

constexpr Element kProductType = AOEXT_PRODUCT;
constexpr bool kExact = kProductType == Element::int8;

// What a lane multiplies of a row in a k-step from x on: two elements of kX, as halves of a dword, or as bytes of one.
template <Element kX, bool kLong>
inline uint32_t two_of(const char* x, int lane) {
  constexpr bool kWide = bits_of(kX) == 16;
  const int first = (lane & 12) | (lane & 1) << 1 | (lane >> 1 & 1);  // of 16 neighbours
  if constexpr (kLong) {
    return kWide ? reinterpret_cast<const uint32_t*>(x)[lane] : reinterpret_cast<const uint16_t*>(x)[lane];
  } else if constexpr (kWide) {
    const auto* const halves = reinterpret_cast<const uint16_t*>(x) + first;
    return halves[0] | uint32_t{halves[16]} << 16;
  } else {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(x) + first;
    return bytes[0] | bytes[16] << 8;
  }
}

// The same as two halves of the operands' type; e4m3 as bf16 a factor too small.
template <Element kX, bool kLong>
inline uint32_t halves_of(const char* x, int lane) {
  const uint32_t two = two_of<kX, kLong>(x, lane);
  return kX == Element::e4m3 ? decoded_pair<kX, Element::bf16, 0>((two | two << 8) & 0x00FF00FFu) : two;
}

// The same as two floats.
template <Element kX, bool kLong>
inline Vector<float, 2> floats_of(const char* x, int lane) {
  if constexpr (kX == Element::fp32) {
    const int first = (lane & 12) | (lane & 1) << 1 | (lane >> 1 & 1);
    const auto* const floats = reinterpret_cast<const float*>(x);
    return kLong ? Vector<float, 2>{floats[2 * lane], floats[2 * lane + 1]} : Vector<float, 2>{floats[first], floats[first + 16]};
  } else {
    const uint32_t two = two_of<kX, kLong>(x, lane);
    if constexpr (kX == Element::bf16) return {low_half<kX>(two), high_half<kX>(two)};
    if constexpr (kX == Element::fp16) return {low_half<kX>(two), high_half<kX>(two)};
    const auto low = static_cast<uint8_t>(two), high = static_cast<uint8_t>(two >> 8);
    if constexpr (kX == Element::int8)
      return {static_cast<float>(static_cast<int8_t>(low)), static_cast<float>(static_cast<int8_t>(high))};
    return {e4m3_to_float(low), e4m3_to_float(high)};
  }
}

template <int R, int B, int C, int kScaleK>
struct PlanesOperands {
  static constexpr bool kLong = kScaleK >= kStep;
  static constexpr Element kProduct = kProductType, kDecoded = decoded_type(kProduct);
  static constexpr int kOperations = kExact && kLong ? 1 : 2, kLimbs = 1, kBits = 0;
  static constexpr bool kZeroPoints = true, kRowScales = true;
  // What products of decoded codes are to be multiplied by, and those of e4m3 as bf16.
  static constexpr float kFactor = kExact ? 1.0f : kDecodedFactor<Element::int8, kDecoded>;
  static constexpr float kInputFactor = kDecodedFactor<Element::e4m3, Element::bf16>;
  static constexpr int kUnit = kLong ? kStep : kStep / 2;  // of groups

  using A = typename Tile<kProduct, R>::A;

  Planes planes;
  const char* rows[C];  // of w, those of the lane's columns
  GroupScales scales;
  Code code;
  Element input_type;
  GroupOf<kUnit> group_of;
  RowScales<R, B, kUnit> row_scales;
  bool scales_rows;

  void decode(int c, int k, Dwords (&b)[kOperations]) const {
    const CodeDwords codes = planes.step(rows[c], k);
    if constexpr (kExact) {
#pragma unroll
      for (int j = 0; j < kOperations; ++j) b[j] = sycl::bit_cast<Dwords>(codes);
    } else {
#pragma unroll
      for (int d = 0; d < 8; ++d) {
        const int even = decoded_pair<Element::int8, kDecoded, 0>(codes[d]),
                  odd = decoded_pair<Element::int8, kDecoded, 1>(codes[d]);
        b[kLong ? 0 : d / 4][kLong ? d : d % 4 * 2] = even;
        b[kLong ? 1 : d / 4][kLong ? d : d % 4 * 2 + 1] = odd;
      }
    }
  }

  template <class Output>
  void input(const void* x, const Output& out, int K, int k, int t, int i, A (&a)[1][kOperations]) const {
    const auto each_row = [&](Element type, const auto& take) {
      const int bytes = bits_of(type) / 8;
      const char* const own = static_cast<const char*>(x) + (out.first_row * K + k + t * kStep) * bytes;
#pragma unroll
      for (int r = 0; r < R; ++r) take(r, own + static_cast<unsigned>(out.rows[i][r]) * static_cast<unsigned>(K * bytes));
    };
    if constexpr (kExact) {
      each_row(Element::int8, [&](int r, const char* row) {
        const auto two = static_cast<short>(reinterpret_cast<const uint16_t*>(row)[out.lane]);
        set<R>(a[0][0], r, kLong || out.lane < 8 ? two : short{0});
        if constexpr (!kLong) set<R>(a[0][1], r, out.lane < 8 ? short{0} : two);
      });
    } else if constexpr (kProduct == Element::fp32) {
      const auto floats = [&](auto type) {
        constexpr Element kX = decltype(type)::value;
        each_row(kX, [&](int r, const char* row) {
          const auto two = floats_of<kX, kLong>(row, out.lane);
          set<R>(a[0][0], r, two[0]);
          set<R>(a[0][1], r, two[1]);
        });
      };
      switch (input_type) {
        case Element::bf16: return floats(std::integral_constant<Element, Element::bf16>());
        case Element::fp16: return floats(std::integral_constant<Element, Element::fp16>());
        case Element::fp32: return floats(std::integral_constant<Element, Element::fp32>());
        case Element::int8: return floats(std::integral_constant<Element, Element::int8>());
        default: return floats(std::integral_constant<Element, Element::e4m3>());
      }
    } else {
      const auto halves = [&](auto type) {
        constexpr Element kX = decltype(type)::value;
        each_row(kX, [&](int r, const char* row) {
          const uint32_t two = halves_of<kX, kLong>(row, out.lane);
          set<R>(a[0][0], r, static_cast<short>(two));
          set<R>(a[0][1], r, static_cast<short>(two >> 16));
        });
      };
      if (kProduct == Element::bf16 && input_type == Element::e4m3) {
        halves(std::integral_constant<Element, Element::e4m3>());
      } else {
        halves(std::integral_constant<Element, kProduct>());
      }
    }
  }

  Scale scale(int64_t column, int c, int k) const {
    if (planes.has_scales_inside()) {
      const ScaleAndZero own = scale_inside<kUnit>(code, planes.block(rows[c], k), planes.place(k));
      return {own.scale * kFactor, own.zero};
    }
    const auto [own, zero] = scales.at(group_of(k), column);
    return {own * kFactor, sycl::fma(static_cast<float>(planes.middle()), own, zero)};
  }

  bool has_row_scales() const { return scales_rows; }
  float row_scale(int k, int i) const { return row_scales.scale(k, i); }
};

template <int R, int B, int C, int kScaleK>
inline void planes_tile(void* y, const void* x, const void* weight, const Experts& experts, const void* scale,
                        const void* zero_point, const float* input_scale, const void* bias, int64_t M, int64_t N, int K,
                        int group_size, int input_group_size, Code code, Element input_type, Element output_type,
                        Element scale_type, Element bias_type) {
  using Operands = PlanesOperands<R, B, C, kScaleK>;
  const auto out = output_tile<R, B, C>(M, N, experts);
  if (out.expert == kNobody) return store_zeros(out, N, y, output_type);
  Operands w{Planes(code),
             {},
             {scale, zero_point, scale_type, N},
             code,
             input_type,
             GroupOf<Operands::kUnit>(group_size),
             RowScales<R, B, Operands::kUnit>(input_scale, out, K, input_group_size),
             input_scale != nullptr};
  const int64_t row_bytes = w.planes.row_bytes(K);
  const bool inside = w.planes.has_scales_inside();
  if (out.expert > 0) {
    const int64_t groups = inside ? 1 : w.group_of(K) * N;
    out.move(weight, N * row_bytes, Element::int8);
    out.move(w.scales.scales, groups, scale_type);
    out.move(w.scales.zero_points, groups, scale_type);
    out.move(bias, N, bias_type);
  }
#pragma unroll
  for (int c = 0; c < C; ++c) w.rows[c] = static_cast<const char*>(weight) + out.columns[c] * row_bytes;
  float factor = inside ? *static_cast<const float*>(w.scales.scales) : 1.0f;
  if (Operands::kProduct == Element::bf16 && input_type == Element::e4m3) factor *= Operands::kInputFactor;
  group_tile<Operands, R, B, C, kScaleK, kStep>(w, out, x, weight, N, K, [&](int64_t m, int64_t n, float value) {
    value *= factor;
    if (bias != nullptr) value += load_float(bias, n, bias_type);
    store_float(y, m * N + n, output_type, value);
  });
}

}  // namespace
}  // namespace aoext::xpu

// One kernel: the rows of a work-group's tile, B matrix operations of R each; its columns, C times 16; of what all groups are
// multiples. Where scales lie in the blocks of codes, scale is one float32 for the weight (of each expert), and zero_point is
// null; input_scale and bias may be null.
#define PLANES_TILE(kernel, rows, R, B, C, group)                                                                                \
  kernel(planes_tile_m##rows##_g##group)(void* y, const void* x, const void* weight, const int* offsets, int experts,            \
                                         const void* scale, const void* zero_point, const float* input_scale, const void* bias,  \
                                         int64_t M, int64_t N, int K, int group_size, int input_group_size, Code code,           \
                                         Element input_type, Element output_type, Element scale_type, Element bias_type) {       \
    aoext::xpu::planes_tile<R, B, C, group>(y, x, weight, {offsets, experts}, scale, zero_point, input_scale, bias, M, N, K,     \
                                            group_size, input_group_size, code, input_type, output_type, scale_type, bias_type); \
  }

#ifdef AOEXT_MATRIX
#define PLANES_TILES(group)                         \
  PLANES_TILE(AOEXT_KERNEL, 1, 1, 1, 1, group)      \
  PLANES_TILE(AOEXT_KERNEL, 4, 4, 1, 1, group)      \
  PLANES_TILE(AOEXT_KERNEL, 8, 8, 1, 1, group)      \
  PLANES_TILE(AOEXT_KERNEL_256, 16, 8, 2, 2, group) \
  PLANES_TILE(AOEXT_KERNEL_256, 32, 8, 4, 2, group)
#else  // without a matrix engine operands are floats, and a register of Xe-HPG holds half a sub-group of them
#define PLANES_TILES(group)                        \
  PLANES_TILE(AOEXT_KERNEL_256, 1, 1, 1, 1, group) \
  PLANES_TILE(AOEXT_KERNEL_256, 4, 4, 1, 1, group) \
  PLANES_TILE(AOEXT_KERNEL_256, 8, 8, 1, 1, group)
#endif

PLANES_TILES(16)
PLANES_TILES(32)

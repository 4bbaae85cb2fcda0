// Tiles of products: acc[m][n] += Σ x[m][k] · w[n][k] for kTileRows rows of w and a few rows of x at a time, lanes along K.
//
// Rows of both operands lie as they are multiplied ("operands"), so nothing is transposed. A step loads kTileRows + C vectors
// for kTileRows · C multiply-adds, C rows of x, which leaves the loads idle half of the time; the sums of a tile are added up
// over their lanes once a block, 17 instructions for four. Blocks of weights are 16 rows of `depth` operands, 16 to 24 KB, which
// stay in the first cache while all rows of x go past. (AMX: amx.inc.h)
//
//   product   operands              a multiply-add          lanes   C
//   f32       float                 fma                     4–16    4 with AVX-512, 3 with 16 registers
//   bf16      bfloat16, AVX-512     vdpbf16ps               32      4
//   i8        AVX-512: int8         vpdpbusd                64      4
//             AVX2: int16           vpmaddwd and vpaddd     16      2, as a product needs a register
//             portable: float       exact, as depth · 2¹⁴ fits 24 bits
namespace aoext::cpu {
namespace {

// The sums over the lanes of four vectors, added to four numbers.
static_assert(kTileRows == 4, "four sums are added up at once");

template <class T>
struct Parts;
template <>
struct Parts<float> {
  using Quarter = float __attribute__((vector_size(16)));
  using Half = float __attribute__((vector_size(32)));
};
template <>
struct Parts<int32_t> {
  using Quarter = int32_t __attribute__((vector_size(16)));
  using Half = int32_t __attribute__((vector_size(32)));
};

template <class T, class V>
inline void add_sums(const V (&v)[4], T* acc) {
#ifdef __x86_64__
  using Quad = typename Parts<T>::Quarter;
  Quad q[4];
  for (int i = 0; i < 4; ++i) {
#ifdef AOEXT_AVX512
    using Half = typename Parts<T>::Half;
    const Half half = (Half)_mm512_maskz_extracti64x4_epi64(0xf, (__m512i)v[i], 0) +
                      (Half)_mm512_maskz_extracti64x4_epi64(0xf, (__m512i)v[i], 1);
    q[i] = (Quad)_mm256_castsi256_si128((__m256i)half) + (Quad)_mm256_extracti128_si256((__m256i)half, 1);
#elif defined(AOEXT_AVX2)
    q[i] = (Quad)_mm256_castsi256_si128((__m256i)v[i]) + (Quad)_mm256_extracti128_si256((__m256i)v[i], 1);
#else
    q[i] = (Quad)v[i];
#endif
  }
  const auto pair = [](Quad a, Quad b) {
    return (Quad)_mm_unpacklo_ps((__m128)a, (__m128)b) + (Quad)_mm_unpackhi_ps((__m128)a, (__m128)b);
  };
  const __m128 ab = (__m128)pair(q[0], q[1]), cd = (__m128)pair(q[2], q[3]);
  store(acc, load<Quad>(acc) + ((Quad)_mm_movelh_ps(ab, cd) + (Quad)_mm_movehl_ps(cd, ab)));
#else
  for (int i = 0; i < 4; ++i) acc[i] += sum<T>(v[i]);
#endif
}

// ---- products ------------------------------------------------------------------------------------------

struct ProductF32 {
  static constexpr int kInputs = kFloats >= 16 ? 4 : 3;
  using Operand = float;
  using Vector = F32;
  using Sums = F32;
  using Sum = float;
  static Sums multiply_add(Sums sums, Vector w, Vector x) { return sums + w * x; }
};

#ifdef AOEXT_AVX512

// Subnormal operands count as zero, and a pair of products is rounded on the way, both far below bfloat16's own rounding.
struct ProductBf16 {
  static constexpr int kInputs = 4;
  using Operand = uint16_t;
  using Vector = __m512bh;
  using Sums = F32;
  using Sum = float;
  static Sums multiply_add(Sums sums, Vector w, Vector x) { return (F32)_mm512_dpbf16_ps((__m512)sums, w, x); }
};

// vpdpbusd multiplies unsigned by signed: w is w + 128 here, and sums start with −128 · Σx. They wrap modulo 2³² on the way and
// are right at the end, as the result fits.
struct ProductI8 {
  static constexpr int kInputs = 4;
  using Operand = int8_t;
  using Vector = __m512i;
  using Sums = I32;
  using Sum = int32_t;
  static Sums multiply_add(Sums sums, Vector w, Vector x) { return (I32)_mm512_dpbusd_epi32((__m512i)sums, w, x); }

  static void weights(const int8_t* source, int64_t n, int8_t* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int8_t>(source[i] ^ -128);
  }
  static uint32_t inputs(const int8_t* source, int64_t n, int8_t* out) {
    uint32_t s = 0;
    for (int64_t i = 0; i < n; ++i) {
      out[i] = source[i];
      s += static_cast<uint32_t>(source[i]);
    }
    return 0u - 128u * s;
  }
};

#elif defined(AOEXT_AVX2)

// Widened to 16 bits, where a pair's sum cannot overflow.
struct ProductI8 {
  static constexpr int kInputs = 2;
  using Operand = int16_t;
  using Vector = __m256i;
  using Sums = I32;
  using Sum = int32_t;
  static Sums multiply_add(Sums sums, Vector w, Vector x) { return sums + (I32)_mm256_madd_epi16(w, x); }

  static void weights(const int8_t* source, int64_t n, int16_t* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = source[i];
  }
  static uint32_t inputs(const int8_t* source, int64_t n, int16_t* out) {
    weights(source, n, out);
    return 0;
  }
};

#else

struct ProductI8 : ProductF32 {
  using Sum = int32_t;
  static void weights(const int8_t* source, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = source[i];
  }
  static uint32_t inputs(const int8_t* source, int64_t n, float* out) {
    weights(source, n, out);
    return 0;
  }
};

inline void add_sums(const F32 (&v)[4], int32_t* acc) {
  float exact[4] = {};
  add_sums<float>(v, exact);
  for (int i = 0; i < 4; ++i) acc[i] += static_cast<int32_t>(exact[i]);
}

#endif

// ---- a tile, a block -----------------------------------------------------------------------------------

template <class P, int C, int64_t kDepth>
inline void tile(const typename P::Operand* w, const typename P::Operand* x, int64_t K, typename P::Sum* acc) {
  using Vector = typename P::Vector;
  constexpr int64_t kStep = sizeof(Vector) / sizeof(typename P::Operand);
  static_assert(kPad % kStep == 0, "padded rows are whole vectors");
  typename P::Sums sums[C][kTileRows] = {};
  for (int64_t k = 0; k < K; k += kStep) {
    Vector xk[C];
    for (int m = 0; m < C; ++m) xk[m] = load<Vector>(x + m * kDepth + k);
    for (int n = 0; n < kTileRows; ++n) {
      const Vector wk = load<Vector>(w + n * kDepth + k);
      for (int m = 0; m < C; ++m) sums[m][n] = P::multiply_add(sums[m][n], wk, xk[m]);
    }
  }
  for (int m = 0; m < C; ++m) add_sums(sums[m], acc + m * kTile);
}

template <class P, int64_t kDepth>
void multiply(const void* w, int N, const void* x, int64_t M, int64_t K, void* acc) {
  using Operand = typename P::Operand;
  const Operand *const rows = static_cast<const Operand*>(w), *const inputs = static_cast<const Operand*>(x);
  typename P::Sum* const sums = static_cast<typename P::Sum*>(acc);
  each_rows<P::kInputs>(M, [&](auto count, int64_t m) {
    for (int n = 0; n < N; n += kTileRows)
      tile<P, decltype(count)::count, kDepth>(rows + n * kDepth, inputs + m * kDepth, K, sums + m * kTile + n);
  });
}

void add_of_groups(const float* x_sums, int64_t x_stride, const float* terms, int64_t groups, int64_t M, void* acc) {
  constexpr int kVectors = kTile / kFloats;
  each_rows<kFewRows>(M, [&](auto count, int64_t m) {
    constexpr int kCount = decltype(count)::count;
    float* const to = static_cast<float*>(acc) + m * kTile;
    F32 sums[kCount][kVectors];
    memcpy(sums, to, sizeof sums);
    for (int64_t g = 0; g < groups; ++g)
      for (int i = 0; i < kVectors; ++i) {
        const F32 term = load<F32>(terms + g * kTile + i * kFloats);
        for (int r = 0; r < kCount; ++r) sums[r][i] += term * x_sums[g * x_stride + m + r];
      }
    memcpy(to, sums, sizeof sums);
  });
}

// ---- operands ------------------------------------------------------------------------------------------

template <class Operand>
inline void fill_up(Operand* out, int64_t n) {
  const int64_t padded = (n + kPad - 1) / kPad * kPad;
  memset(static_cast<void*>(out + n), 0, static_cast<size_t>(padded - n) * sizeof(Operand));
}

using Operands = decltype(Tiles::weights);

template <Element kTo, class Operand>
void operands(Element from, const void* source, int64_t n, void* out) {
  if constexpr (kTo == Element::bf16)
    to_bf16(from, source, out, n);
  else
    to_float(from, source, static_cast<float*>(out), n);
  fill_up(static_cast<Operand*>(out), n);
}

// A row of x alone.
template <Operands kOperands>
void inputs(Element from, const void* source, int64_t, int64_t, int64_t n, void* out, uint32_t*) {
  kOperands(from, source, n, out);
}

template <Element kTo, class Operand>
void operands_of_int4(const Int4Row& row, int64_t begin, int64_t n, void* out) {
  dequantize_int4(row, begin, n, kTo, out);
  fill_up(static_cast<Operand*>(out), n);
}

void inputs_i8(Element, const void* source, int64_t, int64_t, int64_t n, void* out, uint32_t* start) {
  using Operand = ProductI8::Operand;
  fill_up(static_cast<Operand*>(out), n);
  *start += ProductI8::inputs(static_cast<const int8_t*>(source), n, static_cast<Operand*>(out));
}

void weights_i8(Element, const void* source, int64_t n, void* out) {
  using Operand = ProductI8::Operand;
  fill_up(static_cast<Operand*>(out), n);  // meets zeros of x
  ProductI8::weights(static_cast<const int8_t*>(source), n, static_cast<Operand*>(out));
}

#ifdef AOEXT_AVX512
// int4 as bfloat16. Of 128 weights, 32 words of 16 bits, shifts by 0, 4, 8 and 12 bring each nibble in turn to where it looks up
// its group's values: 12 instructions. So they lie as k = 0, 4, …, 124, then 1, 5, …, 125 and so on, and x does too.
constexpr int64_t kFours = 128, kNibblesOfWord = 4, kWords = kFours / kNibblesOfWord;
static_assert(kPad % kFours == 0, "padded rows are whole lots of 128");

// Padded rows.
inline void lay_in_fours(const uint16_t* in, int64_t n, uint16_t* out) {
  for (int64_t k = 0; k < n; k += kFours)
    for (int64_t i = 0; i < kNibblesOfWord; ++i)
      for (int64_t j = 0; j < kWords; ++j) out[k + i * kWords + j] = in[k + kNibblesOfWord * j + i];
}

template <int64_t kDepth>
void operands_in_fours(Element from, const void* source, int64_t n, void* out) {
  alignas(64) uint16_t row[kDepth];
  operands<Element::bf16, uint16_t>(from, source, n, row);
  lay_in_fours(row, n, static_cast<uint16_t*>(out));
}

// 128 weights of kGroups groups, the first of them g and of which `groups` exist, from `words` of which `kept` have weights.
template <int kGroups>
inline void int4_in_fours(const Int4Row& row, int64_t g, int64_t groups, __m512i words, __mmask32 kept, uint16_t* out) {
  static_assert(kGroups == 1 || kGroups == 2 || kGroups == 4, "a table has 64 values");
  const auto values = [&](int64_t i) {
    const int64_t at = (g + (i < groups ? i : 0)) * kTile;
    return (__m512)(values_of_nibbles() * row.scale[at] + row.zero_point[at]);
  };
  // An index takes a bit too many where tables are of one group: they hold it twice.
  const __m512 first = values(0);
  const __m512i low = (__m512i)_mm512_cvtne2ps_pbh(kGroups == 1 ? first : values(1), first);
  const __m512i high = kGroups == 4 ? (__m512i)_mm512_cvtne2ps_pbh(values(3), values(2)) : low;
  uint16_t group_of_word[kWords];
  for (int64_t j = 0; j < kWords; ++j) group_of_word[j] = static_cast<uint16_t>(j * kGroups / kWords << 4);
  const __m512i group = load<__m512i>(group_of_word), nibble = _mm512_set1_epi16(15);
  for (int i = 0; i < kNibblesOfWord; ++i) {
    __m512i index = _mm512_maskz_srli_epi16(~__mmask32{0}, words, static_cast<unsigned>(4 * i));
    if constexpr (kGroups > 1) index = _mm512_or_si512(_mm512_and_si512(index, nibble), group);
    __m512i values_of_words = _mm512_maskz_permutexvar_epi16(kept, index, low);
    // The second half of the words looks up again: two look-ups in one table each take less than one in two.
    if constexpr (kGroups == 4) values_of_words = _mm512_mask_permutexvar_epi16(values_of_words, kept & 0xffff0000u, index, high);
    store(out + i * kWords, values_of_words);
  }
}

// Lots of 128 weights, of kGroups groups each or `lots_of_group` to one, in a loop without divisions.
template <int kGroups>
inline void weights_in_fours(const Int4Row& row, int64_t begin, int64_t n, int64_t lots_of_group, uint16_t* out) {
  const uint8_t* const packed = row.packed + begin / 2;
  int64_t g = begin / row.group_size, left = kGroups > 1 ? 1 : lots_of_group - begin / kFours % lots_of_group, i = 0;
  for (; i + kFours <= n; i += kFours) {
    int4_in_fours<kGroups>(row, g, kGroups, load<__m512i>(packed + i / 2), ~__mmask32{0}, out + i);
    if (--left > 0) continue;
    g += kGroups;
    left = lots_of_group;
  }
  if (i == n) return;
  const int64_t count = n - i;
  const __m512i words = _mm512_maskz_loadu_epi8(~__mmask64{0} >> (kFours - count) / 2, packed + i / 2);
  const __mmask32 kept = ~__mmask32{0} >> (kWords - count / kNibblesOfWord);
  int4_in_fours<kGroups>(row, g, count / row.group_size, words, kept, out + i);
}

void weights_in_fours(const Int4Row& row, int64_t begin, int64_t n, void* out) {
  uint16_t* const to = static_cast<uint16_t*>(out);
  if (begin % kFours == 0) {
    if (row.group_size % kFours == 0) return weights_in_fours<1>(row, begin, n, row.group_size / kFours, to);
    if (row.group_size == 64) return weights_in_fours<2>(row, begin, n, 1, to);
    if (row.group_size == 32) return weights_in_fours<4>(row, begin, n, 1, to);
  }
  for (int64_t i = 0; i < n; i += kFours) {
    const int64_t count = n - i < kFours ? n - i : kFours;
    uint16_t values[kFours];
    dequantize_int4_as(row, begin + i, count, values);
    fill_up(values, count);
    lay_in_fours(values, kFours, to + i);
  }
}
#endif

constexpr int64_t kDepthF32 = AOEXT_DEPTH, kDepthI8 = AOEXT_DEPTH * 4 / static_cast<int64_t>(sizeof(ProductI8::Operand));
static_assert(sizeof(ProductI8::Operand) < 4 || kDepthI8 <= 1024, "sums of int8 in floats are exact");

constexpr int64_t kBlockRows = 16;
constexpr Tiles kTilesF32{sizeof(float),
                          kBlockRows,
                          kDepthF32,
                          1,
                          inputs<operands<Element::f32, float>>,
                          operands<Element::f32, float>,
                          operands_of_int4<Element::f32, float>,
                          multiply<ProductF32, kDepthF32>,
                          add_of_groups,
                          nullptr};
constexpr Tiles kTilesI8{sizeof(ProductI8::Operand),    kBlockRows, kDepthI8, 1, inputs_i8, weights_i8, nullptr,
                         multiply<ProductI8, kDepthI8>, nullptr,    nullptr};
#ifndef AOEXT_AMX
constexpr const Planes* kPlaneTiles = nullptr;
constexpr const Tiles* kI8 = &kTilesI8;
#ifdef AOEXT_AVX512
constexpr int64_t kDepthBf16 = AOEXT_DEPTH * 2;
constexpr Tiles kTilesBf16{sizeof(uint16_t),
                           kBlockRows,
                           kDepthBf16,
                           1,
                           inputs<operands<Element::bf16, uint16_t>>,
                           operands<Element::bf16, uint16_t>,
                           nullptr,
                           multiply<ProductBf16, kDepthBf16>,
                           nullptr,
                           nullptr};
constexpr Tiles kTilesBf16Int4{sizeof(uint16_t),
                               kBlockRows,
                               kDepthBf16,
                               1,
                               inputs<operands_in_fours<kDepthBf16>>,
                               nullptr,
                               weights_in_fours,
                               multiply<ProductBf16, kDepthBf16>,
                               add_of_groups,
                               nullptr};
constexpr const Tiles *kBf16 = &kTilesBf16, *kBf16Int4 = &kTilesBf16Int4;
#else
constexpr const Tiles *kBf16 = nullptr, *kBf16Int4 = nullptr;
#endif
#endif

}  // namespace
}  // namespace aoext::cpu

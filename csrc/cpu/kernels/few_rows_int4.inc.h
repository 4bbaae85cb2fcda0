// Products of int4 by few rows of x, from the weight's bytes themselves: they become floats or bytes in registers and are read
// once.
namespace aoext::cpu {
namespace {

// ---- int4 by nibbles -----------------------------------------------------------------------------------
//
// A vector of words is 8 · kFloats weights: nibble i of all words at a time becomes floats and meets x, which lies in that
// order. Sums of a group are scaled once: w·x = Σ scale · (Σ q x) + zero_point · Σ x. For one row of x a vector of words costs
// 8 shifts, 8 conversions (AVX2: and 8 shifts more) and 8 multiply-adds.

constexpr int64_t kUnit = 8 * kFloats;
static_assert(kPad % kUnit == 0, "arranged rows are whole vectors");

#ifdef AOEXT_AVX512
// Only the low four bits of an index count. (GCC 12 warns of the intrinsic without a mask.)
inline F32 nibble(U32 words, int i) {
  return (F32)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)(words >> (4 * i)), (__m512)values_of_nibbles());
}
#else
inline F32 nibble(U32 words, int i) { return __builtin_convertvector((I32)(words << (28 - 4 * i)) >> 28, F32); }
#endif

// Lane i has the scale of the group that word i belongs to: groups of 8 << shift weights, kTile floats from one to the next, of
// which `count` are left.
inline F32 spread(const float* scale, int shift, int64_t count) {
  F32 v = {};
  I32 lanes;
  for (int i = 0; i < kFloats; ++i) lanes[i] = i;
  lanes >>= shift;
  const int groups = kFloats >> shift;
  for (int g = 0; g < groups && g < count; ++g) v = lanes == g ? broadcast(scale[g * kTile]) : v;
  return v;
}

// How scales apply: between steps of a group, or of a vector of words where that has several groups.
struct Steps {
  int64_t groups;  // of a step
  int shift = 0;   // words of a group, where a step has several: 2 to this power

  Steps(int64_t group_size, int64_t unit) : groups(group_size < unit ? unit / group_size : 1) {
    while (groups > 1 && (8 << shift) < group_size) ++shift;
  }
  F32 scale(const float* from, int64_t left) const { return groups > 1 ? spread(from, shift, left) : broadcast(*from); }
};

void arrange_int4(const float* x, int64_t K, int64_t group_size, float* out, float* group_sums) {
  for (int64_t begin = 0; begin < K; begin += kUnit)
    for (int i = 0; i < 8; ++i)
      for (int lane = 0; lane < kFloats; ++lane) {
        const int64_t k = begin + 8 * lane + i;
        out[begin + i * kFloats + lane] = k < K ? x[k] : 0;
      }
  for (int64_t g = 0; g < K / group_size; ++g) {
    float s = 0;
    for (int64_t k = g * group_size; k < (g + 1) * group_size; ++k) s += x[k];
    group_sums[g] = s;
  }
}

// N rows of w at once; where they have few sums, the nibbles of a word alternate between two of each.
template <int M, int N>
inline void dot_tile_int4(const float* x, int64_t x_stride, const Int4Row& w, int64_t K, float (*acc)[kTile]) {
  constexpr int kWays = M * N <= 4 ? 2 : 1;
  const int64_t bytes = K / 2, groups = K / w.group_size;
  const Steps steps(w.group_size, kUnit);
  const int64_t step = w.group_size < kUnit ? kUnit : w.group_size;
  F32 sums[M][N] = {};
  for (int64_t begin = 0, g = 0; begin < K; begin += step, g += steps.groups) {
    F32 part[N][M][kWays] = {};
    const auto add = [&](int64_t k, int n, U32 words) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const F32 q = nibble(words, i);
        for (int m = 0; m < M; ++m) part[n][m][i % kWays] += load<F32>(x + m * x_stride + k + i * kFloats) * q;
      }
    };
    const int64_t end = begin + step < K ? begin + step : K;
    int64_t k = begin;
    for (; k + kUnit <= end; k += kUnit) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        const uint8_t* const from = w.packed + n * bytes + k / 2;
        __builtin_prefetch(from + N * bytes);  // the next rows: each is too short for the hardware to run ahead
        add(k, n, load<U32>(from));
      }
    }
    if (k < end) {
      for (int n = 0; n < N; ++n) {
        U32 words = {};
        memcpy(&words, w.packed + n * bytes + k / 2, static_cast<size_t>(end - k) / 2);
        add(k, n, words);
      }
    }
    for (int n = 0; n < N; ++n) {
      const F32 s = steps.scale(w.scale + g * kTile + n, groups - g);
      for (int m = 0; m < M; ++m)
        for (int way = 0; way < kWays; ++way) sums[m][n] += s * part[n][m][way];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] += sum<float>(sums[m][n]);
}

// acc[n] += Σ factor(g) · terms[g][n] over the groups.
template <class Factor>
inline void add_terms(const float* terms, int64_t groups, const Factor& factor, float* acc) {
  F32 sums[kTile / kFloats];
  memcpy(sums, acc, sizeof sums);
  for (int64_t g = 0; g < groups; ++g)
    for (int i = 0; i < kTile / kFloats; ++i) sums[i] += load<F32>(terms + g * kTile + i * kFloats) * factor(g);
  memcpy(acc, sums, sizeof sums);
}

// body(count, kRows, row, acc) for kRows rows of w at a time, then one by one.
template <int kRows, class Body>
inline void each_rows_of_int4(const Int4Row& first, int64_t N, int64_t K, float (*acc)[kTile], const Body& body) {
  int64_t n = 0;
  const auto take = [&](auto rows) {
    body(rows, Int4Row{first.packed + n * (K / 2), first.scale + n, first.zero_point + n, first.group_size},
         reinterpret_cast<float (*)[kTile]>(&acc[0][n]));
    n += decltype(rows)::count;
  };
  while (N - n >= kRows) take(Rows<kRows>());
  while (n < N) take(Rows<1>());
}

void dot_int4(const float* x, int64_t x_stride, const float* group_sums, int64_t M, const Int4Row& first, int64_t N, int64_t K,
              float (*acc)[kTile]) {
  const int64_t groups = K / first.group_size;
  for (int64_t m = 0; m < M; ++m) {
    memset(acc[m], 0, sizeof acc[m]);
    add_terms(first.zero_point, groups, [&](int64_t g) { return group_sums[m * groups + g]; }, acc[m]);
  }
  each_rows<kFewRows>(M, [&](auto count, int64_t m) {
    constexpr int kCount = decltype(count)::count;
    constexpr int kRows = kCount == 1 || (kCount == 2 && kFloats >= 16) ? 4 : 2;  // as many sums as registers hold twice
    each_rows_of_int4<kRows>(first, N, K, acc + m, [&](auto rows, const Int4Row& w, float (*out)[kTile]) {
      dot_tile_int4<kCount, decltype(rows)::count>(x + m * x_stride, x_stride, w, K, out);
    });
  });
}

// ---- int4 by planes ------------------------------------------------------------------------------------
//
// Integers in place of floats, where x allows it: a group of x becomes 16-bit fixed point, x = scale · (256 h + l), h and l of
// int8, and the nibbles, 0..15 once their sign bit is flipped, meet h and l as bytes, two to four products a lane. Sums of 128
// elements are exact; w·x = Σ scale · (Σ u h · 256 + Σ u l − 8 Σ (256 h + l)) + zero_point · Σ x. 64 weights (AVX2) take 6
// instructions to unpack and 8 for a row of x, where floats take 32. For float32 results it is three planes, of 23 bits.

#if defined(AOEXT_AVX512) || defined(AOEXT_AVX2)

constexpr int64_t kPlaneBytes = 4 * kFloats;  // of a vector: so many even k's nibbles and so many odd ones'
constexpr int64_t kPlaneUnit = 2 * kPlaneBytes;
static_assert(kPad <= 128, "a step's sums are exact");
constexpr int64_t kStretch = 32;  // divides groups and units

// The largest value in fixed point: below 128 in its first plane, and what kRounder rounds.
template <int kPlanes>
constexpr int kFixedMost = kPlanes == 2 ? 127 * 256 : 63 * 65536;

// How far the largest of a group may be above the mean: the step of 16 bits is then below 2⁻¹¹ of the mean, and what rounding
// adds, 2⁻¹³ on average, far below the rounding of a bfloat16 or half result; that of 23 bits is 2⁻¹⁸. One outlier in a group
// fails this.
constexpr float kWidest = 16;

template <int kPlanes>
bool arrange_planes(const float* x, int64_t K, int64_t group_size, int8_t* out, float* scales, float* fixed_sums,
                    float* group_sums) {
  for (int64_t g = 0; g < K / group_size; ++g) {
    const float* const from = x + g * group_size;
    F32 sums = {}, absolute = {};
    U32 most = {};
    for (int64_t i = 0; i < group_size; i += kFloats) {
      const F32 v = load<F32>(from + i);
      const U32 magnitude = (U32)v & kMagnitude;
      sums += v;
      absolute += (F32)magnitude;
      most = magnitude > most ? magnitude : most;
    }
    uint32_t largest = 0;
    for (int i = 0; i < kFloats; ++i) largest = most[i] > largest ? most[i] : largest;
    const float highest = from_bits(largest);
    if (!(highest * static_cast<float>(group_size) <= kWidest * sum<float>(absolute))) return false;
    // Below this the step would be subnormal.
    const bool nothing = highest < 1e-30f;
    if (nothing && highest > 0) return false;
    const float inverse = nothing ? 0 : static_cast<float>(kFixedMost<kPlanes>) / highest;
    int64_t fixed_sum = 0;
    for (int64_t i = 0; i < group_size; i += kStretch) {
      constexpr float kRounder = 12582912.0f;  // 1.5 · 2²³: its ulp is 1
      int8_t planes[kPlanes][kStretch];
      int32_t stretch_sum = 0;
      for (int64_t j = 0; j < kStretch; ++j) {
        int32_t fixed = static_cast<int32_t>(bits(from[i + j] * inverse + kRounder) - bits(kRounder));
        stretch_sum += fixed;
        for (int plane = kPlanes - 1; plane > 0; --plane) {
          const int32_t above = (fixed + 128) >> 8;
          planes[plane][j] = static_cast<int8_t>(fixed - 256 * above);
          fixed = above;
        }
        planes[0][j] = static_cast<int8_t>(fixed);
      }
      fixed_sum += stretch_sum;
      const int64_t k = g * group_size + i, in_unit = k % kPlaneUnit;
      int8_t* const to = out + kPlanes * (k - in_unit) + in_unit / 2;
      for (int plane = 0; plane < kPlanes; ++plane)
        for (int64_t j = 0; j < kStretch / 2; ++j) {
          to[plane * kPlaneUnit + j] = planes[plane][2 * j];
          to[plane * kPlaneUnit + kPlaneBytes + j] = planes[plane][2 * j + 1];
        }
    }
    scales[g] = highest / static_cast<float>(kFixedMost<kPlanes>);
    fixed_sums[g] = -8 * scales[g] * static_cast<float>(fixed_sum);
    group_sums[g] = sum<float>(sums);
  }
  return true;
}

// The even and the odd nibbles of words as bytes 0..15, their sign bit flipped.
inline void unpack(U32 words, U32* even, U32* odd) {
#ifdef AOEXT_AVX512
  const auto nibbles = [](U32 w) {
    constexpr int kAndXor = 0x6a;  // (a & b) ^ c
    return (U32)_mm512_ternarylogic_epi32((__m512i)w, _mm512_set1_epi8(15), _mm512_set1_epi8(8), kAndXor);
  };
  *even = nibbles(words);
  *odd = nibbles(words >> 4);
#else
  words ^= 0x88888888u;
  *even = words & 0x0f0f0f0fu;
  *odd = words >> 4 & 0x0f0f0f0fu;
#endif
}

// Lane 4 i + n is the sum of the lanes 4 i … 4 i + 3 of rows[n].
template <class V>
inline V sums_of_fours(const V (&rows)[4]) {
#ifdef AOEXT_AVX512
  const auto pair = [](V a, V b) {
    return (V)_mm512_maskz_unpacklo_epi32(0xffff, (__m512i)a, (__m512i)b) +
           (V)_mm512_maskz_unpackhi_epi32(0xffff, (__m512i)a, (__m512i)b);
  };
  const __m512i ab = (__m512i)pair(rows[0], rows[1]), cd = (__m512i)pair(rows[2], rows[3]);
  return (V)_mm512_maskz_unpacklo_epi64(0xff, ab, cd) + (V)_mm512_maskz_unpackhi_epi64(0xff, ab, cd);
#else
  const auto pair = [](V a, V b) {
    return (V)_mm256_unpacklo_epi32((__m256i)a, (__m256i)b) + (V)_mm256_unpackhi_epi32((__m256i)a, (__m256i)b);
  };
  const __m256i ab = (__m256i)pair(rows[0], rows[1]), cd = (__m256i)pair(rows[2], rows[3]);
  return (V)_mm256_unpacklo_epi64(ab, cd) + (V)_mm256_unpackhi_epi64(ab, cd);
#endif
}

#ifdef AOEXT_AVX512

// Sums of one step of up to 128 elements: Σ u x in fixed point, of two planes exact, of three rounded to a float.
template <int kPlanes>
struct PlaneSums {
  I32 sums = {}, last = {};  // of the first two planes, and of a third
  void add(U32 even, U32 odd, const int8_t* x) {
    const auto products = [&](I32 to, const int8_t* plane) {
      const __m512i evens = _mm512_dpbusd_epi32((__m512i)to, (__m512i)even, load<__m512i>(plane));
      return (I32)_mm512_dpbusd_epi32(evens, (__m512i)odd, load<__m512i>(plane + kPlaneBytes));
    };
    sums += products(products(I32{}, x) << 8, x + kPlaneUnit);
    if constexpr (kPlanes == 3) last = products(last, x + 2 * kPlaneUnit);
  }
  auto total() const {
    if constexpr (kPlanes == 2)
      return sums;
    else
      return __builtin_convertvector(sums, F32) * 256.0f + __builtin_convertvector(last, F32);
  }
};

// Lane n of a vector is row n's: its sums of each group, from those of four rows at a time.
template <int kGroups, class V>
inline void groups_of_rows(const V (&fours)[kFloats / 4], V (&out)[kGroups]) {
  const auto even = [](V a, V b) { return (V)_mm512_maskz_shuffle_i32x4(0xffff, (__m512i)a, (__m512i)b, 0x88); };
  const auto odd = [](V a, V b) { return (V)_mm512_maskz_shuffle_i32x4(0xffff, (__m512i)a, (__m512i)b, 0xdd); };
  const V a = even(fours[0], fours[1]), b = odd(fours[0], fours[1]), c = even(fours[2], fours[3]), d = odd(fours[2], fours[3]);
  if constexpr (kGroups == 4) {
    out[0] = even(a, c);
    out[1] = even(b, d);
    out[2] = odd(a, c);
    out[3] = odd(b, d);
    return;
  }
  const V first = even(a + b, c + d), second = odd(a + b, c + d);
  if constexpr (kGroups == 2) {
    out[0] = first;
    out[1] = second;
  } else {
    out[0] = first + second;
  }
}

// Which cache the next tile is fetched into: the first, but where AMX is, whose CPUs gain nothing by it, the second.
#ifdef AOEXT_AMX
constexpr int kNextTile = 2;
#else
constexpr int kNextTile = 3;
#endif

// How many groups ahead of their use scales are fetched: some µs of weights.
constexpr int64_t kScalesAhead = 32;

// Up to kTile rows of w by M of x, a line of each row at a time, in parts of kUnits units, which are of kGroups groups: so lines
// come once, those of scales too. The next tile's weights are fetched in the order in which they lie. Not inline: its loop needs
// all registers.
template <int kPlanes, int M, int kGroups, int kUnits>
__attribute__((noinline)) void dot_tile_planes(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, const Int4Tile& w,
                                               int64_t N, bool fetch, int64_t K, float (*acc)[kTile]) {
  constexpr int kBands = kTile / kFloats, kFours = kFloats / 4;
  constexpr int64_t kPart = kUnits * kPlaneUnit;
  constexpr int kParts = kPad / kPart;
  const int64_t bytes = K / 2, groups = K / w.group_size, line = kTile * w.element_bytes;
  const uint8_t* row[kTile];
  for (int64_t n = 0; n < kTile; ++n) row[n] = w.packed + (n < N ? n : N - 1) * bytes;
  const uint8_t* next = w.packed + kTile * bytes;
  const int64_t ahead = kScalesAhead < groups ? kScalesAhead : groups;
  using Totals = decltype(PlaneSums<kPlanes>().total());
  F32 sums[M][kBands] = {};

  // A part, of which w is `at` bytes from the starts of rows, by kFloats of these from row `n` on: fours[m][i] are sums of rows 4
  // i to 4 i + 3.
  const auto multiply = [&](int64_t begin, int64_t at, int n, Totals(&fours)[M][kFours]) __attribute__((always_inline)) {
    for (int four = 0; four < kFours; ++four) {
      for (int64_t i = 0; fetch && i < 4 * kPart / 2; i += kLine, next += kLine) __builtin_prefetch(next, 0, kNextTile);
      U32 even[4][kUnits], odd[4][kUnits];
      for (int i = 0; i < 4; ++i)
        for (int u = 0; u < kUnits; ++u)
          unpack(load_once<U32>(row[n + four * 4 + i] + at + u * kPlaneBytes), &even[i][u], &odd[i][u]);
      for (int m = 0; m < M; ++m) {
        Totals totals[4];
        for (int i = 0; i < 4; ++i) {
          PlaneSums<kPlanes> part;
          for (int u = 0; u < kUnits; ++u) part.add(even[i][u], odd[i][u], x + m * x_stride + kPlanes * (begin + u * kPlaneUnit));
          totals[i] = part.total();
        }
        fours[m][four] = sums_of_fours(totals);
      }
    }
  };
  // What `multiply` left, with the scales of `count` groups from `first` on.
  bool starts = true;  // whether they start here
  const auto add = [&](const Totals(&fours)[M][kFours], int band, int64_t first, int64_t count) __attribute__((always_inline)) {
    F32 scale[kGroups] = {}, zero_point[kGroups] = {};
    for (int j = 0; j < kGroups && j < count; ++j) {
      const int64_t from = (first + j) * w.stride + band * kFloats * w.element_bytes;
      scale[j] = floats_at(w.element, w.scale + from);
      if (starts) zero_point[j] = floats_at(w.element, w.zero_point + from);
    }
    for (int m = 0; m < M; ++m) {
      Totals of_groups[kGroups];
      groups_of_rows<kGroups>(fours[m], of_groups);
      F32 total = sums[m][band];
      for (int j = 0; j < kGroups && j < count; ++j) {
        const int64_t i = m * groups + first + j;
        F32 product = __builtin_convertvector(of_groups[j], F32) * of_x.scales[i];
        if (starts) {
          product += of_x.fixed_sums[i];
          total += zero_point[j] * of_x.sums[i];
        }
        total += scale[j] * product;
      }
      sums[m][band] = total;
    }
  };
  constexpr bool kWithin = kGroups * kParts > 1;  // whether groups are shorter than a line
  alignas(kLine) uint8_t rest[kTile][kLine];
  for (int64_t begin = 0, g = 0, of_group = 0; begin < K; begin += kPad) {
    int64_t at = begin / 2;
    if (kWithin && K - begin < kPad) {
      memset(rest, 0, sizeof rest);
      for (int64_t n = 0; n < kTile; ++n)
        row[n] = static_cast<uint8_t*>(memcpy(rest[n], row[n] + at, static_cast<size_t>(bytes - at)));
      at = 0;
    }
    starts = kWithin || of_group == 0;
    const int64_t end = groups - g < kGroups * kParts ? groups : g + kGroups * kParts;
    for (int64_t i = g; fetch && starts && i < end; ++i) {
      const int64_t left = groups - i, from = left > ahead ? (i + ahead) * w.stride : (ahead - left) * w.stride + line;
      for (int64_t j = from; j < from + line; j += kLine) {
        __builtin_prefetch(w.scale + j, 0, 2);
        __builtin_prefetch(w.zero_point + j, 0, 2);
      }
    }
#pragma GCC unroll 1
    for (int band = 0; band < kBands; ++band)
      for (int part = 0; part < kParts; ++part) {
        const int64_t first = g + part * kGroups;
        Totals fours[M][kFours];
        multiply(begin + part * kPart, at + part * kPart / 2, band * kFloats, fours);
        if (end - first >= kGroups)  // as all but the last: a constant
          add(fours, band, first, kGroups);
        else
          add(fours, band, first, end - first);
      }
    of_group += kPad;
    if (of_group < w.group_size) continue;
    g = end;
    of_group = 0;
  }
  for (int m = 0; m < M; ++m) memcpy(acc[m], sums[m], sizeof sums[m]);
}

template <int kPlanes, int kGroups, int kUnits>
inline void dot_rows_planes(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Tile& w, int64_t N,
                            int64_t K, float (*acc)[kTile]) {
  const int64_t groups = K / w.group_size;
  const auto take = [&](auto count, int64_t m) {
    const GroupsOfX of_rows{of_x.scales + m * groups, of_x.fixed_sums + m * groups, of_x.sums + m * groups};
    dot_tile_planes<kPlanes, decltype(count)::count, kGroups, kUnits>(x + m * x_stride, x_stride, of_rows, w, N, m == 0, K,
                                                                      acc + m);
  };
  int64_t done = 0;
  for (; M - done >= 8; done += 8) take(Rows<8>(), done);
  each_rows<kFewRows>(M - done, [&](auto count, int64_t m) { take(count, done + m); });
}

template <int kPlanes>
void dot_planes(const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M, const Int4Tile& w, int64_t N, int64_t K,
                float (*acc)[kTile]) {
  constexpr int kUnits = kPad / kPlaneUnit;
  const int64_t in_unit = kPlaneUnit / w.group_size;
  if (in_unit >= 4) return dot_rows_planes<kPlanes, 4, 1>(x, x_stride, of_x, M, w, N, K, acc);
  if (in_unit == 2) return dot_rows_planes<kPlanes, 2, 1>(x, x_stride, of_x, M, w, N, K, acc);
  if (in_unit == 1) return dot_rows_planes<kPlanes, 1, 1>(x, x_stride, of_x, M, w, N, K, acc);
  dot_rows_planes<kPlanes, 1, kUnits>(x, x_stride, of_x, M, w, N, K, acc);
}

template <int kPlanes>
constexpr Planes kPlanesHere{kPlanes, arrange_planes<kPlanes>, nullptr, nullptr, dot_planes<kPlanes>, nullptr, nullptr};
constexpr const Planes *kPlanes = &kPlanesHere<2>, *kFinePlanes = &kPlanesHere<3>;

#endif

#else

constexpr const Planes *kPlanes = nullptr, *kFinePlanes = nullptr;

#endif

}  // namespace
}  // namespace aoext::cpu

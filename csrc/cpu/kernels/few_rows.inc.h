// Products by few rows of x, from the weight's bytes themselves: they become floats in registers and are read once, in the order
// in which they lie.
namespace aoext::cpu {
namespace {

// Rows of x at once: what the registers hold beside the weights.
constexpr int kFewRows = kFloats >= 16 ? 4 : 2;

// ---- int4 by nibbles -----------------------------------------------------------------------------------
//
// A vector of words is 8 · kFloats weights: nibble i of all words at a time becomes floats and meets x, which lies in that
// order. Sums of a group are scaled once: w·x = Σ scale · (Σ q x) + zero_point · Σ x. For one row of x a vector of words costs
// 8 shifts, 8 conversions (AVX2: and 8 shifts more) and 8 multiply-adds.

constexpr int64_t kUnit = 8 * kFloats;
static_assert(kInt4Pad % kUnit == 0, "arranged rows are whole vectors");

#ifdef AOEXT_AVX512
// Lane i of the table is q where the low four bits of an index are i. (GCC 12 warns of the intrinsic without a mask.)
inline F32 nibble(U32 words, int i) {
  const F32 table = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
  return (F32)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)(words >> (4 * i)), (__m512)table);
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
  const int64_t step = w.group_size < kUnit ? kUnit : w.group_size;  // of k, between scalings
  const int64_t step_groups = step / w.group_size;
  int shift = 0;  // words of a group, where a vector has several
  while (step_groups > 1 && (8 << shift) < w.group_size) ++shift;
  F32 sums[M][N] = {};
  for (int64_t begin = 0, g = 0; begin < K; begin += step, g += step_groups) {
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
      const float* const from = w.scale + g * kTile + n;
      const F32 s = step_groups > 1 ? spread(from, shift, groups - g) : broadcast(*from);
      for (int m = 0; m < M; ++m)
        for (int way = 0; way < kWays; ++way) sums[m][n] += s * part[n][m][way];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] += sum<float>(sums[m][n]);
}

void dot_int4(const float* x, int64_t x_stride, const float* group_sums, int64_t M, const Int4Row& first, int64_t N, int64_t K,
              float (*acc)[kTile]) {
  const int64_t groups = K / first.group_size;
  for (int64_t m = 0; m < M; ++m) {
    F32 sums[kTile / kFloats] = {};
    for (int64_t g = 0; g < groups; ++g)
      for (int i = 0; i < kTile / kFloats; ++i)
        sums[i] += load<F32>(first.zero_point + g * kTile + i * kFloats) * group_sums[m * groups + g];
    memcpy(acc[m], sums, sizeof sums);
  }
  each_rows<kFewRows>(M, [&](auto rows, int64_t m) {
    constexpr int kCount = decltype(rows)::count;
    constexpr int kRows = kCount == 1 || (kCount == 2 && kFloats >= 16) ? 4 : 2;  // as many sums as registers hold twice
    const float* const xm = x + m * x_stride;
    const auto from = [&](int64_t n) {
      return Int4Row{first.packed + n * (K / 2), first.scale + n, first.zero_point + n, first.group_size};
    };
    const auto out = [&](int64_t n) { return reinterpret_cast<float(*)[kTile]>(&acc[m][n]); };
    int64_t n = 0;
    for (; n + kRows <= N; n += kRows) dot_tile_int4<kCount, kRows>(xm, x_stride, from(n), K, out(n));
    for (; n < N; ++n) dot_tile_int4<kCount, 1>(xm, x_stride, from(n), K, out(n));
  });
}

// ---- 8-bit values --------------------------------------------------------------------------------------
//
// Values become floats and meet x, which lies as it is.

template <Element kType, int M, int N>
inline void dot_tile_values(const float* x, int64_t x_stride, const char* w, int64_t K, float (*acc)[kTile]) {
  F32 sums[M][N] = {};
  const auto add = [&](int64_t k, const char* from, int64_t stride) {
    F32 wk[N];
    for (int n = 0; n < N; ++n) wk[n] = floats_at<kType>(from + n * stride);
    for (int m = 0; m < M; ++m) {
      const F32 xk = load<F32>(x + m * x_stride + k);
      for (int n = 0; n < N; ++n) sums[m][n] += xk * wk[n];
    }
  };
  constexpr int64_t kLine = 64;
  int64_t k = 0;
  for (; k + kLine <= K; k += kLine) {
    for (int n = 0; n < N; ++n) __builtin_prefetch(w + (N + n) * K + k);  // the next rows, as dot_tile_int4 does
    for (int64_t i = 0; i < kLine; i += kFloats) add(k + i, w + k + i, K);
  }
  for (; k < K; k += kFloats) {
    char rest[N][kFloats] = {};
    const int64_t count = K - k < kFloats ? K - k : kFloats;
    for (int n = 0; n < N; ++n) memcpy(rest[n], w + n * K + k, static_cast<size_t>(count));
    add(k, rest[0], kFloats);
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] = sum<float>(sums[m][n]);
}

template <Element kType>
void dot_rows_values(const float* x, int64_t x_stride, int64_t M, const char* w, int64_t N, int64_t K, float (*acc)[kTile]) {
  each_rows<kFewRows>(M, [&](auto rows, int64_t m) {
    constexpr int kCount = decltype(rows)::count;
    const auto out = [&](int64_t n) { return reinterpret_cast<float(*)[kTile]>(&acc[m][n]); };
    int64_t n = 0;
    for (; n + kTileRows <= N; n += kTileRows)
      dot_tile_values<kType, kCount, kTileRows>(x + m * x_stride, x_stride, w + n * K, K, out(n));
    for (; n < N; ++n) dot_tile_values<kType, kCount, 1>(x + m * x_stride, x_stride, w + n * K, K, out(n));
  });
}

void dot_values(const float* x, int64_t x_stride, int64_t M, Element type, const void* w, int64_t N, int64_t K,
                float (*acc)[kTile]) {
  const char* const rows = static_cast<const char*>(w);
  if (type == Element::i8) return dot_rows_values<Element::i8>(x, x_stride, M, rows, N, K, acc);
  if (type == Element::e4m3) return dot_rows_values<Element::e4m3>(x, x_stride, M, rows, N, K, acc);
  dot_rows_values<Element::e5m2>(x, x_stride, M, rows, N, K, acc);
}

}  // namespace
}  // namespace aoext::cpu

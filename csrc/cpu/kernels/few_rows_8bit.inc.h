// Products of 8-bit weights by few rows of x, from the weight's bytes themselves: they become floats or bfloat16 in registers,
// or are multiplied as they are, and are read once.
namespace aoext::cpu {
namespace {

// ---- 8-bit values --------------------------------------------------------------------------------------
//
// Values become floats and meet x, which lies as it is. e4m3 does so in 4 instructions for 16 values, 6 with AVX2: their factor
// waits for the sums, and so does NaN, of which a row of w keeps only whether it has one.

// Whether there was a NaN among the bytes seen.
template <Element kType>
struct SeenNan {
  void see(const char*, int64_t) {}
  float or_nan(float sum) const { return sum; }
};

#if defined(AOEXT_AVX512) || defined(AOEXT_AVX2)
// e4m3's is 127, of either sign: 254 once doubled, above all others.
template <>
struct SeenNan<Element::e4m3> {
  using Bytes = uint8_t __attribute__((vector_size(4 * kFloats)));
  Bytes most = {};
  void see(const char* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 4 * kFloats) {
      const Bytes values = load<Bytes>(p + i), twice = values + values;
#ifdef AOEXT_AVX512
      most = (Bytes)_mm512_maskz_max_epu8(~__mmask64{0}, (__m512i)most, (__m512i)twice);
#else
      most = (Bytes)_mm256_max_epu8((__m256i)most, (__m256i)twice);
#endif
    }
  }
  float or_nan(float sum) const {
#ifdef AOEXT_AVX512
    const bool nan = _mm512_cmpeq_epi8_mask((__m512i)most, _mm512_set1_epi8(static_cast<char>(0xfe))) != 0;
#else
    const bool nan = _mm256_movemask_epi8(_mm256_cmpeq_epi8((__m256i)most, _mm256_set1_epi8(static_cast<char>(0xfe)))) != 0;
#endif
    return nan ? from_bits(0x7fc00000u) : sum;
  }
};
#endif

template <Element kType, int M, int N>
inline void dot_tile_values(const float* x, int64_t x_stride, const char* w, int64_t K, float (*acc)[kTile]) {
  using V = Values<kType>;
  constexpr int64_t kStep = V::kVectors * kFloats;
  F32 sums[M][N] = {};
  SeenNan<kType> seen[N];
  const auto add_line = [&](int64_t k, const char* from, int64_t stride) {
    for (int n = 0; n < N; ++n) seen[n].see(from + n * stride, kLine);
    for (int64_t begin = 0; begin < kLine; begin += kStep) {
      F32 wk[N][V::kVectors];
      for (int n = 0; n < N; ++n) V::load(from + n * stride + begin, wk[n]);
      for (int i = 0; i < V::kVectors; ++i)
        for (int m = 0; m < M; ++m) {
          const F32 xk = load<F32>(x + m * x_stride + k + begin + i * kFloats);
          for (int n = 0; n < N; ++n) sums[m][n] += xk * wk[n][i];
        }
    }
  };
  int64_t k = 0;
  for (; k + kLine <= K; k += kLine) {
    for (int n = 0; n < N; ++n) __builtin_prefetch(w + (N + n) * K + k);  // the next rows, as dot_tile_int4 does
    add_line(k, w + k, K);
  }
  if (k < K) {
    char rest[N][kLine] = {};
    for (int n = 0; n < N; ++n) memcpy(rest[n], w + n * K + k, static_cast<size_t>(K - k));
    add_line(k, rest[0], kLine);
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] = seen[n].or_nan(sum<float>(sums[m][n]) * V::kFactor);
}

template <Element kType>
void dot_rows_values(const float* x, int64_t x_stride, int64_t M, const char* w, int64_t N, int64_t K, float (*acc)[kTile]) {
  each_rows<kFewRows>(M, [&](auto rows, int64_t m) {
    constexpr int kCount = decltype(rows)::count;
    const auto out = [&](int64_t n) { return reinterpret_cast<float (*)[kTile]>(&acc[m][n]); };
    int64_t n = 0;
    for (; n + kTileRows <= N; n += kTileRows)
      dot_tile_values<kType, kCount, kTileRows>(x + m * x_stride, x_stride, w + n * K, K, out(n));
    for (; n < N; ++n) dot_tile_values<kType, kCount, 1>(x + m * x_stride, x_stride, w + n * K, K, out(n));
  });
}

void dot_values(const void* x, int64_t x_stride, int64_t M, Element type, const void* w, int64_t N, int64_t K,
                float (*acc)[kTile]) {
  with_8bit_type(type, [&](auto of) {
    dot_rows_values<decltype(of)::type>(static_cast<const float*>(x), x_stride, M, static_cast<const char*>(w), N, K, acc);
  });
}

void row_of_floats(Element from, const void* row, int64_t n, void* out) { to_float(from, row, static_cast<float*>(out), n); }

constexpr Values8 kValuesF32{sizeof(float), row_of_floats, dot_values};

// ---- rows as they lie ----------------------------------------------------------------------------------
//
// Where reading is what bounds few rows, rows of w are read as they lie, one at a time. Longer ones are read in pieces, whose x
// stays in the first cache, a lot of rows at a time; the next lot is fetched meanwhile in the order in which it lies.

#ifdef AOEXT_AVX512
constexpr int64_t kLot = 8;

// body(Rows<of x>, first, Rows<of w>, first, begin, elements, offset of as many bytes to fetch); sums start as zeros.
// More than two rows of x meet kRows rows of w at a time.
template <int kRows, class Sum, class Body>
inline void each_piece(int64_t M, int64_t N, int64_t K, int64_t operand_bytes, Sum (*acc)[kTile], const Body& body) {
  for (int64_t m = 0; m < M; ++m) memset(acc[m], 0, sizeof acc[m]);
  each_rows<kFewRows>(M, [&](auto inputs, int64_t m) {
    constexpr int kInputs = decltype(inputs)::count, kTogether = kInputs > 2 ? kRows : 1;
    const int64_t piece = (kInputs > 1 ? 8192 : 16384) / operand_bytes;
    for (int64_t lot = 0, end; lot < N; lot = end) {
      end = N - lot < kLot ? N : lot + kLot;
      int64_t next = end * K;
      for (int64_t begin = 0; begin < K; begin += piece) {
        const int64_t n = K - begin < piece ? K - begin : piece;
        int64_t i = lot;
        const auto take = [&](auto rows) {
          body(inputs, m, rows, i, begin, n, next);
          next += decltype(rows)::count * n;
          i += decltype(rows)::count;
        };
        while (end - i >= kTogether) take(Rows<kTogether>());
        while (i < end) take(Rows<1>());
      }
    }
  });
}
#endif

// ---- 8-bit values by bfloat16 --------------------------------------------------------------------------
//
// All values are bfloat16 exactly: 64 become so in 5 instructions (int8: 8), where floats take 19, and meet a row of x in two.
// CPUs that have AMX take longer so than by floats.

#if defined(AOEXT_AVX512) && !defined(AOEXT_AMX)

// n elements of N rows of w, K apart, of which what lies at `next` is fetched.
template <Element kType, int M, int N>
inline void dot_tile_values_bf16(const uint16_t* x, int64_t x_stride, const char* w, int64_t K, int64_t n, const char* next,
                                 float (*acc)[kTile]) {
  constexpr int kSums = 2 * M * N, kChains = kSums < 4 ? 4 / kSums : 1;  // so that no product waits for the one before it
  F32 sums[kChains][2][M][N] = {};
  const auto add = [&](int64_t k, const char* from, int64_t stride, F32(&to)[2][M][N]) __attribute__((always_inline)) {
    __m512i wk[N][2];
    for (int i = 0; i < N; ++i) values_as_bf16<kType>(load_once<__m512i>(from + i * stride), wk[i]);
    for (int m = 0; m < M; ++m)
      for (int half = 0; half < 2; ++half) {
        const __m512bh xk = load<__m512bh>(x + m * x_stride + k + half * 2 * kFloats);
        for (int i = 0; i < N; ++i) to[half][m][i] = (F32)_mm512_dpbf16_ps((__m512)to[half][m][i], (__m512bh)wk[i][half], xk);
      }
  };
  const auto add_line = [&](int64_t k, int chain) __attribute__((always_inline)) {
    for (int i = 0; i < N; ++i) __builtin_prefetch(next + i * n + k);
    add(k, w + k, K, sums[chain]);
  };
  int64_t k = 0;
  for (; k + kChains * kLine <= n; k += kChains * kLine)
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) add_line(k + c * kLine, c);
  for (; k + kLine <= n; k += kLine) add_line(k, 0);
  if (k < n) {
    char rest[N][kLine] = {};
    for (int i = 0; i < N; ++i) memcpy(rest[i], w + i * K + k, static_cast<size_t>(n - k));
    add(k, rest[0], kLine, sums[0]);
  }
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < N; ++i) {
      F32 total = sums[0][0][m][i] + sums[0][1][m][i];
      for (int c = 1; c < kChains; ++c) total += sums[c][0][m][i] + sums[c][1][m][i];
      acc[m][i] += sum<float>(total);
    }
}

template <Element kType>
void dot_rows_values_bf16(const uint16_t* x, int64_t x_stride, int64_t M, const char* w, int64_t N, int64_t K,
                          float (*acc)[kTile]) {
  each_piece<2>(M, N, K, sizeof *x, acc,
                [&](auto inputs, int64_t m, auto rows, int64_t i, int64_t begin, int64_t n, int64_t next) {
                  dot_tile_values_bf16<kType, decltype(inputs)::count, decltype(rows)::count>(
                      x + m * x_stride + begin, x_stride, w + i * K + begin, K, n, w + next,
                      reinterpret_cast<float (*)[kTile]>(&acc[m][i]));
                });
}

void dot_values_bf16(const void* x, int64_t x_stride, int64_t M, Element type, const void* w, int64_t N, int64_t K,
                     float (*acc)[kTile]) {
  with_8bit_type(type, [&](auto of) {
    dot_rows_values_bf16<decltype(of)::type>(static_cast<const uint16_t*>(x), x_stride, M, static_cast<const char*>(w), N, K,
                                             acc);
  });
}

// In the order of values_as_bf16.
void row_of_bf16(Element from, const void* row, int64_t n, void* out) {
  uint16_t* const to = static_cast<uint16_t*>(out);
  to_bf16(from, row, to, n);
  const __m512i first = _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13), second = _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15);
  for (int64_t k = 0; k < n; k += kLine) {
    const __m512i a = load<__m512i>(to + k), b = load<__m512i>(to + k + 2 * kFloats);
    store(to + k, _mm512_maskz_permutex2var_epi64(0xff, a, first, b));
    store(to + k + 2 * kFloats, _mm512_maskz_permutex2var_epi64(0xff, a, second, b));
  }
}

constexpr Values8 kValuesOfBf16{sizeof(uint16_t), row_of_bf16, dot_values_bf16};
constexpr const Values8* kValuesBf16 = &kValuesOfBf16;

#else

constexpr const Values8* kValuesBf16 = nullptr;

#endif

// ---- int8 by int8 --------------------------------------------------------------------------------------

#ifdef AOEXT_AVX512

// As dot_tile_values_bf16, exact.
template <int M, int N>
inline void dot_tile_i8(const int8_t* x, const int8_t* w, int64_t K, int64_t n, const int8_t* next, int32_t (*acc)[kTile]) {
  constexpr int kChains = M * N < 4 ? 4 / (M * N) : 1;
  I32 sums[kChains][M][N] = {};
  // As LanesI8 of lanes.inc.h, w + 128 by x; the sums of 128 · x come off at the end.
  const __m512i flip = _mm512_set1_epi8(-128);
  I32 x_sums[M] = {};
  const auto add = [&](int64_t k, I32(&to)[M][N]) __attribute__((always_inline)) {
    __m512i wk[N];
    for (int i = 0; i < N; ++i) {
      __builtin_prefetch(next + i * n + k);
      wk[i] = _mm512_xor_si512(load<__m512i>(w + i * K + k), flip);
    }
    for (int m = 0; m < M; ++m) {
      const __m512i xk = load_once<__m512i>(x + m * K + k);
      x_sums[m] = (I32)_mm512_dpbusd_epi32((__m512i)x_sums[m], flip, xk);
      for (int i = 0; i < N; ++i) to[m][i] = (I32)_mm512_dpbusd_epi32((__m512i)to[m][i], wk[i], xk);
    }
  };
  int64_t k = 0;
  for (; k + kChains * kLine <= n; k += kChains * kLine)
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) add(k + c * kLine, sums[c]);
  for (; k + kLine <= n; k += kLine) add(k, sums[0]);
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < N; ++i) {
      I32 total = sums[0][m][i] - x_sums[m];
      for (int c = 1; c < kChains; ++c) total += sums[c][m][i];
      acc[m][i] += sum<int32_t>(total);
      for (int64_t rest = k; rest < n; ++rest) acc[m][i] += x[m * K + rest] * w[i * K + rest];
    }
}

void dot_i8(const int8_t* x, int64_t M, const int8_t* w, int64_t N, int64_t K, int32_t (*acc)[kTile]) {
  each_piece<1>(M, N, K, sizeof *x, acc,
                [&](auto inputs, int64_t m, auto rows, int64_t i, int64_t begin, int64_t n, int64_t next) {
                  dot_tile_i8<decltype(inputs)::count, decltype(rows)::count>(
                      x + m * K + begin, w + i * K + begin, K, n, w + next, reinterpret_cast<int32_t (*)[kTile]>(&acc[m][i]));
                });
}

constexpr auto kDotI8 = dot_i8;

#elif defined(AOEXT_AVX2)

// Exact, from bytes as they lie, where a tile's block would be written and read for few products. Returns how much of K it did.
template <int M, int N>
inline int64_t dot_tile_i8(const int8_t* x, int64_t x_stride, const int8_t* w, int64_t K, int32_t (*acc)[kTile]) {
  int64_t k = 0;
  I32 sums[M][N] = {};
  const auto widen = [](const int8_t* p) { return _mm256_cvtepi8_epi16(load<__m128i>(p)); };
  for (; k + 16 <= K; k += 16) {
    __m256i wk[N];
    for (int n = 0; n < N; ++n) wk[n] = widen(w + n * K + k);
    for (int m = 0; m < M; ++m) {
      const __m256i xk = widen(x + m * x_stride + k);
      for (int n = 0; n < N; ++n) sums[m][n] += (I32)_mm256_madd_epi16(wk[n], xk);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] = sum<int32_t>(sums[m][n]);
  return k;
}

void dot_i8(const int8_t* x, int64_t M, const int8_t* w, int64_t N, int64_t K, int32_t (*acc)[kTile]) {
  each_rows<kFewRows>(M, [&](auto count, int64_t first) {
    constexpr int kCount = decltype(count)::count;
    const auto take = [&](auto rows, int64_t n) {
      constexpr int kRows = decltype(rows)::count;
      const auto out = reinterpret_cast<int32_t (*)[kTile]>(&acc[first][n]);
      const int64_t done = dot_tile_i8<kCount, kRows>(x + first * K, K, w + n * K, K, out);
      for (int m = 0; m < kCount; ++m)
        for (int i = 0; i < kRows; ++i)
          for (int64_t k = done; k < K; ++k) out[m][i] += x[(first + m) * K + k] * w[(n + i) * K + k];
    };
    int64_t n = 0;
    for (; n + kTileRows <= N; n += kTileRows) take(Rows<kTileRows>(), n);
    for (; n < N; ++n) take(Rows<1>(), n);
  });
}

constexpr auto kDotI8 = dot_i8;

#else

constexpr decltype(Kernels::dot_i8) kDotI8 = nullptr;

#endif

}  // namespace
}  // namespace aoext::cpu

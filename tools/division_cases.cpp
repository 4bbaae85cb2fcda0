// Whether quantize_rowwise's division (csrc/cuda/kernels/quantize_rowwise.cu) is IEEE's for every numerator and divisor.
//
//     g++ -O2 -march=native -ffp-contract=off tools/division_cases.cpp -o division_cases && ./division_cases
//
// With r the reciprocal of b to nearest, q = t r to nearest and e = q b - t, the result is q - e r, rounded once. As integers of
// 24 bits t is A and b is B; their quotient lies between 2^23 and 2^24 when A is moved up by k = 23 or 24 bits, and the middle
// between two floats is Q + 1/2. Before it is rounded the result is off by less than 2^-23 of an ulp: |b r - 1| <= B 2^-48, times
// 1.5 ulp that q may be off by, and what e loses where it takes 25 bits. The true quotient misses a middle by R / 2B ulps, with
// R = 2^(k + 1) A - (2Q + 1) B. So only |R| <= 5 can go wrong. This tries all cases up to 16, and others besides.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

constexpr uint32_t kOne = 1u << 23;

// The float in [1, 2) with such a mantissa.
float number(uint64_t mantissa) {
  const uint32_t bits = (static_cast<uint32_t>(mantissa) & (kOne - 1)) | 127u << 23;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

bool right(uint64_t A, float b, float reciprocal) {
  const float t = number(A), q = t * reciprocal;
  return std::fma(-std::fma(q, b, -t), reciprocal, q) == t / b;
}

}  // namespace

int main() {
  constexpr int kMost = 16;
  uint64_t hard = 0, others = 0, wrong = 0;
  for (uint64_t B = kOne; B < 2 * kOne; ++B) {
    const float b = number(B), reciprocal = 1 / b;
    const int zeros = __builtin_ctzll(B);
    uint64_t inverse = B >> zeros;  // of B's odd part modulo 2^64, by Newton: every step doubles the bits
    for (int i = 0; i < 6; ++i) inverse *= 2 - (B >> zeros) * inverse;
    for (int64_t R = -kMost; R <= kMost; ++R) {
      // (2Q + 1) B = 2^(k + 1) A - R has as many zeros at its end as B.
      if (R == 0 || __builtin_ctzll(R) != zeros) continue;
      for (int k = 23; k <= 24; ++k) {
        const uint64_t modulus = uint64_t{1} << (k + 1 - zeros);
        for (uint64_t middle = static_cast<uint64_t>(-(R >> zeros)) * inverse & (modulus - 1); middle < 4 * kOne;
             middle += modulus) {
          const uint64_t A = (middle * B + R) >> (k + 1);
          if (middle < 2 * kOne || A < kOne || A >= 2 * kOne || (A >= B) != (k == 23)) continue;
          ++hard;
          wrong += !right(A, b, reciprocal);
        }
      }
    }
    for (uint64_t A = kOne; A < 2 * kOne; A += kOne / 128, ++others) wrong += !right(A, b, reciprocal);  // what bfloat16 has
  }
  std::printf("%lu hard cases, %lu others: %lu wrong\n", hard, others, wrong);
  return wrong != 0;
}

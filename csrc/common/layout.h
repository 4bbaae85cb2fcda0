// How the codes of a weight lie in bytes, as data: the generic kernels, those of devices and Python's references unpack by it. No
// header of torch's or of the C++ library: device code includes this.
//
// A row is K/values blocks of `bytes` bytes. Most formats have one byte for one, two or four codes. Codes of 3, 5, 6 and 7 bits
// are planes of 4, 2 and 1 bits for 32 at a time. The formats of GGUF have their scales in their blocks, as
// ggml/src/ggml-common.h and ggml-quants.c of github.com/ggml-org/ggml lay them out.
#pragma once

#include "common/element.h"

#ifdef __CUDACC__
#define AOEXT_ANYWHERE __host__ __device__
#else
#define AOEXT_ANYWHERE
#endif

namespace aoext {

// Digits to base 3, of 256 integers in 52 bytes, as tq1_0 has them: five runs of 32 of the first 32 bytes, five of 16 of the next
// 16, four of 4 of the last 4. A byte is a fraction, byte / 256, and run j has its digit j after the point.
struct Digits {
  static constexpr int kOfEach = 5, kFirst = 32, kSecond = 16, kLast = 4;  // bytes
  static constexpr int kFirstEnd = kFirst * kOfEach, kSecondEnd = kFirstEnd + kSecond * kOfEach;

  static constexpr AOEXT_ANYWHERE int byte_of(int i) {
    return i < kFirstEnd    ? i % kFirst
           : i < kSecondEnd ? kFirst + (i - kFirstEnd) % kSecond
                            : kFirst + kSecond + (i - kSecondEnd) % kLast;
  }
  static constexpr AOEXT_ANYWHERE int digit_of(int i) {
    return i < kFirstEnd ? i / kFirst : i < kSecondEnd ? (i - kFirstEnd) / kSecond : (i - kSecondEnd) / kLast;
  }
  // 3 to the power of `digit`, by which bytes are multiplied modulo 256 before get() takes their first digit.
  static constexpr AOEXT_ANYWHERE int power(int digit) { return static_cast<int>(0x511b090301 >> 8 * digit & 0xff); }
  static constexpr AOEXT_ANYWHERE int get(int byte, int digit) { return (byte * power(digit) & 0xff) * 3 >> 8; }
};

// Some bits of each of several integers. Those of `run` integers lie in as many bytes; the next ones lie above them in the same
// bytes, or elsewhere: run i is `step` bytes on for each `per` runs, and `skew` bytes and `shift_step` bits on within these.
struct Bits {
  int at = 0;    // the first byte
  int bits = 0;  // of an integer; 0 where there are none
  int run = 1, per = 1, step = 0, shift = 0, shift_step = 0, skew = 0;
  bool are_digits = false;  // to base 3: `at` alone is told of them, and shift_of() is which digit of a byte

  constexpr AOEXT_ANYWHERE int byte_of(int i) const {
    return at + (are_digits ? Digits::byte_of(i) : i % run + step * (i / run / per) + skew * (i / run % per));
  }
  constexpr AOEXT_ANYWHERE int shift_of(int i) const {
    return are_digits ? Digits::digit_of(i) : shift + shift_step * (i / run % per);
  }
  constexpr AOEXT_ANYWHERE int get(const unsigned char* block, int i) const {
    if (are_digits) return Digits::get(block[byte_of(i)], shift_of(i));
    return bits == 0 ? 0 : block[byte_of(i)] >> shift_of(i) & ((1 << bits) - 1);
  }
};

// Bytes full of codes: the lowest bits of `run` bytes first, then those above.
constexpr AOEXT_ANYWHERE Bits plane(int at, int bits, int run) { return {at, bits, run, 8 / bits, run, 0, bits}; }

// Two bits each, of digits.
constexpr AOEXT_ANYWHERE Bits digits(int at) { return {at, 2, 1, 1, 0, 0, 0, 0, true}; }

// An integer of up to three planes, the lowest first. It is signed where `middle` is its sign bit, else `middle` is taken off.
struct Integer {
  Bits planes[3];
  int middle = 0;
  bool is_signed = false;

  constexpr AOEXT_ANYWHERE int bits() const { return planes[0].bits + planes[1].bits + planes[2].bits; }
  constexpr AOEXT_ANYWHERE int stored(const unsigned char* block, int i) const {
    return planes[0].get(block, i) | planes[1].get(block, i) << planes[0].bits |
           planes[2].get(block, i) << (planes[0].bits + planes[1].bits);
  }
  constexpr AOEXT_ANYWHERE int get(const unsigned char* block, int i) const {
    const int u = stored(block, i);
    return (is_signed ? u ^ middle : u) - middle;
  }
};

// A number for each group of a block that holds it: a float16 for the block times an integer for the group, where it has one.
struct GroupNumber {
  int at = -1;  // the first byte of the float16; −1 where there is no such number
  Integer factor{};
  bool is_taken_off = false;

  constexpr AOEXT_ANYWHERE bool has_factor() const { return factor.bits() > 0; }
};

struct Layout {
  int values = 1, bytes = 1;  // of a block
  Integer code{};
  // w = code · scale + zero_point, where blocks hold these for each `group` values; 0 where they do not.
  int group = 0;
  GroupNumber scale{}, zero_point{};
  bool looks_up = false;  // the code is an index into kIq4
};

// What codes of iq4_nl and iq4_xs stand for.
constexpr signed char kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

constexpr AOEXT_ANYWHERE Layout layout_of(Code code) {
  // Scales and minima of 6 bits for eight groups, in the 12 bytes behind the floats of q4_k and q5_k.
  constexpr Integer kScales6{{Bits{4, 4, 4, 1, 8}, Bits{4, 2, 4, 2, 0, 4, 2}}};
  constexpr Integer kMinima6{{Bits{8, 4, 4, 2, 0, 0, 4, 4}, Bits{8, 2, 4, 2, 0, 4, 2}}};
  switch (code) {
    case Code::int4: return {2, 1, {{plane(0, 4, 1)}, 8, true}};
    case Code::int8: return {1, 1, {{plane(0, 8, 1)}, 128, true}};
    case Code::e4m3:
    case Code::e5m2: return {1, 1, {{plane(0, 8, 1)}}};
    case Code::lut4: return {2, 1, {{plane(0, 4, 1)}}};
    case Code::int2: return {4, 1, {{plane(0, 2, 1)}}};
    case Code::int3: return {32, 12, {{plane(0, 2, 8), plane(8, 1, 1)}}};
    case Code::int5: return {32, 20, {{plane(0, 4, 16), plane(16, 1, 1)}}};
    case Code::int6: return {32, 24, {{plane(0, 4, 16), plane(16, 2, 8)}}};
    case Code::int7: return {32, 28, {{plane(0, 4, 16), plane(16, 2, 8), plane(24, 1, 1)}}};
    case Code::q4_0: return {32, 18, {{plane(2, 4, 16)}, 8}, 32, {0}};
    case Code::q4_1: return {32, 20, {{plane(4, 4, 16)}}, 32, {0}, {2}};
    case Code::q5_0: return {32, 22, {{plane(6, 4, 16), plane(2, 1, 1)}, 16}, 32, {0}};
    case Code::q5_1: return {32, 24, {{plane(8, 4, 16), plane(4, 1, 1)}}, 32, {0}, {2}};
    case Code::q8_0: return {32, 34, {{plane(2, 8, 1)}, 128, true}, 32, {0}};
    case Code::q2_k:
      return {256, 84, {{plane(16, 2, 32)}}, 16, {80, {{Bits{0, 4, 1, 1, 1}}}}, {82, {{Bits{0, 4, 1, 1, 1, 4}}}, true}};
    case Code::q3_k:
      return {256, 110, {{plane(32, 2, 32), plane(0, 1, 32)}, 4}, 16, {108, {{plane(96, 4, 8), plane(104, 2, 4)}, 32}}};
    case Code::q4_k: return {256, 144, {{plane(16, 4, 32)}}, 32, {0, kScales6}, {2, kMinima6, true}};
    case Code::q5_k: return {256, 176, {{plane(48, 4, 32), plane(16, 1, 32)}}, 32, {0, kScales6}, {2, kMinima6, true}};
    case Code::q6_k: return {256, 210, {{plane(0, 4, 64), plane(128, 2, 32)}, 32}, 16, {208, {{plane(192, 8, 1)}, 128, true}}};
    case Code::iq4_nl: return {32, 18, {{plane(2, 4, 16)}}, 32, {0}, {}, true};
    case Code::iq4_xs: return {256, 136, {{plane(8, 4, 16)}}, 32, {0, {{plane(4, 4, 1), plane(2, 2, 1)}, 32}}, {}, true};
    case Code::tq2_0: return {256, 66, {{plane(0, 2, 32)}, 1}, 256, {64}};
    case Code::tq1_0: return {256, 54, {{digits(0)}, 1}, 256, {52}};
  }
  return {};
}

}  // namespace aoext

// Rows of x up to which a gemv is the fastest, by instruction set: what plan.cpp chooses by. benchmarks/cpu.md says how to
// measure around one.
#pragma once

#include <cstdint>

namespace aoext::cpu {

// By the int8 limbs that a kernel has of x.
struct FewByLimbs {
  int64_t one = 0, two = 0, three = 0;
};

struct FewRows {
  int64_t limbs2 = 0, limbs3 = 0;
  int64_t limbs2_packed = 0;  // by groups of 128
  int64_t int4 = 0;
  int64_t int8 = 0, float8 = 0;
  int64_t int8_by_int8 = 0;
  int64_t int4_by_int8 = 0;
  int64_t lut4 = 4;
  // 8 bits by 8 bits with scales of blocks: where the input's values are bfloat16 exactly, and where they are floats.
  int64_t by_blocks = 0;
  int64_t int8_by_blocks = 0, float8_by_blocks = 0;
  // Codes in planes, those that are signed bytes apart: rows one by one, and together.
  FewByLimbs row = {}, planes = {}, signed_row = {}, signed_planes = {};
};

constexpr FewRows kAmx{.limbs2 = 8,
                       .limbs3 = 8,
                       .limbs2_packed = 16,
                       .int4 = 4,
                       .int8 = 4,
                       .float8 = 4,
                       .int8_by_int8 = 4,
                       .int4_by_int8 = 8,
                       .by_blocks = 4,
                       .int8_by_blocks = 2,
                       .float8_by_blocks = 2,
                       .row = {3, 2, 2},
                       .planes = {6, 8, 6},
                       .signed_row = {2, 3, 3},
                       .signed_planes = {4, 6, 3}};
constexpr FewRows kAvx512{.limbs2 = 8,
                          .limbs3 = 8,
                          .int4 = 4,
                          .int8 = 4,
                          .float8 = 4,
                          .int8_by_int8 = 4,
                          .int4_by_int8 = 8,
                          .by_blocks = 4,
                          .int8_by_blocks = 2,
                          .float8_by_blocks = 3,
                          .row = kAmx.row,
                          .planes = kAmx.planes,
                          .signed_row = kAmx.signed_row,
                          .signed_planes = kAmx.signed_planes};
// Wide: inputs that one bfloat16 is not exact enough for.
constexpr FewRows kAvx512Wide = [] {
  FewRows few = kAvx512;
  few.limbs2 = 16;
  few.int8 = few.float8 = 8;
  few.int8_by_int8 = 2;
  return few;
}();
constexpr FewRows kAvx2{.limbs2 = 16,
                        .limbs3 = 8,
                        .int4 = 2,
                        .int8 = 8,
                        .float8 = 4,
                        .int8_by_int8 = 4,
                        .int4_by_int8 = 6,
                        .lut4 = 6,
                        .int8_by_blocks = 4,
                        .float8_by_blocks = 6,
                        .row = {12, 8, 6},
                        .planes = {8, 8, 8},
                        .signed_row = {2, 3, 2},
                        .signed_planes = {3, 3, 2}};
// Arm's are predicted by instructions a weight (tools/arm_loops.py), not measured.
constexpr FewRows kNeon{.int4 = 4, .int8 = 8, .float8 = 8, .int8_by_int8 = 4, .int8_by_blocks = 4, .float8_by_blocks = 4};
constexpr FewRows kDotprod{.limbs2 = 32,
                           .limbs3 = 16,
                           .int4 = 4,
                           .int8 = 8,
                           .float8 = 8,
                           .int8_by_int8 = 4,
                           .int4_by_int8 = 8,
                           .int8_by_blocks = 2,
                           .float8_by_blocks = 4,
                           .planes = {8, 8, 8},
                           .signed_planes = {8, 8, 8}};
constexpr FewRows kI8mm{.limbs2 = 12,
                        .limbs3 = 8,
                        .int4 = 2,
                        .int8 = 2,
                        .float8 = 2,
                        .int8_by_int8 = 4,
                        .int4_by_int8 = 8,
                        .lut4 = 2,
                        .by_blocks = 2,
                        .int8_by_blocks = 2,
                        .float8_by_blocks = 2,
                        .planes = {4, 4, 8},
                        .signed_planes = {4, 4, 8}};
constexpr FewRows kI8mmWide = [] {
  FewRows few = kI8mm;
  few.limbs2 = 24;
  few.int8 = few.float8 = 4;
  return few;
}();
constexpr FewRows kPortable{.int4 = 2, .lut4 = 2, .int8_by_blocks = 2, .float8_by_blocks = 2};

}  // namespace aoext::cpu

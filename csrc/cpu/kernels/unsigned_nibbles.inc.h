// Nibbles for instructions that multiply unsigned bytes by signed ones (int8_limbs.inc.h).
#pragma once

#include "cpu/kernels/vectors.inc.h"

namespace aoext::cpu {
namespace {

// The even and the odd nibbles of words as bytes 0..15, their sign bit flipped: each instruction set's own.
void unpack(U32 words, U32* even, U32* odd);

// A loader: codes as unsigned bytes, how much larger these are than what the codes stand for, and whether groups have zero
// points. Another format whose values are integers is one more.
struct UnsignedNibbles {
  static constexpr int kOffset = 8;
  static constexpr bool kZeroPoints = true;
  static void load(U32 words, U32* even, U32* odd) { unpack(words, even, odd); }
};

}  // namespace
}  // namespace aoext::cpu

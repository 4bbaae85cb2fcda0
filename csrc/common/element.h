// What the bits of numbers in memory mean, as checks, plans and kernels of all devices name it to each other. No header of
// torch's or of the C++ library: device code includes this.
#pragma once

namespace aoext {

// The codes of a weight. Operators take these numbers (their argument `code`), and files keep them: new ones go to the end.
// From q4_0 on they are those of GGUF, whose blocks hold their scales.
enum class Code {
  int4,
  int8,
  e4m3,
  e5m2,
  lut4,
  int2,
  int3,
  int5,
  int6,
  int7,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  iq4_xs,
  tq2_0,
  tq1_0
};

// The elements of any operand. int4 and lut4 lie two to a byte, int2 four, the lowest k in the lowest bits; a lut4 is an index
// into a table of 16 float32 values, an int2 has no sign. Other codes lie in blocks of bytes (layout.h). A byte u of e8m0 is
// 2^(u − 127), 255 is NaN.
enum class Element : int { bf16, fp16, fp32, int8, e4m3, e5m2, int32, e8m0, lut4, int4, int2, block };

constexpr Element element(Code code) {
  switch (code) {
    case Code::int4: return Element::int4;
    case Code::int8: return Element::int8;
    case Code::e4m3: return Element::e4m3;
    case Code::e5m2: return Element::e5m2;
    case Code::int2: return Element::int2;
    case Code::lut4: return Element::lut4;
    default: return Element::block;
  }
}

}  // namespace aoext

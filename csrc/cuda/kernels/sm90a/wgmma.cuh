// Products of a warpgroup: d[64, n] (+)= a[64, k] · b[n, k]ᵀ, b in shared memory; 16 k of bf16 or fp16 with a in
// registers, 32 of 8 bits with a in shared memory or, of int8 and e4m3, in registers.
//
// The instruction wants every register by name, hence one specialisation for each width (PTX ISA, wgmma.mma_async).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "common/element.h"

namespace aoext::cuda {

template <int kBlockM>
struct Wgmma;

// What the instruction adds up in.
template <Element kType>
using WgmmaSum = std::conditional_t<kType == Element::int8, int, float>;

// clang-format off
#define AOEXT_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define AOEXT_NAMES_16 AOEXT_NAMES_8 ", " "%8, %9, %10, %11, %12, %13, %14, %15"
#define AOEXT_NAMES_32 AOEXT_NAMES_16 ", " "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define AOEXT_NAMES_40 AOEXT_NAMES_32 ", " "%32, %33, %34, %35, %36, %37, %38, %39"
#define AOEXT_NAMES_48 AOEXT_NAMES_32 ", " "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define AOEXT_NAMES_64 AOEXT_NAMES_48 ", " "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define AOEXT_NAMES_80 AOEXT_NAMES_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define AOEXT_NAMES_96 AOEXT_NAMES_80 ", " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define AOEXT_NAMES_128 AOEXT_NAMES_96 ", " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// "+f" or "+r" and each of so many sums from d[i] on.
#define AOEXT_SUMS_8(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3]), C(d[i + 4]), C(d[i + 5]), C(d[i + 6]), C(d[i + 7])
#define AOEXT_SUMS_16(C, i) AOEXT_SUMS_8(C, i), AOEXT_SUMS_8(C, i + 8)
#define AOEXT_SUMS_32(C, i) AOEXT_SUMS_16(C, i), AOEXT_SUMS_16(C, i + 16)
#define AOEXT_SUMS_40(C, i) AOEXT_SUMS_32(C, i), AOEXT_SUMS_8(C, i + 32)
#define AOEXT_SUMS_48(C, i) AOEXT_SUMS_32(C, i), AOEXT_SUMS_16(C, i + 32)
#define AOEXT_SUMS_64(C, i) AOEXT_SUMS_32(C, i), AOEXT_SUMS_32(C, i + 32)
#define AOEXT_SUMS_80(C, i) AOEXT_SUMS_64(C, i), AOEXT_SUMS_16(C, i + 64)
#define AOEXT_SUMS_96(C, i) AOEXT_SUMS_64(C, i), AOEXT_SUMS_32(C, i + 64)
#define AOEXT_SUMS_128(C, i) AOEXT_SUMS_64(C, i), AOEXT_SUMS_64(C, i + 64)

// `b`, and `a` where it is no registers, are descriptors of matrices in shared memory; d is overwritten where `add` is 0.
#define AOEXT_WGMMA_16(T, TYPE, N, SUMS, A0, A1, A2, A3, B, ADD)                                                \
  __device__ static void multiply(T, float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) {          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                              \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" AOEXT_NAMES_##SUMS "}, "  \
                 "{" A0 ", " A1 ", " A2 ", " A3 "}, " B ", p, 1, 1, 0;\n}"                                      \
                 : AOEXT_SUMS_##SUMS("+f", 0)                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                               \
  }
#define AOEXT_WGMMA_8(T, TYPES, C, SIGNS, N, SUMS, A, B, ADD)                                                       \
  __device__ static void multiply(std::integral_constant<Element, Element::T>, WgmmaSum<Element::T> (&d)[N / 2],   \
                                  uint64_t a, uint64_t b, int add) {                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32." TYPES " {" AOEXT_NAMES_##SUMS "}, "                 \
                 A ", " B ", p" SIGNS ";\n}"                                                                       \
                 : AOEXT_SUMS_##SUMS(C, 0)                                                                         \
                 : "l"(a), "l"(b), "r"(add));                                                                      \
  }

#define AOEXT_WGMMA_8_REGISTERS(T, TYPES, C, SIGNS, N, SUMS, A0, A1, A2, A3, B, ADD)                               \
  __device__ static void multiply(std::integral_constant<Element, Element::T>, WgmmaSum<Element::T> (&d)[N / 2],   \
                                  const uint32_t (&a)[4], uint64_t b, int add) {                                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32." TYPES " {" AOEXT_NAMES_##SUMS "}, "                 \
                 "{" A0 ", " A1 ", " A2 ", " A3 "}, " B ", p" SIGNS ";\n}"                                         \
                 : AOEXT_SUMS_##SUMS(C, 0)                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                  \
  }

// The instruction of one width: how many sums a thread has, and the names of what follows them.
#define AOEXT_WGMMA(N, SUMS, I0, I1, I2, I3, I4, I5)                               \
  template <>                                                                      \
  struct Wgmma<N> {                                                                \
    AOEXT_WGMMA_16(__nv_bfloat16, "bf16", N, SUMS, I0, I1, I2, I3, I4, I5)         \
    AOEXT_WGMMA_16(__half, "f16", N, SUMS, I0, I1, I2, I3, I4, I5)                 \
    AOEXT_WGMMA_8(int8, "s32.s8.s8", "+r", "", N, SUMS, I0, I1, I2)                \
    AOEXT_WGMMA_8(e4m3, "f32.e4m3.e4m3", "+f", ", 1, 1", N, SUMS, I0, I1, I2)      \
    AOEXT_WGMMA_8(e5m2, "f32.e5m2.e5m2", "+f", ", 1, 1", N, SUMS, I0, I1, I2)      \
    AOEXT_WGMMA_8_REGISTERS(int8, "s32.s8.s8", "+r", "", N, SUMS, I0, I1, I2, I3, I4, I5)         \
    AOEXT_WGMMA_8_REGISTERS(e4m3, "f32.e4m3.e4m3", "+f", ", 1, 1", N, SUMS, I0, I1, I2, I3, I4, I5) \
  };

AOEXT_WGMMA(16, 8, "%8", "%9", "%10", "%11", "%12", "%13")
AOEXT_WGMMA(32, 16, "%16", "%17", "%18", "%19", "%20", "%21")
AOEXT_WGMMA(64, 32, "%32", "%33", "%34", "%35", "%36", "%37")
AOEXT_WGMMA(80, 40, "%40", "%41", "%42", "%43", "%44", "%45")
AOEXT_WGMMA(96, 48, "%48", "%49", "%50", "%51", "%52", "%53")
AOEXT_WGMMA(128, 64, "%64", "%65", "%66", "%67", "%68", "%69")
AOEXT_WGMMA(160, 80, "%80", "%81", "%82", "%83", "%84", "%85")
AOEXT_WGMMA(192, 96, "%96", "%97", "%98", "%99", "%100", "%101")
AOEXT_WGMMA(256, 128, "%128", "%129", "%130", "%131", "%132", "%133")

#undef AOEXT_NAMES_8
#undef AOEXT_SUMS_8
#undef AOEXT_NAMES_16
#undef AOEXT_SUMS_16
#undef AOEXT_NAMES_32
#undef AOEXT_SUMS_32
#undef AOEXT_NAMES_40
#undef AOEXT_NAMES_48
#undef AOEXT_SUMS_40
#undef AOEXT_SUMS_48
#undef AOEXT_NAMES_64
#undef AOEXT_SUMS_64
#undef AOEXT_NAMES_80
#undef AOEXT_NAMES_96
#undef AOEXT_SUMS_80
#undef AOEXT_SUMS_96
#undef AOEXT_NAMES_128
#undef AOEXT_SUMS_128
#undef AOEXT_WGMMA_16
#undef AOEXT_WGMMA_8
#undef AOEXT_WGMMA_8_REGISTERS
#undef AOEXT_WGMMA

}  // namespace aoext::cuda

// What compilers and systems do differently: nothing else in csrc/ asks which of them it has. (csrc/sycl/kernels/ is compiled for
// SPIR-V alone, int4pack_shim.h stands by itself, and cpu/isa.cpp asks each system for the CPU's features.) No header of the C++
// library: kernels include this, for its macros alone.
//
// The CPU's kernels want the vector extensions of GCC and Clang, which cl lacks and clang-cl has.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define AOEXT_INLINE __attribute__((always_inline))  // of a lambda, behind its parameters
#define AOEXT_NOINLINE __attribute__((noinline))
#define AOEXT_VECTOR(bytes) __attribute__((vector_size(bytes)))
#else
#define AOEXT_INLINE [[msvc::forceinline]]
#define AOEXT_NOINLINE __declspec(noinline)
#endif

// Marks a function that other programs find by its name.
#ifdef _WIN32
#define AOEXT_EXPORT __declspec(dllexport)
#else
#define AOEXT_EXPORT __attribute__((visibility("default")))
#endif

// Before the bytes of a file, and behind them, in the assembler's words.
#if defined(_WIN32)
#define AOEXT_BEGIN_DATA ".section .rdata,\"dr\"\n"
#define AOEXT_END_DATA ".text\n"
#elif defined(__APPLE__)
#define AOEXT_BEGIN_DATA ".section __TEXT,__const\n"
#define AOEXT_END_DATA ".text\n"
#else
#define AOEXT_BEGIN_DATA ".section .rodata\n"
#define AOEXT_END_DATA ".previous\n"
#endif

namespace aoext {

// Whether a · b and a + b do not fit.
#if defined(__GNUC__) || defined(__clang__)
inline bool mul_overflow(int64_t a, int64_t b, int64_t* product) { return __builtin_mul_overflow(a, b, product); }
inline bool add_overflow(int64_t a, int64_t b, int64_t* sum) { return __builtin_add_overflow(a, b, sum); }
#else
inline bool mul_overflow(int64_t a, int64_t b, int64_t* product) {
  *product = static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  return a == -1 ? b == INT64_MIN : a != 0 && *product / a != b;
}
inline bool add_overflow(int64_t a, int64_t b, int64_t* sum) {
  *sum = static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  return ((a ^ *sum) & (b ^ *sum)) < 0;
}
#endif

// The address of a name in a library of this process, "torch_cpu" for what is libtorch_cpu.so on Linux; null where that is not
// loaded, or lacks it.
void* find_symbol(const char* name, const char* library);

// A function, looked up by its name, so that aoext loads beside a PyTorch without it.
template <class Function>
Function* find_function(const char* name, const char* library) {
  return reinterpret_cast<Function*>(find_symbol(name, library));
}

// The file of this copy of the library, and of one that this process loaded before it, "" for none. The text holds until the
// thread asks again.
const char* this_copy();
const char* earlier_copy();

// Whether the system lets this process use AMX's registers; it is asked for them.
bool may_use_amx_registers();

}  // namespace aoext

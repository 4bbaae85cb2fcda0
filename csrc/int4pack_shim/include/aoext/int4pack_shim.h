// Products with int4 weights in the tinygemm layout for the tensors of any runtime: aoti_torch_{cpu,cuda,xpu}__weight_int4pack_mm
// as AOTInductor's generated code calls them, without libtorch. docs/int4pack_shim.md has an example and the list of checks.
//
// A class of traits says what the tensors are; in one source file
//
//   AOEXT_INT4PACK_SHIM_CPU(Traits)    // and _CUDA, _XPU, in a library that has them
//
// defines the symbols. Link it with libaoext_int4pack_shim.a of the same version. Needs C++17; no exceptions, no RTTI.
//
// Traits are static members, none of which may throw:
//
//   using Handle = …;   a pointer to a tensor, null where there is none
//   using Error = …;    what the symbols return
//   static constexpr Error kSuccess
//   static Error fail(Failure, const char* message)         the error to return; may log the message, which does not outlive it
//   static bool view(Handle, View*)                         what a tensor is; false where it cannot be told
//   static Handle empty(int64_t M, int64_t N, const View& like)   a contiguous bfloat16 tensor on like's device, on a GPU at a
//                                                           multiple of 16 bytes; or null
//   static void release(Handle)                             gives back what empty() made
//
// and for a CPU one more, which the base class Serial has, too:
//
//   static void parallel_for(int64_t n, int64_t grain, const Range&)   calls it for ranges that cover [0, n)
//
// and for GPUs:
//
//   static void* stream(int32_t device)   the current cudaStream_t, or the address of the current sycl::queue
//   static void* allocate(size_t bytes, int32_t device, void* stream)    memory of the device at a multiple of 16 bytes, or null
//   static void deallocate(void* memory, int32_t device, void* stream)   called when the work is queued: the memory must stay
//                                                                        valid until the stream has come to that point
#pragma once

#include <cstddef>
#include <cstdint>

namespace aoext::int4pack {

enum class DeviceType { cpu, cuda, xpu, other };
enum class DType { bfloat16, int32, other };

constexpr int64_t kMostDimensions = 4;

struct View {
  void* data = nullptr;
  DType dtype = DType::other;
  DeviceType device = DeviceType::other;
  int32_t device_index = 0;
  int64_t dim = 0;  // of more than kMostDimensions no sizes are wanted
  int64_t sizes[kMostDimensions] = {};
  int64_t strides[kMostDimensions] = {};  // in elements
};

enum class Failure {
  none,
  null_argument,  // a handle, or where the result should go
  bad_argument,   // a tensor or the group size is not what it must be
  unsupported,    // this machine or device cannot run it
  out_of_memory,  // Traits::empty, Traits::allocate or the C++ heap had none
  device_error,   // CUDA or SYCL said so
};

// A part of the work, for Traits::parallel_for.
struct Range {
  void (*run)(void* context, int64_t begin, int64_t end);  // does not throw
  void* context;

  void operator()(int64_t begin, int64_t end) const { run(context, begin, end); }
};

// Base of traits that use the calling thread alone.
struct Serial {
  static void parallel_for(int64_t n, int64_t /*grain*/, const Range& range) { range(0, n); }
};

namespace detail {

struct Status {
  Failure failure = Failure::none;
  char message[320] = "";
};

struct Call {
  const char* symbol;
  DeviceType device;
  const View *self, *mat2, *scale_and_zero;  // null where the handle was
  int64_t group_size;
  bool has_result;  // whether there is a place for it
};

// A call that passed its checks.
struct Problem {
  int64_t M, N, K, group_size, inner_k_tiles;
  const void *x, *weight, *scale_and_zero;
  int32_t device_index;
};

// What the library calls of a runtime's traits.
struct Host {
  void (*parallel_for)(int64_t n, int64_t grain, const Range& range);
  void* (*stream)(int32_t device);
  void* (*allocate)(size_t bytes, int32_t device, void* stream);
  void (*deallocate)(void* memory, int32_t device, void* stream);
};

Status unreadable(const char* symbol, const char* argument) noexcept;  // view() was false
Status no_memory(const char* symbol, const char* what) noexcept;
Status check(const Call& call, Problem* problem) noexcept;
Status run_cpu(const char* symbol, const Problem& problem, void* y, const Host& host) noexcept;
Status run_cuda(const char* symbol, const Problem& problem, void* y, const Host& host) noexcept;
Status run_xpu(const char* symbol, const Problem& problem, void* y, const Host& host) noexcept;

template <class Traits, DeviceType kDevice>
Status run(const char* symbol, const Problem& problem, void* y) {
  if constexpr (kDevice == DeviceType::cpu) {
    return run_cpu(symbol, problem, y, {&Traits::parallel_for, nullptr, nullptr, nullptr});
  } else {
    const Host host{nullptr, &Traits::stream, &Traits::allocate, &Traits::deallocate};
    if constexpr (kDevice == DeviceType::cuda) return run_cuda(symbol, problem, y, host);
    if constexpr (kDevice == DeviceType::xpu) return run_xpu(symbol, problem, y, host);
  }
}

}  // namespace detail

// What the symbols do. A failure leaves *ret0 as it was and nothing allocated; with success *ret0 is the caller's.
template <class Traits, DeviceType kDevice>
typename Traits::Error weight_int4pack_mm(const char* symbol, typename Traits::Handle self, typename Traits::Handle mat2,
                                          int64_t group_size, typename Traits::Handle scale_and_zero,
                                          typename Traits::Handle* ret0) {
  const auto fail = [](const detail::Status& status) { return Traits::fail(status.failure, status.message); };
  View views[3], y;
  const typename Traits::Handle handles[3] = {self, mat2, scale_and_zero};
  const char* const names[3] = {"self", "mat2", "qScaleAndZeros"};
  for (int i = 0; i < 3; ++i)
    if (handles[i] != nullptr && !Traits::view(handles[i], &views[i])) return fail(detail::unreadable(symbol, names[i]));
  const auto view = [&](int i) { return handles[i] == nullptr ? nullptr : &views[i]; };
  const detail::Call call{symbol, kDevice, view(0), view(1), view(2), group_size, ret0 != nullptr};
  detail::Problem problem;
  detail::Status status = detail::check(call, &problem);
  if (status.failure != Failure::none) return fail(status);

  const typename Traits::Handle result = Traits::empty(problem.M, problem.N, views[0]);
  if (result == nullptr) return fail(detail::no_memory(symbol, "the result"));
  if (!Traits::view(result, &y)) {
    status = detail::unreadable(symbol, "the result");
  } else if (problem.M > 0 && problem.N > 0) {
    status = detail::run<Traits, kDevice>(symbol, problem, y.data);
  }
  if (status.failure != Failure::none) {
    Traits::release(result);
    return fail(status);
  }
  *ret0 = result;
  return Traits::kSuccess;
}

}  // namespace aoext::int4pack

#if defined(_WIN32)
#define AOEXT_INT4PACK_EXPORT __declspec(dllexport)
#else
#define AOEXT_INT4PACK_EXPORT __attribute__((visibility("default")))
#endif

#define AOEXT_INT4PACK_SHIM(Traits, device)                                                                                \
  extern "C" AOEXT_INT4PACK_EXPORT Traits::Error aoti_torch_##device##__weight_int4pack_mm(                                \
      Traits::Handle self, Traits::Handle mat2, int64_t qGroupSize, Traits::Handle qScaleAndZeros, Traits::Handle* ret0) { \
    return aoext::int4pack::weight_int4pack_mm<Traits, aoext::int4pack::DeviceType::device>(                               \
        "aoti_torch_" #device "__weight_int4pack_mm", self, mat2, qGroupSize, qScaleAndZeros, ret0);                       \
  }
#define AOEXT_INT4PACK_SHIM_CPU(Traits) AOEXT_INT4PACK_SHIM(Traits, cpu)
#define AOEXT_INT4PACK_SHIM_CUDA(Traits) AOEXT_INT4PACK_SHIM(Traits, cuda)
#define AOEXT_INT4PACK_SHIM_XPU(Traits) AOEXT_INT4PACK_SHIM(Traits, xpu)

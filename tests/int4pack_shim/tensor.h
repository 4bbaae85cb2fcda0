// The smallest tensor that can serve: what it is, where its memory is, and nothing of torch. Everything that is allocated is
// counted, and any allocation can be made to fail.
#pragma once

#include <aoext/int4pack_shim.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "memory.h"

struct Tensor {
  void* data;
  aoext::int4pack::DType dtype;
  int32_t device_index;
  std::vector<int64_t> sizes, strides;
  aoext::int4pack::DeviceType device = kDevice;
};

// What the traits allocated and was not given back, and how many more allocations succeed: all of them where negative.
inline int alive = 0, budget = -1;

// The same of the C++ heap (main.cpp); what the traits do in a call that is to fail must not.
inline long heap_budget = -1;
struct OwnHeap {
  const long saved = heap_budget;
  OwnHeap() { heap_budget = -1; }
  ~OwnHeap() { heap_budget = saved; }
};

inline bool may_allocate() {
  if (budget == 0) return false;
  if (budget > 0) --budget;
  ++alive;
  return true;
}

inline std::vector<int64_t> dense_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  return strides;
}

struct Error {
  aoext::int4pack::Failure failure;
};

inline std::string last_message;

struct Traits {
  using Handle = Tensor*;
  using Error = ::Error;
  static constexpr Error kSuccess{aoext::int4pack::Failure::none};

  static Error fail(aoext::int4pack::Failure failure, const char* message) {
    const OwnHeap unlimited;
    last_message = message;
    return {failure};
  }

  static bool view(Handle t, aoext::int4pack::View* view) {
    if (t->sizes.size() != t->strides.size()) return false;  // a tensor that is broken
    view->data = t->data, view->dtype = t->dtype, view->device = t->device, view->device_index = t->device_index;
    view->dim = static_cast<int64_t>(t->sizes.size());
    if (view->dim > aoext::int4pack::kMostDimensions) return true;
    std::copy(t->sizes.begin(), t->sizes.end(), view->sizes);
    std::copy(t->strides.begin(), t->strides.end(), view->strides);
    return true;
  }

  static Handle empty(int64_t M, int64_t N, const aoext::int4pack::View& like) {
    const OwnHeap unlimited;
    if (!may_allocate()) return nullptr;
    const std::vector<int64_t> sizes{M, N};
    const size_t bytes = static_cast<size_t>(M * N * 2);
    void* const data = memory::allocate(bytes);
    memory::fill(data, 0xAB, bytes);  // what is not written shows
    return new Tensor{data, aoext::int4pack::DType::bfloat16, like.device_index, sizes, dense_strides(sizes)};
  }

  static void release(Handle t) {
    --alive;
    memory::deallocate(t->data);
    delete t;
  }

  // Pieces of the grain, on so many threads.
  static inline int threads = 1;
  static void parallel_for(int64_t n, int64_t grain, const aoext::int4pack::Range& range) {
    if (threads == 1) return range(0, n);
    std::vector<std::thread> team;
    for (int i = 0; i < threads; ++i)
      team.emplace_back([=] {
        for (int64_t begin = i * grain; begin < n; begin += threads * grain) range(begin, std::min(n, begin + grain));
      });
    for (std::thread& thread : team) thread.join();
  }

  static void* stream(int32_t) { return memory::stream(); }
  static void* allocate(size_t bytes, int32_t, void*) { return may_allocate() ? memory::allocate(bytes) : nullptr; }
  static void deallocate(void* data, int32_t, void*) {
    --alive;
    memory::deallocate(data);
  }
};

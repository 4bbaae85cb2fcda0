// torch's threads.
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>

#include "common/torch_api.h"

namespace aoext::cpu {

// As gemm.h and gemv.h ask for them: f(begin, end) for parts of [0, n). What f throws is thrown here: torch's
// frames between may be of another C++ library, as on Windows.
inline constexpr auto kParallelFor = [](int64_t n, int64_t grain, const auto& f) {
  std::mutex mutex;
  std::exception_ptr thrown;
  torch::stable::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) noexcept {
    try {
      f(begin, end);
    } catch (...) {
      const std::lock_guard lock(mutex);
      thrown = std::current_exception();
    }
  });
  if (thrown) std::rethrow_exception(thrown);
};

}  // namespace aoext::cpu

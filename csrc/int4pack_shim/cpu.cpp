// The CPU's part: the operator's own walk over its own kernels, on the threads of the traits.
#include <atomic>

#include "cpu/int4pack_gemm.h"
#include "int4pack_shim/status.h"

namespace aoext::int4pack::detail {
namespace {

// A range for another library's threads, through which nothing may be thrown: a part that finds no memory says so afterwards.
struct Part {
  const cpu::Range& f;
  std::atomic<bool> out_of_memory{false};

  static void run(void* context, int64_t begin, int64_t end) {
    Part& part = *static_cast<Part*>(context);
    try {
      part.f(begin, end);
    } catch (const std::bad_alloc&) {
      part.out_of_memory = true;
    }
  }
};

}  // namespace

Status run_cpu(const char* symbol, const Problem& p, void* y, const Host& host) noexcept {
  return guarded(symbol, [&] {
    const cpu::Int4PackWeight weight{static_cast<const uint32_t*>(p.weight),
                                     static_cast<const char*>(p.scale_and_zero),
                                     cpu::Int4PackShape(p.K, p.inner_k_tiles),
                                     p.N,
                                     p.K,
                                     p.group_size};
    cpu::int4pack_gemm(p.M, p.x, weight, y, [&](int64_t n, int64_t grain, const cpu::Range& f) {
      Part part{f};
      host.parallel_for(n, grain, {&Part::run, &part});
      if (part.out_of_memory) throw std::bad_alloc();
    });
  });
}

}  // namespace aoext::int4pack::detail

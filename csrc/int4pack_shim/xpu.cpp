// XPU's part: the operator's own kernel, on the queue and with the memory of the traits.
#include "int4pack_shim/status.h"
#include "sycl/int4pack_product.h"
#include "sycl/kernels/shape.h"
#include "sycl/launch.h"

namespace aoext::int4pack::detail {
namespace {

// x where the kernel can read it: there, or in memory of the traits that is given back at the end.
class Input {
 public:
  Input(const Host& host, const Problem& p, sycl::queue& queue)
      : host_(host), device_(p.device_index), queue_(queue), data_(p.x) {
    if (reinterpret_cast<uintptr_t>(p.x) % xpu::kInt4PackInputAlignment == 0) return;
    const auto bytes = static_cast<size_t>(p.M * p.K * 2);
    copy_ = host.allocate(bytes, device_, &queue_);
    if (copy_ == nullptr) throw std::bad_alloc();
    data_ = copy_;
    try {
      queue_.memcpy(copy_, p.x, bytes);
    } catch (...) {
      host_.deallocate(copy_, device_, &queue_);
      throw;
    }
  }
  ~Input() {
    if (copy_ != nullptr) host_.deallocate(copy_, device_, &queue_);
  }
  Input(const Input&) = delete;

  const void* data() const { return data_; }

 private:
  const Host& host_;
  const int32_t device_;
  sycl::queue& queue_;
  const void* data_;
  void* copy_ = nullptr;
};

void run(const Problem& p, void* y, const Host& host) {
  void* const stream = host.stream(p.device_index);
  if (stream == nullptr) throw Failed(Failure::unsupported, "there is no current queue");
  sycl::queue& queue = *static_cast<sycl::queue*>(stream);
  if (!queue.is_in_order()) throw Failed(Failure::unsupported, "the current queue must be in order");
  if (p.K >= xpu::kMaxAnyDepth || !xpu::runs(xpu::device_of(queue), xpu::Engine::lanes))
    throw Failed(Failure::unsupported, "needs a device with sub-groups of 16, and K < 2^30");
  const Input x(host, p, queue);
  const xpu::Int4PackLinear linear{y, x.data(), p.weight, p.scale_and_zero, p.M, p.N, p.K, p.group_size, p.inner_k_tiles};
  xpu::launch_int4pack(queue, xpu::plan_int4pack(linear, xpu::device_of(queue)), linear);
}

}  // namespace

Status run_xpu(const char* symbol, const Problem& problem, void* y, const Host& host) noexcept {
  return guarded(symbol, [&] {
    try {
      run(problem, y, host);
    } catch (const Failed&) {
      throw;
    } catch (const std::runtime_error& error) {  // launch() turned one of SYCL's into it
      throw Failed(Failure::device_error, error.what());
    } catch (const sycl::exception& error) {
      throw Failed(Failure::device_error, error.what());
    }
  });
}

}  // namespace aoext::int4pack::detail

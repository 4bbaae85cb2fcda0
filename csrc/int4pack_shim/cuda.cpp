// CUDA's part: the operator's own plan and kernels, on the stream and with the memory of the traits.
#include <vector>

#include "cuda/int4pack_product.h"
#include "cuda/kernels/sizes.h"
#include "int4pack_shim/status.h"

namespace aoext::int4pack::detail {
namespace {

void require(cudaError_t error, const char* what) {
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  if (error != cudaSuccess) throw Failed(Failure::device_error, std::string(what) + ": " + cudaGetErrorString(error));
}

// Makes a device the current one of this thread for as long as it lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    require(cudaGetDevice(&before_), "cudaGetDevice");
    require(cudaSetDevice(device), "cudaSetDevice");
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

// Memory of the traits, given back at the end.
class Workspaces {
 public:
  Workspaces(const Host& host, int32_t device, void* stream) : host_(host), device_(device), stream_(stream) {}
  ~Workspaces() {
    for (void* const memory : all_) host_.deallocate(memory, device_, stream_);
  }
  Workspaces(const Workspaces&) = delete;

  void* allocate(size_t bytes) {
    all_.reserve(all_.size() + 1);  // so that what was allocated is kept in any case
    void* const memory = host_.allocate(bytes, device_, stream_);
    if (memory != nullptr) all_.push_back(memory);
    return memory;
  }

  // The bytes at `data` where kernels can read them: there, or in a copy at a multiple of 16.
  const void* aligned(const void* data, int64_t bytes) {
    if (cuda::is_aligned(data)) return data;
    void* const copy = allocate(static_cast<size_t>(bytes));
    if (copy == nullptr) throw std::bad_alloc();
    const auto stream = static_cast<cudaStream_t>(stream_);
    require(cudaMemcpyAsync(copy, data, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
    return copy;
  }

 private:
  const Host& host_;
  const int32_t device_;
  void* const stream_;
  std::vector<void*> all_;
};

}  // namespace

Status run_cuda(const char* symbol, const Problem& problem, void* y, const Host& host) noexcept {
  return guarded(symbol, [&] {
    const OnDevice here(problem.device_index);
    const cuda::Device& device = cuda::device_of(problem.device_index);
    LinearProblem p{};
    p.M = problem.M, p.N = problem.N, p.K = problem.K, p.group_size = problem.group_size;
    p.inner_k_tiles = problem.inner_k_tiles;
    const cuda::TinygemmPlan plan = cuda::plan_tinygemm(p, device);
    if (cuda::is_generic(plan.kernel))
      throw Failed(Failure::unsupported, "needs a GPU of compute capability 8.0 or newer, and K < 2^31");
    if (!cuda::is_aligned(y)) throw Failed(Failure::unsupported, "the result must start at a multiple of 16 bytes");
    void* const stream = host.stream(problem.device_index);
    Workspaces workspaces(host, problem.device_index, stream);
    cuda::TinygemmLinear linear = cuda::tinygemm_linear(p);
    linear.x = workspaces.aligned(problem.x, p.M * p.K * 2);
    linear.weight = workspaces.aligned(problem.weight, p.N * p.K / 2);
    linear.scale_and_zero = workspaces.aligned(problem.scale_and_zero, p.K / p.group_size * p.N * 4);
    linear.y = y;
    const auto allocate = [&](size_t bytes) { return workspaces.allocate(bytes); };
    require(cuda::launch_int4pack(linear, plan, device, allocate, static_cast<cudaStream_t>(stream)), "weight_int4pack_mm");
  });
}

}  // namespace aoext::int4pack::detail

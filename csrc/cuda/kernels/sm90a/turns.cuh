// Two warpgroups that use the tensor cores in turns: without them both wait for the tensor cores, and then add at the same time.
#pragma once

#include "cuda/kernels/sm90a/tiles.cuh"

namespace aoext::cuda::wgmma {

// As one thread of warpgroup 0 or 1, which take equally many turns, 0 first.
class Turns {
 public:
  __device__ explicit Turns(int group) : group_(group) {
    if (group == 1) pass();
  }

  __device__ void wait() const { sync_threads_of(kBarrier + group_, kPair); }

  // To the other warpgroup. A turn ends when the last of its products begins.
  __device__ void pass() const { asm volatile("bar.arrive %0, %1;" ::"r"(kBarrier + (group_ ^ 1)), "r"(kPair) : "memory"); }

  // Takes what the other passed last.
  __device__ void end() const {
    if (group_ == 0) wait();
  }

 private:
  static constexpr int kBarrier = 6;  // a named barrier for each warpgroup
  int group_;
};

}  // namespace aoext::cuda::wgmma

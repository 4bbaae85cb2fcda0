// A kernel as a type, named by its configuration. Its header says what it is; the plans of a family of products are one of
// several such types, and forcing, explaining, listing and launching go over them (cuda/kernel_list.h).
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/kernels/choice.h"
#include "cuda/properties.h"

namespace aoext::cuda {

template <class Config>
struct Field {
  using Member = int Config::*;
  const char* name;
  Member member;
};

// KernelOf<Config> has, beside what KernelTraits says of it:
//
//   kName                          as people know it
//   kFields                        of its configuration
//   takes(p)                       whether it computes a problem at all
//   choose(p, device)              the configuration that the model of its time (cuda/fits.h) says is fastest
//   fits(p, c)                     whether a configuration fits the problem and there is code for it; what it takes of a device
//   is
//                                  the device's to say
//   workspace(p, c)                bytes
//   launch(p, c, workspace, stream)
//                                  cudaErrorInvalidValue for a configuration that does not fit. The same bits, run after run; may
//                                  be captured in a graph
//   instances(), instance(p, c)    the instances of its template, a line each, and the line of what a launch runs (instances.h)
template <class Config>
struct KernelOf;

// What kernels say of themselves where they do not say otherwise. P: their raw operands.
template <class Config, class P>
struct KernelTraits {
  using Problem = P;
  static constexpr Features kNeeds{};  // of a device, from compute capability 8.0 on
  static constexpr bool kAny = false;  // takes every size, type and alignment, and has no configuration
  static size_t workspace(const P&, const Config&) { return 0; }
};

template <class Config, class P>
struct AnyKernel : KernelTraits<Config, P> {
  static constexpr std::array<Field<Config>, 0> kFields{};
  static constexpr bool kAny = true;
  static bool takes(const P&) { return true; }
  static Choice<Config> choose(const P&, const Device&) { return {}; }
  static bool fits(const P&, const Config&) { return true; }
  static std::string instances() { return ""; }
  static std::string instance(const P&, const Config&) { return ""; }
};

}  // namespace aoext::cuda

// How a kernel is declared: a free function over a 2-dimensional range, with sub-groups along the second.
#pragma once

#include <sycl/ext/intel/experimental/grf_size_properties.hpp>
#include <sycl/sycl.hpp>

#include "common/element.h"
#include "shape.h"

namespace aoext::xpu {

inline sycl::nd_item<2> this_item() { return sycl::ext::oneapi::this_work_item::get_nd_item<2>(); }

inline sycl::sub_group this_sub_group() { return sycl::ext::oneapi::this_work_item::get_sub_group(); }

// The value of one lane, the same for all: compilers turn a broadcast into less code than a select by lane.
template <class T>
inline T lane_value(T value, int lane) {
  return sycl::group_broadcast(this_sub_group(), value, lane);
}

// Memory that the sub-groups of a work-group share: one array for all calls in a kernel with the same arguments. It is a
// variable, because the compiler inside the SYCL runtime crashes where it splits kernels with a group_local_memory; a static one,
// so that no module asks for SPV_KHR_linkonce_odr.
template <class T, int kCount>
static inline T* local_memory() {
  static __attribute__((opencl_local)) T values[kCount];
  return values;
}

}  // namespace aoext::xpu

using aoext::Code;  // in the parameters of kernels
using aoext::Element;

// AOEXT_KERNEL(name)(arguments) { … }; the host asks for it by this name. With AOEXT_KERNEL_256 a thread of a GPU
// has 256 registers, and half as many threads run at once.
#define AOEXT_KERNEL_PROPERTIES                                                            \
  SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::nd_range_kernel<2>)) \
  SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::sub_group_size<aoext::xpu::kLanes>))
#define AOEXT_KERNEL(name) extern "C" AOEXT_KERNEL_PROPERTIES void name
#define AOEXT_KERNEL_256(name) \
  extern "C" AOEXT_KERNEL_PROPERTIES SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::intel::experimental::grf_size<256>)) void name

// How a kernel is declared: a free function over a 2-dimensional range, with sub-groups along the second.
#pragma once

#include <sycl/sycl.hpp>

namespace aoext::xpu {

constexpr int kLanes = 16;  // of a sub-group: what the matrix engines of Xe-HPC, Xe2 and Xe3 want

inline sycl::nd_item<2> this_item() { return sycl::ext::oneapi::this_work_item::get_nd_item<2>(); }

inline sycl::sub_group this_sub_group() { return sycl::ext::oneapi::this_work_item::get_sub_group(); }

}  // namespace aoext::xpu

// AOEXT_KERNEL(name)(arguments) { … }; the host asks for it by this name.
#define AOEXT_KERNEL(name)                                                                                      \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::nd_range_kernel<2>))           \
  SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::sub_group_size<aoext::xpu::kLanes>)) void name

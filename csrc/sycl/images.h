// The SPIR-V that is embedded in the library; CMake generates the table (cmake/sycl.cmake).
#pragma once

#include <vector>

namespace aoext::xpu {

// Kernels of one source file, compiled for one kind of device: "int4_tile.dpas".
struct Image {
  const char* name;
  const char* begin;
  const char* end;
};

const std::vector<Image>& images();

}  // namespace aoext::xpu

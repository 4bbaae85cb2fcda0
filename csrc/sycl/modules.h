// The SPIR-V that is embedded in the library; CMake generates the table (cmake/sycl.cmake).
#pragma once

#include <string>
#include <vector>

namespace aoext::xpu {

// A kernel of an image: of a source file, compiled for one kind of device ("int4_tile.dpas_bf16").
struct Module {
  const char* image;
  const char* kernel;
  const char* begin;
  const char* end;

  std::string name() const { return std::string(image) + "/" + kernel; }
};

const std::vector<Module>& modules();

}  // namespace aoext::xpu

// Launching a kernel whose blocks share tiles (segments.h).
#pragma once

#include <utility>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/sm90a/segments.cuh"

namespace aoext::cuda {

// Where ranges share tiles, their counters are cleared first, by a kernel that this one starts beside.
template <class... Parameters, class... Arguments>
cudaError_t launch_segments(void (*kernel)(Parameters...), Grid grid, const Segments& s, Arguments&&... arguments) {
  if (s.ranges > 0) {
    const Grid one{1, 128, 0, grid.stream, 1, grid.overlap};
    const cudaError_t cleared = launch(clear_counters<unsigned>, one, s.counters, rest_tiles(s));
    if (cleared != cudaSuccess) return cleared;
    grid.overlap = Overlap::always;
  }
  return launch(kernel, grid, std::forward<Arguments>(arguments)...);
}

}  // namespace aoext::cuda

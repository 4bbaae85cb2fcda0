// The best of configurations, by a model of their times.
#pragma once

namespace aoext::cuda {

template <class Config>
struct Choice {
  Config config{};
  double microseconds = 1e30;  // that the model says

  void consider(const Config& candidate, double time) {
    if (time < microseconds) config = candidate, microseconds = time;
  }
};

}  // namespace aoext::cuda

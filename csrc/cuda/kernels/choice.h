// The best of configurations, by a model of their times.
#pragma once

#include <vector>

namespace aoext::cuda {

// Where a thread sets it, every choice adds what it is made among: of a configuration the microseconds that its model says, then
// the ints that it is made of, in their order. For those who fit the models (cuda/plans.cpp).
inline thread_local std::vector<double>* considered = nullptr;

template <class Config>
struct Choice {
  Config config{};
  double microseconds = 1e30;  // that the model says

  void consider(const Config& candidate, double time) {
    if (considered != nullptr) record(candidate, time);
    if (time < microseconds) config = candidate, microseconds = time;
  }

  // The same of another kernel that is cut the same way.
  template <class Other>
  Choice<Other> as() const {
    return {Other{config}, microseconds};
  }

 private:
  static void record(const Config& candidate, double time) {
    static_assert(sizeof(Config) % sizeof(int) == 0);
    const int* const fields = reinterpret_cast<const int*>(&candidate);
    considered->push_back(time);
    considered->insert(considered->end(), fields, fields + sizeof(Config) / sizeof(int));
  }
};

// The same, said to take so many times as long.
template <class Config>
Choice<Config> longer(Choice<Config> choice, double times) {
  choice.microseconds *= times;
  return choice;
}

}  // namespace aoext::cuda

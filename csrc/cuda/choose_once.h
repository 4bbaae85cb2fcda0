// Choosing takes longer than a launch, so every choice is made once.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace aoext::cuda {

// Of more rows of x there are too many counts to remember, and choosing is quick.
constexpr int64_t kRememberedRows = 512;

// What `choose()` returned when it was first asked for this key, which tells problem and device. Each caller has a memory of its
// own.
template <class Key, class Choose>
auto choose_once(int64_t rows, const Key& key, Choose&& choose) {
  if (rows > kRememberedRows) return choose();
  static std::mutex mutex;
  static std::map<Key, decltype(choose())> chosen;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = chosen.find(key);
  return found != chosen.end() ? found->second : chosen.emplace(key, choose()).first->second;
}

}  // namespace aoext::cuda

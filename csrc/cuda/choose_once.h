// Choosing takes longer than a launch, so every choice is made once.
#pragma once

#include <map>
#include <mutex>

namespace aoext::cuda {

// What `choose()` returned when it was first asked for this key. Each caller has a memory of its own.
template <class Key, class Choose>
auto choose_once(const Key& key, Choose&& choose) {
  static std::mutex mutex;
  static std::map<Key, decltype(choose())> chosen;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = chosen.find(key);
  return found != chosen.end() ? found->second : chosen.emplace(key, choose()).first->second;
}

}  // namespace aoext::cuda

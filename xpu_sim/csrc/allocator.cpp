#include "allocator.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <map>
#include <mutex>
#include <sycl/sycl.hpp>
#include <utility>

#include "streams.h"

namespace xpu_sim {
namespace {

namespace caching = c10::CachingDeviceAllocator;

struct Freed {
  Block block;
  std::vector<sycl::event> users;  // what was queued when it was freed
};

// All blocks of all devices. Leaked, since tensors may die after static objects.
class Memory {
 public:
  static Memory& get() {
    static Memory* leaked = new Memory;
    return *leaked;
  }

  void* allocate(size_t bytes, int device) {
    std::lock_guard lock(mutex_);
    reclaim();
    const Block block = make_block(bytes, device, modes);
    blocks_.emplace(block.data, block);
    count(block, +1);
    return block.data;
  }

  void free(void* data) {
    if (forked()) return;  // the parent's memory
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<std::byte*>(data));
    if (found == blocks_.end()) return;
    const Block block = found->second;
    blocks_.erase(found);
    count(block, -1);
    freed_.push_back({block, unfinished(block.device == Block::kPinned ? -1 : block.device)});
    reclaim();
  }

  std::vector<std::string> take_damage() {
    std::lock_guard lock(mutex_);
    reclaim();
    for (const auto& [data, block] : blocks_) note_damage(block);
    return std::exchange(damage_, {});
  }

  std::optional<int> device_of(const void* address) {
    std::lock_guard lock(mutex_);
    auto after = blocks_.upper_bound(static_cast<std::byte*>(const_cast<void*>(address)));
    if (after == blocks_.begin()) return {};
    const Block& block = std::prev(after)->second;
    if (address >= block.data + block.bytes) return {};
    return block.device;
  }

  template <typename F>
  auto with_stats(c10::DeviceIndex device, F f) {
    check_device(device);
    std::lock_guard lock(mutex_);
    return f(stats_[device]);
  }

  Modes modes;

 private:
  void reclaim() {
    std::vector<Freed> kept;
    for (Freed& freed : freed_) {
      auto& users = freed.users;
      users.erase(std::remove_if(users.begin(), users.end(), is_complete), users.end());
      if (users.empty()) {
        note_damage(freed.block);
        release_block(freed.block);
      } else {
        kept.push_back(std::move(freed));
      }
    }
    freed_ = std::move(kept);
  }

  static bool is_complete(const sycl::event& event) {
    return event.get_info<sycl::info::event::command_execution_status>() == sycl::info::event_command_status::complete;
  }

  void note_damage(const Block& block) {
    std::string found = damage(block);
    if (found.empty()) return;
    damage_.push_back(std::move(found));
    restore_canaries(block);
  }

  void count(const Block& block, int sign) {
    if (block.device == Block::kPinned) return;
    auto& stats = stats_[block.device];
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      change((*bytes)[0], block.bytes, sign);
    }
    for (auto* number : {&stats.allocation, &stats.active}) change((*number)[0], 1, sign);
  }

  static void change(caching::Stat& stat, size_t amount, int sign) {
    if (sign > 0) {
      stat.increase(amount);
    } else {
      stat.decrease(amount);
    }
  }

  std::mutex mutex_;
  std::map<std::byte*, Block> blocks_;  // by their data
  std::vector<Freed> freed_;
  std::vector<std::string> damage_;
  std::array<caching::DeviceStats, kDevices> stats_;
};

void free_data(void* data) { Memory::get().free(data); }

struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex device = current_device();
    void* data = bytes ? Memory::get().allocate(bytes, device) : nullptr;
    return {data, data, data ? &free_data : &c10::detail::deleteNothing, c10::Device(c10::kXPU, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_data; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    copy_bytes(current_stream(current_device()), to, from, bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  caching::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return Memory::get().with_stats(device, [](const caching::DeviceStats& stats) { return stats; });
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](caching::Stat& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](caching::Stat& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const size_t total = sycl_device().get_info<sycl::info::device::global_mem_size>();
    return {total - std::min(total, memory_in_use(device)), total};
  }

  template <typename F>
  void for_each_stat(c10::DeviceIndex device, F f) {
    Memory::get().with_stats(device, [&](caching::DeviceStats& stats) {
      for (auto* array : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes,
                          &stats.allocation, &stats.active}) {
        f((*array)[0]);
      }
    });
  }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? Memory::get().allocate(bytes, Block::kPinned) : nullptr;
    return {data, data, data ? &free_data : &c10::detail::deleteNothing, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_data; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

// Above whatever torch has registered for XPU.
[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(c10::kXPU, &device_allocator(), /*priority=*/100);
  return true;
}();

}  // namespace

c10::Allocator& device_allocator() {
  static auto* leaked = new DeviceAllocator;
  return *leaked;
}

c10::Allocator& pinned_allocator() {
  static auto* leaked = new PinnedAllocator;
  return *leaked;
}

Modes modes() { return Memory::get().modes; }

void set_modes(const Modes& modes) { Memory::get().modes = modes; }

std::vector<std::string> take_damage() {
  wait_quietly(c10::DeviceIndex{-1});
  return Memory::get().take_damage();
}

size_t memory_in_use(c10::DeviceIndex device) {
  return Memory::get().with_stats(device, [](const auto& stats) { return stats.allocated_bytes[0].current; });
}

std::optional<int> device_of(const void* address) { return Memory::get().device_of(address); }

}  // namespace xpu_sim

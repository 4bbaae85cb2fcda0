// The memory of the simulated devices, and pinned host memory.
//
// A block that is freed is given back only when everything that was queued on its device at that moment is
// done, on all streams. Nothing waits for that: freed blocks are looked through at the next allocation. So
// record_stream has nothing to do, and no memory is reused too early.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blocks.h"

namespace xpu_sim {

c10::Allocator& device_allocator();
c10::Allocator& pinned_allocator();

// The modes of blocks to come.
Modes modes();
void set_modes(const Modes& modes);

// Waits for all devices, checks every block there is, and gives the damage found since the last call,
// that of freed blocks too.
std::vector<std::string> take_damage();

size_t memory_in_use(c10::DeviceIndex device);
// The device (or Block::kPinned) of the block that holds this address.
std::optional<int> device_of(const void* address);

}  // namespace xpu_sim

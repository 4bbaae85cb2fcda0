// One block of device memory and what surrounds it.
//
//   plain:        data
//   canaries:     canary | data | canary
//   guard pages:  no access | canary | data | canary | no access, with data as close to the end as its
//                 alignment allows
//
// A canary is random bytes; damage is found when they are read back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace xpu_sim {

struct Modes {
  bool canaries = false;
  bool guard_pages = false;
  // The data's first byte has this alignment in guard page mode. A smaller one leaves fewer bytes between data and guard page.
  size_t guard_alignment = 64;
};

struct Block {
  std::byte* data = nullptr;
  size_t bytes = 0;
  int device = 0;  // kPinned: host memory that the devices can reach

  // What the modes at its birth have put around it.
  std::byte* base = nullptr;
  size_t total = 0;  // from base, between the guard pages if there are any
  size_t guard = 0;  // bytes without access before base and after its total
  bool has_canaries = false;
  uint64_t seed = 0;

  static constexpr int kPinned = -1;
  static constexpr size_t kAlignment = 64;
};

// Throws torch's out-of-memory error where SYCL gives none. Data of a block with canaries starts as 0xFF bytes:
// NaN in every floating point type.
Block make_block(size_t bytes, int device, const Modes& modes);
// Gives the memory back. No work may be using it any more.
void release_block(const Block& block);
// The damage to the block's canaries in words, or nothing.
std::string damage(const Block& block);
// Writes the canaries anew, so that damage is reported once.
void restore_canaries(const Block& block);

}  // namespace xpu_sim

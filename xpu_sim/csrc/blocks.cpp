#include "blocks.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <sstream>
#include <sycl/sycl.hpp>

#include "streams.h"

namespace xpu_sim {
namespace {

constexpr size_t kCanary = 256;

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

// The random byte at a place of a canary (splitmix64).
std::byte canary_byte(uint64_t seed, size_t offset) {
  uint64_t x = seed + 0x9e3779b97f4a7c15 * (offset + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return std::byte(x >> 56);
}

// Calls f(address, expected byte) for every byte of both canaries.
template <typename F>
void for_each_canary_byte(const Block& block, F f) {
  if (!block.has_canaries) return;
  for (std::byte* at = block.base; at < block.base + block.total; ++at) {
    if (at == block.data) at += block.bytes;
    if (at >= block.base + block.total) break;
    f(at, canary_byte(block.seed, at - block.base));
  }
}

uint64_t next_seed() {
  static std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

std::string name_of(const Block& block) {
  return block.device == Block::kPinned ? "in pinned memory" : "on xpu:" + std::to_string(block.device);
}

std::byte* allocate(size_t bytes, size_t alignment, int device) {
  void* memory = device == Block::kPinned ? sycl::aligned_alloc_host(alignment, bytes, sycl_context())
                                          : sycl::aligned_alloc_shared(alignment, bytes, sycl_device(), sycl_context());
  TORCH_CHECK_WITH(OutOfMemoryError, memory, "xpu_sim: SYCL cannot allocate ", bytes, " bytes");
  return static_cast<std::byte*>(memory);
}

}  // namespace

Block make_block(size_t bytes, int device, const Modes& modes) {
  Block block;
  block.bytes = bytes;
  block.device = device;
  block.has_canaries = modes.canaries || modes.guard_pages;
  if (modes.guard_pages) {
    const size_t page = sysconf(_SC_PAGESIZE);
    block.guard = page;
    block.total = round_up(bytes, page);
    block.base = allocate(block.total + 2 * page, page, device) + page;
    const size_t slack = round_up(bytes, modes.guard_alignment) - bytes;
    block.data = block.base + block.total - bytes - slack;
    for (std::byte* guard : {block.base - page, block.base + block.total}) {
      TORCH_CHECK(mprotect(guard, page, PROT_NONE) == 0, "xpu_sim: cannot protect a guard page: ", std::strerror(errno));
    }
  } else {
    const size_t margin = block.has_canaries ? kCanary : 0;
    block.total = margin + bytes + margin;
    block.base = allocate(block.total, Block::kAlignment, device);
    block.data = block.base + margin;
  }
  if (block.has_canaries) {
    block.seed = next_seed();
    restore_canaries(block);
    std::memset(block.data, 0xff, bytes);
  }
  return block;
}

void release_block(const Block& block) {
  std::byte* memory = block.base - block.guard;
  // SYCL's own bookkeeping may touch the memory that it gets back.
  if (block.guard) mprotect(memory, block.total + 2 * block.guard, PROT_READ | PROT_WRITE);
  sycl::free(memory, sycl_context());
}

std::string damage(const Block& block) {
  std::ostringstream text;
  const auto describe = [&](const char* side, size_t count, size_t nearest) {
    if (!count) return;
    text << (text.tellp() > 0 ? "; " : "") << count << " bytes overwritten " << side << ", the nearest at offset " << nearest;
  };
  size_t before = 0, after = 0, nearest_before = 0, nearest_after = 0;
  for_each_canary_byte(block, [&](std::byte* at, std::byte expected) {
    if (*at == expected) return;
    if (at < block.data) {
      ++before;
      nearest_before = block.data - at;
    } else if (!after++) {
      nearest_after = at - block.data - block.bytes;
    }
  });
  describe("before its start", before, nearest_before);
  describe("after its end", after, nearest_after);
  if (!before && !after) return {};
  return "block of " + std::to_string(block.bytes) + " bytes " + name_of(block) + ": " + text.str();
}

void restore_canaries(const Block& block) {
  for_each_canary_byte(block, [](std::byte* at, std::byte expected) { *at = expected; });
}

}  // namespace xpu_sim

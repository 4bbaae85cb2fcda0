#include "common/library.h"

#include <cstdio>
#include <string>

#include "common/portability.h"

namespace aoext {
namespace {

bool look() {
  const std::string first = earlier_copy();
  if (first.empty()) return false;
  std::fprintf(
      stderr,
      "aoext: %s is a second copy of this library in one process and stays idle: the operators of torch.ops.ao are those "
      "of %s\n",
      this_copy(), first.c_str());
  return true;
}

}  // namespace

const char* keep_error_text(const char* text) noexcept {
  static thread_local char kept[kErrorText];
  std::snprintf(kept, sizeof kept, "%s", text);
  return kept;
}

bool is_second_copy() {
  static const bool second = look();
  return second;
}

}  // namespace aoext

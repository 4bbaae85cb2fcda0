// Registration with PyTorch's dispatcher: AOEXT_LIBRARY_DEFINE and AOEXT_LIBRARY_IMPL in place of torch's macros.
//
// A second copy of this library in a process (another file, as of another environment) registers nothing and says so: what
// PyTorch does about a second definition ends the process. Its C functions work; the dispatcher's kernels are the first copy's.
#pragma once

#include <optional>

#include "common/torch_api.h"

namespace aoext {

// Whether a copy was loaded before this one. Said on stderr, once.
bool is_second_copy();

class Registration {
 public:
  using Library = torch::stable::detail::StableLibrary;

  Registration(Library::Kind kind, void (*fill)(Library&), const char* key, const char* file, uint32_t line) {
    if (!is_second_copy()) library_.emplace(kind, fill, "ao", key, file, line);
  }

 private:
  std::optional<torch::stable::detail::StableTorchLibraryInit> library_;
};

}  // namespace aoext

#define AOEXT_LIBRARY_DEFINE(m) AOEXT_LIBRARY_(FRAGMENT, nullptr, m, C10_UID)
#define AOEXT_LIBRARY_IMPL(key, m) AOEXT_LIBRARY_(IMPL, #key, m, C10_UID)
#define AOEXT_LIBRARY_(kind, key, m, uid)                                                                       \
  static void C10_CONCATENATE(aoext_fill_, uid)(::aoext::Registration::Library&);                               \
  static const ::aoext::Registration C10_CONCATENATE(aoext_registration_, uid)(                                 \
      ::aoext::Registration::Library::Kind::kind, &C10_CONCATENATE(aoext_fill_, uid), key, __FILE__, __LINE__); \
  void C10_CONCATENATE(aoext_fill_, uid)(::aoext::Registration::Library & m)

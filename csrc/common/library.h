// Registration with PyTorch's dispatcher: AOEXT_LIBRARY_DEFINE, AOEXT_LIBRARY_IMPL and AOEXT_BOX in place of torch's macros.
//
// A second copy of this library in a process (another file, as of another environment) registers nothing and says so: what
// PyTorch does about a second definition ends the process. Its C functions work; the dispatcher's kernels are the first copy's.
#pragma once

#include <exception>
#include <optional>

#include "common/portability.h"
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

// What a boxed kernel throws is raised by torch, with the same text: an exception of this library's C++ runtime that met frames
// of torch's would end the process where the two are not the same, as on Windows. There are two functions because the one that
// torch's exception leaves may have no handlers of this runtime.
constexpr size_t kErrorText = 4096;  // longer texts are cut
const char* keep_error_text(const char* text) noexcept;

template <auto kBoxed>
AOEXT_NOINLINE const char* error_of(StableIValue* stack, uint64_t arguments, uint64_t results) noexcept {
  try {
    kBoxed(stack, arguments, results);
    return nullptr;
  } catch (const std::exception& error) {
    return keep_error_text(error.what());
  } catch (...) {
    return keep_error_text("aoext: an exception of unknown type");
  }
}

template <auto kBoxed>
AOEXT_NOINLINE void run_boxed(StableIValue* stack, uint64_t arguments, uint64_t results) {
  if (const char* const text = error_of<kBoxed>(stack, arguments, results)) aoti_torch_check(false, "ao", "aoext", 0, text);
}

}  // namespace aoext

#define AOEXT_BOX(...) (&::aoext::run_boxed<TORCH_BOX(__VA_ARGS__)>)
#define AOEXT_LIBRARY_DEFINE(m) AOEXT_LIBRARY_(FRAGMENT, nullptr, m, C10_UID)
#define AOEXT_LIBRARY_IMPL(key, m) AOEXT_LIBRARY_(IMPL, #key, m, C10_UID)
#define AOEXT_LIBRARY_(kind, key, m, uid)                                                                       \
  static void C10_CONCATENATE(aoext_fill_, uid)(::aoext::Registration::Library&);                               \
  static const ::aoext::Registration C10_CONCATENATE(aoext_registration_, uid)(                                 \
      ::aoext::Registration::Library::Kind::kind, &C10_CONCATENATE(aoext_fill_, uid), key, __FILE__, __LINE__); \
  void C10_CONCATENATE(aoext_fill_, uid)(::aoext::Registration::Library & m)

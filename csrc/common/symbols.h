// Functions of libraries that may or may not be there.
#pragma once

#include <dlfcn.h>

namespace aoext {

// A function of what this process has loaded, or of `library`, if that is loaded; else null. Looked up by name, so that
// aoext loads beside a PyTorch without it.
template <class Function>
Function* find_function(const char* name, const char* library) {
  if (void* const found = dlsym(RTLD_DEFAULT, name)) return reinterpret_cast<Function*>(found);
  void* const handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  return handle == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle, name));
}

}  // namespace aoext

#include "common/library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace aoext {
namespace {

constexpr const char* kName = "libaoext.so";

// The name that a loaded object was linked with, or "".
const char* soname(const dl_phdr_info& object) {
  const ElfW(Dyn)* entry = nullptr;
  for (int i = 0; i < object.dlpi_phnum; ++i)
    if (object.dlpi_phdr[i].p_type == PT_DYNAMIC)
      entry = reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + object.dlpi_phdr[i].p_vaddr);
  ElfW(Addr) strings = 0, name = 0;
  for (; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_STRTAB) strings = entry->d_un.d_ptr;
    if (entry->d_tag == DT_SONAME) name = entry->d_un.d_val;
  }
  if (strings == 0 || name == 0) return "";
  if (strings < object.dlpi_addr) strings += object.dlpi_addr;  // glibc has added it, musl has not
  return reinterpret_cast<const char*>(strings + name);
}

struct Search {
  ElfW(Addr) address;  // in this copy
  std::string found;
};

// Objects come in the order in which they were loaded.
int before_this(dl_phdr_info* object, size_t /*size*/, void* data) {
  Search& search = *static_cast<Search*>(data);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = object->dlpi_phdr[i];
    const ElfW(Addr) start = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && search.address >= start && search.address - start < segment.p_memsz) return 1;
  }
  if (std::strcmp(soname(*object), kName) != 0) return 0;
  search.found = object->dlpi_name;
  return 1;
}

bool look() {
  Search search{reinterpret_cast<ElfW(Addr)>(&is_second_copy), {}};
  dl_iterate_phdr(before_this, &search);
  if (search.found.empty()) return false;
  Dl_info here{};
  dladdr(reinterpret_cast<void*>(&is_second_copy), &here);
  std::fprintf(
      stderr,
      "aoext: %s is a second copy of this library in one process and stays idle: the operators of torch.ops.ao are those "
      "of %s\n",
      here.dli_fname == nullptr ? kName : here.dli_fname, search.found.c_str());
  return true;
}

}  // namespace

bool is_second_copy() {
  static const bool second = look();
  return second;
}

}  // namespace aoext

#include "common/portability.h"

#include <string>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#else
#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include <cstring>

namespace aoext {
namespace {

const char* keep(std::string text) {
  static thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

}  // namespace

#if defined(_WIN32)

namespace {

constexpr const wchar_t* kName = L"aoext.dll";

HMODULE this_module() {
  HMODULE module = nullptr;
  GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
                     reinterpret_cast<const wchar_t*>(&find_symbol), &module);
  return module;
}

std::string file_of(HMODULE module) {
  wchar_t file[4096];
  const DWORD length = GetModuleFileNameW(module, file, 4096);
  char text[3 * 4096];
  const int bytes = WideCharToMultiByte(CP_UTF8, 0, file, static_cast<int>(length), text, sizeof text, nullptr, nullptr);
  return std::string(text, static_cast<size_t>(bytes));
}

}  // namespace

void* find_symbol(const char* name, const char* library) {
  const HMODULE module = GetModuleHandleA((std::string(library) + ".dll").c_str());
  return module == nullptr ? nullptr : reinterpret_cast<void*>(GetProcAddress(module, name));
}

const char* this_copy() { return keep(file_of(this_module())); }

// Windows gives the first of those that it loaded by this name.
const char* earlier_copy() {
  const HMODULE first = GetModuleHandleW(kName);
  return first == nullptr || first == this_module() ? "" : keep(file_of(first));
}

bool may_use_amx_registers() {
  // From Windows 11 on, and the Windows Server of that time.
  using Enable = BOOL __stdcall(DWORD64 features);
  static Enable* const enable = find_function<Enable>("EnableProcessOptionalXStateFeatures", "kernel32");
  constexpr DWORD64 kTileData = DWORD64{1} << 18;
  return enable != nullptr && enable(kTileData) != 0;
}

#else

void* find_symbol(const char* name, const char* library) {
  if (void* const found = dlsym(RTLD_DEFAULT, name)) return found;
#ifdef __APPLE__
  const char* const ending = ".dylib";
#else
  const char* const ending = ".so";
#endif
  void* const handle = dlopen(("lib" + std::string(library) + ending).c_str(), RTLD_NOLOAD | RTLD_LAZY);
  return handle == nullptr ? nullptr : dlsym(handle, name);
}

const char* this_copy() {
  Dl_info here{};
  dladdr(reinterpret_cast<void*>(&find_symbol), &here);
  return here.dli_fname == nullptr ? "" : keep(here.dli_fname);
}

#ifdef __APPLE__

const char* earlier_copy() {
  const std::string name = "/libaoext.dylib", here = this_copy();
  for (uint32_t i = 0; i < _dyld_image_count(); ++i) {
    const std::string file = _dyld_get_image_name(i);
    if (file == here) return "";
    if (file.size() >= name.size() && file.compare(file.size() - name.size(), name.size(), name) == 0) return keep(file);
  }
  return "";
}

bool may_use_amx_registers() { return false; }

#else

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

}  // namespace

const char* earlier_copy() {
  Search search{reinterpret_cast<ElfW(Addr)>(&find_symbol), {}};
  dl_iterate_phdr(before_this, &search);
  return keep(search.found);
}

// Linux lets a process use them once it has asked.
bool may_use_amx_registers() {
#ifdef SYS_arch_prctl
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

#endif
#endif

}  // namespace aoext

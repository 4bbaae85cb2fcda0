// How this library was built and what it chose at run time: lines of "key: value" behind aoext.show_config.
#include "common/library.h"
#include "cpu/isa.h"

namespace aoext {
namespace {

std::string build_config() {
  return std::string("version: " AOEXT_VERSION "\ncompiler: " AOEXT_COMPILER "\nbuilt with torch: " AOEXT_TORCH_VERSION
                     "\ncuda: " AOEXT_WITH_CUDA "\nsycl: " AOEXT_WITH_SYCL "\ncpu instruction set: ") +
         cpu::name_of(cpu::isa()) + "\nusable here: " + cpu::usable_instruction_sets();
}

}  // namespace

AOEXT_LIBRARY_IMPL(CompositeExplicitAutograd, m) { m.impl("_build_config", AOEXT_BOX(&build_config)); }

}  // namespace aoext

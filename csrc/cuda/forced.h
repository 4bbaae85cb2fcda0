// A plan that a thread forces on its calls, for tests and benchmarks: aoext.ops.with_plan. It knows nothing of torch.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cuda/fields.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// A kernel, and some fields of its configuration; the others are what the kernel would be given.
struct Forced {
  std::string text;  // "int4_ring tiles=2 k_splits=4"
  std::string kernel;
  std::vector<std::pair<std::string, int>> fields;

  template <class Config>
  bool is() const {
    return kernel == Fields<Config>::kKernel;
  }

  template <class Config>
  Config over(Config c) const {
    for (const auto& [name, value] : fields)
      for (const Field<Config>& field : Fields<Config>::kAll)
        if (name == field.name) c.*field.member = value;
    return c;
  }
};

// What this thread forces, or null.
const Forced* forced();

// Has this thread force a plan, none for "". RuntimeError that names a kernel or a field that there is not. What was forced
// before.
std::string force(const std::string& plan);

// Whether a forced kernel is one of a plan's; others go on as ever.
template <class... Configs>
bool is_one_of(const Forced& f, const std::variant<Configs...>& /*kernels*/) {
  return (f.is<Configs>() || ...);
}

[[noreturn]] void refuse_kernel(const Forced& f, const std::string& problem, const Device& device);
[[noreturn]] void refuse_config(const Forced& f, const std::string& problem, const std::string& config);
void check_on_device(const Forced& f, const Device& device);

// The configuration of the forced kernel, which `takes` the problem or not, by its own choice and what `fits`. RuntimeError that
// names the argument where it does not.
template <class Config, class Choose, class Fits>
Config forced_config(const Forced& f, const std::string& problem, const Device& device, bool takes, Choose&& choose,
                     Fits&& fits) {
  if (!takes) refuse_kernel(f, problem, device);
  check_on_device(f, device);
  const bool whole = f.fields.size() == Fields<Config>::kAll.size();  // leaves nothing to choose
  const Config config = f.over(whole ? Config{} : Config{choose()});
  if (!fits(config)) refuse_config(f, problem, text(config));
  return config;
}

}  // namespace aoext::cuda

// Forced plans (common/forced.h) of kernels whose configurations have Fields. It knows nothing of torch.
#pragma once

#include <string>
#include <variant>

#include "common/forced.h"
#include "cuda/fields.h"
#include "cuda/properties.h"

namespace aoext::cuda {

template <class Config>
bool is(const Forced& f) {
  return f.kernel == Fields<Config>::kKernel;
}

// The configuration with what is forced of it.
template <class Config>
Config over(const Forced& f, Config c) {
  for (const Field<Config>& field : Fields<Config>::kAll) c.*field.member = f.field(field.name, c.*field.member);
  return c;
}

// Whether a forced kernel is one of a plan's; others go on as ever.
template <class... Configs>
bool is_one_of(const Forced& f, const std::variant<Configs...>& /*kernels*/) {
  return (is<Configs>(f) || ...);
}

[[noreturn]] inline void refuse_kernel(const Forced& f, const std::string& problem, const Device& device) {
  aoext::refuse_kernel(f, problem, device.name);
}
void check_on_device(const Forced& f, const Device& device);

// The configuration of the forced kernel, which `takes` the problem or not, by its own choice and what `fits`. RuntimeError that
// names the argument where it does not.
template <class Config, class Choose, class Fits>
Config forced_config(const Forced& f, const std::string& problem, const Device& device, bool takes, Choose&& choose,
                     Fits&& fits) {
  if (!takes) refuse_kernel(f, problem, device);
  check_on_device(f, device);
  const bool whole = f.fields.size() == Fields<Config>::kAll.size();  // leaves nothing to choose
  const Config config = over(f, whole ? Config{} : Config{choose()});
  if (!fits(config)) refuse_config(f, problem, text(config));
  return config;
}

}  // namespace aoext::cuda

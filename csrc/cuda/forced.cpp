#include "cuda/forced.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

namespace aoext::cuda {
namespace {

thread_local std::optional<Forced> current;

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error("aoext: with_plan: " + what); }

int number(const std::string& name, const std::string& value) {
  int n = 0;
  const char* const end = value.data() + value.size();
  const auto [at, error] = std::from_chars(value.data(), end, n);
  if (error != std::errc() || at != end) refuse(name + " must be an int, got " + value);
  return n;
}

// The names of a configuration's fields, if it is the forced kernel's.
template <class Config>
void add_fields(const Forced& f, std::vector<std::string>& names) {
  if (f.is<Config>())
    for (const Field<Config>& field : Fields<Config>::kAll) names.emplace_back(field.name);
}

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all.empty() ? "no field" : all;
}

// f(Config{}) of every kernel.
template <class F>
void for_each_kernel(F&& f) {
  const auto each = [&]<class... Configs>(const std::variant<Configs...>&) { (f(Configs{}), ...); };
  each(Int4Kernel()), each(GroupedInt4Kernel()), each(RowwiseKernel()), each(BlocksKernel()), each(ScaledKernel()),
      each(TinygemmKernel());
}

Forced parsed(const std::string& plan) {
  Forced f{plan, {}, {}};
  std::istringstream words(plan);
  words >> f.kernel;
  std::vector<std::string> kernels, fields;
  for_each_kernel([&]<class Config>(const Config&) {
    if (std::find(kernels.begin(), kernels.end(), Fields<Config>::kKernel) == kernels.end())
      kernels.emplace_back(Fields<Config>::kKernel), add_fields<Config>(f, fields);
  });
  if (std::find(kernels.begin(), kernels.end(), f.kernel) == kernels.end())
    refuse("kernel must be one of " + joined(kernels) + ", got " + f.kernel);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (std::find(fields.begin(), fields.end(), name) == fields.end())
      refuse(f.kernel + " has " + joined(fields) + ", got " + name);
    f.fields.emplace_back(name, number(name, equals == std::string::npos ? "" : word.substr(equals + 1)));
  }
  return f;
}

}  // namespace

const Forced* forced() { return current ? &*current : nullptr; }

std::string force(const std::string& plan) {
  std::optional<Forced> next;
  if (!plan.empty()) next = parsed(plan);
  const std::string before = current ? current->text : "";
  current = std::move(next);
  return before;
}

void refuse_kernel(const Forced& f, const std::string& problem, const Device& device) {
  refuse("kernel must be one that takes " + problem + " on " + device.name + ", got " + f.kernel);
}

void refuse_config(const Forced& f, const std::string& problem, const std::string& config) {
  std::vector<std::string> given;
  for (const auto& [name, value] : f.fields) given.push_back(name + " = " + std::to_string(value));
  refuse((given.empty() ? f.kernel : joined(given)) + " must fit " + problem + ", got " + config);
}

void check_on_device(const Forced& f, const Device& device) {
  for (const auto& [name, value] : f.fields) {
    if ((name == "cluster" && value > 1 && !device.is_hopper()) || (name == "overlaps" && value > 0 && !device.is_hopper()))
      refuse(name + " must be " + (name == "cluster" ? "1" : "0") + " on " + device.name + ", got " + std::to_string(value));
    if (name == "shared_memory" && value > device.shared_memory)
      refuse(name + " must be at most " + std::to_string(device.shared_memory) + " on " + device.name + ", got " +
             std::to_string(value));
    if (name == "float8" && value > 0 && device.capability < 89)
      refuse(name + " must be 0 on " + device.name + ", got " + std::to_string(value));
  }
}

}  // namespace aoext::cuda

#include "common/forced.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <stdexcept>

namespace aoext {
namespace {

thread_local std::optional<Forced> current;

int number(const std::string& name, const std::string& value) {
  int n = 0;
  const char* const end = value.data() + value.size();
  const auto [at, error] = std::from_chars(value.data(), end, n);
  if (error != std::errc() || at != end) refuse_plan(name + " must be an int, got " + value);
  return n;
}

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all.empty() ? "no field" : all;
}

void add(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

Forced parsed(const std::string& plan, const std::vector<Forceable>& kernels) {
  Forced f{plan, {}, {}};
  std::istringstream words(plan);
  words >> f.kernel;
  std::vector<std::string> names, fields;
  for (const Forceable& forceable : kernels) {
    add(names, forceable.kernel);
    if (forceable.kernel == f.kernel)
      for (const std::string& field : forceable.fields) add(fields, field);
  }
  if (std::find(names.begin(), names.end(), f.kernel) == names.end())
    refuse_plan("kernel must be one of " + joined(names) + ", got " + f.kernel);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (std::find(fields.begin(), fields.end(), name) == fields.end())
      refuse_plan(f.kernel + " has " + joined(fields) + ", got " + name);
    f.fields.emplace_back(name, number(name, equals == std::string::npos ? "" : word.substr(equals + 1)));
  }
  return f;
}

}  // namespace

int Forced::field(const std::string& name, int chosen) const {
  for (const auto& [forced_name, value] : fields)
    if (forced_name == name) return value;
  return chosen;
}

const Forced* forced() { return current ? &*current : nullptr; }

std::string force(const std::string& plan, const std::vector<Forceable>& kernels) {
  std::optional<Forced> next;
  if (!plan.empty()) next = parsed(plan, kernels);
  const std::string before = current ? current->text : "";
  current = std::move(next);
  return before;
}

void refuse_kernel(const Forced& f, const std::string& problem, const std::string& device) {
  refuse_plan("kernel must be one that takes " + problem + " on " + device + ", got " + f.kernel);
}

void refuse_config(const Forced& f, const std::string& problem, const std::string& config) {
  std::vector<std::string> given;
  for (const auto& [name, value] : f.fields) given.push_back(name + " = " + std::to_string(value));
  refuse_plan((given.empty() ? f.kernel : joined(given)) + " must fit " + problem + ", got " + config);
}

void refuse_plan(const std::string& what) { throw std::runtime_error("aoext: with_plan: " + what); }

}  // namespace aoext

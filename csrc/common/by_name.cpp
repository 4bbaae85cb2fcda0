#include "common/by_name.h"

#include <map>
#include <stdexcept>
#include <tuple>
#include <type_traits>

namespace aoext {
namespace {

// Hands out arguments by the types of an operator's parameters, from the first on.
class Reader {
 public:
  Reader(const std::string& op, const Arguments& arguments) : op_(op), arguments_(arguments) {}

  template <class T>
  T next() {
    const std::vector<Tensor>& tensors = arguments_.tensors;
    if constexpr (std::is_same_v<T, Tensor>) {
      if (next_ >= tensors.size()) fail(std::to_string(next_ + 1) + " tensors or more", std::to_string(tensors.size()));
      return tensors[next_++];
    } else if constexpr (std::is_same_v<T, OptionalTensor>) {
      return next_ < tensors.size() ? OptionalTensor(tensors[next_++]) : std::nullopt;
    } else if constexpr (std::is_same_v<T, int64_t>) {
      if (!arguments_.number) fail("a number", "none");
      return *arguments_.number;
    } else if constexpr (std::is_same_v<T, ScalarType>) {
      if (!arguments_.dtype) fail("a dtype", "none");
      return *arguments_.dtype;
    } else {
      static_assert(std::is_same_v<T, std::optional<ScalarType>>);
      return arguments_.dtype;
    }
  }

 private:
  [[noreturn]] void fail(const std::string& must, const std::string& got) const {
    throw std::runtime_error("ao::" + op_ + ": arguments must have " + must + ", got " + got);
  }

  const std::string& op_;
  const Arguments& arguments_;
  size_t next_ = 0;
};

template <class... Parameters>
LinearProblem checked(LinearProblem (*check)(Parameters...), const std::string& op, const Arguments& arguments) {
  Reader reader(op, arguments);
  const std::tuple<std::decay_t<Parameters>...> values{reader.next<std::decay_t<Parameters>>()...};  // from the left
  return std::apply(check, values);
}

using Check = LinearProblem (*)(const std::string& op, const Arguments& arguments);

const std::map<std::string, Check>& table() {
  static const std::map<std::string, Check> checks{
#define AOEXT_OPERATOR(name, result, parameters, c_parameters, schema) \
  {#name, [](const std::string& op, const Arguments& arguments) { return checked(&check_##name, op, arguments); }},
#include "operators.inc"
  };
  return checks;
}

}  // namespace

LinearProblem check_by_name(const std::string& op, const Arguments& arguments) {
  const auto entry = table().find(op);
  if (entry == table().end()) throw std::runtime_error("ao::_explain: operator must be one of the ao operators, got " + op);
  return entry->second(op, arguments);
}

std::string operator_names() {
  std::string names;
  for (const auto& entry : table()) names += entry.first + "\n";
  return names;
}

}  // namespace aoext

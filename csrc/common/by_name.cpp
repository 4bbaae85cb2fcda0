#include "common/by_name.h"

#include <map>
#include <sstream>
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
    if constexpr (std::is_same_v<T, Tensor>) {
      const OptionalTensor tensor = next_tensor();
      if (!tensor) fail(std::to_string(next_) + " tensors or more", std::to_string(next_ - 1));
      return *tensor;
    } else if constexpr (std::is_same_v<T, OptionalTensor>) {
      return next_tensor();
    } else if constexpr (std::is_same_v<T, int64_t>) {
      return next_number();
    } else if constexpr (std::is_same_v<T, bool>) {
      return next_number() != 0;
    } else if constexpr (std::is_same_v<T, Integers>) {
      Integers list(next_number());
      for (int64_t& number : list) number = next_number();
      return list;
    } else if constexpr (std::is_same_v<T, OptionalIntegers>) {
      const int64_t length = next_number();
      if (length < 0) return std::nullopt;
      Integers list(length);
      for (int64_t& number : list) number = next_number();
      return list;
    } else if constexpr (std::is_same_v<T, ScalarType>) {
      if (!arguments_.dtype) fail("a dtype", "none");
      return *arguments_.dtype;
    } else {
      static_assert(std::is_same_v<T, std::optional<ScalarType>>);
      return arguments_.dtype;
    }
  }

 private:
  OptionalTensor next_tensor() {
    const size_t i = next_++;
    return i < arguments_.tensors.size() ? arguments_.tensors[i] : std::nullopt;
  }

  int64_t next_number() {
    if (next_number_ >= arguments_.numbers.size()) fail("more numbers", std::to_string(arguments_.numbers.size()));
    return arguments_.numbers[next_number_++];
  }

  [[noreturn]] void fail(const std::string& must, const std::string& got) const {
    throw std::runtime_error("ao::" + op_ + ": arguments must have " + must + ", got " + got);
  }

  const std::string& op_;
  const Arguments& arguments_;
  size_t next_ = 0, next_number_ = 0;
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

const Tensor* Call::named(const char* name) const {
  static const std::map<std::string, std::string> schemas{
#define AOEXT_OPERATOR(name, result, parameters, c_parameters, schema) {#name, schema},
#include "operators.inc"
  };
  std::istringstream words(schemas.at(op));
  const std::string is_last = std::string(name) + ")", is_inner = std::string(name) + ",",
                    is_optional = std::string(name) + "=None";
  size_t at = 0;
  for (std::string type, argument; words >> type && type != "->";) {
    if (type != "Tensor" && type != "(Tensor" && type != "Tensor?") continue;
    words >> argument;
    const bool found = argument == is_last || argument == is_inner || argument.rfind(is_optional, 0) == 0;
    if (found) return at < tensors.size() && tensors[at] ? &*tensors[at] : nullptr;
    ++at;
  }
  return nullptr;
}

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

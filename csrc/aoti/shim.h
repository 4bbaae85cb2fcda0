// An operator as the code that AOTInductor generates calls it: a C function, its signature derived from the operator's.
//
//   Tensor       AtenTensorHandle, borrowed
//   Tensor?      AtenTensorHandle*, null for None
//   int          int64_t
//   int[]        const int64_t*, int64_t: the numbers and how many
//   int[]?       const int64_t**, int64_t: null for None
//   bool         int32_t
//   ScalarType   int32_t, PyTorch's number of the dtype
//   ScalarType?  int32_t*, null for None
//   a result     AtenTensorHandle* behind the arguments; what is put there is the caller's
//
// The device's kernel is called without the dispatcher: there is nothing left to dispatch on, for such a program was compiled
// for one device and runs without autograd. A call that fails gives AOTI_TORCH_FAILURE, no result, and leaves its message with
// PyTorch (`fail`).
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "common/describe.h"
#include "generic/register.h"

namespace aoext::aoti {

// Keeps the message where PyTorch keeps those of its own C functions; gives AOTI_TORCH_FAILURE.
AOTITorchError fail(const char* message) noexcept;

// RuntimeError where a tensor is on another device than the one that a program was compiled for.
void check_device(const char* op, const Tensor& t, Key key);

struct DeleteTensor {
  void operator()(AtenTensorHandle handle) const { aoti_torch_delete_tensor_object(handle); }
};
using OwnedHandle = std::unique_ptr<AtenTensorOpaque, DeleteTensor>;

// A handle of one's own to the tensor behind another.
inline OwnedHandle share(AtenTensorHandle handle) {
  if (handle == nullptr) throw std::runtime_error("aoext: a C shim was given no tensor where it needs one");
  AtenTensorHandle shared = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(handle, &shared));
  return OwnedHandle(shared);
}

// The C types of an argument, in a tuple, and its value.
template <class T>
struct Argument;

template <>
struct Argument<Tensor> {
  using C = std::tuple<AtenTensorHandle>;
  static Tensor value(AtenTensorHandle handle) { return Tensor(share(handle).release()); }
};

template <>
struct Argument<int64_t> {
  using C = std::tuple<int64_t>;
  static int64_t value(int64_t number) { return number; }
};

template <>
struct Argument<bool> {
  using C = std::tuple<int32_t>;
  static bool value(int32_t flag) { return flag != 0; }
};

template <>
struct Argument<Integers> {
  using C = std::tuple<const int64_t*, int64_t>;
  static Integers value(const int64_t* numbers, int64_t count) { return Integers(numbers, numbers + count); }
};

template <>
struct Argument<ScalarType> {
  using C = std::tuple<int32_t>;
  static ScalarType value(int32_t number) { return torch::stable::detail::to<ScalarType>(torch::stable::detail::from(number)); }
};

template <class T>
struct Argument<std::optional<T>> {
  using Given = std::tuple_element_t<0, typename Argument<T>::C>*;
  using C = std::tuple<Given>;
  static std::optional<T> value(Given given) {
    return given == nullptr ? std::nullopt : std::optional<T>(Argument<T>::value(*given));
  }
};

template <>
struct Argument<OptionalIntegers> {
  using C = std::tuple<const int64_t**, int64_t>;
  static OptionalIntegers value(const int64_t** numbers, int64_t count) {
    return numbers == nullptr ? std::nullopt : OptionalIntegers(Argument<Integers>::value(*numbers, count));
  }
};

// Before the operator runs: where there is nowhere to put its result, it is not computed.
template <class... Handles>
void check_takers(const Handles*... takers) {
  if (((takers == nullptr) || ...)) throw std::runtime_error("aoext: a C shim was given no place for its result");
}

inline void give(const Tensor& result, AtenTensorHandle* taker) { *taker = share(result.get()).release(); }

// All are shared before one is given: a failure gives none.
template <class... Results, class... Handles>
void give(const std::tuple<Results...>& results, Handles*... takers) {
  static_assert(sizeof...(Results) == sizeof...(Handles));
  auto shared = std::apply([](const Results&... result) { return std::tuple{share(result.get())...}; }, results);
  std::apply([&](auto&... handle) { ((*takers = handle.release()), ...); }, shared);
}

// The C types of the results, in a tuple.
template <class Result>
struct Takers;
template <>
struct Takers<Tensor> {
  using C = std::tuple<AtenTensorHandle*>;
};
template <class... Results>
struct Takers<std::tuple<Results...>> {
  using C = decltype(std::tuple_cat(std::declval<typename Takers<Results>::C>()...));
};

// The shims of the operator with this generic kernel.
template <auto* kGeneric>
struct Shim;

template <class Result, class... Args, Result (*kGeneric)(Args...)>
struct Shim<kGeneric> {
  using Arguments = std::tuple<Argument<std::decay_t<Args>>...>;
  using C = decltype(std::tuple_cat(std::declval<typename Argument<std::decay_t<Args>>::C>()...,
                                    std::declval<typename Takers<Result>::C>()));

  static AOTITorchError call(Key key, const char* op, const C& c) noexcept {
    try {
      run(key, op, c, std::index_sequence_for<Args...>(),
          std::make_index_sequence<std::tuple_size_v<C> - first_part(sizeof...(Args))>());
      return AOTI_TORCH_SUCCESS;
    } catch (const std::exception& error) {
      return fail(error.what());
    } catch (...) {
      return fail("aoext: an exception of unknown type");
    }
  }

 private:
  // Where the C arguments of an argument begin; of the results, where `argument` counts all arguments.
  static constexpr size_t first_part(size_t argument) {
    constexpr size_t parts[] = {std::tuple_size_v<typename Argument<std::decay_t<Args>>::C>...};
    size_t first = 0;
    for (size_t i = 0; i < argument; ++i) first += parts[i];
    return first;
  }

  template <size_t argument>
  static auto value(const C& c) {
    using Of = std::tuple_element_t<argument, Arguments>;
    return [&]<size_t... part>(std::index_sequence<part...>) {
      return Of::value(std::get<first_part(argument) + part>(c)...);
    }(std::make_index_sequence<std::tuple_size_v<typename Of::C>>());
  }

  template <size_t... argument, size_t... result>
  static void run(Key key, const char* op, const C& c, std::index_sequence<argument...>, std::index_sequence<result...>) {
    constexpr size_t first_result = first_part(sizeof...(Args));
    check_takers(std::get<first_result + result>(c)...);
    const std::tuple<std::decay_t<Args>...> values{value<argument>(c)...};
    check_device(op, std::get<0>(values), key);
    give(kernel_of<kGeneric>[static_cast<int>(key)](std::get<argument>(values)...), std::get<first_result + result>(c)...);
  }
};

}  // namespace aoext::aoti

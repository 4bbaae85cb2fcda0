// An operator as the code that AOTInductor generates calls it: a C function, its signature derived from the operator's.
//
//   Tensor       AtenTensorHandle, borrowed
//   Tensor?      AtenTensorHandle*, null for None
//   int          int64_t
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

template <class T>
struct Argument;

template <>
struct Argument<Tensor> {
  using C = AtenTensorHandle;
  static Tensor value(C handle) { return Tensor(share(handle).release()); }
};

template <>
struct Argument<int64_t> {
  using C = int64_t;
  static int64_t value(C number) { return number; }
};

template <>
struct Argument<ScalarType> {
  using C = int32_t;
  static ScalarType value(C number) { return torch::stable::detail::to<ScalarType>(torch::stable::detail::from(number)); }
};

template <class T>
struct Argument<std::optional<T>> {
  using C = typename Argument<T>::C*;
  static std::optional<T> value(C given) {
    return given == nullptr ? std::nullopt : std::optional<T>(Argument<T>::value(*given));
  }
};

// Before the operator runs: where there is nowhere to put its result, it is not computed.
template <class... Handles>
void check_takers(const Handles*... takers) {
  if (((takers == nullptr) || ...)) throw std::runtime_error("aoext: a C shim was given no place for its result");
}

inline void give(const Tensor& result, AtenTensorHandle* taker) { *taker = share(result.get()).release(); }

inline void give(const std::tuple<Tensor, Tensor>& results, AtenTensorHandle* first_taker, AtenTensorHandle* second_taker) {
  OwnedHandle first = share(std::get<0>(results).get()), second = share(std::get<1>(results).get());
  *first_taker = first.release();
  *second_taker = second.release();
}

// The C types of the results, in a tuple.
template <class Result>
struct Takers;
template <>
struct Takers<Tensor> {
  using C = std::tuple<AtenTensorHandle*>;
};
template <>
struct Takers<std::tuple<Tensor, Tensor>> {
  using C = std::tuple<AtenTensorHandle*, AtenTensorHandle*>;
};

// The shims of the operator with this generic kernel.
template <auto* kGeneric>
struct Shim;

template <class Result, class... Args, Result (*kGeneric)(Args...)>
struct Shim<kGeneric> {
  using C = decltype(std::tuple_cat(std::declval<std::tuple<typename Argument<std::decay_t<Args>>::C...>>(),
                                    std::declval<typename Takers<Result>::C>()));

  static AOTITorchError call(Key key, const char* op, const C& c) noexcept {
    constexpr size_t arguments = sizeof...(Args);
    try {
      run(key, op, c, std::make_index_sequence<arguments>(), std::make_index_sequence<std::tuple_size_v<C> - arguments>());
      return AOTI_TORCH_SUCCESS;
    } catch (const std::exception& error) {
      return fail(error.what());
    } catch (...) {
      return fail("aoext: an exception of unknown type");
    }
  }

 private:
  template <size_t... argument, size_t... result>
  static void run(Key key, const char* op, const C& c, std::index_sequence<argument...>, std::index_sequence<result...>) {
    check_takers(std::get<sizeof...(Args) + result>(c)...);
    const std::tuple<std::decay_t<Args>...> values{Argument<std::decay_t<Args>>::value(std::get<argument>(c))...};
    check_device(op, std::get<0>(values), key);
    give(kernel_of<kGeneric>[static_cast<int>(key)](std::get<argument>(values)...), std::get<sizeof...(Args) + result>(c)...);
  }
};

}  // namespace aoext::aoti

// How the parts of this library end: with nothing, or with a failure in words.
#pragma once

#include <new>
#include <stdexcept>
#include <string>

#include "int4pack_shim/include/aoext/int4pack_shim.h"

namespace aoext::int4pack::detail {

// "symbol: what", cut where it is too long.
Status failed(Failure failure, const char* symbol, const char* what) noexcept;

// A failure on its way to guarded().
struct Failed : std::runtime_error {
  Failure failure;
  Failed(Failure failure_, const std::string& what) : std::runtime_error(what), failure(failure_) {}
};

// What f() throws as a status: no exception leaves this library.
template <class F>
Status guarded(const char* symbol, const F& f) noexcept {
  try {
    f();
    return {};
  } catch (const Failed& error) {
    return failed(error.failure, symbol, error.what());
  } catch (const std::bad_alloc&) {
    return no_memory(symbol, "working");
  } catch (const std::exception& error) {
    return failed(Failure::unsupported, symbol, error.what());
  }
}

}  // namespace aoext::int4pack::detail

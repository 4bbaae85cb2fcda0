// aoti_torch_<device>__weight_int4pack_mm on a tensor type of our own.
//
//   main products FILE    runs the products of a file, compares each with what the file expects
//   main failures         every check, every error, every allocation that can fail
//
// tests/test_int4pack_shim.py builds it, writes the file with what the torch operator gave, and says what it holds.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <new>

#include "tensor.h"

using aoext::int4pack::DeviceType;
using aoext::int4pack::DType;
using aoext::int4pack::Failure;

#define AOEXT_SYMBOL_(device) aoti_torch_##device##__weight_int4pack_mm
#define AOEXT_SYMBOL(device) AOEXT_SYMBOL_(device)
#define AOEXT_TEXT_(text) #text
#define AOEXT_TEXT(text) AOEXT_TEXT_(text)
#define AOEXT_DEFINE(device) AOEXT_INT4PACK_SHIM(Traits, device)

AOEXT_DEFINE(AOEXT_TEST_DEVICE)

// ---- the C++ heap, which can fail too -------------------------------------------------------------------
//
// Where nothing but this program and the library under test uses it: on a CPU.
namespace {

long heap_alive = 0, heap_budget = -1;

#if AOEXT_DEVICE_IS(cpu)
void* heap(size_t bytes) {
  if (heap_budget == 0) throw std::bad_alloc();
  if (heap_budget > 0) --heap_budget;
  void* const data = std::malloc(bytes);
  if (data == nullptr) throw std::bad_alloc();
  if (Traits::threads == 1) ++heap_alive;
  return data;
}
void unheap(void* data) {
  if (data != nullptr && Traits::threads == 1) --heap_alive;
  std::free(data);
}
#endif

}  // namespace

#if AOEXT_DEVICE_IS(cpu)
void* operator new(size_t bytes) { return heap(bytes); }
void operator delete(void* data) noexcept { unheap(data); }
void operator delete(void* data, size_t) noexcept { unheap(data); }
#endif

namespace {

int failed = 0;

void expect(bool condition, const std::string& what) {
  if (condition) return;
  ++failed;
  std::printf("FAILED: %s\n", what.c_str());
}

// ---- tensors --------------------------------------------------------------------------------------------

// A tensor with memory of its own, `offset` bytes behind an aligned address.
struct Owned {
  void* memory_;
  Tensor tensor;

  Owned(DType dtype, std::vector<int64_t> sizes, const void* bytes, size_t count, size_t offset = 0)
      : memory_(memory::allocate(count + offset)),
        tensor{static_cast<char*>(memory_) + offset, dtype, 0, sizes, dense_strides(sizes)} {
    memory::copy(tensor.data, bytes, count);
  }
  Owned(const Owned&) = delete;
  ~Owned() { memory::deallocate(memory_); }
};

struct Problem {
  int64_t M, N, K, group_size, inner;

  size_t x_bytes() const { return static_cast<size_t>(M * K * 2); }
  size_t weight_bytes() const { return static_cast<size_t>(N * K / 2); }
  size_t pairs_bytes() const { return static_cast<size_t>(K / group_size * N * 4); }
  size_t y_bytes() const { return static_cast<size_t>(M * N * 2); }
  std::vector<int64_t> weight_sizes() const { return {N / 8, K / (16 * inner), 32, inner / 2}; }
  std::string text() const {
    return std::to_string(M) + " x " + std::to_string(N) + " x " + std::to_string(K) + ", groups of " +
           std::to_string(group_size) + ", " + std::to_string(inner) + " inner k-tiles";
  }
};

struct Arguments {
  Owned self, mat2, pairs;

  Arguments(const Problem& p, const std::vector<char>& x, const std::vector<char>& weight, const std::vector<char>& scales,
            bool shifted)
      : self(DType::bfloat16, {p.M, p.K}, x.data(), p.x_bytes(), shifted ? 2 : 0),
        mat2(DType::int32, p.weight_sizes(), weight.data(), p.weight_bytes(), shifted ? 4 : 0),
        pairs(DType::bfloat16, {p.K / p.group_size, p.N, 2}, scales.data(), p.pairs_bytes(), shifted ? 2 : 0) {}
};

float number(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

double difference(const std::vector<uint16_t>& got, const std::vector<uint16_t>& wanted) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::pow(double{number(got[i])} - number(wanted[i]), 2);
    norm += std::pow(double{number(wanted[i])}, 2);
  }
  return std::sqrt(error / (norm > 0 ? norm : 1));
}

std::vector<uint16_t> fetch(const Tensor& y, const Problem& p) {
  std::vector<uint16_t> values(static_cast<size_t>(p.M * p.N));
  memory::copy(values.data(), y.data, p.y_bytes());
  return values;
}

// ---- products -------------------------------------------------------------------------------------------

void product(const Problem& p, const Arguments& arguments, const std::vector<uint16_t>& wanted, bool same_bits,
             const std::string& how) {
  Tensor* result = nullptr;
  const Error error = AOEXT_SYMBOL(AOEXT_TEST_DEVICE)(const_cast<Tensor*>(&arguments.self.tensor),
                                                      const_cast<Tensor*>(&arguments.mat2.tensor), p.group_size,
                                                      const_cast<Tensor*>(&arguments.pairs.tensor), &result);
  expect(error.failure == Failure::none, p.text() + how + ": " + last_message);
  if (error.failure != Failure::none) return;
  expect(result->sizes == std::vector<int64_t>{p.M, p.N} && result->dtype == DType::bfloat16, p.text() + ": its result");
  const std::vector<uint16_t> got = fetch(*result, p);
  const double off = difference(got, wanted);
  const bool right = same_bits ? got == wanted : off <= 1e-2;
  expect(right, p.text() + how + " differs by " + std::to_string(off) + (same_bits ? ", and should not at all" : ""));
  Traits::release(result);
  expect(alive == 0, p.text() + how + ": " + std::to_string(alive) + " allocations were not given back");
}

template <class T>
std::vector<T> read(std::istream& in, size_t bytes) {
  std::vector<T> data(bytes / sizeof(T));
  in.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(bytes));
  if (!in) {
    std::printf("the file of products is cut\n");
    std::exit(2);
  }
  return data;
}

void products(const char* path) {
  std::ifstream in(path, std::ios::binary);
  const int64_t count = read<int64_t>(in, 8)[0];
  int64_t same = 0;
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<int64_t> head = read<int64_t>(in, 48);
    const Problem p{head[0], head[1], head[2], head[3], head[4]};
    const bool same_bits = head[5] != 0;
    same += same_bits;
    const std::vector<char> x = read<char>(in, p.x_bytes()), weight = read<char>(in, p.weight_bytes());
    const std::vector<char> pairs = read<char>(in, p.pairs_bytes());
    const std::vector<uint16_t> wanted = read<uint16_t>(in, p.y_bytes());
    product(p, Arguments(p, x, weight, pairs, false), wanted, same_bits, "");
    product(p, Arguments(p, x, weight, pairs, true), wanted, same_bits, ", shifted in memory");
    Traits::threads = 3;
    product(p, Arguments(p, x, weight, pairs, false), wanted, same_bits, ", by three threads");
    Traits::threads = 1;
  }
  std::printf("products: %lld, of the same bits: %lld, failed: %d\n", static_cast<long long>(count),
              static_cast<long long>(same), failed);
}

// ---- failures -------------------------------------------------------------------------------------------

// A call whose arguments may be spoilt one by one.
struct Call {
  Tensor self, mat2, pairs;
  Tensor *self_handle = &self, *mat2_handle = &mat2, *pairs_handle = &pairs;
  int64_t group_size;
  bool has_result = true;
};

struct Case {
  std::function<void(Call&)> spoil;
  Failure failure;
  const char* message;  // after the symbol's name
};

const char* const kSymbol = "aoti_torch_" AOEXT_TEXT(AOEXT_TEST_DEVICE) "__weight_int4pack_mm: ";

void run(Call call, Failure failure, const std::string& message) {
  Tensor* const untouched = reinterpret_cast<Tensor*>(16);
  Tensor* result = untouched;
  const int before = alive;
  const Error error = AOEXT_SYMBOL(AOEXT_TEST_DEVICE)(call.self_handle, call.mat2_handle, call.group_size, call.pairs_handle,
                                                      call.has_result ? &result : nullptr);
  expect(error.failure == failure && last_message == kSymbol + message, "wanted \"" + message + "\", got \"" + last_message + "\"");
  expect(result == untouched, message + ": the result was written");
  expect(alive == before, message + ": something was not given back");
}

void failures() {
  // All zeros: of a failure no number is looked at.
  const Problem p{3, 40, 128, 64, 8};
  const std::vector<char> zeros(std::max({p.x_bytes(), p.weight_bytes(), p.pairs_bytes()}));
  const Arguments good(p, zeros, zeros, zeros, false);
  const auto fresh = [&] { return Call{good.self.tensor, good.mat2.tensor, good.pairs.tensor}; };
  const auto reshape = [](Tensor& t, std::vector<int64_t> sizes) { t.sizes = sizes, t.strides = dense_strides(sizes); };
  const DeviceType elsewhere = kDevice == DeviceType::cpu ? DeviceType::cuda : DeviceType::cpu;
  const std::string here = AOEXT_TEXT(AOEXT_TEST_DEVICE), there = kDevice == DeviceType::cpu ? "cuda" : "cpu";
  const std::string weight = "mat2 must be int32 [N/8, K/(16 * inner_k_tiles), 32, inner_k_tiles/2] with inner_k_tiles 2, 4 or 8 "
                             "for an input with K = 128, got ";
  const std::string pairs = "qScaleAndZeros must be bfloat16 [K/group_size, N, 2] = [2, 40, 2], got ";
  const std::string group = "qGroupSize must be 32, 64, 128 or 256 and divide K = 128, got ";
  const auto bad = [&](const std::string& message, const std::function<void(Call&)>& spoil,
                       Failure failure = Failure::bad_argument) {
    Call call = fresh();
    call.group_size = p.group_size;
    call.self_handle = &call.self, call.mat2_handle = &call.mat2, call.pairs_handle = &call.pairs;
    spoil(call);
    // Handles point into the call that is spoilt.
    Tensor* const untouched = reinterpret_cast<Tensor*>(16);
    Tensor* result = untouched;
    const Error error = AOEXT_SYMBOL(AOEXT_TEST_DEVICE)(call.self_handle, call.mat2_handle, call.group_size,
                                                        call.pairs_handle, call.has_result ? &result : nullptr);
    expect(error.failure == failure && last_message == kSymbol + message,
           "wanted \"" + message + "\", got \"" + last_message + "\"");
    expect(result == untouched, message + ": the result was written");
    expect(alive == 0, message + ": something was not given back");
  };
  (void)run;

  bad("self must not be null", [](Call& c) { c.self_handle = nullptr; }, Failure::null_argument);
  bad("mat2 must not be null", [](Call& c) { c.mat2_handle = nullptr; }, Failure::null_argument);
  bad("qScaleAndZeros must not be null", [](Call& c) { c.pairs_handle = nullptr; }, Failure::null_argument);
  bad("ret0 must not be null", [](Call& c) { c.has_result = false; }, Failure::null_argument);
}

}  // namespace

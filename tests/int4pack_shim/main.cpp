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
#if AOEXT_DEVICE_IS(cpu)
namespace {

long heap_alive = 0;

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

}  // namespace

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

void product(const Problem& p, const Arguments& arguments, const std::vector<uint16_t>& wanted, const std::string& how) {
  Tensor* result = nullptr;
  const Error error =
      AOEXT_SYMBOL(AOEXT_TEST_DEVICE)(const_cast<Tensor*>(&arguments.self.tensor), const_cast<Tensor*>(&arguments.mat2.tensor),
                                      p.group_size, const_cast<Tensor*>(&arguments.pairs.tensor), &result);
  expect(error.failure == Failure::none, p.text() + how + ": " + last_message);
  if (error.failure != Failure::none) return;
  expect(result->sizes == std::vector<int64_t>{p.M, p.N} && result->dtype == DType::bfloat16, p.text() + ": its result");
  const std::vector<uint16_t> got = fetch(*result, p);
  expect(got == wanted, p.text() + how + " differs by " + std::to_string(difference(got, wanted)) + ", and should not at all");
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
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<int64_t> head = read<int64_t>(in, 40);
    const Problem p{head[0], head[1], head[2], head[3], head[4]};
    const std::vector<char> x = read<char>(in, p.x_bytes()), weight = read<char>(in, p.weight_bytes());
    const std::vector<char> pairs = read<char>(in, p.pairs_bytes());
    const std::vector<uint16_t> wanted = read<uint16_t>(in, p.y_bytes());
    product(p, Arguments(p, x, weight, pairs, false), wanted, "");
    product(p, Arguments(p, x, weight, pairs, true), wanted, ", shifted in memory");
    Traits::threads = 3;
    product(p, Arguments(p, x, weight, pairs, false), wanted, ", by three threads");
    Traits::threads = 1;
  }
  std::printf("products: %lld, failed: %d\n", static_cast<long long>(count), failed);
}

// ---- failures -------------------------------------------------------------------------------------------

// A call whose arguments may be spoilt one by one. Handles stay null where a case nulls them.
struct Call {
  Tensor self, mat2, pairs;
  int64_t group_size;
  bool has_self = true, has_mat2 = true, has_pairs = true, has_result = true;
};

const std::string kSymbol = "aoti_torch_" AOEXT_TEXT(AOEXT_TEST_DEVICE) "__weight_int4pack_mm: ";

// Runs it, and wants this failure in these words, the result untouched and nothing allocated.
void fails(Call call, Failure failure, const std::string& message) {
  Tensor* const untouched = &call.self;
  Tensor* result = untouched;
  const int before = alive;
  last_message.clear();
  const Error error =
      AOEXT_SYMBOL(AOEXT_TEST_DEVICE)(call.has_self ? &call.self : nullptr, call.has_mat2 ? &call.mat2 : nullptr, call.group_size,
                                      call.has_pairs ? &call.pairs : nullptr, call.has_result ? &result : nullptr);
  expect(error.failure == failure && last_message == kSymbol + message,
         "wanted \"" + message + "\", got \"" + last_message + "\"");
  expect(result == untouched, message + ": the result was written");
  expect(alive == before, message + ": something was not given back");
}

void reshape(Tensor& t, std::vector<int64_t> sizes) { t.sizes = sizes, t.strides = dense_strides(sizes); }

void bad_arguments(const Call& good) {
  const std::string here = AOEXT_TEXT(AOEXT_TEST_DEVICE), there = kDevice == DeviceType::cpu ? "cuda" : "cpu";
  const DeviceType elsewhere = kDevice == DeviceType::cpu ? DeviceType::cuda : DeviceType::cpu;
  const std::string mat2 =
      "mat2 must be int32 [N/8, K/(16 * inner_k_tiles), 32, inner_k_tiles/2] with inner_k_tiles 2, 4 or 8 "
      "for an input with K = 128, got ";
  const std::string pairs = "qScaleAndZeros must be bfloat16 [K/group_size, N, 2] = [2, 40, 2], got ";
  const std::string group = "qGroupSize must be 32, 64, 128 or 256 and divide K = 128, got ";
  const auto bad = [&](const std::string& message, const std::function<void(Call&)>& spoil,
                       Failure failure = Failure::bad_argument) {
    Call call = good;
    spoil(call);
    fails(call, failure, message);
  };
  const auto null = [&](const std::string& argument, bool Call::* present) {
    bad(argument + " must not be null", [&](Call& c) { c.*present = false; }, Failure::null_argument);
  };
  null("self", &Call::has_self);
  null("mat2", &Call::has_mat2);
  null("qScaleAndZeros", &Call::has_pairs);
  null("ret0", &Call::has_result);

  for (const auto& [argument, tensor] :
       {std::pair("self", &Call::self), std::pair("mat2", &Call::mat2), std::pair("qScaleAndZeros", &Call::pairs)}) {
    const std::string name = argument;
    Tensor Call::* const member = tensor;
    bad(name + " cannot be read as a tensor", [&](Call& c) { (c.*member).strides.pop_back(); });
    bad(name + " must be a tensor with memory, got a null pointer", [&](Call& c) { (c.*member).data = nullptr; });
    const std::string size = name == "mat2" ? "4" : "2";
    bad(name + " must be at a multiple of " + size + " bytes, got memory between two elements",
        [&](Call& c) { (c.*member).data = static_cast<char*>((c.*member).data) + 1; });
    if (name == "self") continue;
    bad(name + " must be on the device of self, " + here + ":0, got " + there + ":0",
        [&](Call& c) { (c.*member).device = elsewhere; });
    bad(name + " must be on the device of self, " + here + ":0, got " + here + ":1",
        [&](Call& c) { (c.*member).device_index = 1; });
  }

  bad("self must be on " + here + ", got " + there, [&](Call& c) { c.self.device = elsewhere; });
  bad("self must be on " + here + ", got another device", [&](Call& c) { c.self.device = DeviceType::other; });
  bad("self must be bfloat16 [M, K], got int32 [3, 128]", [&](Call& c) { c.self.dtype = DType::int32; });
  bad("self must be bfloat16 [M, K], got another dtype [3, 128]", [&](Call& c) { c.self.dtype = DType::other; });
  bad("self must be bfloat16 [M, K], got bfloat16 [1, 3, 128]", [&](Call& c) { reshape(c.self, {1, 3, 128}); });
  bad("self must be bfloat16 [M, K], got bfloat16 [128]", [&](Call& c) { reshape(c.self, {128}); });
  bad("self must be bfloat16 [M, K], got bfloat16 []", [&](Call& c) { reshape(c.self, {}); });
  bad("self must be bfloat16 [M, K], got bfloat16 of 5 dimensions", [&](Call& c) { reshape(c.self, {1, 1, 1, 3, 128}); });
  bad("self must be bfloat16 [M, K], got bfloat16 [-3, 128]", [&](Call& c) { c.self.sizes[0] = -3; });
  bad("self must be [M, K] with K > 0, got bfloat16 [3, 0]", [&](Call& c) { reshape(c.self, {3, 0}); });
  bad("self must be contiguous, got bfloat16 [3, 128] with strides [1, 3]", [&](Call& c) { c.self.strides = {1, 3}; });
  bad("self must be contiguous, got bfloat16 [3, 128] with strides [256, 1]", [&](Call& c) { c.self.strides = {256, 1}; });
  bad("self must be contiguous, got bfloat16 [3, 128] with strides [0, 1]", [&](Call& c) { c.self.strides = {0, 1}; });

  // Counts that no memory has, which would overflow where they are multiplied.
  const std::string most = " must be of at most 2^48 elements, with a size of 0 counted as 1, got ";
  constexpr int64_t kHuge = int64_t{1} << 60;
  bad("self" + most + "bfloat16 [0, 1152921504606846976]", [&](Call& c) { c.self.sizes = {0, kHuge}; });
  bad("self" + most + "bfloat16 [1152921504606846976, 128]", [&](Call& c) { c.self.sizes = {kHuge, 128}; });
  bad("mat2" + most + "int32 [0, 1152921504606846976, 32, 4]", [&](Call& c) { c.mat2.sizes = {0, kHuge, 32, 4}; });
  bad("mat2" + most + "int32 [1152921504606846976, 1, 32, 4]", [&](Call& c) { c.mat2.sizes = {kHuge, 1, 32, 4}; });
  bad("mat2" + most + "int32 [5, 1, 32, 4611686018427387908]", [&](Call& c) { c.mat2.sizes = {5, 1, 32, 4 * kHuge + 4}; });
  bad("self must be [M, K] with so few rows that the result is of at most 2^48 elements, with a size of 0 counted as 1, got "
      "1048576 rows for N = 8589934592",
      [&](Call& c) { c.self.sizes = {int64_t{1} << 20, 128}, c.mat2.sizes = {int64_t{1} << 30, 1, 32, 4}; });

  bad(mat2 + "bfloat16 [5, 1, 32, 4]", [&](Call& c) { c.mat2.dtype = DType::bfloat16; });
  bad(mat2 + "int32 [5, 128]", [&](Call& c) { reshape(c.mat2, {5, 128}); });
  bad(mat2 + "int32 [5, 1, 32, 3]", [&](Call& c) { reshape(c.mat2, {5, 1, 32, 3}); });
  bad(mat2 + "int32 [5, 1, 16, 4]", [&](Call& c) { reshape(c.mat2, {5, 1, 16, 4}); });
  bad(mat2 + "int32 [5, 2, 32, 4]", [&](Call& c) { reshape(c.mat2, {5, 2, 32, 4}); });
  bad(mat2 + "int32 [5, 1, 32, 8]", [&](Call& c) { reshape(c.mat2, {5, 1, 32, 8}); });
  bad(mat2 + "int32 of 5 dimensions", [&](Call& c) { reshape(c.mat2, {1, 5, 1, 32, 4}); });
  bad("mat2 must be contiguous, got int32 [5, 1, 32, 4] with strides [128, 128, 1, 32]",
      [&](Call& c) { c.mat2.strides = {128, 128, 1, 32}; });

  for (const int64_t size : {int64_t{0}, int64_t{-32}, int64_t{16}, int64_t{48}, int64_t{256}, int64_t{512}, INT64_MIN})
    bad(group + std::to_string(size), [&](Call& c) { c.group_size = size; });
  bad("qScaleAndZeros must be bfloat16 [K/group_size, N, 2] = [1, 40, 2], got bfloat16 [2, 40, 2]",
      [&](Call& c) { c.group_size = 128; });
  bad(pairs + "int32 [2, 40, 2]", [&](Call& c) { c.pairs.dtype = DType::int32; });
  bad(pairs + "bfloat16 [2, 80]", [&](Call& c) { reshape(c.pairs, {2, 80}); });
  bad(pairs + "bfloat16 [4, 40, 2]", [&](Call& c) { reshape(c.pairs, {4, 40, 2}); });
  bad(pairs + "bfloat16 [2, 39, 2]", [&](Call& c) { reshape(c.pairs, {2, 39, 2}); });
  bad(pairs + "bfloat16 [2, 40, 1]", [&](Call& c) { reshape(c.pairs, {2, 40, 1}); });
  bad("qScaleAndZeros must be contiguous, got bfloat16 [2, 40, 2] with strides [80, 1, 40]",
      [&](Call& c) { c.pairs.strides = {80, 1, 40}; });
}

bool succeeds(Call call, const std::string& what) {
  Tensor* result = nullptr;
  const Error error = AOEXT_SYMBOL(AOEXT_TEST_DEVICE)(&call.self, &call.mat2, call.group_size, &call.pairs, &result);
  expect(error.failure == Failure::none, what + ": " + last_message);
  if (error.failure == Failure::none) Traits::release(result);
  return error.failure == Failure::none;
}

// Strides of dimensions with one element, or of tensors without any, say nothing.
void strides_that_do_not_matter(const Call& good) {
  Call call = good;
  reshape(call.self, {1, 128});
  call.self.strides = {7, 1}, call.mat2.strides[1] = 5;
  succeeds(call, "strides of a dimension with one element");
  call = good;
  reshape(call.self, {0, 128});
  call.self.strides = {1, 9}, call.self.data = nullptr;
  succeeds(call, "an empty tensor without memory");
}

// The first 0, 1, 2 … allocations succeed, and then none, until all that a call needs do.
void failing_allocations(const Call& good, const std::string& what) {
  int points = 0;
  for (;; ++points) {
    budget = points;
    Tensor call_self = good.self, call_mat2 = good.mat2, call_pairs = good.pairs;
    Tensor* result = nullptr;
    const Error error = AOEXT_SYMBOL(AOEXT_TEST_DEVICE)(&call_self, &call_mat2, good.group_size, &call_pairs, &result);
    budget = -1;
    if (error.failure == Failure::none) {
      Traits::release(result);
      break;
    }
    const std::string wanted = kSymbol + (points == 0 ? "no memory for the result" : "no memory for working");
    expect(error.failure == Failure::out_of_memory && last_message == wanted, what + ": " + last_message);
    expect(result == nullptr && alive == 0, what + ": a failed allocation leaves something");
    if (points > 100) break;
  }
  expect(points > 0 && points < 100, what + ": allocations that can fail");
  std::printf("%s: %d allocations of the traits\n", what.c_str(), points);

#if AOEXT_DEVICE_IS(cpu)
  last_message.reserve(1024);  // so that keeping a message needs no memory
  for (points = 0; points < 1000; ++points) {
    Tensor call_self = good.self, call_mat2 = good.mat2, call_pairs = good.pairs;
    Tensor* result = nullptr;
    const long before = heap_alive;
    heap_budget = points;
    const Error error = AOEXT_SYMBOL(AOEXT_TEST_DEVICE)(&call_self, &call_mat2, good.group_size, &call_pairs, &result);
    heap_budget = -1;
    if (error.failure == Failure::none) {
      Traits::release(result);
      const bool clean = heap_alive == before;  // told before words for it take memory
      expect(clean, what + ": the heap after a call");
      break;
    }
    const bool clean = result == nullptr && alive == 0 && heap_alive == before;
    expect(clean, what + ": a full heap leaves something");
    expect(error.failure == Failure::out_of_memory, what + ": " + last_message);
  }
  expect(points > 0 && points < 1000, what + ": allocations of the heap that can fail");
  std::printf("%s: %d allocations of the heap\n", what.c_str(), points);
#endif
}

void failures() {
  // Zeros: of a failure no number is looked at.
  for (const int64_t M : {3, 40, 200}) {
    const Problem p{M, 40, 128, 64, 8};
    const std::vector<char> zeros(std::max({p.x_bytes(), p.weight_bytes(), p.pairs_bytes()}));
    for (const bool shifted : {false, true}) {
      const Arguments owned(p, zeros, zeros, zeros, shifted);
      const Call good{owned.self.tensor, owned.mat2.tensor, owned.pairs.tensor, p.group_size};
      if (!succeeds(good, p.text())) continue;
      if (M == 3 && !shifted) bad_arguments(good), strides_that_do_not_matter(good);
      failing_allocations(good, p.text() + (shifted ? ", shifted in memory" : ""));
    }
  }
  std::printf("failed: %d\n", failed);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  if (what == "products" && count == 3) {
    products(arguments[2]);
  } else if (what == "failures" && count == 2) {
    failures();
  } else {
    std::printf("usage: %s products FILE | failures\n", arguments[0]);
    return 2;
  }
  return failed == 0 ? 0 : 1;
}

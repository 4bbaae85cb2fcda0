#include "sycl/probes.h"

#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <stdexcept>

#include "common/describe.h"
#include "common/dispatcher.h"
#include "sycl/device.h"
#include "sycl/modules.h"
#include "sycl/plan.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

thread_local const std::string* forced = nullptr;

// Plans of this thread take `family` alone; the empty name stands for the generic kernels.
class Force {
 public:
  explicit Force(const std::string& family) : before_(forced) { forced = &family; }
  ~Force() { forced = before_; }

 private:
  const std::string* before_;
};

// Relative Frobenius error that a kernel may differ by from the generic one: the bound of the contract for both.
double bound(ScalarType dtype) {
  return dtype == ScalarType::BFloat16 ? 1e-2 : dtype == ScalarType::Half ? 2e-3 : dtype == ScalarType::Float ? 4e-5 : 0;
}

double difference(const Tensor& result, const Tensor& expected) {
  const auto host = [](const Tensor& t) {
    const Tensor floats = aten::to(t, ScalarType::Float);
    const Tensor copy =
        call("aten::empty", "memory_format", floats.sizes(), std::optional(ScalarType::Float), std::nullopt,
             std::optional(torch::stable::Device(torch::headeronly::DeviceType::CPU)), std::nullopt, std::nullopt);
    aten::copy_(copy, floats);
    return copy;
  };
  const Tensor a = host(result), b = host(expected);
  const float* const got = static_cast<const float*>(a.const_data_ptr());
  const float* const want = static_cast<const float*>(b.const_data_ptr());
  double error = 0, norm = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    norm += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(error / (norm > 0 ? norm : 1));
}

// Random tensors of a probe on the queue's device.
class Draw {
 public:
  explicit Draw(const sycl::queue& queue) : device_(torch::headeronly::DeviceType::XPU, device_index(queue)) {}

  Tensor normal(const std::vector<int64_t>& sizes, ScalarType dtype, float deviation = 1) {
    std::normal_distribution<float> values(0, deviation);
    return fill<float>(sizes, ScalarType::Float, dtype, [&] { return values(generator_); });
  }

  Tensor positive(const std::vector<int64_t>& sizes, ScalarType dtype) {
    std::uniform_real_distribution<float> values(0.01f, 0.1f);
    return fill<float>(sizes, ScalarType::Float, dtype, [&] { return values(generator_); });
  }

  Tensor bytes(const std::vector<int64_t>& sizes) {
    std::uniform_int_distribution<int> values(-128, 127);
    return fill<int8_t>(sizes, ScalarType::Char, ScalarType::Char, [&] { return static_cast<int8_t>(values(generator_)); });
  }

 private:
  template <class T, class Next>
  Tensor fill(const std::vector<int64_t>& sizes, ScalarType drawn, ScalarType dtype, const Next& next) {
    const Tensor host = empty(sizes, drawn, torch::headeronly::DeviceType::CPU);
    T* const data = static_cast<T*>(host.mutable_data_ptr());
    for (int64_t i = 0; i < host.numel(); ++i) data[i] = next();
    const Tensor result = empty(sizes, dtype, device_);
    aten::copy_(result, host);
    return result;
  }

  static Tensor empty(Sizes sizes, ScalarType dtype, const torch::stable::Device& device) {
    return call("aten::empty", "memory_format", sizes, std::optional(dtype), std::nullopt, std::optional(device), std::nullopt,
                std::nullopt);
  }

  torch::stable::Device device_;
  std::mt19937 generator_{20};  // the same problems in every process, so that a report can be repeated
};

constexpr ScalarType kHighPrecision[]{ScalarType::BFloat16, ScalarType::Half, ScalarType::Float};
constexpr ScalarType kEightBit[]{ScalarType::Char, ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2};

enum class Exact { no, yes };

struct Probe {
  std::string what;
  std::function<Tensor()> run;
  Exact exact = Exact::no;
};

// Whether the family is what serves a problem.
using Takes = std::function<bool(const LinearProblem&)>;

LinearProblem problem(const WeightFormat& format, int64_t M, int64_t N, int64_t K, ScalarType input, ScalarType output,
                      ScalarType bias) {
  LinearProblem p{};
  static_cast<WeightFormat&>(p) = format;
  p.M = M, p.N = N, p.K = K, p.input = input, p.output = output, p.has_bias = true, p.bias = bias;
  return p;
}

void add_int4(std::vector<Probe>& probes, Draw& draw, ScalarType dtype, const std::vector<int64_t>& rows, const Takes& takes) {
  constexpr int64_t N = 72, K = 512;
  for (const int64_t group_size : {128, 32}) {
    const Tensor weight = draw.bytes({N, K / 2}), scale = draw.positive({K / group_size, N}, dtype);
    const Tensor zero_point = draw.normal({K / group_size, N}, dtype), bias = draw.normal({N}, dtype);
    for (const int64_t M : rows) {
      const WeightFormat format{.code = Code::int4, .group_size = group_size, .scale = dtype, .has_zero_point = true};
      if (!takes(problem(format, M, N, K, dtype, dtype, dtype))) continue;
      const Tensor x = draw.normal({M, K}, dtype);
      probes.push_back({"bf16i4bf16_rowwise_bias with M = " + std::to_string(M) + ", group_size = " + std::to_string(group_size) +
                            ", " + dtype_name(dtype),
                        [=] { return call("ao::bf16i4bf16_rowwise_bias", "", x, weight, scale, zero_point, bias); }});
    }
  }
}

// 8-bit weights, with a high-precision input or one of their own type.
void add_rowwise(std::vector<Probe>& probes, Draw& draw, ScalarType weight_type, ScalarType input_type,
                 const std::vector<int64_t>& rows, const Takes& takes) {
  constexpr int64_t N = 72, K = 512;
  const auto eight_bit = [&](const std::vector<int64_t>& sizes) {
    return weight_type == ScalarType::Char ? draw.bytes(sizes) : draw.normal(sizes, weight_type);
  };
  const Tensor weight = eight_bit({N, K}), scale = draw.positive({N, 1}, ScalarType::Float);
  const OptionalTensor bias = draw.normal({N}, ScalarType::Float);
  const bool scaled = weight_type == input_type;
  const std::string weight_only = weight_type == ScalarType::Char ? "bf16i8bf16_rowwise" : "bf16f8bf16_rowwise";
  const ScalarType output = scaled ? ScalarType::Float : input_type;
  for (const int64_t M : rows) {
    const WeightFormat format{.code = code_of(weight_type), .group_size = K, .scale = ScalarType::Float};
    if (!takes(problem(format, M, N, K, input_type, output, ScalarType::Float))) continue;
    const Tensor x = scaled ? eight_bit({M, K}) : draw.normal({M, K}, input_type);
    const std::string sizes =
        std::string(" with M = ") + std::to_string(M) + ", " + dtype_name(input_type) + " by " + dtype_name(weight_type);
    if (!scaled) {
      probes.push_back({weight_only + sizes, [=] { return call(("ao::" + weight_only).c_str(), "", x, weight, scale, bias); }});
      continue;
    }
    const Tensor input_scale = draw.positive({M, 1}, ScalarType::Float);
    probes.push_back({"scaled_mm_rowwise" + sizes, [=] {
                        return call("ao::scaled_mm_rowwise", "", x, weight, input_scale, scale, bias, std::optional(output));
                      }});
    if (weight_type == ScalarType::Char)
      probes.push_back({"int8_mm" + sizes, [=] { return call("ao::int8_mm", "", x, weight); }, Exact::yes});
  }
}

// A weight with a scale a block, of codes of 4 bits where it is Byte, with an input in high precision or one of its own type.
void add_blocks_tile(std::vector<Probe>& probes, Draw& draw, ScalarType weight_type, ScalarType input_type,
                     const std::vector<int64_t>& rows, const Takes& takes) {
  constexpr int64_t N = 72, K = 512, block_n = 3;
  const bool table = weight_type == ScalarType::Byte, scaled = weight_type == input_type;
  const auto of_type = [&](const std::vector<int64_t>& sizes, ScalarType dtype) {
    return dtype == ScalarType::Char ? draw.bytes(sizes) : draw.normal(sizes, dtype);
  };
  const Tensor weight =
      table ? call("aten::view", "dtype", draw.bytes({N, K / 2}), ScalarType::Byte) : of_type({N, K}, weight_type);
  const Tensor values = draw.normal({16}, ScalarType::Float);
  const OptionalTensor bias = draw.normal({N}, ScalarType::Float), global_scale = draw.positive({1}, ScalarType::Float);
  for (const int64_t group_size : {16, 32, 128}) {
    const Tensor scale = draw.positive({N / block_n, K / group_size}, ScalarType::BFloat16);
    const std::vector<int64_t> block{block_n, group_size}, input_block{1, group_size};
    for (const int64_t M : rows) {
      LinearProblem p = problem({.code = table ? Code::lut4 : code_of(weight_type),
                                 .group_size = group_size,
                                 .block_n = block_n,
                                 .scale = ScalarType::BFloat16,
                                 .has_global_scale = table},
                                M, N, K, input_type, scaled ? ScalarType::Float : input_type, ScalarType::Float);
      p.input_group_size = group_size;
      if (!takes(p)) continue;
      const Tensor x = of_type({M, K}, input_type);
      const std::string with = " with M = " + std::to_string(M) + ", groups of " + std::to_string(group_size) + ", " +
                               dtype_name(input_type) + " by " + dtype_name(weight_type);
      if (table) {
        probes.push_back({"bf16lut4bf16_blockwise" + with, [=] {
                            return call("ao::bf16lut4bf16_blockwise", "", x, weight, values, scale, block, global_scale, bias);
                          }});
      } else if (scaled) {
        const Tensor input_scale = draw.positive({M, K / group_size}, ScalarType::Float);
        probes.push_back({"scaled_mm_blockwise" + with, [=] {
                            return call("ao::scaled_mm_blockwise", "", x, weight, input_scale, scale, input_block, block, bias,
                                        std::optional(ScalarType::Float));
                          }});
      } else {
        const std::string op = weight_type == ScalarType::Char ? "bf16i8bf16_blockwise" : "bf16f8bf16_blockwise";
        probes.push_back({op + with, [=] { return call(("ao::" + op).c_str(), "", x, weight, scale, block, bias); }});
      }
    }
  }
}

void add_scaled_int4(std::vector<Probe>& probes, Draw& draw, ScalarType input_type, const std::vector<int64_t>& rows,
                     const Takes& takes) {
  constexpr int64_t N = 72, K = 512;
  const OptionalTensor bias = draw.normal({N}, ScalarType::Float);
  for (const int64_t group_size : {128, 32}) {
    const Tensor weight = draw.bytes({N, K / 2}), scale = draw.positive({K / group_size, N}, ScalarType::BFloat16);
    const Tensor zero_point = draw.normal({K / group_size, N}, ScalarType::BFloat16);
    for (const int64_t M : rows) {
      const WeightFormat format{
          .code = Code::int4, .group_size = group_size, .scale = ScalarType::BFloat16, .has_zero_point = true};
      if (!takes(problem(format, M, N, K, input_type, ScalarType::Float, ScalarType::Float))) continue;
      const Tensor x = input_type == ScalarType::Char ? draw.bytes({M, K}) : draw.normal({M, K}, input_type);
      const Tensor input_scale = draw.positive({M, 1}, ScalarType::Float);
      probes.push_back({"scaled_mm_int4 with M = " + std::to_string(M) + ", group_size = " + std::to_string(group_size) + ", " +
                            dtype_name(input_type),
                        [=] {
                          return call("ao::scaled_mm_int4", "", x, weight, input_scale, scale, zero_point, bias,
                                      std::optional(ScalarType::Float));
                        }});
    }
  }
}

// Sizes that no kernel but the one for any size takes.
void add_any(std::vector<Probe>& probes, Draw& draw) {
  constexpr int64_t M = 5, N = 37, K = 150, group_size = 6;
  const Tensor x = draw.normal({M, K}, ScalarType::Float), scale = draw.positive({K / group_size, N}, ScalarType::BFloat16);
  const Tensor zero_point = draw.normal({K / group_size, N}, ScalarType::BFloat16), bias = draw.normal({N}, ScalarType::Half);
  const Tensor packed = draw.bytes({N, K / 2}), bytes = draw.bytes({N, K}), input = draw.bytes({M, K});
  probes.push_back({"bf16i4bf16_rowwise_bias with K = 150, group_size = 6",
                    [=] { return call("ao::bf16i4bf16_rowwise_bias", "", x, packed, scale, zero_point, bias); }});
  probes.push_back({"int8_mm with K = 150", [=] { return call("ao::int8_mm", "", input, bytes); }});
  for (const ScalarType dtype : {ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2}) {
    const Tensor weight = draw.normal({N, K}, dtype), row_scale = draw.positive({N, 1}, ScalarType::Float);
    probes.push_back({std::string("bf16f8bf16_rowwise with K = 150, ") + dtype_name(dtype),
                      [=] { return call("ao::bf16f8bf16_rowwise", "", x, weight, row_scale, OptionalTensor()); }});
  }
}

// The same kernel where scales belong to blocks, of any of their types, and int4 under an input of 8 bits.
void add_blocks(std::vector<Probe>& probes, Draw& draw) {
  constexpr int64_t M = 5, N = 37, K = 150, group_size = 6;
  const OptionalTensor none;
  const Tensor x = draw.normal({M, K}, ScalarType::Float), input_scale = draw.positive({M, 10}, ScalarType::Float);
  const Tensor scale = draw.positive({8, 10}, ScalarType::BFloat16);
  const std::vector<int64_t> block{5, 16}, input_block{1, 16};  // the last ones are partial
  for (const ScalarType dtype : kEightBit) {
    const auto eight_bit = [&](const std::vector<int64_t>& sizes) {
      return dtype == ScalarType::Char ? draw.bytes(sizes) : draw.normal(sizes, dtype);
    };
    const Tensor weight = eight_bit({N, K}), input = eight_bit({M, K});
    const std::string op = dtype == ScalarType::Char ? "bf16i8bf16_blockwise" : "bf16f8bf16_blockwise";
    const std::string with = std::string(" with K = 150, ") + dtype_name(dtype);
    probes.push_back({op + with, [=] { return call(("ao::" + op).c_str(), "", x, weight, scale, block, none); }});
    probes.push_back({"scaled_mm_blockwise" + with, [=] {
                        return call("ao::scaled_mm_blockwise", "", input, weight, input_scale, scale, input_block, block, none,
                                    std::optional(ScalarType::Float));
                      }});
  }
  const Tensor packed = draw.bytes({N, K / 2}), codes = call("aten::view", "dtype", packed, ScalarType::Byte);
  const Tensor table = draw.normal({16}, ScalarType::Float);
  const OptionalTensor global_scale = draw.positive({1}, ScalarType::Float);
  for (const ScalarType dtype : {ScalarType::Half, ScalarType::Float8_e4m3fn, ScalarType::Byte}) {
    // Exponents around 125, which is a quarter.
    const Tensor scales =
        dtype == ScalarType::Byte
            ? aten::to(aten::add(draw.normal({8, 10}, ScalarType::Float), aten::scalar_like(125, ScalarType::Float, x)), dtype)
            : draw.positive({8, 10}, dtype);
    probes.push_back({std::string("bf16lut4bf16_blockwise with scales of ") + dtype_name(dtype), [=] {
                        return call("ao::bf16lut4bf16_blockwise", "", x, codes, table, scales, block, global_scale, none);
                      }});
  }
  const Tensor group_scale = draw.positive({K / group_size, N}, ScalarType::BFloat16);
  const Tensor zero_point = draw.normal({K / group_size, N}, ScalarType::BFloat16);
  const Tensor input = draw.bytes({M, K}), row_scale = draw.positive({M, 1}, ScalarType::Float);
  probes.push_back({"scaled_mm_int4 with K = 150, group_size = 6", [=] {
                      return call("ao::scaled_mm_int4", "", input, packed, row_scale, group_scale, zero_point, none,
                                  std::optional(ScalarType::Float));
                    }});
}

void add_quantize(std::vector<Probe>& probes, Draw& draw) {
  for (const ScalarType dtype : kEightBit) {
    for (const int64_t K : {37, 1024}) {
      const Tensor x = draw.normal({9, K}, ScalarType::Float);
      const auto run = [=] { return call2("ao::quantize_rowwise", "", x, dtype); };
      const std::string what = std::string("quantize_rowwise to ") + dtype_name(dtype) + " with K = " + std::to_string(K);
      probes.push_back({what + ": values", [=] { return std::get<0>(run()); }, Exact::yes});
      probes.push_back({what + ": scales", [=] { return std::get<1>(run()); }, Exact::yes});
      for (const bool power_of_two : {false, true}) {
        const std::vector<int64_t> block{1, 24};
        const auto by_blocks = [=] { return call2("ao::quantize_blockwise", "", x, dtype, block, power_of_two); };
        const std::string blocks = what + (power_of_two ? ", by blocks, powers of two" : ", by blocks");
        probes.push_back({blocks + ": values", [=] { return std::get<0>(by_blocks()); }, Exact::yes});
        probes.push_back({blocks + ": scales", [=] { return std::get<1>(by_blocks()); }, Exact::yes});
      }
    }
  }
}

void add_dequantize(std::vector<Probe>& probes, Draw& draw) {
  for (const int64_t group_size : {64, 6}) {
    constexpr int64_t N = 20, K = 384;
    const Tensor weight = draw.bytes({N, K / 2}), scale = draw.positive({K / group_size, N}, ScalarType::BFloat16);
    const Tensor zero_point = draw.normal({K / group_size, N}, ScalarType::BFloat16);
    probes.push_back({"dequantize_int4 with group_size = " + std::to_string(group_size), [=] {
                        return call("ao::dequantize_int4", "", weight, scale, zero_point, std::optional(ScalarType::Float));
                      }});
  }
}

void add_dequantize_blocks(std::vector<Probe>& probes, Draw& draw) {
  constexpr int64_t N = 37, K = 150;
  const std::vector<int64_t> block{5, 16};
  const Tensor scale = draw.positive({8, 10}, ScalarType::BFloat16);
  for (const ScalarType dtype : kEightBit) {
    const Tensor weight = dtype == ScalarType::Char ? draw.bytes({N, K}) : draw.normal({N, K}, dtype);
    probes.push_back({std::string("dequantize_blockwise of ") + dtype_name(dtype), [=] {
                        return call("ao::dequantize_blockwise", "", weight, scale, block, std::optional(ScalarType::Float));
                      }});
  }
  const Tensor codes = call("aten::view", "dtype", draw.bytes({N, K / 2}), ScalarType::Byte);
  const Tensor table = draw.normal({16}, ScalarType::Float);
  const OptionalTensor global_scale = draw.positive({1}, ScalarType::Float);
  probes.push_back({"dequantize_lut4", [=] {
                      return call("ao::dequantize_lut4", "", codes, table, scale, block, global_scale,
                                  std::optional(ScalarType::Float));
                    }});
}

void add_int4pack(std::vector<Probe>& probes, Draw& draw) {
  for (const int64_t inner_k_tiles : {2, 4, 8}) {
    constexpr int64_t N = 40, K = 640, group_size = 64;
    const Tensor bytes = draw.bytes({N, K / 2});
    const Tensor words = call("aten::view", "dtype", bytes, ScalarType::Int);
    const Tensor weight = aten::reshape(words, {N / 8, K / (16 * inner_k_tiles), 32, inner_k_tiles / 2});
    const Tensor scales = aten::stack_last(draw.positive({K / group_size, N}, ScalarType::BFloat16),
                                           draw.normal({K / group_size, N}, ScalarType::BFloat16));
    for (const int64_t M : {1, 3, 9}) {
      const Tensor x = draw.normal({M, K}, ScalarType::BFloat16);
      probes.push_back({"weight_int4pack_mm with M = " + std::to_string(M) + ", inner_k_tiles = " + std::to_string(inner_k_tiles),
                        [=] { return call("ao::weight_int4pack_mm", "", x, weight, group_size, scales); }});
    }
  }
}

std::vector<Probe> probes_of(sycl::queue& queue, const std::string& family) {
  Draw draw(queue);
  std::vector<Probe> probes;
  const std::string group = family.substr(0, family.find('/'));  // an image, or a kind of products
  const auto is = [&](const std::string& prefix, const std::string& types) {
    return group.rfind(prefix, 0) == 0 && group.size() > types.size() &&
           group.compare(group.size() - types.size(), types.size(), types) == 0;
  };
  const auto taken_by = [&](Plan (*plan)(const LinearProblem&, sycl::queue&, int)) {
    return [&queue, &family, plan](const LinearProblem& p) {
      const Force force(family);
      return plan(p, queue, onednn::kAlignment).algorithm != Algorithm::generic;
    };
  };
  const Takes int4 = taken_by(plan_int4), rowwise = taken_by(plan_rowwise);
  const Takes blocks = taken_by(plan_blocks), scaled_int4 = taken_by(plan_scaled_int4);
  const std::vector<int64_t> few{1, 3, 8, 16, 40}, many{80};
  for (const ScalarType input : kHighPrecision) {
    if (is("int4_tile.", std::string("_") + type_name(input))) add_int4(probes, draw, input, few, int4);
    if (family == product_family(input)) add_int4(probes, draw, input, many, int4);
    if (is("blocks_tile.", std::string("_lut4_") + type_name(input)))
      add_blocks_tile(probes, draw, ScalarType::Byte, input, few, blocks);
  }
  for (const ScalarType weight : kEightBit) {
    for (const ScalarType input : {kHighPrecision[0], kHighPrecision[1], kHighPrecision[2], weight}) {
      if (is("rowwise_tile.", "_" + type_names(weight, input))) add_rowwise(probes, draw, weight, input, few, rowwise);
      if (family == product_family(weight, input)) add_rowwise(probes, draw, weight, input, many, rowwise);
      if (is("blocks_tile.", "_" + type_names(weight, input))) add_blocks_tile(probes, draw, weight, input, few, blocks);
    }
  }
  for (const ScalarType input : {ScalarType::Char, ScalarType::Float8_e4m3fn})
    if (is("int4_scaled_tile.", std::string("_") + type_name(input))) add_scaled_int4(probes, draw, input, few, scaled_int4);
  if (family == "linear_any.lanes") add_any(probes, draw), add_blocks(probes, draw);
  if (family == "quantize_rowwise.lanes") add_quantize(probes, draw);
  if (family == "dequantize_blocks.lanes") add_dequantize_blocks(probes, draw);
  if (family == "dequantize_int4.lanes") add_dequantize(probes, draw);
  if (family == "int4pack_mm.lanes") add_int4pack(probes, draw);
  return probes;
}

// oneDNN's kinds of products.
std::vector<std::string> product_families() {
  std::vector<std::string> all;
  for (const ScalarType input : kHighPrecision) all.push_back(product_family(input));
  for (const ScalarType weight : kEightBit)
    for (const ScalarType input : {kHighPrecision[0], kHighPrecision[1], kHighPrecision[2], weight})
      all.push_back(product_family(weight, input));
  return all;
}

}  // namespace

std::vector<std::string> families(sycl::queue& queue) {
  std::set<std::string> names;
  for (const Module& module : modules())
    if (runs(device_of(queue), module.image)) names.insert({module.image, KernelName{module.image, module.kernel}.full()});
  for (const std::string& family : product_families()) names.insert(family);
  std::vector<std::string> found;
  for (const std::string& family : names)
    if (!probes_of(queue, family).empty()) found.push_back(family);
  return found;
}

const std::string* forced_family() { return forced; }

std::string probe(sycl::queue& queue, const std::string& family) {
  static const std::string generic;
  const std::vector<Probe> probes = probes_of(queue, family);
  if (probes.empty()) return "it has no probe";
  for (const Probe& one : probes) {
    const auto run = [&](const std::string& name) {
      const Force force(name);
      return one.run();
    };
    const Tensor result = run(family), expected = run(generic);
    const double error = difference(result, expected);
    if (!(error <= (one.exact == Exact::yes ? 0 : bound(dtype_of(result)))))
      return one.what + " differs by " + std::to_string(error) + " from the generic kernel (relative Frobenius norm)";
  }
  return "";
}

}  // namespace aoext::xpu

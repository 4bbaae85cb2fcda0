#include "sycl/trials.h"

#include <utility>

#include "common/describe.h"
#include "common/formats.h"
#include "common/sizes.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

Tensor empty_on(const torch::stable::Device& device, Sizes sizes, ScalarType dtype) {
  return call("aten::empty", "memory_format", sizes, std::optional(dtype), std::nullopt, std::optional(device), std::nullopt,
              std::nullopt);
}

// The sizes of what each expert has one of.
std::vector<int64_t> for_experts(const LinearProblem& p, std::vector<int64_t> sizes) {
  if (p.experts > 0) sizes.insert(sizes.begin(), p.experts);
  return sizes;
}

// A weight with what belongs to it, as arguments of the operators.
struct Drawn {
  Tensor values, scale;
  OptionalIntegers block;
  OptionalTensor zero_point, table, global_scale;
};

Drawn weight_of(Draw& draw, const LinearProblem& p) {
  const Format& format = format_of(p.code);
  Drawn w;
  const std::vector<int64_t> stored = for_experts(p, {p.N, p.K / layout(p.code).values});
  w.values =
      is_packed(p.code) ? aten::view_as(draw.blocks(stored, p.code), format.storage) : draw.eight_bit(stored, format.storage);
  using Sizes = std::vector<int64_t>;
  const bool by_blocks = format.scales == Format::Scales::blocks;
  const Sizes sizes = for_experts(p, is_by_groups(p.code) ? Sizes{p.K / p.group_size, p.N}
                                     : by_blocks          ? Sizes{ceil_div(p.N, p.block_n), ceil_div(p.K, p.group_size)}
                                                          : Sizes{1});
  w.scale = draw.positive(sizes, p.scale);
  if (by_blocks) w.block = Integers{p.block_n, p.group_size};
  if (format.zero == Format::Zero::added) w.zero_point = draw.normal(sizes, p.scale);
  if (p.subtracts_zero_point) w.zero_point = draw.bytes(sizes);
  if (format.has_table)
    w.table = draw.normal({16}, ScalarType::Float), w.global_scale = draw.positive({p.global_scales}, ScalarType::Float);
  return w;
}

std::string described(const LinearProblem& p) {
  return std::string(" of ") + format_of(p.code).name + ", scales " + dtype_name(p.scale) + ", " + text(p);
}

}  // namespace

Draw::Draw(const sycl::queue& queue) : device_(torch::headeronly::DeviceType::XPU, device_index(queue)) {}

template <class T, class Next>
Tensor Draw::fill(const std::vector<int64_t>& sizes, ScalarType drawn, ScalarType dtype, const Next& next) {
  const Tensor host = empty_on(torch::stable::Device(torch::headeronly::DeviceType::CPU), sizes, drawn);
  T* const data = static_cast<T*>(host.mutable_data_ptr());
  for (int64_t i = 0; i < host.numel(); ++i) data[i] = next();
  const Tensor result = empty_on(device_, sizes, dtype);
  aten::copy_(result, host);
  return result;
}

Tensor Draw::normal(const std::vector<int64_t>& sizes, ScalarType dtype) {
  std::normal_distribution<float> values;
  return fill<float>(sizes, ScalarType::Float, dtype, [&] { return values(generator_); });
}

Tensor Draw::positive(const std::vector<int64_t>& sizes, ScalarType dtype) {
  if (dtype == ScalarType::Float8_e8m0fnu) {  // as exponents
    std::uniform_int_distribution<int> exponents(123, 127);
    return fill<int8_t>(sizes, ScalarType::Byte, ScalarType::Byte, [&] { return static_cast<int8_t>(exponents(generator_)); });
  }
  std::uniform_real_distribution<float> values(0.01f, 0.1f);
  return fill<float>(sizes, ScalarType::Float, dtype, [&] { return values(generator_); });
}

Tensor Draw::bytes(const std::vector<int64_t>& sizes) {
  std::uniform_int_distribution<int> values(-128, 127);
  return fill<int8_t>(sizes, ScalarType::Char, ScalarType::Char, [&] { return static_cast<int8_t>(values(generator_)); });
}

Tensor Draw::blocks(std::vector<int64_t> sizes, Code code) {
  const Layout& of = layout(code);
  if (of.bytes > 1) sizes.push_back(of.bytes);
  std::uniform_int_distribution<int> values(-128, 127);
  int byte = 0;
  return fill<int8_t>(sizes, ScalarType::Char, ScalarType::Char, [&] {
    const int at = std::exchange(byte, (byte + 1) % of.bytes), value = values(generator_);
    for (const GroupNumber& number : {of.scale, of.zero_point})
      if (number.at >= 0 && at == number.at + 1) return static_cast<int8_t>(value < 0 ? 0x24 : 0x2a);  // the exponent
    return static_cast<int8_t>(value);
  });
}

Tensor Draw::ends(int64_t experts, int64_t last) {
  int64_t expert = 0;
  return fill<int>({experts}, ScalarType::Int, ScalarType::Int,
                   [&] { return static_cast<int>(++expert < experts ? (expert + 1) / 2 * 2 * last / (experts + 1) : last); });
}

Tensor Draw::eight_bit(const std::vector<int64_t>& sizes, ScalarType dtype) {
  return dtype == ScalarType::Char ? bytes(sizes) : normal(sizes, dtype);
}

Trial product_trial(Draw& draw, const LinearProblem& p) {
  const Drawn w = weight_of(draw, p);
  const OptionalTensor bias = draw.normal(for_experts(p, {p.N}), p.bias);
  const OptionalTensor offsets = p.experts > 0 ? OptionalTensor(draw.ends(p.experts, p.M - 1)) : std::nullopt;
  const auto code = static_cast<int64_t>(p.code);
  if (is_high_precision(p.input)) {
    const Tensor x = draw.normal({p.M, p.K}, p.input);
    return {"weight_only_linear" + described(p), [=] {
              return call("ao::weight_only_linear", "", x, w.values, w.scale, code, bias, w.block, w.zero_point, w.table,
                          w.global_scale, offsets);
            }};
  }
  const Tensor x = draw.eight_bit({p.M, p.K}, p.input);
  const Tensor input_scale = draw.positive({p.M, ceil_div(p.K, p.input_group_size)}, ScalarType::Float);
  const OptionalIntegers input_block = Integers{1, p.input_group_size};
  return {"scaled_mm" + described(p), [=] {
            return call("ao::scaled_mm", "", x, w.values, input_scale, w.scale, code, bias, input_block, w.block, w.zero_point,
                        offsets, std::optional(p.output));
          }};
}

Trial int8_mm_trial(Draw& draw, int64_t M, int64_t N, int64_t K) {
  const Tensor x = draw.bytes({M, K}), weight = draw.bytes({N, K});
  return {"int8_mm with M = " + std::to_string(M) + ", K = " + std::to_string(K),
          [=] { return call("ao::int8_mm", "", x, weight); }, Exact::yes};
}

Trial int4pack_trial(Draw& draw, int64_t M, int64_t inner_k_tiles) {
  constexpr int64_t N = 40, K = 640, group_size = 64;
  const Tensor words = aten::view_as(draw.bytes({N, K / 2}), ScalarType::Int);
  const Tensor weight = aten::reshape(words, {N / 8, K / (16 * inner_k_tiles), 32, inner_k_tiles / 2});
  const Tensor scales = aten::stack_last(draw.positive({K / group_size, N}, ScalarType::BFloat16),
                                         draw.normal({K / group_size, N}, ScalarType::BFloat16));
  const Tensor x = draw.normal({M, K}, ScalarType::BFloat16);
  return {"weight_int4pack_mm with M = " + std::to_string(M) + ", inner_k_tiles = " + std::to_string(inner_k_tiles),
          [=] { return call("ao::weight_int4pack_mm", "", x, weight, group_size, scales); }};
}

Trial dequantize_trial(Draw& draw, const LinearProblem& p) {
  const Drawn w = weight_of(draw, p);
  return {"dequantize" + described(p), [=] {
            return call("ao::dequantize", "", w.values, w.scale, static_cast<int64_t>(p.code), w.block, w.zero_point, w.table,
                        w.global_scale, std::optional(ScalarType::Float));
          }};
}

std::vector<Trial> sort_trials(Draw& draw, ScalarType dtype, int64_t pairs, int64_t experts) {
  const Tensor ids = aten::to(draw.bytes({pairs}), dtype);  // some of no expert
  const auto run = [=] { return call_all<3>("ao::sort_by_expert", "", ids, experts); };
  const std::string what = "sort_by_expert with " + std::to_string(experts) + " experts";
  return {{what + ": order", [=] { return std::get<0>(run()); }, Exact::yes},
          {what + ": place", [=] { return std::get<1>(run()); }, Exact::yes},
          {what + ": offsets", [=] { return std::get<2>(run()); }, Exact::yes}};
}

std::vector<Trial> quantize_trials(Draw& draw, ScalarType dtype, int64_t K, const OptionalIntegers& block, bool power_of_two) {
  const Tensor x = draw.normal({9, K}, ScalarType::Float);
  const auto run = [=] { return call_all<2>("ao::quantize", "", x, dtype, block, power_of_two); };
  const std::string what = std::string("quantize to ") + dtype_name(dtype) + " with K = " + std::to_string(K) +
                           (block ? " by blocks" : "") + (power_of_two ? ", powers of two" : "");
  return {{what + ": values", [=] { return std::get<0>(run()); }, Exact::yes},
          {what + ": scales", [=] { return std::get<1>(run()); }, Exact::yes}};
}

}  // namespace aoext::xpu

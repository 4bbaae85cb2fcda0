#include "sycl/probes.h"

#include <cmath>
#include <optional>
#include <vector>

#include "common/formats.h"
#include "sycl/plan.h"
#include "sycl/tiles.h"
#include "sycl/trials.h"

namespace aoext::xpu {
namespace {

thread_local bool probing = false;
thread_local const Family* probed = nullptr;

// Plans of this thread take `family` alone, or the generic kernels where it is null.
class Probing {
 public:
  explicit Probing(const Family* family) : before_(probed), was_probing_(probing) { probed = family, probing = true; }
  ~Probing() { probed = before_, probing = was_probing_; }
  Probing(const Probing&) = delete;

 private:
  const Family* before_;
  const bool was_probing_;
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

constexpr ScalarType kTriedInputs[]{ScalarType::BFloat16, ScalarType::Half, ScalarType::Float, ScalarType::Char,
                                    ScalarType::Float8_e4m3fn};
constexpr ScalarType kEightBit[]{ScalarType::Char, ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2};

// The products that a source is tried by: every number of rows by every length of groups, as far as the family serves them.
struct Products {
  Source source;
  unsigned codes;
  std::vector<int64_t> rows, groups;
  int64_t block_n;
  std::optional<ScalarType> scale;  // the input's type where there is none
};

constexpr int64_t kN = 72, kK = 512;

const std::vector<Products>& products() {
  static const std::vector<int64_t> few{1, 3, 8, 16, 40}, many{200}, int4_groups{128, 32};
  static const std::vector<Products> all{
      {Source::int4_tile, kInt4, few, int4_groups, 1, std::nullopt},
      {Source::int4_scaled_tile, kInt4, few, int4_groups, 1, ScalarType::BFloat16},
      {Source::rowwise_tile, kEightBits, few, {kK}, 1, ScalarType::Float},
      {Source::blocks_tile, kEightBits | kTable, few, {16, 32, 128}, 3, ScalarType::BFloat16},
      {Source::onednn, kInt4, many, int4_groups, 1, std::nullopt},
      {Source::onednn, kEightBits, many, {kK}, 1, ScalarType::Float},
      {Source::onednn, code_bit(kPlanesCode), many, {32}, 1, ScalarType::Half},
  };
  return all;
}

LinearProblem problem(Code code, ScalarType input, ScalarType scale, int64_t M, int64_t N, int64_t K, int64_t block_n,
                      int64_t group_size) {
  LinearProblem p{};
  p.code = code, p.scale = scale, p.group_size = group_size, p.block_n = block_n;
  if (has_scales_inside(code)) p.scale = ScalarType::Float, p.group_size = layout(code).group;
  p.has_zero_point = is_by_groups(code), p.global_scales = code == Code::lut4;
  p.M = M, p.N = N, p.K = K, p.input = input;
  p.input_group_size = is_high_precision(input) ? 0 : is_by_groups(code) ? K : group_size;
  p.output = p.bias = is_high_precision(input) ? input : ScalarType::Float, p.has_bias = true;
  return p;
}

// Whether the family is what serves a problem.
bool takes(sycl::queue& queue, const Family& family, const LinearProblem& p) {
  const Probing only(&family);
  return plan_linear(p, queue, onednn::kAlignment).algorithm != Algorithm::generic;
}

LinearProblem with_experts(LinearProblem p, int64_t experts) {
  p.experts = experts;
  if (p.global_scales > 0) p.global_scales = experts;
  return p;
}

// Every code of the planes' tiles, by one after another of the inputs that the family takes.
void add_planes(std::vector<Trial>& trials, Draw& draw, sycl::queue& queue, const Family& family) {
  size_t next = 0;
  for (const Format& format : kFormats) {
    if ((kPlanes & code_bit(format.code)) == 0) continue;
    const auto of = [&](ScalarType input) {
      return problem(format.code, input, ScalarType::Half, family.rows, kN, kK, 1, family.group);
    };
    for (size_t tries = 0; tries < std::size(kTriedInputs); ++tries) {
      const LinearProblem p = of(kTriedInputs[next++ % std::size(kTriedInputs)]);
      if (!takes(queue, family, p)) continue;
      trials.push_back(product_trial(draw, p));
      const LinearProblem of_experts = with_experts(p, 2);
      if (takes(queue, family, of_experts)) trials.push_back(product_trial(draw, of_experts));
      break;
    }
  }
}

void add_products(std::vector<Trial>& trials, Draw& draw, sycl::queue& queue, const Family& family) {
  for (const Products& by : products()) {
    if (by.source != family.source || (by.codes & code_bit(family.code)) == 0) continue;
    for (const int64_t group : by.groups) {
      for (const int64_t M : by.rows) {
        const ScalarType scale = by.scale.value_or(family.input);
        const LinearProblem p = problem(family.code, family.input, scale, M, kN, kK, by.block_n, group);
        const LinearProblem of_experts = with_experts(p, 2);
        if (takes(queue, family, of_experts)) trials.push_back(product_trial(draw, of_experts));
        if (!takes(queue, family, p)) continue;
        trials.push_back(product_trial(draw, p));
        if (group == kK && family.input == ScalarType::Char) trials.push_back(int8_mm_trial(draw, M, kN, kK));
      }
    }
  }
}

// Sizes that no kernel but the ones for any size take, in every format, with scales of any of their types.
std::vector<LinearProblem> any_problems() {
  constexpr int64_t M = 5, N = 37, K = 150, group = 6, block_n = 5, block_k = 16;  // the last ones are partial
  std::vector<LinearProblem> all;
  for (const ScalarType input : {ScalarType::Float, ScalarType::Char})
    all.push_back(problem(Code::int4, input, ScalarType::BFloat16, M, N, K, 1, group));
  for (const ScalarType dtype : kEightBit) {
    const Code code = code_of(dtype);
    all.push_back(problem(code, ScalarType::Float, ScalarType::Float, M, N, K, 1, K));
    for (const ScalarType input : {ScalarType::Float, dtype})
      all.push_back(problem(code, input, ScalarType::BFloat16, M, N, K, block_n, block_k));
  }
  for (const ScalarType scale : {ScalarType::Half, ScalarType::Float8_e4m3fn, ScalarType::Float8_e8m0fnu})
    all.push_back(problem(Code::lut4, ScalarType::Float, scale, M, N, K, block_n, block_k));
  all.push_back(problem(Code::int8, ScalarType::Float, ScalarType::BFloat16, M, N, K, block_n, block_k));
  all.back().subtracts_zero_point = true;
  for (const Format& format : kFormats)
    if ((kPlanes & code_bit(format.code)) != 0)
      all.push_back(problem(format.code, ScalarType::Float, ScalarType::Half, M, N, 768, 1, 12));
  return all;
}

void add_quantize(std::vector<Trial>& trials, Draw& draw) {
  for (const ScalarType dtype : kEightBit) {
    for (const int64_t K : {37, 1024}) {
      const auto add = [&](const OptionalIntegers& block, bool power_of_two) {
        for (const Trial& trial : quantize_trials(draw, dtype, K, block, power_of_two)) trials.push_back(trial);
      };
      add(std::nullopt, false);
      for (const bool power_of_two : {false, true}) add(Integers{1, 24}, power_of_two);
    }
  }
}

std::vector<Trial> trials_of(sycl::queue& queue, const Family& family) {
  Draw draw(queue);
  std::vector<Trial> trials;
  switch (family.source) {
    case Source::linear_any:
      for (const LinearProblem& p : any_problems()) {
        trials.push_back(product_trial(draw, p));
        trials.push_back(product_trial(draw, with_experts(p, 20)));
      }
      trials.push_back(int8_mm_trial(draw, 5, 37, 150));
      break;
    case Source::dequantize_blocks:
      for (const LinearProblem& p : any_problems())
        if (p.code != Code::int4 && is_high_precision(p.input)) trials.push_back(dequantize_trial(draw, p));
      break;
    case Source::dequantize_int4:
      for (const int64_t group : {64, 6})
        trials.push_back(
            dequantize_trial(draw, problem(Code::int4, ScalarType::Float, ScalarType::BFloat16, 0, 20, 384, 1, group)));
      break;
    case Source::quantize_rowwise: add_quantize(trials, draw); break;
    case Source::sort_by_expert:
      for (const ScalarType dtype : {ScalarType::Int, ScalarType::Long})
        for (const int64_t experts : {1, 37})
          for (const Trial& trial : sort_trials(draw, dtype, 300, experts)) trials.push_back(trial);
      break;
    case Source::int4pack_mm:
      for (const int64_t inner_k_tiles : {2, 4, 8})
        for (const int64_t M : {1, 3, 9}) trials.push_back(int4pack_trial(draw, M, inner_k_tiles));
      break;
    case Source::planes_tile: add_planes(trials, draw, queue, family); break;
    default: add_products(trials, draw, queue, family);
  }
  return trials;
}

}  // namespace

bool is_probing() { return probing; }

bool is_probed(const Family& family) { return probed != nullptr && *probed == family; }

bool has_probes(sycl::queue& queue, const Family& family) { return !trials_of(queue, family).empty(); }

std::string probe(sycl::queue& queue, const Family& family) {
  const std::vector<Trial> trials = trials_of(queue, family);
  if (trials.empty()) return "it has no probe";
  for (const Trial& trial : trials) {
    const auto run = [&](const Family* serving) {
      const Probing only(serving);
      return trial.run();
    };
    const Tensor result = run(&family), expected = run(nullptr);
    const double error = difference(result, expected);
    if (!(error <= (trial.exact == Exact::yes ? 0 : bound(result.scalar_type()))))
      return trial.what + " differs by " + std::to_string(error) + " from the generic kernel (relative Frobenius norm)";
  }
  return "";
}

}  // namespace aoext::xpu

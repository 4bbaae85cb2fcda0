#include "cuda/plan_rowwise.h"

#include <cmath>
#include <optional>

#include "cuda/choose_once.h"
#include "cuda/fits.h"
#include "cuda/kernels/experts.h"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {

namespace {

constexpr int64_t kPiece = 16;    // bytes that fast kernels read at once: K is a multiple of it
constexpr int64_t kAnyRows = 16;  // up to which a kernel for any size wins over copying its operands for a fast one
// With fewer output columns than this, what the tensor cores cut off sums of float8 may show in a row of y.
constexpr int64_t kCutColumns = 32;
constexpr int kExpertTile = 8;            // rows of a tile of rowwise_decode's
constexpr int64_t kMostExpertRows = 512;  // of all experts, up to which each may be a product of its own

// Rows of x up to which rowwise_decode is faster than wgmma. Each of its blocks reads all of x, so for more rows this pays only
// for small weights; few output channels of large K do not hide that time either, and of a large weight not even for one row of
// x.
int64_t decode_rows(const RowwiseLinear& p, const BetweenFit& fit) {
  if (p.N * p.K > fit.small_weight) return p.K >= fit.long_row ? 0 : 2;
  return p.K >= fit.long_row && p.K >= p.N ? 2 : 8;
}

// Whether saving a launch is worth that every block of rowwise_decode quantises its k-split of x.
bool quantizes_itself(const RowwiseLinear& p, const RowwiseDecodeConfig& c, const Device& device) {
  // Each tile of experts' rows has so many blocks, which quantise its rows alone.
  const double tiles = p.experts == 0 ? 1 : expected_row_tiles(p.M, p.experts, kExpertTile);
  const double blocks = std::ceil(static_cast<double>(c.blocks * c.cluster) * tiles / device.multiprocessors);
  const double rows = std::ceil(static_cast<double>(p.M) / tiles);
  return blocks * rows * static_cast<double>(ceil_div(p.K, c.cluster)) <= static_cast<double>(fits_of(device).between.quantized);
}

// Whether what the tensor cores cut off does not show.
bool is_exact(const RowwiseLinear& p) { return p.type == Element::int8 || p.N >= kCutColumns; }

// The best of the kernels whose rows are whole pieces; nothing where none serves.
std::optional<RowwiseKernels> choose_pieces(const LinearProblem& p, int64_t K, const Device& device) {
  using Decode = KernelOf<RowwiseDecodeConfig>;
  using Wgmma = KernelOf<RowwiseWgmmaConfig>;
  using WeightOnly = KernelOf<WeightOnlyWgmmaConfig>;
  using Mma = KernelOf<RowwiseMmaConfig>;
  const RowwiseLinear raw = rowwise_linear(p, K);
  const bool wgmma = device.features.wgmma, engine = wgmma && is_exact(raw) && Wgmma::takes(raw);
  if (Decode::takes(raw) && !(engine && raw.M > decode_rows(raw, fits_of(device).between)))
    return Decode::choose(raw, device).config;
  if (engine) return Wgmma::choose(raw, device).config;
  if (wgmma && WeightOnly::takes(raw)) return WeightOnly::choose(raw, device).config;
  if (Mma::takes(raw)) return Mma::choose(raw, device).config;
  return std::nullopt;
}

// Whether both operands are read as they are.
bool is_regular(const LinearProblem& p, bool aligned) { return aligned && p.K % kPiece == 0; }
int64_t whole_pieces(int64_t K) { return ceil_div(K, kPiece) * kPiece; }

// The host knows the rows of all experts and not those of one. Generic, which waits for the device, is never chosen.
RowwiseKernels choose_for_experts(const RowwiseLinear& raw, const Device& device) {
  using Decode = KernelOf<RowwiseDecodeConfig>;
  using Mma = KernelOf<RowwiseMmaConfig>;
  using Wgmma = KernelOf<RowwiseWgmmaConfig>;
  using WeightOnly = KernelOf<WeightOnlyWgmmaConfig>;
  const double finding = fits_of(device).between.finding_experts;
  RowwiseKernels best = RowwiseAny{};
  double least = 1e30;
  const auto consider = [&](const auto& choice, double more) {
    if (choice.microseconds + more < least) best = choice.config, least = choice.microseconds + more;
  };
  if (raw.M <= kMostExpertRows && Decode::takes(raw)) consider(Decode::choose(raw, device), 0);
  const bool wgmma = device.features.wgmma, engine = wgmma && is_exact(raw) && Wgmma::takes(raw);
  const bool widens = wgmma && WeightOnly::takes(raw);
  if (engine) consider(Wgmma::choose(raw, device), 0);
  if (widens) consider(longer(WeightOnly::choose(raw, device), kTilesOfExperts), finding);
  if (!engine && !widens && Mma::takes(raw)) consider(Mma::choose(raw, device), 0);
  return best;
}

RowwisePlan choose(const LinearProblem& p, const Device& device, bool aligned) {
  if (!takes_one_pass(p.K, device)) return {};
  const bool some = p.M > 0 && p.N > 0, regular = is_regular(p, aligned);
  if (p.experts > 0) {
    if (some && regular) return {choose_for_experts(rowwise_linear(p, p.K), device), false, p.K};
    return {RowwiseAny{}, false, p.K};  // copying all weights would take longer than it saves
  }
  if (some && (regular || p.M > kAnyRows))
    if (const auto kernel = choose_pieces(p, whole_pieces(p.K), device)) return {*kernel, !regular, whole_pieces(p.K)};
  if (p.input == ScalarType::Float && p.M > kAnyRows) return {};
  return {RowwiseAny{}, false, p.K};
}

RowwisePlan plan_now(const LinearProblem& p, const Device& device, bool aligned) {
  const Forced* const f = forced_in<RowwiseKernels>(p.experts);
  if (f == nullptr) return choose(p, device, aligned);
  const bool any = takes_one_pass(p.K, device);
  const RowwiseLinear raw = rowwise_linear(p, whole_pieces(p.K));
  const bool fast = any && p.M > 0 && p.N > 0 && (p.experts == 0 || is_regular(p, aligned));
  const auto kernel = forced_kernel<RowwiseKernels>(*f, text(p), raw, device, any, fast);
  if (is_generic(kernel)) return {};
  if (std::holds_alternative<RowwiseAny>(kernel)) return {kernel, false, p.K};
  return {kernel, !is_regular(p, aligned), whole_pieces(p.K)};
}

// The product of quantised operands, and whether decode quantises x itself.
RowwisePlan plan_scaled_linear_now(const LinearProblem& p, const Device& device, bool aligned) {
  LinearProblem product = p;
  product.input = p.quantized;
  RowwisePlan plan = plan_now(product, device, aligned);
  const auto* const decode = std::get_if<RowwiseDecodeConfig>(&plan.kernel);
  if (decode == nullptr || plan.copies) return plan;
  // The same cut, or the bits of y would be others.
  RowwiseLinear raw = rowwise_linear(p, p.K);
  raw.quantizes = true;
  plan.quantizes = KernelOf<RowwiseDecodeConfig>::takes(raw) && KernelOf<RowwiseDecodeConfig>::fits(raw, *decode) &&
                   quantizes_itself(raw, *decode, device);
  return plan;
}

}  // namespace

RowwiseLinear rowwise_linear(const LinearProblem& p, int64_t K) {
  RowwiseLinear raw{};
  raw.M = p.M, raw.N = p.N, raw.K = K;
  raw.type = element(p.input), raw.weight_type = element(p.code), raw.output = element(p.output);
  raw.scale_type = element(p.scale), raw.bias_type = element(p.bias);
  raw.experts = p.experts;
  return raw;
}

RowwisePlan plan_rowwise(const LinearProblem& p, const Device& device, bool aligned) {
  if (forced_in<RowwiseKernels>(p.experts) != nullptr) return plan_now(p, device, aligned);
  return choose_once(p, device, aligned, [&] { return plan_now(p, device, aligned); });
}

RowwisePlan plan_scaled_linear(const LinearProblem& p, const Device& device, bool aligned) {
  if (forced_in<RowwiseKernels>(p.experts) != nullptr) return plan_scaled_linear_now(p, device, aligned);
  return choose_once(p, device, aligned, [&] { return plan_scaled_linear_now(p, device, aligned); });
}

std::string text(const RowwisePlan& plan) {
  return text(plan.kernel) + " | copies=" + std::to_string(plan.copies) + " K=" + std::to_string(plan.K);
}

std::string instance(const RowwisePlan& plan, const LinearProblem& p) {
  RowwiseLinear raw = rowwise_linear(p, plan.K);
  raw.quantizes = plan.quantizes;
  return instance(plan.kernel, raw);
}

Explanation explain(const RowwisePlan& plan, const LinearProblem& p) {
  Explanation e = explain(plan.kernel);
  return plan.K > p.K ? e.with("padded_k", plan.K) : e;
}

}  // namespace aoext::cuda

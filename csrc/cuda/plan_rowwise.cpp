#include "cuda/plan_rowwise.h"

#include <optional>

#include "cuda/choose_once.h"
#include "cuda/forced.h"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {

namespace {

constexpr int64_t kPiece = 16;    // bytes that fast kernels read at once: K is a multiple of it
constexpr int64_t kAnyRows = 16;  // up to which a kernel for any size wins over copying its operands for a fast one
// With fewer output columns than this, what the tensor cores cut off sums of float8 may show in a row of y.
constexpr int64_t kCutColumns = 32;

// Rows of x up to which rowwise_decode is faster than wgmma. Each of its blocks reads all of x, so for more rows this pays only
// for small weights; few output channels of large K do not hide that time either, and of a large weight not even for one row of
// x.
int64_t decode_rows(const RowwiseLinear& p) {
  constexpr int64_t kLongRow = 8192, kSmallWeight = int64_t{1} << 24;
  if (p.N * p.K > kSmallWeight) return p.K >= kLongRow ? 0 : 2;
  return p.K >= kLongRow && p.K >= p.N ? 2 : 8;
}

// Whether saving a launch is worth that every block of rowwise_decode quantises its k-split of x.
bool quantizes_itself(const RowwiseLinear& p, const RowwiseDecodeConfig& c, const Device& device) {
  constexpr int64_t kMostValues = 16384;  // of a multiprocessor
  return ceil_div(int64_t{c.blocks} * c.cluster, device.multiprocessors) * p.M * ceil_div(p.K, c.cluster) <= kMostValues;
}

// Of the kernels whose rows are whole pieces; nothing where none serves.
std::optional<RowwiseKernel> choose_pieces(const LinearProblem& p, int64_t K, const Device& device) {
  const RowwiseLinear raw = rowwise_linear(p, K);
  const bool hopper = device.is_hopper(), exact = raw.type == Element::int8 || raw.N >= kCutColumns;
  const bool engine = hopper && exact && rowwise_wgmma_takes(raw);
  if (rowwise_decode_takes(raw) && !(engine && raw.M > decode_rows(raw))) return choose_rowwise_decode(raw, device);
  if (engine) return RowwiseWgmmaConfig{choose_rowwise_wgmma(raw, device)};
  if (hopper && weight_only_wgmma_takes(raw)) return WeightOnlyWgmmaConfig{choose_weight_only_wgmma(raw, device)};
  if (rowwise_mma_takes(raw)) return choose_rowwise_mma(raw, device);
  return std::nullopt;
}

// Whether both operands are read as they are.
bool is_regular(const LinearProblem& p, bool aligned) { return aligned && p.K % kPiece == 0; }
int64_t whole_pieces(int64_t K) { return ceil_div(K, kPiece) * kPiece; }

RowwisePlan choose(const LinearProblem& p, const Device& device, bool aligned) {
  if (!takes_one_pass(p.K, device)) return {};
  const bool some = p.M > 0 && p.N > 0, regular = is_regular(p, aligned);
  if (some && (regular || p.M > kAnyRows))
    if (const auto kernel = choose_pieces(p, whole_pieces(p.K), device)) return {*kernel, !regular, whole_pieces(p.K)};
  if (p.input == ScalarType::Float && p.M > kAnyRows) return {};
  return {RowwiseAny{}, false, p.K};
}

RowwiseKernel forced_kernel(const Forced& f, const LinearProblem& p, const Device& device) {
  const RowwiseLinear raw = rowwise_linear(p, whole_pieces(p.K));
  const bool serves = takes_one_pass(p.K, device) && p.M > 0 && p.N > 0, hopper = serves && device.is_hopper();
  const auto kernel = [&]<class Config>(const Config&, bool takes, const auto& choose, const auto& fits) -> RowwiseKernel {
    return forced_config<Config>(
        f, text(p), device, takes, [&] { return choose(raw, device); }, [&](const Config& c) { return fits(raw, c); });
  };
  if (is<RowwiseDecodeConfig>(f))
    return kernel(RowwiseDecodeConfig{}, serves && rowwise_decode_takes(raw), choose_rowwise_decode, rowwise_decode_fits);
  if (is<RowwiseWgmmaConfig>(f))
    return kernel(RowwiseWgmmaConfig{}, hopper && rowwise_wgmma_takes(raw), choose_rowwise_wgmma, rowwise_wgmma_fits);
  if (is<WeightOnlyWgmmaConfig>(f))
    return kernel(WeightOnlyWgmmaConfig{}, hopper && weight_only_wgmma_takes(raw), choose_weight_only_wgmma,
                  weight_only_wgmma_fits);
  if (is<RowwiseMmaConfig>(f))
    return kernel(RowwiseMmaConfig{}, serves && rowwise_mma_takes(raw), choose_rowwise_mma, rowwise_mma_fits);
  if (!takes_one_pass(p.K, device)) refuse_kernel(f, text(p), device);
  return RowwiseAny{};
}

RowwisePlan forced_plan(const Forced& f, const LinearProblem& p, const Device& device, bool aligned) {
  if (is<Generic>(f)) return {};
  const RowwiseKernel kernel = forced_kernel(f, p, device);
  if (std::holds_alternative<RowwiseAny>(kernel)) return {kernel, false, p.K};
  return {kernel, !is_regular(p, aligned), whole_pieces(p.K)};
}

bool is_forced() {
  const Forced* const f = forced();
  return f != nullptr && is_one_of(*f, RowwiseKernel());
}

RowwisePlan plan_now(const LinearProblem& p, const Device& device, bool aligned) {
  return is_forced() ? forced_plan(*forced(), p, device, aligned) : choose(p, device, aligned);
}

// The product of quantised operands, and whether decode quantises x itself.
RowwisePlan plan_scaled_linear_now(const LinearProblem& p, const Device& device, bool aligned) {
  LinearProblem product = p;
  product.input = storage(p.code);
  RowwisePlan plan = plan_now(product, device, aligned);
  const auto* const decode = std::get_if<RowwiseDecodeConfig>(&plan.kernel);
  if (decode == nullptr || plan.copies) return plan;
  // The same cut, or the bits of y would be others.
  RowwiseLinear raw = rowwise_linear(p, p.K);
  raw.quantizes = true;
  plan.quantizes = rowwise_decode_takes(raw) && rowwise_decode_fits(raw, *decode) && quantizes_itself(raw, *decode, device);
  return plan;
}

}  // namespace

RowwiseLinear rowwise_linear(const LinearProblem& p, int64_t K) {
  RowwiseLinear raw{};
  raw.M = p.M, raw.N = p.N, raw.K = K;
  raw.type = element(p.input), raw.weight_type = element(storage(p.code)), raw.output = element(p.output);
  raw.scale_type = element(p.scale), raw.bias_type = element(p.bias);
  return raw;
}

RowwisePlan plan_rowwise(const LinearProblem& p, const Device& device, bool aligned) {
  if (is_forced()) return plan_now(p, device, aligned);
  return choose_once(p, device, aligned, [&] { return plan_now(p, device, aligned); });
}

RowwisePlan plan_scaled_linear(const LinearProblem& p, const Device& device, bool aligned) {
  if (is_forced()) return plan_scaled_linear_now(p, device, aligned);
  return choose_once(p, device, aligned, [&] { return plan_scaled_linear_now(p, device, aligned); });
}

std::string text(const RowwisePlan& plan) {
  return text(plan.kernel) + " | copies=" + std::to_string(plan.copies) + " K=" + std::to_string(plan.K) +
         " quantizes=" + std::to_string(plan.quantizes);
}

Explanation explain(const RowwisePlan& plan, const LinearProblem& p) {
  Explanation e = std::visit(
      Overloaded{
          [](const Generic&) { return generic_explanation(); }, [](const RowwiseAny&) { return explain_kernel("rowwise_any"); },
          [](const RowwiseDecodeConfig& c) {
            return explain_kernel("rowwise_decode")
                .with("tile_n", c.tiles * 16)
                .with("k_splits", c.k_splits)
                .with("cluster", c.cluster);
          },
          [](const RowwiseWgmmaConfig& c) { return explain_wgmma("rowwise_wgmma", c); },
          [](const WeightOnlyWgmmaConfig& c) { return explain_wgmma("weight_only_wgmma", c); },
          [](const RowwiseMmaConfig& c) {
            return explain_kernel("rowwise_mma").with("tile_n", c.block_n).with("tile_m", c.block_m).with("splits", c.splits);
          }},
      plan.kernel);
  if (plan.quantizes) e.with("quantizes_input", 1);
  return plan.K > p.K ? e.with("padded_k", plan.K) : e;
}

}  // namespace aoext::cuda

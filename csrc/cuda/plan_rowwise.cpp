#include "cuda/plan_rowwise.h"

#include <array>

#include "cuda/choose_once.h"
#include "cuda/kernels/sizes.h"
#include "cuda/plan.h"

namespace aoext::cuda {

namespace {

constexpr int64_t kPiece = 16;    // bytes that fast kernels read at once: K is a multiple of it
constexpr int64_t kAnyRows = 16;  // up to which a kernel for any size wins over copying its operands for a fast one
// With fewer output columns than this, what the matrix engine cuts off sums of float8 may show in a row of y.
constexpr int64_t kCutColumns = 32;

// Rows of x up to which decode wins over wgmma. Each of its blocks brings all of x, which a weight must be small for; long rows
// of few channels do not hide it either, and of a large weight not even those of one row.
int64_t decode_rows(const RowwiseLinear& p) {
  constexpr int64_t kLongRow = 8192, kSmallWeight = int64_t{1} << 24;
  if (p.N * p.K > kSmallWeight) return p.K >= kLongRow ? 0 : 2;
  return p.K >= kLongRow && p.K >= p.N ? 2 : 8;
}

template <class Choose>
auto chosen(const RowwiseLinear& raw, const Device& device, Choose&& choose) {
  const std::array<int64_t, 8> key = {raw.M,
                                      raw.N,
                                      raw.K,
                                      static_cast<int64_t>(raw.type),
                                      static_cast<int64_t>(raw.weight_type),
                                      static_cast<int64_t>(raw.output),
                                      2 * device.multiprocessors + (device.is_hopper()),
                                      device.shared_memory};
  return choose_once(raw.M, key, choose);
}

// Where a launch saved is worth that every block of decode quantises its part of x.
bool quantizes_itself(const RowwiseLinear& p, const RowwiseDecodeConfig& c, const Device& device) {
  constexpr int64_t kMostValues = 16384;  // of a multiprocessor
  return ceil_div(int64_t{c.blocks} * c.cluster, device.multiprocessors) * p.M * ceil_div(p.K, c.cluster) <= kMostValues;
}

// Where aten::_scaled_mm is the faster one, which walks whole tiles of 128 by 128 and shares none: where these fit at once and
// fill most of the GPU, or are very many and fill it in every round. It must also know the problem.
bool prefers_scaled_mm(const LinearProblem& p, const RowwiseLinear& raw, const Device& device) {
  constexpr int64_t kTile = 128, kFewRows = 64, kManyTiles = 4096;
  const int64_t tiles = ceil_div(raw.M, kTile) * ceil_div(raw.N, kTile), sms = device.multiprocessors;
  const int64_t rounds = ceil_div(tiles, sms);
  const bool knows = raw.type == Element::e4m3 && raw.output == Element::bf16 && raw.N % kPiece == 0 &&
                     (!p.has_bias || p.bias == ScalarType::BFloat16);
  const bool fill = rounds == 1 ? 5 * tiles >= 3 * sms : tiles >= kManyTiles && 10 * tiles >= 9 * rounds * sms;
  return knows && raw.M > kFewRows && fill;
}

// Of the kernels whose rows are whole pieces; false where none serves.
bool plan_pieces(RowwisePlan& plan, const LinearProblem& p, int64_t K, const Device& device) {
  const RowwiseLinear raw = rowwise_linear(p, K);
  const bool hopper = device.is_hopper(), exact = raw.type == Element::int8 || raw.N >= kCutColumns;
  const bool engine = hopper && exact && rowwise_wgmma_takes(raw);
  if (rowwise_decode_takes(raw) && !(engine && raw.M > decode_rows(raw))) {
    plan.algorithm = RowwiseAlgorithm::decode;
    plan.decode = chosen(raw, device, [&] { return choose_rowwise_decode(raw, device); });
  } else if (engine) {
    plan.wgmma = choose_rowwise_wgmma(raw, device);
    const bool even = plan.wgmma.turned;  // over the GPU, where whole tiles of 128 by 128 leave some of it idle
    plan.algorithm = !even && prefers_scaled_mm(p, raw, device) ? RowwiseAlgorithm::scaled_mm : RowwiseAlgorithm::wgmma;
  } else if (hopper && weight_only_wgmma_takes(raw)) {
    plan.algorithm = RowwiseAlgorithm::weight_only_wgmma;
    plan.wgmma = chosen(raw, device, [&] { return choose_weight_only_wgmma(raw, device); });
  } else if (rowwise_mma_takes(raw)) {
    plan.algorithm = RowwiseAlgorithm::mma;
    plan.mma = choose_rowwise_mma(raw, device);
  } else {
    return false;
  }
  plan.K = K;
  return true;
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
  RowwisePlan plan;
  if (!takes_one_pass(p.K, device)) return plan;
  const bool some = p.M > 0 && p.N > 0, regular = aligned && p.K % kPiece == 0;
  plan.copies = !regular;
  if (some && (regular || p.M > kAnyRows) && plan_pieces(plan, p, ceil_div(p.K, kPiece) * kPiece, device)) return plan;
  plan.copies = false;
  if (p.input == ScalarType::Float && p.M > kAnyRows) return plan;
  plan.algorithm = RowwiseAlgorithm::any;
  plan.K = p.K;
  return plan;
}

RowwisePlan plan_scaled_linear(const LinearProblem& p, const Device& device, bool aligned) {
  LinearProblem product = p;
  product.input = storage(p.code);
  RowwisePlan plan = plan_rowwise(product, device, aligned);
  // The same cut, or the bits of y would be others.
  RowwiseLinear raw = rowwise_linear(p, p.K);
  raw.quantizes = true;
  plan.quantizes = plan.algorithm == RowwiseAlgorithm::decode && !plan.copies && rowwise_decode_takes(raw) &&
                   rowwise_decode_fits(raw, plan.decode) && quantizes_itself(raw, plan.decode, device);
  return plan;
}

namespace {

Explanation explain_kernel_of(const RowwisePlan& plan) {
  switch (plan.algorithm) {
    case RowwiseAlgorithm::generic: break;
    case RowwiseAlgorithm::decode: {
      Explanation e = explain_kernel("rowwise_decode");
      e.with("tile_n", plan.decode.tiles * 16).with("slices", plan.decode.slices).with("cluster", plan.decode.cluster);
      return plan.quantizes ? e.with("quantizes_input", 1) : e;
    }
    case RowwiseAlgorithm::wgmma: return explain_wgmma("rowwise_wgmma", plan.wgmma);
    case RowwiseAlgorithm::scaled_mm: return explain_kernel("aten::_scaled_mm");
    case RowwiseAlgorithm::weight_only_wgmma: return explain_wgmma("weight_only_wgmma", plan.wgmma);
    case RowwiseAlgorithm::mma:
      return explain_kernel("rowwise_mma")
          .with("tile_n", plan.mma.block_n)
          .with("tile_m", plan.mma.block_m)
          .with("splits", plan.mma.splits);
    case RowwiseAlgorithm::any: return explain_kernel("rowwise_any");
  }
  return generic_explanation();
}

}  // namespace

Explanation explain(const RowwisePlan& plan, const LinearProblem& p) {
  Explanation e = explain_kernel_of(plan);
  return plan.K > p.K ? e.with("padded_k", plan.K) : e;
}

}  // namespace aoext::cuda

#include "cuda/plan_packed.h"

#include "cuda/choose_once.h"
#include "cuda/kernels/limbs.h"

namespace aoext::cuda {
namespace {

// Rows of x from which on dequantising for cuBLAS wins, over wgmma and where there is none; of float32, which cuBLAS does not
// give to the tensor cores.
constexpr int64_t kManyRows = 65, kManyRowsWithoutWgmma = 40, kManyRowsFloat32 = 32;
// Fewer output columns than this, and rounding each weight to the input's type may show in a row of y.
constexpr int64_t kRoundedColumns = 64;

bool has_scales(const LinearProblem& p) { return p.input_group_size > 0; }

// Limbs of bfloat16 that hold an input to the precision of its result. Codes of 8 bits are exact as one, and their scale, if it
// is their row's, meets the sum; one that is a block's rounds with them.
int limbs_of(const LinearProblem& p) {
  if (!has_scales(p)) return p.input == ScalarType::Float ? kLimbs : 1;
  if (p.input_group_size == p.K || (p.output == ScalarType::BFloat16 && p.N >= kRoundedColumns)) return 1;
  return p.output == ScalarType::Float ? kLimbs : 2;
}

bool is_rounded_for_cublas(const LinearProblem& p, bool has_wgmma) {
  if (p.experts > 0 || p.N < kRoundedColumns || has_scales(p)) return false;
  return p.M >= (has_wgmma ? kManyRows : p.input == ScalarType::Float ? kManyRowsFloat32 : kManyRowsWithoutWgmma);
}

PackedPlan choose(const LinearProblem& p, const Device& device, bool aligned) {
  if (!takes_one_pass(p.K, device)) return {};
  if (p.M > 0 && p.N > 0) {
    const int limbs = limbs_of(p);
    const PackedLinear raw = packed_linear(p, limbs);
    const auto takes = [&]<class Config>() {
      using Kernel = KernelOf<Config>;
      return aligned && device.features.cover(Kernel::kNeeds) && Kernel::takes(raw);
    };
    if (is_rounded_for_cublas(p, takes.template operator()<PackedWgmmaConfig>())) return {PackedDequantize{}};
    Choice<PackedKernels> best;
    const auto consider = [&]<class Config>() {
      using Kernel = KernelOf<Config>;
      if (!takes.template operator()<Config>()) return;
      const auto choice = Kernel::choose(raw, device);
      if (choice.microseconds < best.microseconds) best = {choice.config, choice.microseconds};
    };
    consider.template operator()<PackedDecodeConfig>(), consider.template operator()<PackedMmaConfig>();
    consider.template operator()<PackedTilesConfig>(), consider.template operator()<PackedWgmmaConfig>();
    if (!is_generic(best.config)) return {best.config, limbs};
  }
  return {PackedAny{}};
}

}  // namespace

PackedLinear packed_linear(const LinearProblem& p) {
  PackedLinear raw{};
  raw.M = p.M, raw.N = p.N, raw.K = p.K, raw.row_bytes = row_bytes(p.code, p.K);
  raw.group_size = p.group_size, raw.x_group = p.input_group_size;
  raw.limbs = 1, raw.code = p.code;
  raw.type = element(p.input), raw.output = element(p.output);
  raw.scale_type = element(p.scale), raw.bias_type = element(p.bias);
  raw.experts = p.experts;
  return raw;
}

PackedLinear packed_linear(const LinearProblem& p, int limbs) {
  PackedLinear raw = packed_linear(p);
  raw.limbs = limbs;
  if (limbs > 1 || has_scales(p)) raw.type = Element::bf16;
  return raw;
}

PackedPlan plan_packed(const LinearProblem& p, const Device& device, bool aligned) {
  if (const Forced* const f = forced_in<PackedKernels>(p.experts)) {
    const int limbs = limbs_of(p);
    const bool any = takes_one_pass(p.K, device) && (f->kernel != KernelOf<PackedDequantize>::kName || !has_scales(p));
    const PackedKernels kernel =
        forced_kernel<PackedKernels>(*f, text(p), packed_linear(p, limbs), device, any, any && aligned && p.M > 0 && p.N > 0);
    return {kernel, std::holds_alternative<PackedMmaConfig>(kernel) ? limbs : 1};
  }
  return choose_once(p, device, aligned, [&] { return choose(p, device, aligned); });
}

std::string text(const PackedPlan& plan) { return text(plan.kernel) + " | limbs=" + std::to_string(plan.limbs); }

std::string instance(const PackedPlan& plan, const LinearProblem& p) {
  return instance(plan.kernel, packed_linear(p, plan.limbs));
}

}  // namespace aoext::cuda

// NEON and its products of four bytes (sdot): Neoverse N1, Apple M1.
#include "cpu/kernels/vectors_neon.inc.h"

#include "cpu/kernels/products_i8_dotprod.inc.h"
#include "cpu/kernels/table_neon.inc.h"

#include "cpu/kernels/gemv_planes.inc.h"
#include "cpu/kernels/limb_sums_dotprod.inc.h"
#include "cpu/kernels/products_of_codes_dotprod.inc.h"

namespace aoext::cpu {
namespace {

template <class Loader, int kLimbs, int kRows, int kGroups>
struct LimbSums : DotLimbSums<Loader, kLimbs, kRows, kGroups> {};

}  // namespace

const Kernels& kernels_dotprod() {
  static const Kernels table = [] {
    Kernels all = with_products_of_bytes(kernels_neon());
    all.gemv_limb = &kGemvLimbs<kOneInt8Limb>;
    all.gemv_limbs2 = &kGemvLimbs<kTwoInt8Limbs>;
    all.gemv_limbs3 = &kGemvLimbs<kThreeInt8Limbs>;
    all.gemv_e2m1_limbs2 = &kGemvLimbs<kTwoInt8Limbs, DoubledE2m1>;
    all.gemv_e2m1_limbs3 = &kGemvLimbs<kThreeInt8Limbs, DoubledE2m1>;
    all.gemv_planes_limb = &kGemvPlanes<kOneInt8Limb>;
    all.gemv_planes_limbs2 = &kGemvPlanes<kTwoInt8Limbs>;
    all.gemv_planes_limbs3 = &kGemvPlanes<kThreeInt8Limbs>;
    return of_library(all);
  }();
  return table;
}

}  // namespace aoext::cpu

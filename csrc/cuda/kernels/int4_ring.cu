// Instances of int4_ring.cuh, their launcher, and the choice among them.
#include "cuda/kernels/int4_ring.h"

#include "cuda/kernels/int4_ring_choice.h"

namespace aoext::cuda {
namespace {

using int4_ring::Key;
using int4_ring::key_of;
using int4_ring::kKeyNames;
using int4_ring::lay_out;
using int4_ring::Params;
using Kernel = void (*)(Params);

// f(key, kernel) of each.
template <class F>
void for_each_instance(F&& f) {
  int4_ring::for_each_instance<2, 8, 16>(
      [&]<Element X, Element S, int kSub, int kRows, bool kRinged, int kTiles>(const Key& key) {
        f(key, Kernel(int4_ring::int4_ring_kernel<X, S, kSub, kRows, kRinged, kTiles>));
      });
}

Kernel kernel_of(const Int4Linear& p, const RingConfig& c) {
  Kernel found = nullptr;
  for_each_instance([&, key = key_of(p, c)](const Key& k, Kernel kernel) { found = k == key ? kernel : found; });
  return found;
}

}  // namespace

bool KernelOf<RingConfig>::takes(const Int4Linear& p) {
  return (p.type == Element::bf16 || p.type == Element::fp16) && (p.scale_type == p.type || p.scale_type == Element::fp32) &&
         p.M <= (p.code == p.type ? 16 : kRingCodesRows) && p.K % 32 == 0 && p.group_size % 32 == 0 && few_rows_counts(p) &&
         is_aligned(p.x) && is_aligned(p.weight);
}

Choice<RingConfig> KernelOf<RingConfig>::choose(const Int4Linear& p, const Device& device) {
  return int4_ring::choose(p, p.M, device, [&](const RingConfig& c) { return kernel_of(p, c) != nullptr; });
}

bool KernelOf<RingConfig>::fits(const Int4Linear& p, const RingConfig& c) {
  int4_ring::Launch l;
  return kernel_of(p, c) && lay_out(p, p.M, c, l);
}

cudaError_t KernelOf<RingConfig>::launch(const Int4Linear& p, const RingConfig& c, void* /*workspace*/, cudaStream_t stream) {
  if (!takes(p)) return cudaErrorInvalidValue;
  const Kernel kernel = kernel_of(p, c);
  int4_ring::Launch l;
  if (!kernel || !lay_out(p, p.M, c, l)) return cudaErrorInvalidValue;
  return launch_few_rows(kernel, l.params, c, l.shared, stream);
}

std::string KernelOf<RingConfig>::instances() {
  return instances_text(kName, kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string KernelOf<RingConfig>::instance(const Int4Linear& p, const RingConfig& c) {
  return instance_text(kName, kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda

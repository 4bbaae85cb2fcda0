// Instances of rowwise_decode.cuh, their launcher, and the choice among them.
#include "cuda/kernels/rowwise_decode.h"

#include <algorithm>
#include <cmath>

#include "cuda/kernels/few_rows.h"
#include "cuda/kernels/instances.h"
#include "cuda/kernels/rowwise_decode.cuh"

namespace aoext::cuda {
namespace {

using rowwise_decode::kThreads;
using rowwise_decode::kTileN;
using rowwise_decode::kUnitK;
using rowwise_decode::Walk;
using rowwise_decode::X;
using Kernel = void (*)(Walk);

constexpr int64_t kMostQuantized = 8;  // rows of x

// What tells instances apart.
using Key = std::array<int, 5>;
constexpr std::array<const char*, 5> kKeyNames = {"x", "weight", "quantizes", "octets", "depth"};

// f(key, kernel) of each: x of the weight's type, which may have to be quantised, where there are up to 8 rows of it, or of 16
// bits.
template <class F>
void for_each_instance(F&& f) {
  each<Element::int8, Element::e4m3, Element::e5m2>([&](auto w) {
    each<1, 2>([&](auto octets) {
      each<2, 4>([&](auto depth) {
        using rowwise_decode::rowwise_decode_kernel;
        constexpr Element W = decltype(w)::value;
        constexpr int kOctets = decltype(octets)::value, kDepth = decltype(depth)::value;
        using T = std::conditional_t<W == Element::int8, int8_t, __half>;
        const auto key = [](Element x, int quantizes) { return Key{int(x), int(W), quantizes, kOctets, kDepth}; };
        f(key(W, 0), Kernel(rowwise_decode_kernel<T, W, X::eight, kOctets, kDepth>));
        if constexpr (kOctets == 1) f(key(W, 1), Kernel(rowwise_decode_kernel<T, W, X::quantized, kOctets, kDepth>));
        f(key(Element::fp16, 0), Kernel(rowwise_decode_kernel<__half, W, X::sixteen, kOctets, kDepth>));
        f(key(Element::bf16, 0), Kernel(rowwise_decode_kernel<__nv_bfloat16, W, X::sixteen, kOctets, kDepth>));
      });
    });
  });
}

Key key_of(const RowwiseLinear& p, const RowwiseDecodeConfig& c) {
  return {int(multiplied_type(p)), int(p.weight_type), p.quantizes, p.M <= 8 ? 1 : 2, c.depth};
}

Kernel kernel_of(const RowwiseLinear& p, const RowwiseDecodeConfig& c) {
  Kernel found = nullptr;
  for_each_instance([&, key = key_of(p, c)](const Key& k, Kernel kernel) { found = k == key ? kernel : found; });
  return found;
}

// Of one m, in a unit.
size_t unit_x_bytes(const RowwiseLinear& p) { return kUnitK * (is_8bit(multiplied_type(p)) ? 1 : 2); }

struct Launch {
  Walk walk;
  int turns;
  size_t shared;  // bytes
};

// The walk of a config, and the memory it takes; false if it does not fit.
bool lay_out(const RowwiseLinear& p, const RowwiseDecodeConfig& c, Launch& out) {
  Walk& w = out.walk;
  const int warps = c.tiles * c.slices, M = static_cast<int>(p.M);
  // A half warp either sends or collects, and every block collects something.
  if (!is_cluster(c.cluster) || c.blocks < 1 || c.tiles < 1 || c.slices < 1 || warps * 32 > kThreads || warps * 2 % c.cluster ||
      c.tiles * M < c.cluster)
    return false;
  w.linear = p, w.M = M, w.m_magic = ((1u << 20) + M - 1) / M;
  w.tile_groups = static_cast<int>(ceil_div(p.N, kTileN * c.tiles));
  w.units = static_cast<int>(ceil_div(p.K, kUnitK));
  w.part_units = static_cast<int>(ceil_div(w.units, c.cluster));
  w.cluster_log2 = log2_of_cluster(c.cluster);
  w.ahead = c.ahead / 16 * 16;
  out.turns = static_cast<int>(ceil_div(w.tile_groups, c.blocks));
  const int buffers = out.turns > 1 ? 2 : 1;
  w.buffer_stride = buffers > 1 ? static_cast<int>(Meeting<int>::sums(c.tiles, c.slices, M, 1)) : 0;
  const size_t fixed = size_t(warps) * c.depth * kTileN * kUnitK + 16 + (M > 8 ? 16 : 8) * sizeof(float) +
                       2 * c.tiles * kTileN * sizeof(Channel) +
                       Meeting<int>::sums(c.tiles, c.slices, M, c.cluster) * buffers * sizeof(int);
  const size_t per_unit = M * unit_x_bytes(p);
  out.shared = lay_out_chunks(w, fixed, per_unit, c.slices, static_cast<size_t>(c.shared_memory));
  if (out.shared == 0) return false;
  return !p.quantizes || (w.chunks == 1 && warps >= M);  // once, and a row by whole warps
}

// Microseconds of a cut, by a model: reading the weight, or the rounds of a multiprocessor's warps, limited by arithmetic and by
// latency, and what stands before and behind them: x on its way, the first ring filling and the last one emptying, sums that
// meet. Several blocks on a multiprocessor hide that from each other, and from the kernels before and after.
double model_time(const RowwiseLinear& p, const RowwiseDecodeConfig& c, const Launch& l, const Device& device, int resident) {
  const Walk& w = l.walk;
  const RowwiseDecodeFit& fit = fits_of(device).rowwise_decode;
  const bool wide = p.M > 8;
  const RowwiseDecodeFit::Costs& cost = multiplied_type(p) == Element::int8 ? fit.int8 : fit.others;
  const auto fourth = [](double a, double b) { return std::pow(std::pow(a, 4) + std::pow(b, 4), 0.25); };
  const double warps = resident * c.tiles * c.slices, filled = std::min(c.depth, w.warp_steps);
  const double read = static_cast<double>(p.N) * p.K / device.bandwidth * (fit.read + fit.read_slice / c.slices);
  const double work = warps * (wide ? cost.work_wide : cost.work);
  const double latency = cost.latency / c.depth + (wide ? fit.latency_wide : 0);
  const double rounds = static_cast<double>(l.turns) * w.chunks * w.warp_steps * fourth(work, latency);
  const double x = 1e-3 * resident * w.part_units * static_cast<double>(p.M * unit_x_bytes(p));
  const double x_again = w.chunks > 1 ? fit.x_again * x * (l.turns - 1.0 / w.chunks) + fit.chunk * (w.chunks - 1) * l.turns : 0;
  const double met = l.turns * static_cast<double>(ceil_div(c.tiles * p.M, 2 * c.tiles * c.slices)) *
                     (fit.meeting + fit.meeting_slice * c.slices);
  // Less on the way than any of those cuts has, or more multiprocessors idle: not known, and hardly better.
  const double busy = static_cast<double>(p.N) * c.cluster /
                      (kTileN * c.tiles * static_cast<double>(l.turns) * device.multiprocessors * resident);
  const double few = std::max({1.0, fit.fewest_units / (warps * c.depth), fit.fewest_busy / busy});
  return few * (fit.launch + fourth(read, rounds)) + fit.x * x / w.chunks + x_again + fit.ring * warps * filled +
         cost.filled * filled + met + (resident == 1 ? fit.alone : 0) + (c.cluster > 1 ? fit.cluster : 0) +
         (c.cluster > 2 ? fit.large_cluster : 0);
}

}  // namespace

bool rowwise_decode_takes(const RowwiseLinear& p) {
  const bool types =
      is_8bit(p.weight_type) && (p.quantizes ? !is_8bit(p.type) && p.M <= kMostQuantized
                                             : p.type == p.weight_type || p.type == Element::bf16 || p.type == Element::fp16);
  return types && is_aligned(p.x) && is_aligned(p.weight) && p.M <= 16 && p.K % 16 == 0 && p.K <= int64_t{1} << 27 &&
         p.N <= int64_t{1} << 30;
}

RowwiseDecodeConfig choose_rowwise_decode(const RowwiseLinear& p, const Device& device) {
  constexpr int kAhead = 1024, kMostBlocks = 65535;
  const int sms = device.multiprocessors, shared_memory = device.shared_memory;
  const bool hopper = device.is_hopper();
  const int sm_warps = p.M > 8 ? 16 : 21;  // that have registers
  RowwiseDecodeConfig best{}, c{2, 1, 1, 1, 1, shared_memory, kAhead, hopper};
  double best_time = 1e30;
  for (c.depth = 2; c.depth <= 4; c.depth += 2)
    for (c.cluster = 1; c.cluster <= (hopper ? 8 : 1); c.cluster *= 2)
      for (c.tiles = 1; c.tiles <= 16; ++c.tiles)
        for (c.slices = 1; c.tiles * c.slices <= 16; ++c.slices)
          for (int resident = 1; resident <= 3 && resident * c.tiles * c.slices <= sm_warps; ++resident) {
            const int slots = clusters_at_once(sms, resident, c.cluster);
            if (slots < 1) continue;
            const int64_t groups = ceil_div(p.N, kTileN * c.tiles);
            c.blocks = static_cast<int>(std::min<int64_t>(ceil_div(groups, ceil_div(groups, slots)), kMostBlocks));
            Launch l;
            if (!lay_out(p, c, l) || resident * (l.shared + 1024) > static_cast<size_t>(shared_memory) + 1024) continue;
            const int at_once = std::min(resident, static_cast<int>(ceil_div(int64_t{c.blocks} * c.cluster, sms)));
            const double time = model_time(p, c, l, device, at_once);
            if (time < best_time) best_time = time, best = c;
          }
  return best;
}

bool rowwise_decode_fits(const RowwiseLinear& p, const RowwiseDecodeConfig& c) {
  Launch l;
  return kernel_of(p, c) && lay_out(p, c, l);
}

cudaError_t launch_rowwise_decode(const RowwiseLinear& p, const RowwiseDecodeConfig& c, cudaStream_t stream) {
  if (!rowwise_decode_takes(p)) return cudaErrorInvalidValue;
  const Kernel kernel = kernel_of(p, c);
  Launch l;
  if (!kernel || !lay_out(p, c, l)) return cudaErrorInvalidValue;
  return launch_few_rows(kernel, l.walk, c, l.shared, stream);
}

std::string rowwise_decode_instances() {
  return instances_text("rowwise_decode", kKeyNames, [](auto&& f) { for_each_instance(f); });
}

std::string rowwise_decode_instance(const RowwiseLinear& p, const RowwiseDecodeConfig& c) {
  return instance_text("rowwise_decode", kKeyNames, key_of(p, c));
}

}  // namespace aoext::cuda

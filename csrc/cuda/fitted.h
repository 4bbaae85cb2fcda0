// The fitted constants of the kernels' models of time, a table for each GPU that was measured: benchmarks/cuts/fit.py writes it,
// for times of benchmarks/cuts/time_cuts.py. Constants have a point; the other numbers say which tile they are of.
#pragma once

#include "cuda/fits.h"

namespace aoext::cuda {

// int4_ring: searched for what it takes of the cuts measured, M = 1, 2, 4 and 8 with groups of 128, 2, 8, 12 and 16 with groups
// of 32, up to 31 N x K; int4_decode likewise, of these and int4_ring's: M = 4, 8, 12 and 16, groups of 128. The reduction: a
// fit to the cuts of both. int4_mma: 50 shapes, M = 17 to 4096, where what it takes is at most 3% off the fastest. rowwise_mma: 7
// shapes, M = 17 to 4096, on average 1% off, at most 20%. int4_batch: in microseconds of int4_wgmma's model, which those of an
// H200 exceed by a twentieth: searched for what the plan takes of both, and of these configurations, for groups of 128, fourteen
// N x K and M = 7 to 64. int4_wgmma: 0.1% from the fastest of what benchmarks/cuda.md lists, at most 3%. weight_only_wgmma: bf16
// by int8, 0.6%, at most 7%. rowwise_decode: cuts of M = 1 and 16, int8 and e4m3, eight N x K. rowwise_wgmma: 7505 configurations
// of the shapes of Llama 3 8B and 70B, M = 8 to 256: 6% off, and what it takes is 0.6% from the fastest, at most 8%. Tiles
// without swap_ab, and those of 128 by 128, 700 with M = 72 to 512: the former 5 to 10% off, and what it takes is 0.7% from the
// fastest, at most 11%. scaled_int4_tiles: four of Llama 3 8B's shapes, M = 96 to 4096, on an H100.
// An H100 was measured too: its own were no better than these, scaled (benchmarks/cuda.md, "Choosing").
constexpr Fits kH200Fits{
    .bandwidth = 4.66e6,
    .reduction =
        {.turn = 0.0418, .sum = 0.00103, .round = 0.425, .cluster = 0.469, .cluster_sum = 0.000359, .large_cluster = 0.314},
    .int4_ring = {.whole_units = {0.73, 0.00538, 0.000873, 0.0167},
                  .two_rows = {0.757, 0.0, 0.00202, 0.0177},
                  .eight_rows = {0.942, 0.0, 0.00101, 0.0188},
                  .more_rows = {1.69, 0.0, 0.00061, 0.0174},
                  .latency = 0.131,
                  .slice_read = 0.143,
                  .read_busy = 0.672,
                  .read_idle = 0.328,
                  .launch = 0.894,
                  .x = 0.00884,
                  .x_again = 0.00876,
                  .alone = 0.433,
                  .few_warps = 0.3},
    .int4_decode = {.eight_rows = {0.0155, 0.0, 0.114, 0.0111, 0.83, 0.505, 2.48},
                    .more_rows = {0.0, 0.00118, 0.21, 0.00658, 2.09, 0.888, 2.22},
                    .small_groups = 1.1},
    .int4_mma = {{.fill_steps = 0.5, .split = 3.1, .split_mb = 0.3},
                 {{Element::bf16, 128, 32, 0.274, 1.15},
                  {Element::bf16, 128, 64, 0.387, 1.67},
                  {Element::bf16, 128, 128, 0.663, 1.16}}},
    .int4_batch = {.tiles = {{16, {1.10, 0.602, 0.324}}, {32, {1.26, 0.702, 0.371}}, {64, {1.71, 0.947, 0.515}}},
                   .launches = 2.72,
                   .turn = 0.226,
                   .turn_row = 0.00891,
                   .cluster = 0.874,
                   .cluster_row = 0.0151},
    .int4_wgmma = {.rows_192 = {{0.0, 0.0, 0.423, 0.507, 0.0, 0.0}, 0.35, 3.70},
                   .rows_128 = {{0.244, 0.270, 0.318, 0.363, 0.462, 0.603}, 0.96, 2.36},
                   .rows_64 = {{0.157, 0.164, 0.0, 0.224, 0.0, 0.327}, 1.65, 2.57},
                   .clearing = 0.98,
                   .waiting = 1.57,
                   .leaving = 3.33,
                   .adding = 2.32,
                   .adding_beside = 1.16},
    .weight_only_wgmma = {.rows_192 = {{0.0, 0.423, 0.502, 0.558, 0.0, 0.0}, 0.03, 5.01},
                          .rows_128 = {{0.282, 0.0, 0.362, 0.413, 0.489, 0.640}, 0.49, 3.53},
                          .rows_64 = {{0.170, 0.190, 0.0, 0.232, 0.0, 0.0}, 1.33, 0.36},
                          .clearing = 1.76,
                          .waiting = 2.05,
                          .leaving = 3.99,
                          .adding = 2.28,
                          .adding_beside = 0.91},
    .rowwise_decode = {.int8 = {.work = 0.0362, .work_wide = 0.0419, .latency = 0.648, .filled = 0.125},
                       .others = {.work = 0.0425, .work_wide = 0.0536, .latency = 0.713, .filled = 0.303},
                       .read = 0.961,
                       .read_slice = 0.107,
                       .latency_wide = 0.205,
                       .launch = 0.66,
                       .x = 0.0154,
                       .x_again = 0.00998,
                       .chunk = 1.05,
                       .ring = 0.0247,
                       .reduction = 0.254,
                       .reduction_slice = 0.015,
                       .alone = 0.637,
                       .cluster = 1.17,
                       .large_cluster = 0.88,
                       .fewest_units = 32.0,
                       .fewest_busy = 0.9},
    .rowwise_mma = {{.fill_steps = 2.0, .split = 4.0, .split_mb = 0.25},
                    {{Element::int8, 32, 32, 0.0475, 1.47},
                     {Element::int8, 128, 32, 0.162, 1.54},
                     {Element::int8, 128, 64, 0.253, 1.12},
                     {Element::int8, 128, 128, 0.463, 1.09},
                     {Element::int8, 256, 128, 0.881, 1.00},
                     {Element::e4m3, 32, 32, 0.0765, 1.13},
                     {Element::e4m3, 128, 32, 0.225, 1.33},
                     {Element::e4m3, 128, 64, 0.359, 1.27},
                     {Element::e4m3, 128, 128, 0.630, 1.14},
                     {Element::bf16, 32, 32, 0.0790, 1.47},
                     {Element::bf16, 128, 32, 0.215, 1.42},
                     {Element::bf16, 128, 64, 0.393, 1.10},
                     {Element::bf16, 128, 128, 0.656, 1.10}}},
    .rowwise_wgmma = {.tiles = {{64, 32, 0.151, 0.155},
                                {64, 64, 0.150, 0.151},
                                {64, 128, 0.189, 0.205},
                                {128, 32, 0.214, 0.215},
                                {128, 64, 0.223, 0.229},
                                {128, 128, 0.335, 0.375},
                                {128, 256, 0.542, 0.650},
                                {80, 128, 0.250, 0.285},
                                {96, 128, 0.285, 0.340},
                                {160, 128, 0.430, 0.485},
                                {192, 128, 0.515, 0.600}},
                      .caches = 14.59e6,
                      .memory = 6.155e6,
                      .tile = 1.12,
                      .output = 6.6e-5,
                      .cluster = 2.02,
                      .both = 0.342},
    .scaled_int4_tiles = {{128, 128, 0.83, 0.76}, {128, 256, 1.28, 1.11}},
};

}  // namespace aoext::cuda

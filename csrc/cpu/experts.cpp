// Experts are a matter of who multiplies what: the panels of all experts that have rows lie on one line, which is cut into a part
// for each thread. A thread takes its part by the kernels of products with one weight, each expert by the kernel that its number
// of rows would get there, to the same bits.
#include "cpu/experts.h"

#include <algorithm>
#include <vector>

#include "cpu/parallel.h"

namespace aoext::cpu {
namespace {

// Reading and unpacking a panel of weights takes about as long as multiplying it by so many rows.
constexpr int64_t kRowsOfReading = 4;

// An expert that has rows.
struct Share {
  LinearProblem p;
  Kernel kernel;
  Data data;
  int64_t begin, cost;  // on the line, and of a panel

  // The first of its panels that is not before a place on the line.
  int64_t panel_at(int64_t place) const {
    return std::clamp<int64_t>(ceil_div(std::max<int64_t>(place - begin, 0), cost), 0, all_panels(p.N).end);
  }
};

std::vector<Share> shares_of(const LinearProblem& p, const Data& all, const std::vector<int64_t>& ends,
                             const DenseProduct& dense) {
  std::vector<Share> shares;
  int64_t row = 0, place = 0;
  for (size_t expert = 0; expert < ends.size(); ++expert) {
    const int64_t rows = ends[expert] - row;
    if (rows == 0) continue;
    LinearProblem own = p;
    own.M = rows;
    own.experts = 0;
    const Data data = of_expert(own, all, static_cast<int64_t>(expert), row);
    shares.push_back({own, dense.plan(own, data.weight), data, place, rows + kRowsOfReading});
    place += all_panels(p.N).end * shares.back().cost;
    row = ends[expert];
  }
  return shares;
}

void multiply_by_expert(const LinearProblem& p, const Data& all, const std::vector<int64_t>& ends, const DenseProduct& dense) {
  const std::vector<Share> shares = shares_of(p, all, ends, dense);
  const int64_t row_bytes = p.N * size_of(p.output), end = ends.back();
  std::fill(all.y + end * row_bytes, all.y + p.M * row_bytes, char{0});
  if (shares.empty()) return;
  const int64_t panels = all_panels(p.N).end, length = shares.back().begin + panels * shares.back().cost;
  const int64_t most = ceil_div(panels * static_cast<int64_t>(shares.size()), grain(kPanel, p.K));
  const int64_t parts = std::min<int64_t>(most, torch::stable::get_num_threads());
  const auto cut = [&](int64_t part) { return length / parts * part + length % parts * part / parts; };
  kParallelFor(parts, 1, [&](int64_t begin, int64_t end) {
    for (const Share& share : shares) {
      const Panels own{share.panel_at(cut(begin)), share.panel_at(cut(end))};
      if (own.begin < own.end) dense.multiply(share.p, share.kernel, share.data, own);
    }
  });
}

}  // namespace

Tensor product(const char* op, const LinearProblem& p, const Operands& of, const DenseProduct& dense) {
  const Tensor y = aten::empty(output_sizes(of.input, p.N), p.output, of.input);
  const auto contiguous = [](const Tensor* t) { return t == nullptr ? std::nullopt : OptionalTensor(aten::contiguous(*t)); };
  const Tensor x = aten::contiguous(of.input);
  const OptionalTensor input_scale = contiguous(of.input_scale), bias = contiguous(of.bias);
  const Data data{data_of(&x), data_of<float>(pointer_to(input_scale)), data_of(of.weight), data_of(pointer_to(bias)),
                  static_cast<char*>(y.mutable_data_ptr())};
  if (p.experts > 0) {
    const std::vector<int64_t> ends = generic::ends_of(op, *of.offsets, p.M);
    if (p.N > 0) multiply_by_expert(p, data, ends, dense);
  } else if (p.M > 0 && p.N > 0) {
    dense.multiply(p, dense.plan(p, data.weight), data, all_panels(p.N));
  }
  return y;
}

}  // namespace aoext::cpu

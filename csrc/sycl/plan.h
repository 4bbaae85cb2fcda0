// Which kernel a product gets on an XPU: the only place where shapes choose code.
//
// A plan takes the first candidate that the device can run, that the tensors' alignment allows and that is
// trusted on this device (self_check.h).
#pragma once

#include "common/by_name.h"
#include "common/explain.h"
#include "common/forced.h"
#include "sycl/family.h"
#include "sycl/kernels/shape.h"
#include "sycl/launch.h"
#include "sycl/onednn/matmul.h"

namespace aoext::xpu {

enum class Algorithm {
  tile,     // a kernel of ours that splits K over the sub-groups of a work-group (kernels/split_k.h)
  any,      // a kernel of ours for every size and alignment (kernels/linear_any.cpp)
  onednn,   // oneDNN's product, with kernels of ours for what it cannot do
  generic,  // ATen operators, where nothing else serves
};

struct Plan {
  Algorithm algorithm = Algorithm::generic;
  Family family = {};              // tile
  const Module* kernel = nullptr;  // tile
  int columns = 0;                 // tile: of y that a work-group computes
  int sub_groups = 0;              // tile: that split K
  bool arranged = false;           // tile: of x as arrange_input leaves it
  onednn::Matmul product = {};     // onednn
};

// Whom a plan is for. Without a queue the device is not at hand: its kernels are trusted, and its oneDNN has every product.
struct Asked {
  const Device& device;
  sycl::queue* queue;
  bool is_final = true;  // false once a family could not be checked now: a later plan may have it

  bool serves(const Family& family);  // runs and is trusted
};

// The largest power of two, up to oneDNN's kAlignment, at whose multiples all these tensors start.
int alignment_of(std::initializer_list<const Tensor*> tensors);

// Plans are remembered; one that is forced, or that a probe asks for, is not.
Plan plan_linear(const LinearProblem& p, sycl::queue& queue, int alignment);
Plan plan_linear(const LinearProblem& p, Asked& asked, int alignment);

// Whether the kernels of a source with one image may run on the queue's device.
bool serves(sycl::queue& queue, Source source);

std::string text(const Plan& plan);  // "int4_tile.lanes_bf16 rows=4 group=128 sub_groups=2"
Explanation explain(const Plan& plan, sycl::queue& queue);

// Parts of plan_linear, each false where it does not serve. A forced plan's fields replace what would be chosen.
bool plan_tile(Plan& plan, const LinearProblem& p, Asked& asked, Engine engine, const Forced* f = nullptr);
bool plan_product(Plan& plan, const LinearProblem& p, Asked& asked);
bool has_product(const LinearProblem& p);  // whether oneDNN is a candidate at all

}  // namespace aoext::xpu

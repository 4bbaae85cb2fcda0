// What one argument of an operator must be, in pieces that the operators' checks are made of, and the error texts.
#pragma once

#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "common/describe.h"
#include "common/formats.h"
#include "common/operands.h"
#include "common/torch_api.h"

namespace aoext {

constexpr const char* kHighPrecision = "bfloat16, float16 or float32";
constexpr const char* k8Bit = "int8, float8_e4m3fn or float8_e5m2";

// Parts of an error's text, put together where the error is raised: a call that is right builds no text. A part that takes
// work to say is a function.
template <class... Parts>
class Text {
 public:
  explicit Text(const Parts&... parts) : parts_(parts...) {}

  friend std::ostream& operator<<(std::ostream& out, const Text& text) {
    std::apply([&](const Parts&... parts) { (put(out, parts), ...); }, text.parts_);
    return out;
  }

 private:
  template <class Part>
  static void put(std::ostream& out, const Part& part) {
    if constexpr (std::is_invocable_v<Part>)
      out << part();
    else
      out << part;
  }

  std::tuple<const Parts&...> parts_;  // they live as long as the check that they are written in
};

template <class... Parts>
Text<Parts...> text(const Parts&... parts) {
  return Text<Parts...>(parts...);
}

// The shape of a weight, or of what belongs to one: behind a first dimension for its expert where there are experts.
using Shape = std::initializer_list<int64_t>;
constexpr int64_t kAny = -1;

bool has_shape(const LinearProblem& p, const Tensor& t, Shape shape);
std::string shape_text(const LinearProblem& p, std::string_view names, Shape shape);  // " [N, K/2] = [*, 32]"

// The checks of one call: `op` is whom errors name, `anchor` the tensor whose device the others share. What a check learns of
// the call goes into the problem. RuntimeError where an argument is not what it must be.
class Checker {
 public:
  Checker(const char* op, const char* anchor_name, const Tensor& anchor);

  template <class Must, class Got>
  [[noreturn]] void fail(const char* argument, const Must& must, const Got& got) const {
    std::ostringstream out;
    out << text("ao::", op_, ": ", argument, " must be ", must, ", got ", got);
    throw std::runtime_error(out.str());
  }

  template <class Must>
  void require(bool condition, const char* argument, const Must& must, const Tensor& got) const {
    if (!condition) fail(argument, must, describe(got));
  }

  template <class Must>
  void dtype(bool condition, const char* argument, const Must& must, ScalarType got) const {
    if (!condition) fail(argument, must, dtype_name(got));
  }

  // Memory and device of an operand beside the anchor.
  void operand(const char* argument, const Tensor& t) const;
  void contiguous(const char* argument, const Tensor& t) const;

  // An input [..., K] is the anchor. Sets M, K and the dtypes.
  template <class Dtypes>
  LinearProblem input(bool dtype_ok, const Dtypes& dtypes) const {
    require(dtype_ok && anchor_.dim() >= 1, "input", text(dtypes, " [..., K]"), anchor_);
    return input_of_any_dtype();
  }
  LinearProblem high_precision_input() const { return input(is_high_precision(dtype_of(anchor_)), kHighPrecision); }
  // The experts whose rows an input [T, K] holds one after the other, if there are offsets. Weights, scales, zero points and
  // biases have a first dimension more then.
  void experts(LinearProblem& p, const OptionalTensor& offsets) const;
  // What a code must be: a number of aoext.Code.
  Code code(int64_t code) const;
  // A weight in the format of p.code, and its scales; K comes from the input where there is one. Sets N and the format.
  void weight(LinearProblem& p, const Weight& weight, const OptionalIntegers& block_size) const;

  // A weight's elements as the format of p.code stores them. Sets N, and K where no input has done so.
  void values(LinearProblem& p, const Tensor& weight) const;

  // The tinygemm layout. Sets N and inner_k_tiles.
  void packed_weight(LinearProblem& p, const Tensor& weight) const;
  void scale_and_zero(LinearProblem& p, int64_t group_size, const Tensor& t) const;

  void row_scale(LinearProblem& p, const char* argument, bool dtype_ok, const char* dtypes, const Tensor& scale) const;
  // The elements along k of the input that share a scale; a row where nothing is said. Rows share none.
  void input_block(LinearProblem& p, const char* argument, const OptionalIntegers& block) const;
  // Rows of the input that have one scale, where weights have groups with zero points.
  void whole_rows(const LinearProblem& p, const char* argument) const;
  // The scales of a weight [N, K], each for a block [block_n, block_k]; for a row where nothing is said.
  void block_scale(LinearProblem& p, const char* argument, const Tensor& scale, const char* block_argument,
                   const OptionalIntegers& block_size) const;
  // An integer zero point for each of these scales, which are floats of 16 or 32 bits then.
  void block_zero_point(LinearProblem& p, const Tensor& scale, const Tensor& zero_point) const;
  // The scales of an input that is quantised already, [..., columns].
  void input_scale(const Tensor& scale, const char* shape, int64_t columns) const;
  // Products of int8 whose sums must fit into an int32.
  void int8_depth(const LinearProblem& p, ScalarType operands) const;

  void bias(LinearProblem& p, const OptionalTensor& bias) const;
  void output(LinearProblem& p, const char* argument, ScalarType dtype) const;

 private:
  void memory(const char* argument, const Tensor& t) const;
  LinearProblem input_of_any_dtype() const;
  void absent(const char* argument, const Tensor* t, const Format& format) const;
  void table(LinearProblem& p, const Weight& weight) const;
  void global_scale(LinearProblem& p, const Tensor& scale) const;
  void nested_scales(LinearProblem& p, const Weight& weight) const;
  void groups(LinearProblem& p, const Weight& weight, const OptionalIntegers& block_size) const;
  void scales_inside(LinearProblem& p, const Weight& weight, const OptionalIntegers& block_size) const;
  void block_of_groups(const LinearProblem& p, const OptionalIntegers& block_size) const;
  void result(const LinearProblem& p) const;  // of a product whose M and N are known

  const char* op_;
  const char* anchor_name_;
  const Tensor& anchor_;
  const std::pair<int32_t, int32_t> device_;
};

}  // namespace aoext

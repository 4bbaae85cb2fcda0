#include "sycl/onednn/matmul.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl_sycl.hpp>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace aoext::xpu::onednn {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

memory::data_type data_type(Type type) {
  switch (type) {
    case Type::bf16: return memory::data_type::bf16;
    case Type::f16: return memory::data_type::f16;
    case Type::f32: return memory::data_type::f32;
    case Type::s32: return memory::data_type::s32;
    case Type::s8: return memory::data_type::s8;
    case Type::s4: return memory::data_type::s4;
    case Type::f8_e4m3: return memory::data_type::f8_e4m3;
    case Type::f8_e5m2: return memory::data_type::f8_e5m2;
    case Type::none: break;
  }
  return memory::data_type::undef;
}

auto key(const Matmul& p) {
  return std::make_tuple(p.M, p.N, p.K, p.input, p.weight, p.output, p.weight_is_kn, p.scale, p.group_size, p.zero_points,
                         p.row_scales, p.bias, p.addend);
}
using Key = decltype(key(Matmul{}));

bool is_float(Type type) { return type == Type::bf16 || type == Type::f16 || type == Type::f32; }
bool is_integer(Type type) { return type == Type::s8 || type == Type::s4; }

// What oneDNN need not be asked, because the operands would have no layout.
bool is_well_formed(const Matmul& p) {
  if (p.M <= 0 || p.N <= 0 || p.K <= 0) return false;
  if (p.input == Type::none || p.weight == Type::none || p.output == Type::none) return false;
  if (p.weight == Type::s4 && (p.weight_is_kn ? p.N : p.K) % 2 != 0) return false;
  const bool grouped = p.scale != Type::none || p.zero_points;
  return !grouped || (p.group_size > 0 && p.K % p.group_size == 0);
}

// Which pointer of Arguments goes to which of oneDNN's arguments, and how it lies there.
struct Operand {
  int argument;
  memory::desc desc;
  const void* Arguments::* pointer;
};

// A product as oneDNN knows it. Immutable, so that threads share it.
struct Product {
  std::string implementation;
  dnnl::matmul primitive;
  std::vector<Operand> operands;  // all but output and scratchpad
  memory::desc output, scratchpad;
};

// Weights narrower than a floating-point input are widened to the input's type: fpmath_mode names the type, and
// only apply_to_int lets it touch integers. strict widens to float32.
dnnl::fpmath_mode widened(Type input) {
  return input == Type::bf16 ? dnnl::fpmath_mode::bf16 : input == Type::f16 ? dnnl::fpmath_mode::f16 : dnnl::fpmath_mode::strict;
}

Product make_product(const dnnl::engine& engine, const Matmul& p) {
  Product product;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  // oneDNN has split-K kernels for GPUs that add partial sums in the order in which they finish.
  attributes.set_deterministic(true);
  if (is_float(p.input) && is_integer(p.weight)) attributes.set_fpmath_mode(widened(p.input), true);

  const memory::desc input({p.M, p.K}, data_type(p.input), Tag::ab);
  const memory::desc weight({p.K, p.N}, data_type(p.weight), p.weight_is_kn ? Tag::ab : Tag::ba);
  product.output = memory::desc({p.M, p.N}, data_type(p.output), Tag::ab);
  product.operands.push_back({DNNL_ARG_SRC, input, &Arguments::input});
  product.operands.push_back({DNNL_ARG_WEIGHTS, weight, &Arguments::weight});

  // Bits 0 and 1 of a mask: the values vary along the first and the second dimension. One scale a column is said
  // without groups; one a row of the input with a group of all of K, as PyTorch's scaled_mm for XPU says it.
  const bool by_column = p.group_size == p.K;
  const int mask = by_column ? 2 : 3;
  const memory::dims group = by_column ? memory::dims{} : memory::dims{p.group_size, 1};
  const auto per_group = [&](Type type) {
    const memory::dim groups = p.K / p.group_size;
    return by_column ? memory::desc({p.N}, data_type(type), Tag::a) : memory::desc({groups, p.N}, data_type(type), Tag::ab);
  };
  if (p.scale != Type::none) {
    attributes.set_scales(DNNL_ARG_WEIGHTS, mask, group, data_type(p.scale));
    product.operands.push_back({DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, per_group(p.scale), &Arguments::scale});
  }
  if (p.zero_points) {
    attributes.set_zero_points(DNNL_ARG_WEIGHTS, mask, group, memory::data_type::s8);
    product.operands.push_back({DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_WEIGHTS, per_group(Type::s8), &Arguments::zero_point});
  }
  if (p.row_scales) {
    attributes.set_scales(DNNL_ARG_SRC, 3, {1, p.K}, memory::data_type::f32);
    const memory::desc desc({p.M, 1}, memory::data_type::f32, Tag::ab);
    product.operands.push_back({DNNL_ARG_ATTR_SCALES | DNNL_ARG_SRC, desc, &Arguments::row_scale});
  }

  // As a post-op, a bias may have any type; oneDNN's own bias must be float32 or have the input's.
  dnnl::post_ops post_ops;
  const auto add = [&](memory::dim rows, Type type, const void* Arguments::* pointer) {
    const memory::desc desc({rows, p.N}, data_type(type), Tag::ab);
    const int argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(post_ops.len()) | DNNL_ARG_SRC_1;
    product.operands.push_back({argument, desc, pointer});
    post_ops.append_binary(dnnl::algorithm::binary_add, desc);
  };
  if (p.bias != Type::none) add(1, p.bias, &Arguments::bias);
  if (p.addend != Type::none) add(p.M, p.addend, &Arguments::addend);
  attributes.set_post_ops(post_ops);

  const dnnl::matmul::primitive_desc description(engine, input, weight, product.output, attributes, /*allow_empty=*/true);
  if (!description) return {};
  // Implementations come best first, so a reference one ("ref:any", "ref_int8:any", "ocl:ref:any") is all there is.
  const std::string name = description.impl_info_str();
  if (name.rfind("ref", 0) == 0 || name.find(":ref") != std::string::npos) return {};
  product.implementation = name;
  product.scratchpad = description.scratchpad_desc();
  product.primitive = dnnl::matmul(description);
  return product;
}

// An engine with the products made on it.
//
// Describing a product takes 0.1 ms even where oneDNN's own cache has its primitive, so the whole product is
// kept; M changes with every prompt, so the least recently used make room. 1024 are what oneDNN's cache holds.
class Device {
 public:
  Device(const sycl::device& device, const sycl::context& context)
      : device_(device), context_(context), engine_(dnnl::sycl_interop::make_engine(device, context)) {}

  bool serves(const sycl::device& device, const sycl::context& context) const { return device_ == device && context_ == context; }
  const dnnl::engine& engine() const { return engine_; }
  bool is_gpu() const { return engine_.get_kind() == dnnl::engine::kind::gpu; }

  std::shared_ptr<const Product> product(const Matmul& problem) {
    const Key wanted = key(problem);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto found = products_.find(wanted); found != products_.end()) {
        found->second.last_use = ++uses_;
        return found->second.product;
      }
    }
    // Unlocked, as a GPU compiles here. Two threads may both do it; the first one's product stays.
    auto made = std::make_shared<const Product>(is_well_formed(problem) ? make_product(engine_, problem) : Product{});
    const std::lock_guard<std::mutex> lock(mutex_);
    if (products_.size() >= kCapacity) {
      products_.erase(std::min_element(products_.begin(), products_.end(),
                                       [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
    }
    return products_.emplace(wanted, Entry{std::move(made), ++uses_}).first->second.product;
  }

 private:
  static constexpr size_t kCapacity = 1024;

  struct Entry {
    std::shared_ptr<const Product> product;
    uint64_t last_use;
  };

  const sycl::device device_;
  const sycl::context context_;
  const dnnl::engine engine_;
  std::mutex mutex_;
  std::map<Key, Entry> products_;
  uint64_t uses_ = 0;
};

// Never destroyed: at exit the SYCL runtime may be gone first.
Device& device_of(const sycl::queue& queue) {
  static std::mutex& mutex = *new std::mutex;
  static std::list<Device>& devices = *new std::list<Device>;
  const sycl::device device = queue.get_device();
  const sycl::context context = queue.get_context();
  const std::lock_guard<std::mutex> lock(mutex);
  for (Device& known : devices)
    if (known.serves(device, context)) return known;
  return devices.emplace_back(device, context);
}

std::string describe(const Matmul& p) {
  static const char* const names[] = {"none", "bf16", "f16", "f32", "s32", "s8", "s4", "f8_e4m3", "f8_e5m2"};
  const auto name = [](Type type) { return std::string(names[static_cast<int>(type)]); };
  return name(p.input) + " [" + std::to_string(p.M) + ", " + std::to_string(p.K) + "] x " + name(p.weight) + " [" +
         std::to_string(p.N) + ", " + std::to_string(p.K) + "] -> " + name(p.output);
}

// Every entrance goes through here, so that no exception of oneDNN's or SYCL's leaves without the problem.
template <class F>
auto guarded(const Matmul& problem, const F& body) {
  try {
    return body();
  } catch (const std::exception& e) {  // dnnl::error and sycl::exception are std::exceptions
    throw std::runtime_error("oneDNN matmul: " + std::string(e.what()) + " (" + describe(problem) + ")");
  }
}

void* usm(const void* pointer) { return const_cast<void*>(pointer); }

}  // namespace

bool is_aligned(const Arguments& a) {
  const void* const pointers[] = {a.input, a.weight, a.scale,  a.zero_point, a.row_scale,
                                  a.bias,  a.addend, a.output, a.scratchpad};
  return std::all_of(std::begin(pointers), std::end(pointers),
                     [](const void* p) { return reinterpret_cast<uintptr_t>(p) % kAlignment == 0; });
}

std::string implementation(sycl::queue& queue, const Matmul& problem) {
  return guarded(problem, [&] { return device_of(queue).product(problem)->implementation; });
}

size_t scratchpad_bytes(sycl::queue& queue, const Matmul& problem) {
  return guarded(problem, [&] {
    const auto product = device_of(queue).product(problem);
    return product->implementation.empty() ? size_t{0} : product->scratchpad.get_size();
  });
}

sycl::event run(sycl::queue& queue, const Matmul& problem, const Arguments& arguments,
                const std::vector<sycl::event>& dependencies) {
  return guarded(problem, [&] {
    Device& device = device_of(queue);
    const std::shared_ptr<const Product> product = device.product(problem);
    if (product->implementation.empty()) throw std::runtime_error("this device has no implementation");

    // These objects are handles: 0.4 us each, nothing that need be kept.
    std::vector<memory> memories;
    std::vector<dnnl_exec_arg_t> handles;
    memories.reserve(product->operands.size() + 2);
    handles.reserve(product->operands.size() + 2);
    const auto pass = [&](int argument, const memory::desc& desc, const void* pointer) {
      memories.push_back(
          dnnl::sycl_interop::make_memory(desc, device.engine(), dnnl::sycl_interop::memory_kind::usm, usm(pointer)));
      handles.push_back({argument, memories.back().get()});
    };
    for (const Operand& operand : product->operands) {
      const void* pointer = arguments.*operand.pointer;
      if (pointer == nullptr) throw std::runtime_error("an operand is null");
      pass(operand.argument, operand.desc, pointer);
    }
    pass(DNNL_ARG_DST, product->output, arguments.output);
    if (product->scratchpad.get_size() != 0) {
      if (arguments.scratchpad == nullptr) throw std::runtime_error("the scratchpad is null");
      pass(DNNL_ARG_SCRATCHPAD, product->scratchpad, arguments.scratchpad);
    }

    const dnnl::stream stream = dnnl::sycl_interop::make_stream(device.engine(), queue);
    sycl::event event;
    dnnl::error::wrap_c_api(
        dnnl_sycl_interop_primitive_execute(product->primitive.get(), stream.get(), static_cast<int>(handles.size()),
                                            handles.data(), &dependencies, &event),
        "could not execute");
    // A GPU's arguments are in its command list by now. The CPU engine is a task that reads these objects when
    // it runs, so that they must live until then.
    if (!device.is_gpu()) {
      queue.submit([&](sycl::handler& handler) {
        handler.depends_on(event);
        handler.host_task([product, stream, memories] {});
      });
    }
    return event;
  });
}

}  // namespace aoext::xpu::onednn

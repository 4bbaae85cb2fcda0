#include "host_call.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <set>
#include <unordered_map>
#include <utility>

#include "host.h"

namespace xpu_sim {
namespace {

// Where a real device takes tensors of the CPU beside its own: indices, and lengths that the host reads.
const std::set<std::string>& takes_cpu_tensors() {
  static const auto* leaked = new std::set<std::string>{"aten::index",
                                                        "aten::index_put",
                                                        "aten::index_put_",
                                                        "aten::_index_put_impl_",
                                                        "aten::_unsafe_index",
                                                        "aten::_unsafe_index_put",
                                                        "aten::_pack_padded_sequence",
                                                        "aten::_cudnn_rnn",
                                                        "aten::segment_reduce"};
  return *leaked;
}

// One call: its XPU tensors as CPU tensors over the same memory, and back.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack, const ChangeResult& change)
      : op_(op), stack_(*stack), change_(change) {}

  void run() {
    const auto& schema = op_.schema();
    const size_t begin = stack_.size() - schema.arguments().size();
    for (size_t i = begin; i < stack_.size(); ++i) stack_[i] = to_host(stack_[i]);
    check_devices();
    if (device_) wait_quietly(current_stream(device_->index()));
    // Such a call makes a real device's host wait for the answer.
    if (op_.hasTag(at::Tag::data_dependent_output) || op_.hasTag(at::Tag::dynamic_output_shape)) count_host_wait();

    const size_t returned = schema.returns().size();
    call_cpu();

    const size_t results = stack_.size() - returned;
    change_results(results);
    for (const auto& argument : arguments_) write_back(argument);
    for (size_t i = results; i < stack_.size(); ++i) stack_[i] = to_device(stack_[i]);
  }

 private:
  struct Argument {
    at::Tensor device, host;
  };

  c10::IValue to_host(const c10::IValue& value) {
    if (value.isTensor()) return alias(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(alias(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(alias(*tensor)) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice()) {
      const c10::Device device = value.toDevice();
      results_stay_ = device.is_cpu();
      if (device.is_xpu()) {
        use_device({c10::kXPU, device.has_index() ? device.index() : current_device()});
        return c10::Device(c10::kCPU);
      }
    }
    return value;
  }

  at::Tensor alias(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_xpu()) {
      if (tensor.is_cpu() && tensor.dim() > 0) cpu_argument_ = true;
      return tensor;
    }
    TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_quantized(), "xpu_sim: ", op_.operator_name(),
                " got a tensor that is ", tensor.layout(), "; only strided ones are simulated");
    use_device(tensor.device());
    // Tensors of one storage stay tensors of one storage. The host's may be resized: then it moves to the
    // CPU's memory, and write_back sees that.
    const c10::Storage& storage = tensor.storage();
    auto found = storages_.find(storage.unsafeGetStorageImpl());
    if (found == storages_.end()) {
      c10::Storage host(c10::Storage::use_byte_size_t(), storage.nbytes(),
                        c10::DataPtr(const_cast<void*>(storage.data()), c10::Device(c10::kCPU)), c10::GetCPUAllocator(),
                        /*resizable=*/true);
      found = storages_.emplace(storage.unsafeGetStorageImpl(), std::make_pair(storage, host)).first;
    }
    at::Tensor host = with_layout_of(tensor, found->second.second, c10::DispatchKey::CPU);
    arguments_.push_back({tensor, host});
    return host;
  }

  static at::Tensor with_layout_of(const at::Tensor& tensor, const c10::Storage& storage, c10::DispatchKey key) {
    at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), tensor.dtype());
    auto* impl = result.unsafeGetTensorImpl();
    impl->set_storage_offset(tensor.storage_offset());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    result._set_conj(tensor.is_conj());
    result._set_neg(tensor.is_neg());
    return result;
  }

  void use_device(c10::Device device) {
    if (!device_) device_ = device;
    TORCH_CHECK(*device_ == device, op_.operator_name(),
                ": expected all tensors to be on the same device, but found at least two, ", *device_, " and ", device);
  }

  void check_devices() const {
    if (!device_ || !cpu_argument_ || arguments_.empty()) return;
    TORCH_CHECK(takes_cpu_tensors().count(op_.schema().name()), op_.operator_name(),
                ": expected all tensors to be on the same device, but found at least two, ", *device_, " and cpu");
  }

  // What the CPU's kernel did to an argument beyond writing into its memory.
  static void write_back(const Argument& argument) {
    const auto& [device, host] = argument;
    if (host.storage().data() == device.storage().data()) {
      if (host.sizes() == device.sizes() && host.strides() == device.strides()) return;
      device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
      return;
    }
    device.resize_(host.sizes());
    if (device.strides() != host.strides()) device.set_(at::empty_strided(host.sizes(), host.strides(), device.options()));
    on_host(device).copy_(host);
  }

  c10::IValue to_device(const c10::IValue& value) {
    if (value.isTensor()) return back(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(back(tensor));
      return list;
    }
    return value;
  }

  at::Tensor back(const at::Tensor& host) {
    if (!host.defined() || !host.is_cpu() || !device_ || results_stay_) return host;
    for (const auto& argument : arguments_) {
      if (host.is_same(argument.host)) return argument.device;
    }
    TORCH_CHECK(host.layout() == at::kStrided, "xpu_sim: ", op_.operator_name(), " gives a tensor that is ", host.layout(),
                "; only strided ones are simulated");
    for (const auto& [impl, pair] : storages_) {
      if (host.storage().is_alias_of(pair.second)) return with_layout_of(host, pair.first, c10::DispatchKey::XPU);
    }
    at::Tensor result = at::empty_strided(host.sizes(), host.strides(), host.options().device(*device_));
    if (host.is_non_overlapping_and_dense()) {
      if (host.nbytes()) std::memcpy(result.mutable_data_ptr(), host.const_data_ptr(), host.nbytes());
    } else {
      on_host(result).copy_(host);
    }
    return result;
  }

  // The CPU has no kernel for the convolutions that PyTorch leaves to a device.
  void call_cpu() {
    if (op_.schema().name() == "aten::convolution_overrideable") {
      return find("aten::convolution").callBoxed(&stack_);
    }
    if (op_.schema().name() == "aten::convolution_backward_overrideable") {
      // The one that takes the sizes of the bias beside, as its fourth argument.
      const size_t begin = stack_.size() - op_.schema().arguments().size();
      const bool transposed = stack_[begin + 6].toBool();
      const int64_t groups = stack_[begin + 8].toInt();
      const at::Tensor& weight = stack_[begin + 2].toTensor();
      const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
      stack_.insert(stack_.begin() + begin + 3, c10::IValue(c10::List<int64_t>({channels})));
      return find("aten::convolution_backward").callBoxed(&stack_);
    }
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
  }

  static c10::OperatorHandle find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

  void change_results(size_t results) {
    if (!change_) return;
    for (size_t i = results; i < stack_.size(); ++i) {
      if (stack_[i].isTensor()) change_result(stack_[i].toTensor());
      if (stack_[i].isTensorList()) {
        for (const at::Tensor& tensor : stack_[i].toTensorVector()) change_result(tensor);
      }
    }
  }

  void change_result(const at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_cpu()) change_(tensor);
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const ChangeResult& change_;
  std::vector<Argument> arguments_;
  std::unordered_map<const c10::StorageImpl*, std::pair<c10::Storage, c10::Storage>> storages_;  // device, host
  std::optional<c10::Device> device_;
  bool cpu_argument_ = false;
  bool results_stay_ = false;  // the caller asked for a result on the CPU
};

}  // namespace

void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, const ChangeResult& change) {
  Call(op, stack, change).run();
}

}  // namespace xpu_sim

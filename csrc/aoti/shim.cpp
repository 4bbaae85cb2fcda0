#include "aoti/shim.h"

#include "common/dispatcher.h"

namespace aoext::aoti {

AOTITorchError fail(const char* message) noexcept {
  try {
    // PyTorch keeps the message of what fails in it (up to 2.12 it prints it): so something does, with this message.
    const Tensor no = torch::stable::full({}, 0, ScalarType::Bool);
    StableIValue stack[] = {torch::stable::detail::from(no), torch::stable::detail::from(std::string(message))};
    torch_call_dispatcher("aten::_assert_async", "msg", stack, TORCH_ABI_VERSION);
  } catch (...) {  // no memory for it: the code alone must do
  }
  return AOTI_TORCH_FAILURE;
}

void check_device(const char* op, const Tensor& t, Key key) {
  static constexpr std::pair<torch::headeronly::DeviceType, const char*> kTypes[] = {
      {torch::headeronly::DeviceType::CPU, "cpu"},
      {torch::headeronly::DeviceType::CUDA, "cuda"},
      {torch::headeronly::DeviceType::XPU, "xpu"}};
  const auto& [type, name] = kTypes[static_cast<int>(key)];
  if (device_of(t).first == static_cast<int32_t>(type)) return;
  throw std::runtime_error(std::string("ao::") + op + ": its first tensor must be on " + name +
                           ", for which this program was compiled, got " + device_name(t));
}

}  // namespace aoext::aoti

// Continues a text with a language model over bytes that AOTInductor has compiled. No Python runs in this process.
//
//   generate libaoext.so model.pt2 PROMPT [BYTES]
//
// The model maps int64 tokens [B, T] to logits [B, T, 256]; the likeliest byte is appended until there are BYTES more
// (64). Its package says in the metadata `context` how many positions the model knows.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

enum Exit { done = 0, run_failed = 1, bad_usage = 2, bad_library = 3, bad_package = 4, bad_device = 5 };

struct Failure : std::runtime_error {
  Failure(Exit code, const std::string& what) : std::runtime_error(what), code(code) {}
  Exit code;
};

// The reason of an exception: PyTorch's texts have a backtrace behind their first line.
std::string reason(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

int64_t positive(const std::string& name, const std::string& text, Exit code) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number < 1)
    throw Failure(code, name + " must be a positive number, got '" + text + "'");
  return number;
}

// Packages name libaoext.so as a library that they need; one that is loaded already is found by that name.
void open_library(const std::string& path) {
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    throw Failure(bad_library, std::string("cannot load the library: ") + dlerror());
}

class Model {
 public:
  explicit Model(const std::string& package) : device_(at::kCPU) {
    using Loader = torch::inductor::AOTIModelPackageLoader;
    if (!std::filesystem::is_regular_file(package)) throw Failure(bad_package, "no package at " + package);
    try {
      auto metadata = Loader::load_metadata_from_package(package, "model");
      device_ = device(metadata.at("AOTI_DEVICE_KEY"));
      if (metadata.count("context") == 0) throw std::runtime_error("its metadata has no `context`");
      context_ = positive("its metadata `context`", metadata["context"], bad_package);
      loader_ = std::make_unique<Loader>(package);
    } catch (const Failure&) {
      throw;
    } catch (const std::exception& error) {
      throw Failure(bad_package, "cannot load " + package + ": " + reason(error));
    }
  }

  // The likeliest byte behind a text.
  char next(const std::string& text) {
    const std::string seen = text.substr(text.size() - std::min(text.size(), static_cast<size_t>(context_)));
    const at::Tensor tokens = at::empty({1, static_cast<int64_t>(seen.size())}, at::kLong);
    std::transform(seen.begin(), seen.end(), tokens.data_ptr<int64_t>(), [](unsigned char byte) { return byte; });
    const at::Tensor logits = loader_->run({tokens.to(device_)}).at(0);
    return static_cast<char>(logits.select(1, -1).argmax().item<int64_t>());
  }

 private:
  // Asked before the package is loaded, so that a machine without the device gets a clear answer.
  static at::Device device(const std::string& type) {
    try {
      at::empty({1}, at::Device(type));
    } catch (const std::exception& error) {
      throw Failure(bad_device, "the package was compiled for " + type + ", which is not here: " + reason(error));
    }
    return at::Device(type);
  }

  at::Device device_;
  int64_t context_ = 0;
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
};

void generate(int count, char** arguments) {
  if (count < 4 || count > 5 || *arguments[3] == '\0')
    throw Failure(bad_usage, "usage: generate libaoext.so model.pt2 PROMPT [BYTES]");
  const int64_t bytes = count == 5 ? positive("BYTES", arguments[4], bad_usage) : 64;
  open_library(arguments[1]);
  Model model(arguments[2]);
  std::string text = arguments[3];
  std::cout << text << std::flush;
  for (int64_t i = 0; i < bytes; ++i) {
    text += model.next(text);
    std::cout << text.back() << std::flush;
  }
  std::cout << std::endl;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    generate(count, arguments);
    return done;
  } catch (const Failure& failure) {
    std::cerr << "generate: " << failure.what() << std::endl;
    return failure.code;
  } catch (const std::exception& error) {
    std::cerr << "generate: the model failed: " << reason(error) << std::endl;
    return run_failed;
  }
}

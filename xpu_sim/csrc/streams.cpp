#include "streams.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <sycl/sycl.hpp>
#include <thread>

namespace xpu_sim {
namespace {

struct DeviceStreams {
  std::array<std::unique_ptr<sycl::queue>, kPoolStreams + 1> queues;
  std::atomic<uint32_t> next{0};
};

struct State {
  std::array<DeviceStreams, kDevices> devices;
  std::mutex mutex;  // guards the making of queues
};

State& state() {
  static State* leaked = new State;
  return *leaked;
}

thread_local c10::DeviceIndex this_device = 0;
thread_local std::array<c10::StreamId, kDevices> this_streams{};

std::atomic<int64_t> waits{0};

bool is_child = false;
[[maybe_unused]] const int watching = pthread_atfork(nullptr, nullptr, [] { is_child = true; });

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kXPU, device), id);
}

sycl::device find_device() {
  std::string found;
  try {
    for (const sycl::device& device : sycl::device::get_devices(sycl::info::device_type::cpu)) {
      if (device.get_backend() == sycl::backend::opencl) return device;
    }
    for (const sycl::device& device : sycl::device::get_devices()) {
      found += (found.empty() ? "" : ", ") + device.get_info<sycl::info::device::name>();
    }
  } catch (const sycl::exception& error) {
    found = error.what();
  }
  const char* icd = std::getenv("OCL_ICD_FILENAMES");
  TORCH_CHECK(false, "xpu_sim: SYCL finds no OpenCL CPU device; pip install intel-sycl-rt intel-opencl-rt. It found: ",
              found.empty() ? "nothing" : found, "; OCL_ICD_FILENAMES=", icd ? icd : "");
}

std::vector<sycl::queue*> queues_of(c10::DeviceIndex device) {
  std::vector<sycl::queue*> queues;
  std::lock_guard lock(state().mutex);
  for (c10::DeviceIndex index = 0; index < kDevices; ++index) {
    if (device >= 0 && index != device) continue;
    for (auto& queue : state().devices[index].queues) {
      if (queue) queues.push_back(queue.get());
    }
  }
  return queues;
}

struct Element16 {
  uint64_t low, high;
};

template <typename T>
void fill(sycl::queue& queue, void* to, const void* element, size_t count) {
  T value;
  std::memcpy(&value, element, sizeof value);
  queue.fill(to, value, count);
}

}  // namespace

const sycl::device& sycl_device() {
  static const sycl::device* leaked = new sycl::device(find_device());
  return *leaked;
}

const sycl::context& sycl_context() {
  static const sycl::context* leaked = new sycl::context(sycl_device());
  return *leaked;
}

void check_device(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kDevices, "xpu_sim: device index must be 0 to ", kDevices - 1, ", got ", int{index});
}

bool forked() { return is_child; }

c10::DeviceIndex current_device() { return this_device; }

void set_current_device(c10::DeviceIndex index) {
  check_device(index);
  this_device = index;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  if (device < 0) device = this_device;
  check_device(device);
  return stream_of(device, this_streams[device]);
}

void set_current_stream(c10::Stream stream) {
  queue_of(stream);  // checks it
  this_streams[stream.device_index()] = stream.id();
}

c10::Stream default_stream(c10::DeviceIndex device) {
  if (device < 0) device = this_device;
  check_device(device);
  return stream_of(device, 0);
}

c10::Stream pool_stream(c10::DeviceIndex device) {
  if (device < 0) device = this_device;
  check_device(device);
  return stream_of(device, 1 + state().devices[device].next++ % kPoolStreams);
}

sycl::queue& queue_of(c10::Stream stream) {
  TORCH_CHECK(!forked(), "xpu_sim: the device does not survive fork(); to use it in several processes, spawn them");
  TORCH_CHECK(stream.device_type() == c10::kXPU, "xpu_sim: not an XPU stream: ", stream);
  check_device(stream.device_index());
  TORCH_CHECK(stream.id() >= 0 && stream.id() <= kPoolStreams, "xpu_sim: no stream has the id ", stream.id());
  std::lock_guard lock(state().mutex);
  auto& queue = state().devices[stream.device_index()].queues[stream.id()];
  if (!queue) {
    queue = std::make_unique<sycl::queue>(sycl_context(), sycl_device(), sycl::property_list{sycl::property::queue::in_order{}});
  }
  return *queue;
}

std::vector<sycl::event> unfinished(c10::DeviceIndex device) {
  std::vector<sycl::event> events;
  for (sycl::queue* queue : queues_of(device)) {
    if (queue->ext_oneapi_empty()) continue;
    if (auto last = queue->ext_oneapi_get_last_event()) events.push_back(*last);
  }
  return events;
}

void wait_quietly(c10::Stream stream) { queue_of(stream).wait_and_throw(); }

void wait_quietly(c10::DeviceIndex device) {
  for (sycl::queue* queue : queues_of(device)) queue->wait_and_throw();
}

void wait_counted(c10::Stream stream) {
  count_host_wait();
  wait_quietly(stream);
}

void wait_counted(c10::DeviceIndex device) {
  count_host_wait();
  wait_quietly(device);
}

void count_host_wait() { ++waits; }

int64_t host_waits() { return waits; }

bool is_idle(c10::Stream stream) { return queue_of(stream).ext_oneapi_empty(); }

void delay(c10::Stream stream, double milliseconds) {
  queue_of(stream).submit([milliseconds](sycl::handler& handler) {
    handler.host_task([milliseconds] { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds)); });
  });
}

void copy_bytes(c10::Stream stream, void* to, const void* from, size_t bytes) {
  if (bytes && to != from) queue_of(stream).memcpy(to, from, bytes);
}

void fill_elements(c10::Stream stream, void* to, const void* element, size_t element_size, size_t count) {
  if (!count) return;
  sycl::queue& queue = queue_of(stream);
  switch (element_size) {
    case 1: return fill<uint8_t>(queue, to, element, count);
    case 2: return fill<uint16_t>(queue, to, element, count);
    case 4: return fill<uint32_t>(queue, to, element, count);
    case 8: return fill<uint64_t>(queue, to, element, count);
    case 16: return fill<Element16>(queue, to, element, count);
    default: TORCH_CHECK(false, "xpu_sim: no fill for elements of ", element_size, " bytes");
  }
}

}  // namespace xpu_sim

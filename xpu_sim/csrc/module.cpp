// The Python module xpu_sim._C. Importing it makes the device; xpu_sim.install() prepares what it needs first.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <c10/util/Exception.h>

#include <sycl/sycl.hpp>

#include "allocator.h"
#include "events.h"
#include "exports.h"
#include "fallback.h"
#include "streams.h"

namespace py = pybind11;

namespace xpu_sim {
namespace {

c10::Stream stream_of(int device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kXPU, static_cast<c10::DeviceIndex>(device)), id);
}

int32_t current_queue(int32_t device, void** queue) {
  try {
    *queue = &queue_of(current_stream(static_cast<c10::DeviceIndex>(device)));
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

py::dict device_facts() {
  namespace info = sycl::info::device;
  const sycl::device& device = sycl_device();
  py::dict facts;
  facts["name"] = device.get_info<info::name>();
  facts["platform_name"] = device.get_platform().get_info<sycl::info::platform::name>();
  facts["vendor"] = device.get_info<info::vendor>();
  facts["driver_version"] = device.get_info<info::driver_version>();
  facts["version"] = device.get_info<info::version>();
  facts["max_compute_units"] = device.get_info<info::max_compute_units>();
  facts["max_work_group_size"] = device.get_info<info::max_work_group_size>();
  facts["max_num_sub_groups"] = device.get_info<info::max_num_sub_groups>();
  facts["sub_group_sizes"] = device.get_info<info::sub_group_sizes>();
  facts["local_mem_size"] = device.get_info<info::local_mem_size>();
  facts["last_level_cache_size"] = device.get_info<info::global_mem_cache_size>();
  facts["total_memory"] = device.get_info<info::global_mem_size>();
  facts["has_fp16"] = device.has(sycl::aspect::fp16);
  facts["has_fp64"] = device.has(sycl::aspect::fp64);
  facts["has_atomic64"] = device.has(sycl::aspect::atomic64);
  return facts;
}

// torch's errors as Python's, without linking against torch's Python library. For this module only: torch has
// a better translation for everything else.
void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const c10::ValueError& e) {
    py::set_error(PyExc_ValueError, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    py::set_error(PyExc_RuntimeError, e.what_without_backtrace());
  }
}

PYBIND11_MODULE(_C, m) {
  py::register_local_exception_translator(&translate);
  xpu_sim_set_current_queue(&current_queue);
  const auto nogil = py::call_guard<py::gil_scoped_release>();

  m.def("device_facts", &device_facts);
  m.def("device_count", [] { return int{kDevices}; });
  m.def("forked", &forked);
  m.def("current_device", [] { return int{current_device()}; });
  m.def("set_current_device", [](int index) { set_current_device(static_cast<c10::DeviceIndex>(index)); });

  m.def("current_stream", [](int device) { return current_stream(static_cast<c10::DeviceIndex>(device)).id(); });
  m.def("set_current_stream", [](int device, int64_t id) { set_current_stream(stream_of(device, id)); });
  m.def("queue", [](int device, int64_t id) { return reinterpret_cast<uintptr_t>(&queue_of(stream_of(device, id))); });
  m.def("synchronize", [](int device) { wait_counted(static_cast<c10::DeviceIndex>(device)); }, nogil);
  m.def("synchronize_quietly", [] { wait_quietly(c10::DeviceIndex{-1}); }, nogil);
  m.def("delay", [](int device, int64_t id, double milliseconds) { delay(stream_of(device, id), milliseconds); });
  m.def("elapsed_milliseconds", [](uintptr_t start, uintptr_t end) {
    return elapsed_milliseconds(reinterpret_cast<Event*>(start), reinterpret_cast<Event*>(end));
  });
  // For tests of the simulator: what a kernel with a wrong pointer would do, on the current stream.
  m.def("copy_bytes", [](uintptr_t to, uintptr_t from, size_t bytes) {
    copy_bytes(current_stream(current_device()), reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  });
  m.def("host_waits", &host_waits);

  m.def("memory_in_use", [](int device) { return memory_in_use(static_cast<c10::DeviceIndex>(device)); });
  m.def("canaries", [] { return modes().canaries; });
  m.def("set_canaries", [](bool on) {
    Modes changed = modes();
    changed.canaries = on;
    set_modes(changed);
  });
  m.def("guard_pages", [] { return std::make_pair(modes().guard_pages, modes().guard_alignment); });
  m.def("set_guard_pages", [](bool on, size_t alignment) {
    Modes changed = modes();
    changed.guard_pages = on;
    changed.guard_alignment = alignment;
    set_modes(changed);
  });
  m.def("take_damage", &take_damage, nogil);

  m.def("fallbacks", &fallbacks);
  m.def("reset_fallbacks", &reset_fallbacks);
  m.def("set_fault", &set_fault);
  m.def("clear_fault", &clear_fault);
  m.def("fault_hits", &fault_hits);
}

}  // namespace
}  // namespace xpu_sim

// Two simulated devices and their streams, each an in-order SYCL queue on the one OpenCL CPU device.
//
// A stream's id is its place in its device: 0 is the default stream, 1 to kPoolStreams the pool. Queues are
// made at first use and never destroyed: a tensor may outlive every static object.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sycl {
inline namespace _V1 {
class context;
class device;
class event;
class queue;
}  // namespace _V1
}  // namespace sycl

namespace xpu_sim {

constexpr c10::DeviceIndex kDevices = 2;
constexpr c10::StreamId kPoolStreams = 32;  // as many as torch XPU has per device and priority

// The OpenCL CPU device. Throws with the names of the packages to install where there is none.
const sycl::device& sycl_device();
// One context for both devices, as SYCL's default context has it: either may read the other's memory.
const sycl::context& sycl_context();

// Whether this process is the child of a fork: its queues have no threads, and asking for one throws.
bool forked();

c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);
void check_device(c10::DeviceIndex index);

c10::Stream current_stream(c10::DeviceIndex device);
void set_current_stream(c10::Stream stream);
c10::Stream default_stream(c10::DeviceIndex device);
// The next of the pool, in turn.
c10::Stream pool_stream(c10::DeviceIndex device);

sycl::queue& queue_of(c10::Stream stream);
// The last event of every queue that still has work: on one device, or on all for index -1.
std::vector<sycl::event> unfinished(c10::DeviceIndex device);

// Waits that do work's bidding in place of a device, such as a kernel that runs on the host. They are not counted.
void wait_quietly(c10::Stream stream);
void wait_quietly(c10::DeviceIndex device);
// Waits that a real device would make the host do as well; host_waits() counts them.
void wait_counted(c10::Stream stream);
void wait_counted(c10::DeviceIndex device);
void count_host_wait();
int64_t host_waits();

bool is_idle(c10::Stream stream);
// Work of the given length, so that what should wait for the stream can be seen to wait, or not.
void delay(c10::Stream stream, double milliseconds);

// Asynchronous, on a stream.
void copy_bytes(c10::Stream stream, void* to, const void* from, size_t bytes);
// Repeats an element of 1, 2, 4, 8 or 16 bytes.
void fill_elements(c10::Stream stream, void* to, const void* element, size_t element_size, size_t count);

}  // namespace xpu_sim

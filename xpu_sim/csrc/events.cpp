#include "events.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <sycl/sycl.hpp>

#include "streams.h"

namespace xpu_sim {
namespace {

using Clock = std::chrono::steady_clock;

// Shared with the task that passes the mark, which may run after the event is gone.
struct Mark {
  std::atomic<bool> passed{false};
  Clock::time_point time;
};

}  // namespace

// Host tasks rather than SYCL barriers: a barrier behind a host task (such as xpu_sim's delay) makes the
// submitting thread wait, which is what these events must be able to show that nobody does.
struct Event {
  sycl::event sycl;
  std::shared_ptr<Mark> mark;
};

void record(Event*& event, c10::Stream stream) {
  if (!event) event = new Event;
  auto mark = std::make_shared<Mark>();
  event->mark = mark;
  event->sycl = queue_of(stream).submit([mark](sycl::handler& handler) {
    handler.host_task([mark] {
      mark->time = Clock::now();
      mark->passed = true;
    });
  });
}

void destroy(Event* event) { delete event; }

bool is_complete(const Event* event) { return !event || event->mark->passed; }

void block(const Event* event, c10::Stream stream) {
  if (is_complete(event)) return;
  queue_of(stream).submit([event](sycl::handler& handler) {
    handler.depends_on(event->sycl);
    handler.host_task([] {});
  });
}

void wait_counted(const Event* event) {
  count_host_wait();
  if (event) sycl::event(event->sycl).wait_and_throw();
}

double elapsed_milliseconds(const Event* start, const Event* end) {
  TORCH_CHECK(start && end, "xpu_sim: both events must be recorded before their times are compared");
  TORCH_CHECK(is_complete(start) && is_complete(end), "xpu_sim: both events must be completed before their times are compared");
  return std::chrono::duration<double, std::milli>(end->mark->time - start->mark->time).count();
}

}  // namespace xpu_sim

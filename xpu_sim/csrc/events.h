// Events: a mark in a stream that the host or another stream can wait for.
#pragma once

#include <c10/core/Stream.h>

namespace xpu_sim {

struct Event;

// Marks the stream here; makes the event where `event` is null, moves its mark otherwise.
void record(Event*& event, c10::Stream stream);
void destroy(Event* event);
// Later work of the stream waits for the mark. The host does not.
void block(const Event* event, c10::Stream stream);
bool is_complete(const Event* event);
void wait_counted(const Event* event);
// Between two marks that the streams have passed.
double elapsed_milliseconds(const Event* start, const Event* end);

}  // namespace xpu_sim

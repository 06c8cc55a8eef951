// How fast a transport moves bytes on this machine: two transports of this process, one writing into the other's
// pool, with digests and notices as in a hand-off. The calling thread is the engine of both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "baton/clock.h"
#include "baton/kv_transport.h"
#include "baton/model_runner.h"

namespace baton {

struct LoopbackRate {
  TransferMode mode{};
  uint64_t bytes = 0;  // moved in the longer part of the measurement
  double bytes_per_second = 0;
  double small_seconds = 0;  // median, from the post of 4 KiB to its arrival
};

// Makes the transport of a process, which wakes `waker`.
using TransportMaker = std::function<StatusOr<std::unique_ptr<KvTransport>>(const ProcessId& self, Waker* waker)>;

// Takes about `time`; UNAVAILABLE when nothing arrives for 2 s.
StatusOr<LoopbackRate> MeasureLoopback(const TransportMaker& make, Duration time);

// Bytes per second of memcpy by one thread, of memory that no cache holds. Takes about `time`.
double MeasureMemcpy(Duration time);

}  // namespace baton

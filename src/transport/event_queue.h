// The events of one transport on their way to the engine thread. Any thread pushes, the engine thread takes. The
// number of events is bounded by what the engine asked for, except ChunkArrived, which a peer causes: of those at
// most kMaxArrivals wait, further ones are refused (the protocol asks for them again).
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "baton/kv_transport.h"
#include "baton/model_runner.h"

namespace baton {

class EventQueue {
 public:
  static constexpr size_t kMaxArrivals = 1 << 16;

  explicit EventQueue(Waker* waker) : waker_(waker) {}

  void Push(TransportEvent event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    WakeLocked();
  }
  [[nodiscard]] bool PushArrival(ChunkArrived event) {
    std::lock_guard lock(mutex_);
    if (arrivals_ == kMaxArrivals) return false;
    ++arrivals_;
    events_.push_back(std::move(event));
    WakeLocked();
    return true;
  }
  void Take(std::vector<TransportEvent>* out) {
    std::lock_guard lock(mutex_);
    for (TransportEvent& event : events_) out->push_back(std::move(event));
    events_.clear();
    arrivals_ = 0;
  }
  // The waker is about to go away; later events wake nobody.
  void Detach() {
    std::lock_guard lock(mutex_);
    waker_ = nullptr;
  }

 private:
  // Under the lock, so that nobody is woken after Detach. A Waker never blocks and never calls back.
  void WakeLocked() {
    if (waker_ != nullptr) waker_->Wake();
  }
  std::mutex mutex_;
  std::vector<TransportEvent> events_;
  size_t arrivals_ = 0;
  Waker* waker_;
};

}  // namespace baton

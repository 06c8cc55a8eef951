// Virtual time: events in order of (time, insertion), run on the caller's thread. The only clock of a simulation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "baton/clock.h"

namespace baton {

class EventLoop : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  void At(TimePoint when, std::function<void()> what) {
    events_.push({std::max(when, now_), next_++, std::move(what)});
  }
  void After(Duration delay, std::function<void()> what) { At(now_ + delay, std::move(what)); }
  // Runs the next event; false when there is none.
  bool RunOne() {
    if (events_.empty()) return false;
    Event event = std::move(const_cast<Event&>(events_.top()));
    events_.pop();
    now_ = event.when;
    event.what();
    return true;
  }
  uint64_t num_run() const { return next_ - events_.size(); }

 private:
  struct Event {
    TimePoint when;
    uint64_t order;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return when != other.when ? when > other.when : order > other.order;
    }
  };
  TimePoint now_{};
  uint64_t next_ = 0;
  std::priority_queue<Event> events_;
};

}  // namespace baton

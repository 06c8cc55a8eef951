// The real monotonic clock.
#pragma once

#include "baton/clock.h"

namespace baton {

class SteadyClock : public Clock {
 public:
  TimePoint Now() const override {
    return TimePoint(std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
  }
};

}  // namespace baton

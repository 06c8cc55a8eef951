// Time as Baton passes it around: integer nanoseconds of one process's monotonic clock. Time points never
// cross a process; durations do. Pure modules take a TimePoint as an argument and own no clock.
#pragma once

#include <chrono>

namespace baton {

using Duration = std::chrono::nanoseconds;

// A tag: it has no now(). Real time comes from a Clock, simulated time from the simulator.
struct MonotonicTime {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<MonotonicTime>;
  static constexpr bool is_steady = true;
};
using TimePoint = MonotonicTime::time_point;

inline constexpr TimePoint kNever = TimePoint::max();

inline double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline Duration FromSeconds(double s) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s)); }

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;  // any thread
};

}  // namespace baton

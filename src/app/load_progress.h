// How far a model has loaded, said once loading takes longer than a second: a bar on a terminal, a line now
// and then to a supervisor. The loading thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "app/process.h"
#include "model/loaded_model.h"

namespace baton {

class LoadProgressLine {
 public:
  explicit LoadProgressLine(EventLines* events);
  LoadProgress Callback();
  void Done();

 private:
  void Show(uint64_t done_bytes, uint64_t total_bytes);
  EventLines* const events_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point begun_;
  std::chrono::steady_clock::time_point next_;
  bool shown_ = false;
};

}  // namespace baton

// PORT. Runs steps of one model on one device. Two steps may be in flight; results come in launch order.
#pragma once

#include <variant>
#include <vector>

#include "baton/step_plan.h"

namespace baton {

using RunnerEvent = std::variant<LayersReady, StepResult>;

// Wakes the thread that polls; called from the runner's or the transport's own threads, never blocks.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void Wake() = 0;
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  // Engine thread. Never waits. At most kMaxStepsInFlight launched and not yet polled as StepResult.
  virtual void Launch(StepPlan plan) = 0;
  // Engine thread. Appends what happened since the last call, in order; LayersReady of a step come before
  // its StepResult, counts rising; any of them may be left out (a later one, or the StepResult, implies it).
  virtual void Poll(std::vector<RunnerEvent>* events) = 0;
};

inline constexpr int kMaxStepsInFlight = 2;

}  // namespace baton

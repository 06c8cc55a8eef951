// PORT. Runs steps of one model on one device. Two steps may be in flight; results come in launch order.
#pragma once

#include <variant>
#include <vector>

#include "baton/kv_layout.h"
#include "baton/status.h"
#include "baton/step_plan.h"

namespace baton {

// KV that came in another layout, out of staging into blocks of this worker's own layout.
struct KvConversion {
  OpId op{};
  KvLayout from;  // the writer's
  // Positions [first_token, num_tokens); first_token is a whole number of own blocks. Staging holds the writer's blocks
  // from the one of first_token on.
  uint32_t first_token = 0;
  uint32_t num_tokens = 0;
  struct Group {
    std::vector<BlockId> staging;  // see StagingMap
    std::vector<BlockId> target;   // every byte of them is written; slots from num_tokens on are zero
  };
  std::vector<Group> groups;
};
struct KvConverted {
  OpId op{};
  Status status;  // not ok: the targets hold nothing of use
};

using RunnerEvent = std::variant<LayersReady, StepResult, KvConverted>;

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
  // Engine thread. Never waits; runs before any step that is launched later. The caller keeps the blocks of both sides
  // until KvConverted.
  virtual void Convert(KvConversion conversion) = 0;
  // Engine thread. Appends what happened since the last call, in order; LayersReady of a step come before
  // its StepResult, counts rising; any of them may be left out (a later one, or the StepResult, implies it).
  virtual void Poll(std::vector<RunnerEvent>* events) = 0;
};

inline constexpr int kMaxStepsInFlight = 2;

}  // namespace baton

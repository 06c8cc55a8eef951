#include "runner/warm_up.h"

#include <chrono>
#include <memory>
#include <thread>

namespace baton {

namespace {

constexpr std::chrono::microseconds kLook{200};

Status WaitForToken(ModelRunner* runner) {
  std::vector<RunnerEvent> events;
  for (;;) {
    runner->Poll(&events);
    for (const RunnerEvent& event : events) {
      const auto* result = std::get_if<StepResult>(&event);
      if (result == nullptr) continue;
      if (!result->status.ok()) return result->status;
      if (!result->failed.empty()) return result->failed.front().why;
      return OkStatus();
    }
    events.clear();
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace

Status WarmUp(ModelRunner* runner, size_t num_groups) {
  auto request = std::make_shared<Request>();
  request->prompt = {0};
  request->sampling.temperature = 0;
  request->stop.max_tokens = 2;
  const SequenceId id{};  // no sequence of a scheduler has it
  for (uint32_t position = 0; position < 2; ++position) {
    StepPlan plan;
    plan.zero.resize(num_groups);
    SequenceStep step;
    step.sequence = id;
    step.first_position = position;
    step.num_tokens = 1;
    step.sample = true;
    step.sample_index = position;
    if (position == 0) {
      step.num_inputs = 1;
      plan.inputs = {0};
      plan.updates.push_back({id, request, 0, 1});
      plan.blocks.assign(num_groups, BlockId{0});
      for (std::vector<BlockId>& group : plan.zero) group = {BlockId{0}};
    }
    plan.sequences.push_back(step);
    runner->Launch(std::move(plan));
    BATON_RETURN_IF_ERROR(WaitForToken(runner));
  }
  return OkStatus();
}

}  // namespace baton

// ModelRunner on the CPU: one step thread, which takes the cores of the CpuPool for each kernel. Launch and
// Poll are the engine thread's and never wait; an idle runner sleeps on a condition variable.
// Always true: a token's logits depend on its sequence's tokens alone, never on batch, chunking or threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "baton/kv_layout.h"
#include "baton/model_runner.h"
#include "baton/status.h"
#include "model/decoder.h"
#include "model/loaded_model.h"

namespace baton {

class CpuDevice;

struct CpuRunnerOptions {
  uint32_t max_step_tokens = 512;  // StepPlan::NumTokens() never exceeds it
  // A LayersReady after every so many layers; the last one is implied by the StepResult.
  uint32_t layers_per_event = 1;
  // Steps of fewer tokens (decodes) report only their StepResult: nobody sends their layers ahead.
  uint32_t min_layer_event_tokens = 16;
  Waker* waker = nullptr;  // not owned; woken when there is something to poll
  // Tests: sees every row of logits that the step computes, on the step thread, before sampling. With
  // `observe_all_rows` the head runs for every token of the step, not only for those that sample.
  std::function<void(SequenceId, const Request&, uint32_t position, std::span<const float> logits)> observe_logits;
  bool observe_all_rows = false;
};

class CpuModelRunner : public ModelRunner {
 public:
  // `pool` is the KV memory: pool_plan.total_bytes, zeroed, borrowed from whoever allocated it (a transport)
  // for the runner's life. `model` and `device` likewise outlive the runner.
  // FAILED_PRECONDITION when layout and model do not go together.
  static StatusOr<std::unique_ptr<CpuModelRunner>> Create(const LoadedModel& model, CpuDevice& device,
                                                          const KvLayout& layout, const KvPoolPlan& pool_plan,
                                                          std::span<std::byte> pool, CpuRunnerOptions options);
  ~CpuModelRunner() override;  // waits for the running step

  // What Create will allocate; for the memory plan.
  static uint64_t WorkspaceBytes(const DecoderDescription& decoder, const CpuRunnerOptions& options);

  void Launch(StepPlan plan) override;
  void Convert(KvConversion conversion) override;
  void Poll(std::vector<RunnerEvent>* events) override;

  // Everything besides the weights that the KV bytes depend on: KV format, arithmetic class of the kernels,
  // version of the numerics. Equal on both ends of a hand-off (S9).
  Hash128 numeric_identity() const;

 private:
  class Core;
  explicit CpuModelRunner(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace baton

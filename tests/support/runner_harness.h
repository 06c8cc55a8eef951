// One CpuModelRunner with everything under it, for tests and benchmarks: runs steps to their end and keeps what
// the step thread saw. The tests' thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "baton/check.h"
#include "device/cpu/aligned_memory.h"
#include "device/cpu/cpu_device.h"
#include "model/loaded_model.h"
#include "model/model_file.h"
#include "runner/cpu_model_runner.h"

namespace baton::test {

class Signal : public Waker {
 public:
  void Wake() override {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    ready_.notify_one();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return woken_; });
    woken_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  bool woken_ = false;
};

struct HarnessOptions {
  int threads = 1;
  std::string kernels = "auto";
  uint32_t block_tokens = 32;
  DType kv_dtype = DType::kBF16;
  uint32_t kv_tokens = 4096;
  uint32_t max_step_tokens = 512;
  bool all_rows = false;  // logits of every row, not only of those that sample
  bool keep_logits = true;
  uint32_t min_layer_event_tokens = 0;
};

// One sequence's blocks and place, as a scheduler would keep them.
struct TestSequence {
  SequenceId id{};
  RequestPtr request;
  std::vector<BlockId> blocks;
  uint32_t told = 0;  // leading blocks that the runner knows
  uint32_t computed = 0;
};

class RunnerHarness {
 public:
  RunnerHarness(const std::string& model_path, const HarnessOptions& options) : options_(options) {
    auto file = Unwrap(ModelFile::Open(model_path));
    device_ = Unwrap(CpuDevice::Create({.threads = options.threads, .cpus = {}, .kernels = options.kernels}));
    model_ = Unwrap(LoadedModel::Load(*file, device_->pool()));
    layout_ = MakeKvLayout(model_->decoder(), options.block_tokens, options.kv_dtype);
    plan_ = PlanPool(layout_, uint64_t{layout_.BlocksFor(options.kv_tokens)} * layout_.BlockBytes(0) + 4096);
    pool_ = Unwrap(AlignedMemory::Allocate(plan_.total_bytes));
    CpuRunnerOptions runner;
    runner.max_step_tokens = options.max_step_tokens;
    runner.min_layer_event_tokens = options.min_layer_event_tokens;
    runner.waker = &signal_;
    runner.observe_all_rows = options.all_rows;
    if (options.keep_logits) {
      runner.observe_logits = [this](SequenceId id, const Request&, uint32_t position, std::span<const float> row) {
        logits_[{id, position}].assign(row.begin(), row.end());
      };
    }
    runner_ = Unwrap(CpuModelRunner::Create(*model_, *device_, layout_, plan_, {pool_.data(), pool_.size()}, runner));
    for (uint32_t b = 0; b < plan_.num_blocks[0]; ++b) free_.push_back(BlockId{b});
  }

  template <typename T>
  static T Unwrap(StatusOr<T> value) {
    BATON_CHECK(value.ok(), value.status().message());
    return *std::move(value);
  }

  TestSequence NewSequence(RequestPtr request) {
    TestSequence s;
    s.id = SequenceId{++next_sequence_};
    s.request = std::move(request);
    return s;
  }
  // Blocks come in an order that is not the order of the pool.
  void Free(TestSequence* s) {
    if (s->told > 0) ended_.push_back(s->id);
    s->told = 0;
    for (const BlockId b : s->blocks) free_.push_back(b);
    s->blocks.clear();
  }

  // Adds `inputs` of `s` (empty: the token sampled last) to the step.
  void Add(TestSequence* s, const std::vector<TokenId>& inputs, bool sample, uint32_t index, StepPlan* plan) {
    SequenceStep step;
    step.sequence = s->id;
    step.first_position = s->computed;
    step.num_tokens = inputs.empty() ? 1 : static_cast<uint32_t>(inputs.size());
    step.first_input = static_cast<uint32_t>(plan->inputs.size());
    step.num_inputs = static_cast<uint32_t>(inputs.size());
    plan->inputs.insert(plan->inputs.end(), inputs.begin(), inputs.end());
    step.sample = sample;
    step.sample_index = index;
    s->computed += step.num_tokens;
    if (plan->zero.empty()) plan->zero.resize(1);
    while (s->blocks.size() < layout_.BlocksFor(s->computed)) {
      BATON_CHECK(!free_.empty(), "the test's pool is too small");
      const size_t pick = (free_.size() * 7 / 11) % free_.size();
      s->blocks.push_back(free_[pick]);
      plan->zero[0].push_back(free_[pick]);
      free_.erase(free_.begin() + static_cast<ptrdiff_t>(pick));
    }
    const auto num_blocks = static_cast<uint32_t>(s->blocks.size());
    if (s->told < num_blocks) {
      plan->updates.push_back({s->id, s->told == 0 ? s->request : nullptr, static_cast<uint32_t>(plan->blocks.size()),
                               num_blocks - s->told});
      plan->blocks.insert(plan->blocks.end(), s->blocks.begin() + s->told, s->blocks.end());
      s->told = num_blocks;
    }
    plan->sequences.push_back(step);
  }

  StepResult RunStep(StepPlan plan) {
    Launch(std::move(plan));
    return NextResult();
  }
  void Launch(StepPlan plan) {
    plan.id = StepId{++next_step_};
    plan.ended = std::exchange(ended_, {});
    runner_->Launch(std::move(plan));
  }
  StepResult NextResult() {
    while (true) {
      std::vector<RunnerEvent> events;
      runner_->Poll(&events);
      for (RunnerEvent& event : events) {
        if (auto* layers = std::get_if<LayersReady>(&event))
          layer_events_.push_back(*layers);
        else
          results_.push_back(std::get<StepResult>(std::move(event)));
      }
      if (!results_.empty()) {
        StepResult out = std::move(results_.front());
        results_.erase(results_.begin());
        return out;
      }
      signal_.Wait();
    }
  }

  // Prompt in chunks, then `count` tokens; the ids of the answer.
  std::vector<OutputToken> Generate(TestSequence* s, uint32_t chunk, uint32_t count) {
    std::vector<OutputToken> out;
    const std::vector<TokenId>& prompt = s->request->prompt;
    while (s->computed < prompt.size()) {
      const size_t end = std::min<size_t>(prompt.size(), s->computed + chunk);
      StepPlan plan;
      Add(s, {prompt.begin() + s->computed, prompt.begin() + static_cast<ptrdiff_t>(end)}, end == prompt.size(), 0,
          &plan);
      const StepResult result = RunStep(std::move(plan));
      for (const SampledToken& t : result.tokens) out.push_back(t.token);
    }
    while (out.size() < count) {
      StepPlan plan;
      Add(s, {}, true, static_cast<uint32_t>(out.size()), &plan);
      const StepResult result = RunStep(std::move(plan));
      BATON_CHECK(result.tokens.size() == 1, "one token a step");
      out.push_back(result.tokens[0].token);
    }
    return out;
  }

  // Complete only when no step runs.
  const std::vector<float>& LogitsAt(const TestSequence& s, uint32_t position) const {
    return logits_.at({s.id, position});
  }
  void ClearLogits() { logits_.clear(); }
  std::span<std::byte> pool() { return {pool_.data(), pool_.size()}; }
  const KvLayout& layout() const { return layout_; }
  const KvPoolPlan& pool_plan() const { return plan_; }
  const LoadedModel& model() const { return *model_; }
  CpuModelRunner& runner() { return *runner_; }
  Signal& signal() { return signal_; }
  const std::vector<LayersReady>& layer_events() const { return layer_events_; }

 private:
  const HarnessOptions options_;
  Signal signal_;
  std::unique_ptr<CpuDevice> device_;
  std::unique_ptr<LoadedModel> model_;
  KvLayout layout_;
  KvPoolPlan plan_;
  AlignedMemory pool_;
  std::map<std::pair<SequenceId, uint32_t>, std::vector<float>> logits_;
  std::unique_ptr<CpuModelRunner> runner_;
  std::vector<BlockId> free_;
  std::vector<SequenceId> ended_;
  std::vector<StepResult> results_;
  std::vector<LayersReady> layer_events_;
  uint64_t next_sequence_ = 0;
  uint64_t next_step_ = 0;
};

inline RequestPtr GreedyRequest(std::vector<TokenId> prompt, uint32_t max_tokens) {
  auto request = std::make_shared<Request>();
  request->prompt = std::move(prompt);
  request->sampling.temperature = 0;
  request->stop.max_tokens = max_tokens;
  return request;
}

}  // namespace baton::test

// A ModelRunner whose "model" is arithmetic on the KV memory: every token's result depends on every byte of KV
// that attention would read, layer after layer, so a stale, foreign or unfinished byte anywhere changes the answer.
// Time comes from a cost; layers of a step are computed when their share of it has passed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "baton/kv_layout.h"
#include "baton/model_runner.h"
#include "baton/sequence_tables.h"
#include "sim/event_loop.h"

namespace baton {

// KV of one head of 4 bf16: 8 bytes a token, layer and K or V.
KvLayout SimLayout(uint32_t block_tokens, uint32_t layers);
inline constexpr uint32_t kSimVocabulary = 64;
inline constexpr TokenId kSimEos = 2;

struct SimCost {
  Duration step = std::chrono::microseconds(400);
  Duration per_prefill_token = std::chrono::microseconds(20);
  Duration per_decode = std::chrono::microseconds(30);
  Duration convert = std::chrono::microseconds(300);
};

class SimRunner : public ModelRunner {
 public:
  SimRunner(EventLoop* loop, KvLayout layout, KvPoolPlan plan, std::span<std::byte> pool, SimCost cost,
            std::function<void()> wake);
  // Before the first Launch. Chooses other tokens from the same activations than dialect 0 does: a worker with a
  // numeric fault behind its KV.
  void set_dialect(uint64_t dialect) { dialect_ = dialect; }
  // Called in the middle of every step that holds a request with this salt; it may destroy the runner.
  void set_poison(std::string salt, std::function<void()> on_poison) {
    poison_salt_ = std::move(salt);
    on_poison_ = std::move(on_poison);
  }
  ~SimRunner() override { *alive_ = false; }

  void Launch(StepPlan plan) override;
  void Convert(KvConversion conversion) override;
  void Poll(std::vector<RunnerEvent>* events) override;

  // The next step fails with this status instead of computing.
  void FailNextStep(Status status) { fail_next_ = std::move(status); }

 private:
  void StartNext();
  void ComputeLayer(uint32_t layer);
  void FinishStep();
  uint64_t Read(const SequenceTable& s, uint32_t position, uint32_t layer) const;
  void Write(const SequenceTable& s, uint32_t position, uint32_t layer, uint64_t x);
  std::byte* Slot(const SequenceTable& s, uint32_t position, uint32_t layer, bool value) const;

  EventLoop* const loop_;
  const KvLayout layout_;
  const KvPoolPlan plan_;
  const std::span<std::byte> pool_;
  const SimCost cost_;
  const std::function<void()> wake_;
  std::deque<StepPlan> queue_;  // front is running
  bool running_ = false;
  // Of the running step: [sequence], and its activations by token.
  std::vector<SequenceTable*> parts_;
  std::vector<std::vector<uint64_t>> x_;
  Status fail_next_, failing_;
  Duration running_time_{};
  uint64_t dialect_ = 0;
  std::string poison_salt_;
  std::function<void()> on_poison_;
  SequenceTables tables_;
  std::vector<RunnerEvent> events_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// The answer of a request by the same arithmetic, without any memory: token `index` after `tokens`.
// Sees min_tokens (no end token before it), as the runner does.
std::vector<TokenId> SimReference(const Request& request, uint32_t layers, uint32_t max_tokens);
// Whether every token of `answer` follows from those before it by one of the dialects, and nothing follows an end.
bool SimFollows(const Request& request, uint32_t layers, const std::vector<TokenId>& answer,
                const std::vector<uint64_t>& dialects);

}  // namespace baton

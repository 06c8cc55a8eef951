#include "sim/sim_runner.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/rng.h"
#include "baton/check.h"

namespace baton {
namespace {

uint64_t Embed(TokenId token, uint32_t position) { return KeyedDraw(17, static_cast<uint64_t>(token), position); }
uint64_t Attend(uint64_t kv, uint32_t position) { return Mix64(kv + position); }
uint64_t NextLayer(uint64_t x, uint64_t attended, uint32_t layer) { return Mix64(x ^ attended) + layer; }

TokenId Choose(const Request& request, uint64_t x, uint32_t index, uint64_t dialect) {
  x ^= dialect;
  const uint64_t drawn = request.sampling.temperature == 0 ? x : KeyedDraw(request.sampling.seed, x, index);
  auto token = static_cast<TokenId>(drawn % kSimVocabulary);
  if (token == kSimEos && index < request.stop.min_tokens) token = 3;
  return token;
}

}  // namespace

KvLayout SimLayout(uint32_t block_tokens, uint32_t layers) {
  KvLayout layout;
  layout.block_tokens = block_tokens;
  layout.tile = TileForm::kTokenMajor;
  layout.groups.push_back({KvKind::kFull, layers, 1, 4, DType::kBF16});
  return layout;
}

SimRunner::SimRunner(EventLoop* loop, KvLayout layout, KvPoolPlan plan, std::span<std::byte> pool, SimCost cost,
                     std::function<void()> wake)
    : loop_(loop),
      layout_(std::move(layout)),
      plan_(std::move(plan)),
      pool_(pool),
      cost_(cost),
      wake_(std::move(wake)) {}

void SimRunner::Launch(StepPlan plan) {
  BATON_CHECK(queue_.size() < kMaxStepsInFlight, "too many steps in flight");
  queue_.push_back(std::move(plan));
  if (!running_) StartNext();
}

void SimRunner::Convert(KvConversion c) {
  loop_->After(cost_.convert, [this, c = std::move(c), alive = alive_] {
    if (!*alive) return;
    const StagingMap staging(c.from, 0, layout_.BlockBytes(0));
    const uint32_t theirs = c.from.block_tokens, ours = layout_.block_tokens;
    const uint32_t first = c.first_token / theirs;
    for (size_t b = 0; b < c.groups[0].target.size(); ++b) {
      std::byte* block = pool_.data() + plan_.BlockOffset(layout_, 0, c.groups[0].target[b]);
      for (uint32_t layer = 0; layer < layout_.groups[0].num_layers; ++layer) {
        for (const bool value : {false, true}) {
          for (uint32_t i = 0; i < ours; ++i) {
            const uint32_t position = c.first_token + static_cast<uint32_t>(b) * ours + i;
            std::byte* to = block + layout_.TileOffset(0, 0, layer, value) + size_t{i} * 8;
            std::memset(to, 0, 8);
            if (position >= c.num_tokens) continue;
            const StagingMap::Place at = staging.At(position / theirs - first, c.from.TileOffset(0, 0, layer, value));
            const std::byte* from = pool_.data() + plan_.BlockOffset(layout_, 0, c.groups[0].staging[at.block]);
            std::memcpy(to, from + at.offset + size_t{position % theirs} * 8, 8);
          }
        }
      }
    }
    events_.push_back(KvConverted{c.op, {}});
    wake_();
  });
}

void SimRunner::Poll(std::vector<RunnerEvent>* events) {
  for (RunnerEvent& e : events_) events->push_back(std::move(e));
  events_.clear();
}

void SimRunner::StartNext() {
  if (queue_.empty()) return;
  running_ = true;
  const StepPlan& plan = queue_.front();
  tables_.Apply(plan);
  failing_ = std::exchange(fail_next_, OkStatus());
  for (uint32_t g = 0; g < plan.zero.size(); ++g) {
    for (const BlockId block : plan.zero[g]) {
      std::memset(pool_.data() + plan_.BlockOffset(layout_, g, block), 0, layout_.BlockBytes(g));
    }
  }
  for (const BlockCopy& copy : plan.copies) {
    std::memcpy(pool_.data() + plan_.BlockOffset(layout_, copy.group, copy.to),
                pool_.data() + plan_.BlockOffset(layout_, copy.group, copy.from), layout_.BlockBytes(copy.group));
  }
  running_time_ = cost_.step;
  parts_.clear();
  x_.clear();
  for (const SequenceStep& s : plan.sequences) {
    parts_.push_back(&tables_.At(s.sequence));
    running_time_ += s.num_tokens == 1 ? cost_.per_decode : cost_.per_prefill_token * s.num_tokens;
    std::vector<uint64_t> row;
    for (uint32_t i = 0; i < s.num_tokens; ++i) {
      // Without a last token its last step failed: nobody will look at this result.
      const TokenId token = s.num_inputs == 0 ? parts_.back()->last_token.value_or(0) : plan.inputs[s.first_input + i];
      row.push_back(Embed(token, s.first_position + i));
    }
    x_.push_back(std::move(row));
  }
  const bool poisoned = on_poison_ && std::any_of(parts_.begin(), parts_.end(), [&](const SequenceTable* s) {
                          return s->request->cache_salt == poison_salt_;
                        });
  if (poisoned) {
    loop_->After(running_time_ / 2, [this, alive = alive_] {
      if (!*alive) return;
      const std::function<void()> strike = on_poison_;  // outlives this runner
      strike();
    });
  }
  const uint32_t layers = layout_.groups[0].num_layers;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    loop_->After(running_time_ * (layer + 1) / layers, [this, layer, layers, alive = alive_] {
      if (!*alive) return;
      if (failing_.ok()) ComputeLayer(layer);
      if (layer + 1 == layers) {
        FinishStep();
      } else if (failing_.ok()) {
        events_.push_back(LayersReady{queue_.front().id, layer + 1});
        wake_();
      }
    });
  }
}

void SimRunner::ComputeLayer(uint32_t layer) {
  const StepPlan& plan = queue_.front();
  for (size_t n = 0; n < plan.sequences.size(); ++n) {
    const SequenceStep& s = plan.sequences[n];
    for (uint32_t i = 0; i < s.num_tokens; ++i) Write(*parts_[n], s.first_position + i, layer, x_[n][i]);
    uint64_t attended = 0;
    for (uint32_t q = 0; q < s.first_position; ++q) attended += Attend(Read(*parts_[n], q, layer), q);
    for (uint32_t i = 0; i < s.num_tokens; ++i) {
      const uint32_t position = s.first_position + i;
      attended += Attend(Read(*parts_[n], position, layer), position);
      x_[n][i] = NextLayer(x_[n][i], attended, layer);
    }
  }
}

void SimRunner::FinishStep() {
  StepPlan plan = std::move(queue_.front());
  queue_.pop_front();
  StepResult result;
  result.id = plan.id;
  result.status = failing_;
  result.compute = running_time_;
  for (size_t n = 0; failing_.ok() && n < plan.sequences.size(); ++n) {
    const SequenceStep& s = plan.sequences[n];
    if (!s.sample) continue;
    SampledToken sampled;
    sampled.sequence = s.sequence;
    sampled.index = s.sample_index;
    sampled.token.id = Choose(*parts_[n]->request, x_[n].back(), s.sample_index, dialect_);
    parts_[n]->last_token = sampled.token.id;
    result.tokens.push_back(std::move(sampled));
  }
  result.plan = std::move(plan);
  events_.push_back(std::move(result));
  running_ = false;
  StartNext();
  wake_();
}

std::byte* SimRunner::Slot(const SequenceTable& s, uint32_t position, uint32_t layer, bool value) const {
  const uint32_t bt = layout_.block_tokens;
  return pool_.data() + plan_.BlockOffset(layout_, 0, s.blocks[0][position / bt]) +
         layout_.TileOffset(0, 0, layer, value) + size_t{position % bt} * 8;
}

uint64_t SimRunner::Read(const SequenceTable& s, uint32_t position, uint32_t layer) const {
  uint64_t k, v;
  std::memcpy(&k, Slot(s, position, layer, false), 8);
  std::memcpy(&v, Slot(s, position, layer, true), 8);
  return k + 3 * v;
}

void SimRunner::Write(const SequenceTable& s, uint32_t position, uint32_t layer, uint64_t x) {
  const uint64_t k = x, v = Mix64(x);
  std::memcpy(Slot(s, position, layer, false), &k, 8);
  std::memcpy(Slot(s, position, layer, true), &v, 8);
}

namespace {

// The last activation after a history that grows token by token.
class History {
 public:
  History(const Request& request, uint32_t layers) : attended_(layers, 0) {
    for (const TokenId token : request.prompt) Feed(token);
  }
  void Feed(TokenId token) {
    x_ = Embed(token, position_);
    for (uint32_t layer = 0; layer < attended_.size(); ++layer) {
      attended_[layer] += Attend(x_ + 3 * Mix64(x_), position_);
      x_ = NextLayer(x_, attended_[layer], layer);
    }
    ++position_;
  }
  uint64_t x() const { return x_; }

 private:
  std::vector<uint64_t> attended_;
  uint64_t x_ = 0;
  uint32_t position_ = 0;
};

}  // namespace

std::vector<TokenId> SimReference(const Request& request, uint32_t layers, uint32_t max_tokens) {
  std::vector<TokenId> answer;
  History history(request, layers);
  while (answer.size() < max_tokens) {
    const auto index = static_cast<uint32_t>(answer.size());
    answer.push_back(Choose(request, history.x(), index, 0));
    if (FinishAt(request.stop, answer.back(), index) != FinishReason::kNone) break;
    history.Feed(answer.back());
  }
  return answer;
}

bool SimFollows(const Request& request, uint32_t layers, const std::vector<TokenId>& answer,
                const std::vector<uint64_t>& dialects) {
  History history(request, layers);
  for (uint32_t i = 0; i < answer.size(); ++i) {
    const bool follows = std::any_of(dialects.begin(), dialects.end(), [&](uint64_t dialect) {
      return Choose(request, history.x(), i, dialect) == answer[i];
    });
    if (!follows) return false;
    if (i + 1 < answer.size() && FinishAt(request.stop, answer[i], i) != FinishReason::kNone) return false;
    history.Feed(answer[i]);
  }
  return true;
}

}  // namespace baton

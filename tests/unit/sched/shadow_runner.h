// A runner that computes nothing but remembers everything: every slot of every block holds which position
// of which token history was written there. It checks each step against that memory, so a plan that reads a
// stale block, skips a position, writes a shared block or forgets to zero one is found at once. The next
// token is a function of the whole history, so outputs have one right value.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/rng.h"
#include "baton/sequence_tables.h"
#include "kv/block_pool.h"
#include "sched/scheduler.h"

namespace baton {

inline constexpr TokenId kEos = 9;
inline constexpr uint32_t kVocabulary = 10;

// What the KV of a position depends on: the salt and all tokens up to it.
inline uint64_t HistoryRoot(const Request& r) { return Hash64(r.cache_salt) | 1; }
inline uint64_t Extend(uint64_t history, TokenId token) {
  return KeyedDraw(history, static_cast<uint64_t>(token), 1) | 1;
}
inline TokenId NextToken(const Request& r, uint64_t history) {
  return static_cast<TokenId>(KeyedDraw(r.sampling.seed, history, 2) % kVocabulary);
}
// The whole answer, as anybody must compute it.
inline std::vector<TokenId> TrueAnswer(const Request& r) {
  uint64_t history = HistoryRoot(r);
  for (const TokenId t : r.prompt) history = Extend(history, t);
  std::vector<TokenId> answer;
  do {
    answer.push_back(NextToken(r, history));
    history = Extend(history, answer.back());
  } while (FinishAt(r.stop, answer.back(), static_cast<uint32_t>(answer.size()) - 1) == FinishReason::kNone);
  return answer;
}

class ShadowRunner {
 public:
  explicit ShadowRunner(const BlockPool* pool) : pool_(pool), slots_(pool->num_groups()) {
    for (uint32_t g = 0; g < pool->num_groups(); ++g) {
      // Rubbish, so that a block which is not zeroed is noticed.
      slots_[g].assign(size_t{pool->counts(g).total} * pool->block_tokens(), 0xdead);
    }
  }

  void Launch(StepPlan plan) { queue_.push_back(std::move(plan)); }
  bool busy() const { return !queue_.empty(); }
  // Executes the oldest launched step, as late as can be. failed: nothing of it is written.
  StepResult Done(bool failed) {
    StepPlan plan = std::move(queue_.front());
    queue_.pop_front();
    tables_.Apply(plan);
    StepResult result;
    result.id = plan.id;
    const std::set<SequenceId> rubbish = std::exchange(rubbish_, {});
    if (failed) {
      result.status = InternalError("the device lost it");
      // The step already behind it computes rubbish, which nobody may take, for whom it does not start anew.
      if (!queue_.empty()) {
        for (const SequenceStep& lost : plan.sequences) rubbish_.insert(lost.sequence);
        for (const TableUpdate& u : queue_.front().updates) {
          if (u.request != nullptr) rubbish_.erase(u.sequence);
        }
      }
      result.plan = std::move(plan);
      return result;
    }
    for (uint32_t g = 0; g < plan.zero.size(); ++g) {
      for (const BlockId b : plan.zero[g]) Zero(g, b);
    }
    for (const SequenceStep& part : plan.sequences) {
      if (!rubbish.contains(part.sequence)) {
        Execute(plan, part, &result);
      } else if (part.sample) {
        result.tokens.push_back({part.sequence, part.sample_index, {}});
      }
    }
    result.plan = std::move(plan);
    return result;
  }
  void Zero(uint32_t group, BlockId block) {
    EXPECT_FALSE(pool_->IsIndexed(group, block)) << "a findable block is zeroed";
    std::fill_n(Slot(group, block, 0), pool_->block_tokens(), 0);
  }
  // As a writer's put would, checks nothing.
  void Put(uint32_t group, BlockId block, uint32_t slot, uint64_t history) { *Slot(group, block, slot) = history; }

  // The blocks hold exactly the KV of tokens[0, count) of `r`.
  void ExpectHolds(const Request& r, std::span<const TokenId> tokens, uint32_t count,
                   const std::vector<std::vector<BlockId>>& blocks) {
    for (uint32_t g = 0; g < blocks.size(); ++g) {
      uint64_t history = HistoryRoot(r);
      for (uint32_t p = 0; p < count; ++p) {
        history = Extend(history, tokens[p]);
        ASSERT_EQ(*At(g, blocks[g], p), history) << "position " << p << " group " << g;
      }
    }
  }

 private:
  uint64_t* Slot(uint32_t group, BlockId block, uint32_t slot) {
    return &slots_[group][size_t{Index(block)} * pool_->block_tokens() + slot];
  }
  uint64_t* At(uint32_t group, const std::vector<BlockId>& blocks, uint32_t position) {
    return Slot(group, blocks[position / pool_->block_tokens()], position % pool_->block_tokens());
  }
  void Execute(const StepPlan& plan, const SequenceStep& part, StepResult* result) {
    SequenceTable& table = tables_.At(part.sequence);
    const Request& request = *table.request;
    const uint32_t end = part.first_position + part.num_tokens;
    const auto begin = plan.inputs.begin() + part.first_input;
    std::vector<TokenId> inputs(begin, begin + part.num_inputs);
    if (inputs.empty()) {
      ASSERT_EQ(part.num_tokens, 1u);
      ASSERT_TRUE(table.last_token) << "an input that nobody sampled";
      inputs = {*table.last_token};
    }
    ASSERT_EQ(inputs.size(), part.num_tokens);
    ASSERT_EQ(table.blocks.size(), pool_->num_groups());
    uint64_t history = 0;
    for (uint32_t g = 0; g < table.blocks.size(); ++g) {
      const std::vector<BlockId>& blocks = table.blocks[g];
      ASSERT_EQ(blocks.size(), pool_->BlocksFor(end));
      for (const BlockId b : blocks) ASSERT_GT(pool_->NumReferences(g, b), 0u) << "a launched step names a free block";
      // What it reads: the KV of its own history, whoever wrote it.
      history = HistoryRoot(request);
      for (uint32_t p = 0; p < part.first_position; ++p) {
        const TokenId token = KnownToken(request, p);
        history = Extend(history, token);
        ASSERT_EQ(*At(g, blocks, p), history) << "reads another's or a stale KV at position " << p;
      }
      for (uint32_t p = part.first_position; p < end; ++p) {
        const TokenId token = inputs[p - part.first_position];
        ASSERT_EQ(token, KnownToken(request, p)) << "the input at position " << p;
        history = Extend(history, token);
        ASSERT_EQ(*At(g, blocks, p), 0u) << "position " << p << " is written twice, or was not zeroed";
        ASSERT_FALSE(pool_->IsIndexed(g, blocks[p / pool_->block_tokens()])) << "writes a findable block";
        *At(g, blocks, p) = history;
      }
      for (uint32_t p = end; p % pool_->block_tokens() != 0; ++p) {
        ASSERT_EQ(*At(g, blocks, p), 0u) << "slots past the valid count are zero";
      }
    }
    if (!part.sample) return;
    ASSERT_EQ(part.sample_index, end - request.prompt.size());
    const TokenId token = NextToken(request, history);
    table.last_token = token;
    result->tokens.push_back({part.sequence, part.sample_index, {token, 0, {}}});
  }
  // The right token at a position, also behind the end of the answer, where a surplus step may look.
  static TokenId KnownToken(const Request& r, uint32_t position) {
    if (position < r.prompt.size()) return r.prompt[position];
    uint64_t history = HistoryRoot(r);
    for (const TokenId t : r.prompt) history = Extend(history, t);
    TokenId token = 0;
    for (size_t p = r.prompt.size(); p <= position; ++p) {
      token = NextToken(r, history);
      history = Extend(history, token);
    }
    return token;
  }

  const BlockPool* pool_;
  std::vector<std::vector<uint64_t>> slots_;  // [group][block][slot]: history, or 0
  std::deque<StepPlan> queue_;
  SequenceTables tables_;
  std::set<SequenceId> rubbish_;  // parts of the next step that build on a lost one
};

}  // namespace baton

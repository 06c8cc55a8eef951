// Random requests, cancels, hand-offs in both directions, failed steps, tight pools, one or two steps in
// flight; after every event the blocks are conserved, and every answer is the one right answer.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <set>

#include "shadow_runner.h"

namespace baton {
namespace {

struct Counters {
  uint64_t finished = 0, preempted = 0, hits = 0, received = 0, quarantined = 0, sent = 0, taken = 0;
  uint64_t apart = 0, cancelled = 0, busy = 0, failed_steps = 0, failed = 0, empty_inputs = 0, refused = 0;
};

class World {
 public:
  World(uint64_t seed, Counters* counters, const Rules& rules = {}) : rng_(seed), counters_(counters) {
    options_.rules = rules;
    block_tokens_ = rng_.Chance(0.5) ? 16 : 32;
    std::vector<uint32_t> blocks = {static_cast<uint32_t>(6 + rng_.Below(10))};
    if (rng_.Chance(0.3)) blocks.push_back(static_cast<uint32_t>(6 + rng_.Below(10)));
    pool_ = std::make_unique<BlockPool>(block_tokens_, blocks);
    options_.max_running = static_cast<uint32_t>(1 + rng_.Below(6));
    options_.max_step_tokens = options_.max_running + 1 + static_cast<uint32_t>(rng_.Below(60));
    options_.max_prefill_tokens = 1 + static_cast<uint32_t>(rng_.Below(60));
    options_.max_waiting = 8;
    options_.max_context_tokens = 200;
    options_.watermark_blocks = static_cast<uint32_t>(rng_.Below(3));
    options_.max_steps_in_flight = rng_.Chance(0.3) ? 1 : 2;
    options_.prefix_cache = rng_.Chance(0.85);
    scheduler_ = std::make_unique<Scheduler>(options_, pool_.get());
    runner_ = std::make_unique<ShadowRunner>(pool_.get());
    hit_chance_ = rng_.Chance(0.3) ? 0.4 : 0;
    fail_chance_ = rng_.Chance(0.3) ? 0.03 : 0;
  }

  void Run() {
    for (int i = 0; i < 250; ++i) {
      Event(true);
      Check();
      if (testing::Test::HasFailure()) return;
    }
    // No more arrivals, peers answer: everybody ends.
    fail_chance_ = 0;
    int patience = 20000;
    while (!live_.empty() || !scheduler_->idle() || !held_.empty() || !outbound_.empty()) {
      Event(false);
      Check();
      if (testing::Test::HasFailure()) return;
      ASSERT_GT(--patience, 0) << "somebody waits for ever";
    }
    for (uint32_t g = 0; g < pool_->num_groups(); ++g) {
      EXPECT_EQ(pool_->counts(g).available(), pool_->counts(g).total);
    }
  }

 private:
  struct Child {
    RequestPtr request;
    std::vector<TokenId> answer;  // the right one
    bool handoff = false;
    bool receiving = false;
    bool once_hit = false;
    ReceiveGrant grant;
    size_t received = 0;
    size_t emitted = 0;  // tokens seen, forced ones included
    std::vector<TokenId> Tokens(size_t answer_tokens) const {
      std::vector<TokenId> t = request->prompt;
      t.insert(t.end(), answer.begin(), answer.begin() + static_cast<ptrdiff_t>(answer_tokens));
      return t;
    }
  };
  struct Outbound {
    Child child;
    uint32_t count;
    std::vector<BlockTable> tables;
  };

  void Event(bool arrivals) {
    now_ += Duration(1000);
    const uint64_t dice = rng_.Below(100);
    if (dice < 12 && arrivals) return Arrive();
    if (dice < 16 && arrivals) return Receive();
    if (dice < 19 && arrivals) return Cancel();
    if (dice < 30) return WriterActs();
    if (dice < 36) return Peers();
    if (dice < 70) return Plan();
    if (runner_->busy()) Done();
  }
  void Check() {
    pool_->Audit();
    scheduler_->Audit();
    for (const SequenceId id : scheduler_->TakePreempted()) {
      ++counters_->preempted;
      EXPECT_FALSE(pinned_.contains(id)) << "a sequence with a ticket was preempted";
    }
  }

  std::shared_ptr<Request> MakeRequest() {
    auto r = std::make_shared<Request>();
    // Prompts branch off a few common stems, so prefixes are shared.
    const uint64_t stem = rng_.Below(2);
    const uint64_t same = rng_.Below(70);
    const uint64_t length = std::max<uint64_t>(1, same + rng_.Below(20));
    for (uint64_t i = 0; i < length; ++i) {
      r->prompt.push_back(
          static_cast<TokenId>(i < same ? KeyedDraw(stem, i, 0) % kVocabulary : rng_.Below(kVocabulary)));
    }
    r->id = {1, ++number_, 0};
    r->sampling.seed = rng_.Below(3);
    r->stop.max_tokens = static_cast<uint32_t>(1 + rng_.Below(40));
    r->stop.min_tokens = static_cast<uint32_t>(rng_.Below(4));
    r->stop.ignore_eos = rng_.Chance(0.6);
    r->stop.eos_token_ids = {kEos};
    r->priority = static_cast<int32_t>(rng_.Below(3)) - 1;
    r->cache_salt = rng_.Chance(0.2) ? "tenant" : "";
    return r;
  }
  static Progress ProgressOf(const Child& c, size_t n) {
    Progress p;
    p.once_hit = c.once_hit;
    for (size_t i = 0; i < n; ++i) p.tokens.push_back({c.answer[i], 0, {}});
    return p;
  }
  void Arrive() {
    Child c;
    c.request = MakeRequest();
    c.answer = TrueAnswer(*c.request);
    c.handoff = rng_.Chance(0.3);
    c.once_hit = rng_.Chance(hit_chance_);
    c.emitted = rng_.Chance(0.3) ? rng_.Below(c.answer.size()) : 0;
    auto id = scheduler_->Add(c.request, ProgressOf(c, c.emitted), 1, c.handoff, now_);
    if (!id.ok()) {
      ++counters_->refused;
      return;
    }
    live_.emplace(*id, std::move(c));
  }
  void Receive() {
    Child c;
    c.request = MakeRequest();
    c.answer = TrueAnswer(*c.request);
    c.receiving = true;
    c.once_hit = rng_.Chance(hit_chance_);
    c.emitted = rng_.Chance(0.3) ? rng_.Below(c.answer.size()) : 0;
    if (c.emitted + 1 >= c.answer.size()) return;
    auto grant = scheduler_->Receive(c.request, ProgressOf(c, c.emitted), 1, now_);
    if (!grant.ok()) {
      counters_->busy += grant.status().code() == Code::kResourceExhausted;
      return;
    }
    c.grant = *grant;
    for (uint32_t g = 0; g < c.grant.fresh.size(); ++g) {
      for (const BlockId b : c.grant.fresh[g]) {
        EXPECT_EQ(pool_->NumReferences(g, b), 1u) << "S2";
      }
    }
    live_.emplace(grant->sequence, std::move(c));
  }
  // Writers fill blocks of live tickets, finish or break them; writers of broken ones still scribble.
  void WriterActs() {
    for (auto& [blocks, holder] : held_) {
      for (uint32_t g = 0; g < blocks.size(); ++g) {
        for (const BlockId b : blocks[g]) runner_->Put(g, b, static_cast<uint32_t>(rng_.Below(block_tokens_)), 0xbad);
      }
    }
    for (auto& [id, c] : live_) {
      if (!c.receiving || rng_.Chance(0.5)) continue;
      if (rng_.Chance(0.1)) {
        auto holders = scheduler_->Quarantine(id);
        held_.emplace_back(c.grant.fresh, std::move(holders));
        ++counters_->quarantined;
        live_.erase(id);
        return;
      }
      FillAndCommit(id, &c);
      return;
    }
  }
  void FillAndCommit(SequenceId id, Child* c) {
    const std::vector<TokenId> tokens = c->Tokens(c->emitted);
    for (uint32_t g = 0; g < c->grant.fresh.size(); ++g) {
      uint64_t history = HistoryRoot(*c->request);
      for (const BlockId b : c->grant.fresh[g]) runner_->Zero(g, b);  // the writer's tails are zero
      for (uint32_t p = 0; p < tokens.size(); ++p) {
        history = Extend(history, tokens[p]);
        if (p < c->grant.hit_tokens) continue;
        const uint32_t at = p - c->grant.hit_tokens;
        runner_->Put(g, c->grant.fresh[g][at / block_tokens_], at % block_tokens_, history);
      }
    }
    EXPECT_FALSE(scheduler_->MakeReady(id, ProgressOf(*c, c->emitted), now_).ok()) << "one token must be new";
    ASSERT_TRUE(scheduler_->MakeReady(id, ProgressOf(*c, c->emitted + 1), now_).ok());
    ++c->emitted;
    c->receiving = false;
    ++counters_->received;
    runner_->ExpectHolds(*c->request, tokens, static_cast<uint32_t>(tokens.size()), BlocksOf(id));
  }
  std::vector<std::vector<BlockId>> BlocksOf(SequenceId id) {
    std::vector<std::vector<BlockId>> out;
    for (const BlockTable& t : scheduler_->Find(id)->tables) out.push_back(t.blocks());
    return out;
  }
  void Peers() {
    if (!held_.empty() && rng_.Chance(0.5)) {
      for (auto& holder : held_.front().second) pool_->Release(std::move(holder));
      held_.erase(held_.begin());
    }
    if (!outbound_.empty() && rng_.Chance(0.5)) {
      Outbound& o = outbound_.front();
      std::vector<std::vector<BlockId>> blocks;
      for (const BlockTable& t : o.tables) blocks.push_back(t.blocks());
      runner_->ExpectHolds(*o.child.request, o.child.Tokens(o.child.emitted), o.count, blocks);
      outbound_.erase(outbound_.begin());
    }
    for (auto& [id, c] : live_) {
      const Sequence* s = scheduler_->Find(id);
      if (!c.handoff || rng_.Chance(0.5)) continue;
      if (s->phase == Phase::kComputing && !s->pinned) {
        scheduler_->SetPinned(id, true);
        pinned_.insert(id);
        return;
      }
      if (s->phase != Phase::kSending) continue;
      runner_->ExpectHolds(*c.request, c.Tokens(c.emitted), s->prefill_tokens, BlocksOf(id));
      EXPECT_EQ(s->num_computed, s->prefill_tokens);
      EXPECT_EQ(s->num_launched, s->prefill_tokens) << "a step past the last prompt token (S3)";
      pinned_.erase(id);
      if (rng_.Chance(0.5)) {
        const uint32_t count = s->prefill_tokens;
        outbound_.push_back({c, count, scheduler_->TakeBlocks(id)});
        ++counters_->taken;
      } else {
        scheduler_->End(id);
        ++counters_->sent;
      }
      live_.erase(id);
      return;
    }
  }
  void Cancel() {
    if (live_.empty()) return;
    auto it = live_.begin();
    std::advance(it, static_cast<ptrdiff_t>(rng_.Below(live_.size())));
    if (it->second.receiving) return;
    scheduler_->End(it->first);
    pinned_.erase(it->first);
    EXPECT_EQ(scheduler_->Find(it->first), nullptr);
    live_.erase(it);
    ++counters_->cancelled;
  }
  void Plan() {
    StepPlan plan = scheduler_->Schedule(now_);
    if (plan.sequences.empty()) {
      bool zero = false;
      for (const auto& z : plan.zero) zero = zero || !z.empty();
      EXPECT_FALSE(zero);
      return;
    }
    EXPECT_LE(plan.NumTokens(), options_.max_step_tokens);
    uint32_t prefill = 0;
    std::set<SequenceId> once, once_hit;
    for (const SequenceStep& part : plan.sequences) {
      EXPECT_TRUE(once.insert(part.sequence).second);
      counters_->empty_inputs += part.num_inputs == 0;
      const Child& c = live_.at(part.sequence);
      EXPECT_LE(part.sample ? part.sample_index + 1 : 0, c.request->stop.max_tokens);
      EXPECT_FALSE(c.receiving);
      if (c.once_hit) once_hit.insert(part.sequence);
      if (part.first_position + part.num_tokens <= c.request->prompt.size() && !part.sample) prefill += part.num_tokens;
    }
    EXPECT_LE(prefill, options_.max_prefill_tokens);
    // L8: with the steps that are in flight, one at most.
    once_hit_.push_back(once_hit);
    std::set<SequenceId> in_flight;
    for (const auto& step : once_hit_) in_flight.insert(step.begin(), step.end());
    EXPECT_LE(in_flight.size(), 1u) << "two once-hit sequences in launched steps";
    counters_->apart += in_flight.size();
    runner_->Launch(std::move(plan));
  }
  void Done() {
    const bool failed = rng_.Chance(fail_chance_);
    counters_->failed_steps += failed;
    StepResult result = runner_->Done(failed);
    once_hit_.pop_front();
    if (testing::Test::HasFailure()) return;
    const StepOutcome outcome = scheduler_->OnStepDone(result, now_);
    scheduler_->Recycle(std::move(result.plan));
    for (const FailedSequence& f : outcome.failed) {
      EXPECT_TRUE(failed);
      EXPECT_EQ(scheduler_->Find(f.sequence)->phase, Phase::kFinished);
      scheduler_->End(f.sequence);
      pinned_.erase(f.sequence);
      live_.erase(f.sequence);
      ++counters_->failed;
    }
    for (const NewToken& t : outcome.tokens) {
      Child& c = live_.at(t.sequence);
      ASSERT_EQ(t.index, c.emitted) << "tokens in order, each once";
      ASSERT_EQ(t.token.id, c.answer[c.emitted]) << "the one right answer";
      ++c.emitted;
      ASSERT_EQ(t.finish != FinishReason::kNone, c.emitted == c.answer.size());
      const Sequence* s = scheduler_->Find(t.sequence);
      if (t.finish == FinishReason::kNone) {
        EXPECT_EQ(s->phase, c.handoff ? Phase::kSending : Phase::kRunning);
        continue;
      }
      counters_->hits += s->cached_tokens > 0;
      ++counters_->finished;
      scheduler_->End(t.sequence);
      pinned_.erase(t.sequence);
      live_.erase(t.sequence);
    }
  }

  Rng rng_;
  Counters* counters_;
  uint32_t block_tokens_ = 0;
  double fail_chance_ = 0, hit_chance_ = 0;
  std::deque<std::set<SequenceId>> once_hit_;  // of each launched step
  SchedulerOptions options_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<ShadowRunner> runner_;
  std::map<SequenceId, Child> live_;
  std::set<SequenceId> pinned_;
  std::vector<std::pair<std::vector<std::vector<BlockId>>, std::vector<QuarantinedBlocks>>> held_;
  std::vector<Outbound> outbound_;
  TimePoint now_{};
  uint64_t number_ = 0;
};

// FF-003, FF-018, FF-097, FF-102
TEST(SchedulerFuzz, EveryAnswerIsTheRightOneAndNoBlockIsLostWhateverHappens) {
  Counters n;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, &n);
    world.Run();
    if (HasFailure()) return;
  }
  // The subjects happened.
  EXPECT_GT(n.finished, 3000u);
  for (const uint64_t c : {n.apart, n.preempted, n.hits, n.received, n.quarantined, n.sent, n.taken, n.cancelled,
                           n.busy, n.failed_steps, n.failed, n.empty_inputs, n.refused}) {
    EXPECT_GT(c, 50u);
  }
}

// A rule that is switched off must be found: some seed fails, by an expectation or by a check.
void ExpectFound(Rule rule) {
  EXPECT_EXIT(
      {
        Counters n;
        for (uint64_t seed = 0; seed < 500 && !testing::Test::HasFailure(); ++seed) {
          World(seed, &n, Rules::AllBut(rule)).Run();
        }
        _exit(testing::Test::HasFailure() ? 1 : 0);
      },
      [](int status) { return status != 0; }, "");
}
TEST(SchedulerFuzz, FindsThatBlocksAreFreedUnderALaunchedStepWithoutS1) { ExpectFound(Rule::kS1); }
TEST(SchedulerFuzz, FindsThatAHandOffDecodesOnWithoutS3) { ExpectFound(Rule::kS3); }
TEST(SchedulerFuzz, FindsThatUnwrittenBlocksAreIndexedWithoutS9) { ExpectFound(Rule::kS9); }
TEST(SchedulerFuzz, FindsThatATicketIsPreemptedWithoutL5) { ExpectFound(Rule::kL5); }
TEST(SchedulerFuzz, FindsThatOnceHitSequencesRunTogetherWithoutL8Apart) { ExpectFound(Rule::kL8Apart); }

}  // namespace
}  // namespace baton

#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include "shadow_runner.h"

namespace baton {
namespace {

constexpr uint32_t kBlock = 16;

// A scheduler over one group of blocks, with a runner behind it.
class SchedulerTest : public testing::Test {
 protected:
  void Open(uint32_t blocks, const SchedulerOptions& options) {
    scheduler.reset();  // before its pool
    pool = std::make_unique<BlockPool>(kBlock, std::vector<uint32_t>{blocks});
    scheduler = std::make_unique<Scheduler>(options, pool.get());
    runner = std::make_unique<ShadowRunner>(pool.get());
  }
  static SchedulerOptions Options() {
    SchedulerOptions o;
    o.watermark_blocks = 0;
    return o;
  }
  static std::shared_ptr<Request> NewRequest(uint32_t prompt, uint32_t max_tokens, int32_t priority = 0,
                                             uint64_t seed = 1) {
    auto r = std::make_shared<Request>();
    for (uint32_t i = 0; i < prompt; ++i) {
      r->prompt.push_back(static_cast<TokenId>(KeyedDraw(seed, i, 3) % kVocabulary));
    }
    r->sampling.seed = seed;
    r->stop.max_tokens = max_tokens;
    r->priority = priority;
    return r;
  }
  SequenceId Add(const RequestPtr& r, bool handoff = false) {
    auto id = scheduler->Add(r, {}, 1, handoff, now);
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    return id.ok() ? *id : SequenceId{};
  }
  SequenceId AddHit(const RequestPtr& r) {
    Progress progress;
    progress.once_hit = true;
    auto id = scheduler->Add(r, progress, 1, false, now);
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    return id.ok() ? *id : SequenceId{};
  }
  // Plans a step, launches it, and returns what it holds.
  std::vector<SequenceStep> Launch() {
    StepPlan plan = scheduler->Schedule(now);
    std::vector<SequenceStep> parts = plan.sequences;
    if (!parts.empty()) runner->Launch(std::move(plan));
    return parts;
  }
  StepOutcome Done(bool failed = false) {
    StepOutcome outcome = scheduler->OnStepDone(runner->Done(failed), now);
    pool->Audit();
    scheduler->Audit();
    return outcome;
  }
  Phase PhaseOf(SequenceId id) { return scheduler->Find(id)->phase; }
  uint32_t Owned() { return pool->counts(0).owned; }

  std::unique_ptr<BlockPool> pool;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<ShadowRunner> runner;
  TimePoint now{};
};

// FF-093
TEST_F(SchedulerTest, ALongPromptIsComputedInChunksWhileOthersDecode) {
  SchedulerOptions o = Options();
  o.max_prefill_tokens = 20;
  Open(20, o);
  const SequenceId a = Add(NewRequest(5, 30));
  ASSERT_EQ(Launch().size(), 1u);
  Done();
  const SequenceId b = Add(NewRequest(50, 4, 0, 2));
  for (const uint32_t chunk : {20u, 20u, 10u}) {
    const auto parts = Launch();
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_EQ(parts[0].sequence, a);
    EXPECT_EQ(parts[0].num_tokens, 1u);
    EXPECT_EQ(parts[1].sequence, b);
    EXPECT_EQ(parts[1].num_tokens, chunk);
    EXPECT_EQ(parts[1].sample, chunk == 10);
    Done();
  }
}

TEST_F(SchedulerTest, ADecodeIsPlannedAgainWhileItsLastTokenIsInFlight) {
  Open(20, Options());
  const SequenceId a = Add(NewRequest(16, 3));
  EXPECT_EQ(Launch()[0].num_inputs, 16u);
  const auto next = Launch();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].num_inputs, 0u);
  EXPECT_EQ(next[0].first_position, 16u);
  EXPECT_EQ(next[0].sample_index, 1u);
  EXPECT_TRUE(Launch().empty()) << "two steps are in flight";
  Done();
  EXPECT_EQ(Launch()[0].sample_index, 2u);
  Done();
  EXPECT_TRUE(Launch().empty()) << "nothing is planned past max_tokens";
  EXPECT_EQ(Done().tokens[0].finish, FinishReason::kLength);
  EXPECT_EQ(PhaseOf(a), Phase::kFinished);
}

TEST_F(SchedulerTest, PlansTellRequestAndBlocksOnceAndTheEndOfWhomTheyNamed) {
  Open(20, Options());
  const RequestPtr request = NewRequest(2 * kBlock, 30);
  const SequenceId a = Add(request);
  const SequenceId never_ran = Add(NewRequest(5, 3));
  scheduler->End(never_ran);
  const auto plan = [&] {
    StepPlan p = scheduler->Schedule(now);
    runner->Launch(p);
    return p;
  };
  const StepPlan prompt = plan(), first = plan();
  ASSERT_EQ(prompt.updates.size(), 1u);
  EXPECT_EQ(prompt.updates[0].request, request);
  EXPECT_EQ(prompt.blocks.size(), 2u);
  ASSERT_EQ(first.updates.size(), 1u);
  EXPECT_EQ(first.updates[0].request, nullptr);
  EXPECT_EQ(first.blocks.size(), 1u) << "the block that the decode grows into";
  Done();
  EXPECT_TRUE(plan().updates.empty()) << "nothing is new within a block";
  scheduler->End(a);
  Add(NewRequest(5, 3, 0, 2));
  Done();
  EXPECT_EQ(plan().ended, std::vector<SequenceId>{a});
  Done();
  EXPECT_TRUE(plan().ended.empty());
}

TEST_F(SchedulerTest, BlocksOfAnEndedSequenceStayOwnedUntilItsSurplusStepIsDone) {
  Open(20, Options());
  auto r = NewRequest(16, 10);
  r->stop.stop_token_ids = {TrueAnswer(*r)[0]};  // stops at once, with the next decode in flight
  Add(r);
  Launch();
  Launch();
  EXPECT_EQ(Done().tokens[0].finish, FinishReason::kStop);
  EXPECT_EQ(Owned(), 2u);
  EXPECT_TRUE(Done().tokens.empty()) << "the surplus token is nobody's";
  EXPECT_EQ(Owned(), 0u);
}

TEST_F(SchedulerTest, AHandOffTakesAllBlocksAtOnceAndLaunchesNothingPastItsPrompt) {
  SchedulerOptions o = Options();
  o.max_prefill_tokens = 16;
  Open(20, o);
  const SequenceId a = Add(NewRequest(40, 8), true);
  Launch();
  EXPECT_EQ(Owned(), 3u) << "the whole prompt's blocks before the first chunk (L5)";
  Launch();
  Done();
  Launch();
  EXPECT_EQ(PhaseOf(a), Phase::kComputing);
  Done();
  EXPECT_TRUE(Launch().empty()) << "S3";
  const StepOutcome last = Done();
  EXPECT_EQ(last.prefilled, std::vector{a});
  ASSERT_EQ(last.tokens.size(), 1u);
  EXPECT_EQ(PhaseOf(a), Phase::kSending);
  EXPECT_TRUE(Launch().empty());
  EXPECT_EQ(Owned(), 3u);
  scheduler->End(a);
  EXPECT_EQ(pool->counts(0).cached, 2u) << "full blocks stay as cache";
}

TEST_F(SchedulerTest, AnAnswerOfOneTokenEndsAtTheWriter) {
  Open(20, Options());
  const SequenceId a = Add(NewRequest(20, 1), true);
  Launch();
  EXPECT_EQ(Done().tokens[0].finish, FinishReason::kLength);
  EXPECT_EQ(PhaseOf(a), Phase::kFinished);
}

// FF-035, FF-153
TEST_F(SchedulerTest, ACachedPromptIsReusedInWholeBlocksAndItsLastTokenComputed) {
  Open(20, Options());
  const SequenceId a = Add(NewRequest(48, 1));
  Launch();
  Done();
  scheduler->End(a);
  const SequenceId b = Add(NewRequest(48, 2));
  const auto parts = Launch();
  EXPECT_EQ(parts[0].first_position, 32u) << "48 are cached, but the last token's logits are needed";
  EXPECT_EQ(scheduler->Find(b)->cached_tokens, 32u);
  auto salted = NewRequest(48, 2);
  salted->cache_salt = "another tenant";
  Add(salted);
  EXPECT_EQ(Launch().back().first_position, 0u);
}

// FF-099
TEST_F(SchedulerTest, WhoRanksLowestIsPreemptedAndGoesOnWithTheSameAnswer) {
  Open(6, Options());
  const SequenceId high = Add(NewRequest(30, 50, 1, 1));
  const SequenceId low = Add(NewRequest(30, 50, 0, 2));
  std::map<SequenceId, std::vector<TokenId>> answers;
  bool preempted = false;
  for (int i = 0; i < 500 && answers.size() < 3; ++i) {
    if (Launch().empty() && !runner->busy()) break;
    for (const NewToken& t : Done().tokens) answers[t.sequence].push_back(t.token.id);
    for (const SequenceId id : scheduler->TakePreempted()) {
      EXPECT_EQ(id, low);
      preempted = true;
      EXPECT_EQ(PhaseOf(low), Phase::kWaiting);
      EXPECT_TRUE(scheduler->WaitsForBlocks());
    }
  }
  EXPECT_TRUE(preempted);
  EXPECT_EQ(answers[high], TrueAnswer(*NewRequest(30, 50, 1, 1)));
  EXPECT_EQ(answers[low], TrueAnswer(*NewRequest(30, 50, 0, 2)));
}

// FF-104
TEST_F(SchedulerTest, AHigherPriorityDoesNotWaitForLowerOnesToEnd) {
  Open(4, Options());
  const SequenceId low = Add(NewRequest(40, 20, 0, 1));
  Launch();
  Done();
  const SequenceId high = Add(NewRequest(40, 20, 5, 2));
  EXPECT_EQ(Launch()[0].sequence, high);
  EXPECT_EQ(scheduler->TakePreempted(), std::vector{low});
}

TEST_F(SchedulerTest, ASequenceWithATicketIsNeverPreempted) {
  Open(4, Options());
  const SequenceId sending = Add(NewRequest(40, 20, 0, 1), true);
  Launch();
  Done();
  scheduler->SetPinned(sending, true);
  Add(NewRequest(40, 20, 5, 2));
  EXPECT_TRUE(Launch().empty());
  EXPECT_TRUE(scheduler->TakePreempted().empty());
  scheduler->SetPinned(sending, false);  // held by BUSY: it has no ticket and gives way (L6)
  EXPECT_EQ(Launch().size(), 1u);
  EXPECT_EQ(scheduler->TakePreempted(), std::vector{sending});
  EXPECT_EQ(scheduler->Find(sending)->output.size(), 1u) << "what it knows it keeps";
}

// ---- L8: once-hit sequences run apart -------------------------------------------------------------------

TEST_F(SchedulerTest, OnceHitSequencesRunOneAfterTheOtherAndNobodyWaitsForThem) {
  Open(40, Options());
  const SequenceId a = AddHit(NewRequest(20, 6, 0, 1));
  const SequenceId b = AddHit(NewRequest(20, 6, 0, 2));
  const SequenceId plain = Add(NewRequest(20, 6, 0, 3));
  std::map<SequenceId, std::vector<TokenId>> answers;
  std::vector<SequenceId> ended;
  while (ended.size() < 3) {
    for (bool more = true; more;) {  // two steps in flight
      const auto parts = Launch();
      more = !parts.empty();
      for (const SequenceStep& part : parts) EXPECT_TRUE(part.sequence != b || scheduler->Find(a) == nullptr);
    }
    ASSERT_TRUE(runner->busy()) << "nobody is planned and nobody runs";
    for (const NewToken& t : Done().tokens) {
      answers[t.sequence].push_back(t.token.id);
      if (t.finish == FinishReason::kNone) continue;
      ended.push_back(t.sequence);
      scheduler->End(t.sequence);
    }
  }
  EXPECT_EQ(ended, (std::vector{a, plain, b}));
  EXPECT_EQ(answers[a], TrueAnswer(*NewRequest(20, 6, 0, 1)));
  EXPECT_EQ(answers[b], TrueAnswer(*NewRequest(20, 6, 0, 2)));
}

TEST_F(SchedulerTest, ATurnPassesOnOnlyWhenTheLaunchedStepsOfTheLastAreDone) {
  Open(40, Options());
  const SequenceId a = AddHit(NewRequest(20, 6, 0, 1));
  const SequenceId b = AddHit(NewRequest(20, 6, 0, 2));
  EXPECT_EQ(Launch().at(0).sequence, a);
  scheduler->End(a);  // cancelled, but its step runs on
  EXPECT_TRUE(Launch().empty());
  Done();
  EXPECT_EQ(Launch().at(0).sequence, b);
}

TEST_F(SchedulerTest, AChunkedPromptKeepsItsTurnOverARunningOneOfLowerRank) {
  SchedulerOptions o = Options();
  o.max_prefill_tokens = 16;
  Open(40, o);
  const SequenceId late = Add(NewRequest(10, 30, 0, 1));
  Launch();
  Done();
  const SequenceId prompt = AddHit(NewRequest(64, 4, 1, 2));
  ASSERT_EQ(Launch().size(), 2u) << "only one of them is once hit";
  scheduler->SetOnceHit(late);  // a death elsewhere, told in the middle of the step
  EXPECT_TRUE(Launch().empty()) << "both are in it: it ends first";
  Done();
  for (int step = 0; step < 5; ++step) {  // three chunks, two tokens
    const auto parts = Launch();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].sequence, prompt);
    Done();
  }
}

TEST_F(SchedulerTest, WhoWaitsForItsTurnKeepsNoGrantAndNoPlaceFromOthers) {
  Open(40, Options());
  AddHit(NewRequest(20, 30, 0, 1));
  Launch();
  const SequenceId waits = AddHit(NewRequest(20, 30, 5, 2));
  EXPECT_TRUE(Launch().size() == 1 && PhaseOf(waits) == Phase::kWaiting);
  EXPECT_FALSE(scheduler->WaitsForBlocks());
  EXPECT_TRUE(scheduler->Receive(NewRequest(20, 30, 0, 3), {}, 1, now).ok());
  EXPECT_TRUE(scheduler->TakePreempted().empty()) << "its priority takes nobody's blocks before its turn";
}

// FF-052, FF-095
TEST_F(SchedulerTest, WhatCanNeverFitIsRefusedAtOnceAndTheQueueIsBounded) {
  SchedulerOptions o = Options();
  o.max_waiting = 2;
  o.max_context_tokens = 1000;
  Open(4, o);
  EXPECT_EQ(scheduler->Add(NewRequest(60, 6), {}, 1, false, now).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(scheduler->Add(NewRequest(60, 5), {}, 1, false, now).ok()) << "the last token needs no slot";
  EXPECT_EQ(scheduler->Add(NewRequest(1, 1000), {}, 1, true, now).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler->Add(NewRequest(0, 5), {}, 1, false, now).status().code(), Code::kInvalidArgument);
  Add(NewRequest(60, 900), true);  // the writer needs the prompt's blocks only
  EXPECT_EQ(scheduler->Add(NewRequest(5, 5), {}, 1, false, now).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(scheduler->Receive(NewRequest(60, 6), {}, 1, now).status().code(), Code::kInvalidArgument);
  scheduler->set_roles({.prefill = false, .decode = false});
  EXPECT_EQ(scheduler->Add(NewRequest(5, 5), {}, 1, false, now).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(scheduler->Receive(NewRequest(5, 5), {}, 1, now).status().code(), Code::kFailedPrecondition);
}

TEST_F(SchedulerTest, AForcedPrefixIsComputedAndTheAnswerGoesOnBehindIt) {
  Open(20, Options());
  const auto r = NewRequest(20, 6);
  const std::vector<TokenId> answer = TrueAnswer(*r);
  Progress p;
  for (int i = 0; i < 3; ++i) p.tokens.push_back({answer[static_cast<size_t>(i)], 0, {}});
  ASSERT_TRUE(scheduler->Add(r, p, 2, false, now).ok());
  const auto parts = Launch();
  EXPECT_EQ(parts[0].num_tokens, 23u);
  EXPECT_EQ(parts[0].sample_index, 3u);
  EXPECT_EQ(Done().tokens[0].token.id, answer[3]);
}

TEST_F(SchedulerTest, AReaderGrantsWhatItLacksAndOneBlockToGrow) {
  Open(20, Options());
  const SequenceId a = Add(NewRequest(40, 1));
  Launch();
  Done();
  scheduler->End(a);  // two full blocks are cached
  auto grant = scheduler->Receive(NewRequest(40, 30), {}, 1, now);
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(grant->hit_tokens, 32u);
  EXPECT_EQ(grant->fresh[0].size(), 1u);
  EXPECT_EQ(Owned(), 4u) << "hit, fresh and one to grow into";
  EXPECT_FALSE(pool->IsIndexed(0, grant->fresh[0][0]));
  // Broken: only the writable block is quarantined.
  auto held = scheduler->Quarantine(grant->sequence);
  EXPECT_EQ(pool->counts(0).quarantined, 1u);
  EXPECT_EQ(Owned(), 0u);
  EXPECT_EQ(scheduler->Find(grant->sequence), nullptr);
  pool->Release(std::move(held[0]));
}

TEST_F(SchedulerTest, NoGrantWhileASequenceWaitsForBlocks) {
  Open(4, Options());
  Add(NewRequest(40, 20, 0, 1));
  Launch();
  Add(NewRequest(40, 20, 0, 2));
  Done();
  Launch();
  EXPECT_TRUE(scheduler->WaitsForBlocks());
  EXPECT_EQ(scheduler->Receive(NewRequest(3, 5), {}, 1, now).status().code(), Code::kResourceExhausted);
}

TEST_F(SchedulerTest, ABlockIsFoundOnlyAfterTheStepThatCompletedItIsDone) {
  Open(20, Options());
  const auto r = NewRequest(40, 5);
  const std::vector<Hash128> hashes = PageHashes(ChainRoot({}, {}, ""), r->prompt);
  const auto cached = [&] { return pool->MatchLength(ChainRoot({}, {}, ""), hashes, r->prompt, 9); };
  Add(r);
  Launch();
  EXPECT_EQ(cached(), 0u) << "S9";
  Done();
  EXPECT_EQ(cached(), 2u);
  EXPECT_EQ(pool->TakeEvents().stored, (std::vector{hashes[0], hashes[1]}));
}

TEST_F(SchedulerTest, AFailedStepIsRecomputedOnceThenItsSequencesFailAndHandOffsAtOnce) {
  Open(20, Options());
  const SequenceId a = Add(NewRequest(20, 5));
  const SequenceId h = Add(NewRequest(20, 5, 0, 2), true);
  Launch();
  const StepOutcome first = Done(true);
  ASSERT_EQ(first.failed.size(), 1u);
  EXPECT_EQ(first.failed[0].sequence, h);
  EXPECT_EQ(PhaseOf(a), Phase::kWaiting);
  EXPECT_EQ(Owned(), 0u);
  EXPECT_EQ(Launch()[0].first_position, 0u);
  EXPECT_EQ(Done(true).failed[0].sequence, a);
}

TEST_F(SchedulerTest, OneSequencesFailureLeavesTheOthersOfItsStepAlone) {
  Open(20, Options());
  const SequenceId a = Add(NewRequest(20, 5));
  const SequenceId b = Add(NewRequest(20, 5, 0, 2));
  Launch();
  StepResult result = runner->Done(false);
  result.tokens.erase(result.tokens.begin());
  result.failed.push_back({a, InternalError("logits are not finite")});
  const StepOutcome outcome = scheduler->OnStepDone(result, now);
  EXPECT_EQ(outcome.failed[0].sequence, a);
  EXPECT_EQ(outcome.tokens[0].sequence, b);
  EXPECT_EQ(PhaseOf(a), Phase::kFinished);
}

TEST_F(SchedulerTest, LoadCountsWhatWaitsAndWhatRuns) {
  SchedulerOptions o = Options();
  o.max_running = 1;
  o.max_prefill_tokens = 10;
  Open(20, o);
  Add(NewRequest(30, 5));
  Add(NewRequest(7, 5, 0, 2));
  Launch();
  const SchedulerLoad load = scheduler->Load();
  EXPECT_EQ(load.waiting, 1u);
  EXPECT_EQ(load.running, 1u);
  EXPECT_EQ(load.queued_tokens, 27u);
  EXPECT_EQ(load.free_blocks[0], 18u);
}

TEST_F(SchedulerTest, OptionsThatCouldStarvePrefillAreRefused) {
  SchedulerOptions o = Options();
  o.max_step_tokens = o.max_running;
  EXPECT_EQ(Validate(o).code(), Code::kInvalidArgument);
  o = Options();
  o.max_prefill_tokens = 0;
  EXPECT_EQ(Validate(o).code(), Code::kInvalidArgument);
  EXPECT_TRUE(Validate(Options()).ok());
}

// ---- what users of other servers saw (tests/field_failures.md) ---------------------------------------

// FF-092: a prompt of a hundred chunks, then twenty of one chunk. The short ones share half of each step from then on,
// in order; the long one takes the other half, and all of it again when they are done.
TEST_F(SchedulerTest, FF092_AGiantPromptLeavesHalfOfEachStepToShortOnesBehindIt) {
  SchedulerOptions o = Options();
  o.max_prefill_tokens = 32;
  o.max_context_tokens = 4000;
  Open(400, o);
  const SequenceId giant = Add(NewRequest(3200, 1));
  ASSERT_EQ(Launch().size(), 1u);
  Done();
  std::map<SequenceId, int> ended;
  for (uint64_t i = 0; i < 20; ++i) Add(NewRequest(32, 1, 0, 10 + i));
  int step = 0;
  while (!ended.contains(giant)) {
    ++step;
    const auto parts = Launch();
    ASSERT_FALSE(parts.empty());
    uint32_t tokens = 0;
    for (const SequenceStep& part : parts) tokens += part.num_tokens;
    EXPECT_EQ(tokens,
              std::min(32u, tokens + scheduler->Find(giant)->num_known() - scheduler->Find(giant)->num_launched))
        << "nothing of a step is wasted while there is a prompt";
    for (const NewToken& t : Done().tokens) {
      ended[t.sequence] = step;
      if (t.sequence != giant) scheduler->End(t.sequence);
    }
    EXPECT_TRUE(step != 41 || ended.size() == 20) << "two steps each";
  }
  EXPECT_EQ(step, 99 + 20) << "no longer than the work of all, 1.2 times what it takes alone";
}

// FF-092: short prompts pass giants that are queued, but nobody who waits for blocks, and nobody of higher priority.
TEST_F(SchedulerTest, FF092_ShortPromptsPassQueuedGiantsButNobodyWhoWaitsForBlocks) {
  for (const bool room : {true, false}) {
    SchedulerOptions o = Options();
    o.max_prefill_tokens = 32;
    o.max_context_tokens = 4000;
    Open(room ? 220 : 110, o);
    Add(NewRequest(1600, 1, 0, 1));
    Launch();
    Done();
    const SequenceId second = Add(NewRequest(1600, 1, 0, 2));
    const SequenceId small = Add(NewRequest(16, 1, 0, 3));
    const SequenceId low = Add(NewRequest(16, 1, -1, 4));
    for (int i = 0; i < 3; ++i) {
      Launch();
      Done();
    }
    EXPECT_EQ(scheduler->Find(second)->num_launched, 0u);
    EXPECT_EQ(PhaseOf(small), room ? Phase::kFinished : Phase::kWaiting);
    EXPECT_EQ(PhaseOf(low), Phase::kWaiting);
  }
}

// FF-019: a prefix that is not a whole block has no name that could outlive it: what is announced and found is whole
// blocks, whatever came between.
TEST_F(SchedulerTest, FF019_APartOfABlockIsNeverIndexed) {
  Open(20, Options());
  const auto stem = NewRequest(16, 1);
  std::vector<Hash128> stored;
  for (const uint32_t length : {10u, 16u, 10u, 15u, 16u}) {
    auto r = std::make_shared<Request>(*stem);
    r->prompt.resize(length);
    const SequenceId id = Add(r);
    EXPECT_EQ(Launch()[0].first_position, 0u) << "its last token is always computed";
    Done();
    scheduler->End(id);
    const PrefixEvents events = pool->TakeEvents();
    stored.insert(stored.end(), events.stored.begin(), events.stored.end());
    EXPECT_TRUE(events.removed.empty());
  }
  EXPECT_EQ(stored, PageHashes(ChainRoot({}, {}, ""), stem->prompt));
}

// FF-034: what a reader counts as held it holds from that moment on; the pool may be wanted by everybody.
TEST_F(SchedulerTest, FF034_APrefixThatAReaderPromisedCannotBeEvicted) {
  Open(8, Options());
  const SequenceId warm = Add(NewRequest(40, 1));
  Launch();
  Done();
  scheduler->End(warm);
  auto grant = scheduler->Receive(NewRequest(40, 9), {}, 1, now);
  ASSERT_TRUE(grant.ok());
  ASSERT_EQ(grant->hit_tokens, 32u);
  const std::vector<BlockId> blocks = scheduler->Find(grant->sequence)->tables[0].blocks();
  const SequenceId greedy = Add(NewRequest(60, 4, 5, 2));  // all that is left
  Launch();
  Done();
  EXPECT_EQ(PhaseOf(greedy), Phase::kRunning);
  const auto r = NewRequest(40, 9);
  std::vector<BlockId> hit(blocks.begin(), blocks.begin() + 2);
  runner->ExpectHolds(*r, r->prompt, 32, {hit});
  scheduler->Abandon(grant->sequence);
}

// FF-034: and what was evicted before is not promised.
TEST_F(SchedulerTest, FF034_APrefixThatWasEvictedIsAskedFor) {
  Open(4, Options());
  const SequenceId warm = Add(NewRequest(40, 1));
  Launch();
  Done();
  scheduler->End(warm);
  const SequenceId other = Add(NewRequest(60, 1, 0, 2));
  Launch();
  Done();
  scheduler->End(other);
  auto grant = scheduler->Receive(NewRequest(40, 9), {}, 1, now);
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(grant->hit_tokens, 0u);
  EXPECT_EQ(grant->fresh[0].size(), 3u);
  scheduler->Abandon(grant->sequence);
}

// FF-036: a hit counts when the blocks are taken, not when the request came: its prefix may be gone by then.
TEST_F(SchedulerTest, FF036_APrefixThatIsEvictedWhileARequestWaitsIsComputedAgain) {
  SchedulerOptions o = Options();
  o.max_running = 1;
  Open(6, o);
  const SequenceId warm = Add(NewRequest(48, 1));
  Launch();
  Done();
  scheduler->End(warm);
  const SequenceId first = Add(NewRequest(80, 2, 0, 2));
  const SequenceId hit = Add(NewRequest(48, 4));
  std::vector<TokenId> answer;
  while (scheduler->Find(hit)->finish == FinishReason::kNone) {
    ASSERT_TRUE(!Launch().empty() || runner->busy());
    for (const NewToken& t : Done().tokens) {
      if (t.sequence == hit) answer.push_back(t.token.id);
      if (t.sequence == first && t.finish != FinishReason::kNone) scheduler->End(first);
    }
  }
  EXPECT_EQ(answer, TrueAnswer(*NewRequest(48, 4)));
  EXPECT_LT(scheduler->Find(hit)->cached_tokens, 32u) << "some of it was evicted";
}

// FF-101: two long answers in a pool that holds hardly more than one: no request starts over more than twice, and every
// step brings a token.
TEST_F(SchedulerTest, FF101_TwoLongAnswersInATightPoolDoNotThrash) {
  Open(17, Options());  // one needs 15
  const SequenceId a = Add(NewRequest(60, 180, 0, 1));
  const SequenceId b = Add(NewRequest(60, 180, 0, 2));
  std::map<SequenceId, uint32_t> preempted, tokens;
  int ended = 0;
  for (int steps = 0; ended < 2; ++steps) {
    ASSERT_LT(steps, 2000);
    while (!Launch().empty()) {
    }
    ASSERT_TRUE(runner->busy());
    for (const NewToken& t : Done().tokens) {
      ++tokens[t.sequence];
      if (t.finish == FinishReason::kNone) continue;
      ++ended;
      preempted[t.sequence] = scheduler->Find(t.sequence)->preemptions;
      scheduler->End(t.sequence);
    }
  }
  EXPECT_EQ(preempted[a], 0u);
  EXPECT_GE(preempted[b], 1u);
  EXPECT_LE(preempted[b], 2u);
  EXPECT_EQ(tokens[a], 180u);
  EXPECT_EQ(tokens[b], 180u);
}

// FF-103: who was preempted keeps its place: before those of its priority that came later.
TEST_F(SchedulerTest, FF103_APreemptedRequestComesBeforeLaterOnesOfItsPriority) {
  Open(4, Options());
  const SequenceId a = Add(NewRequest(40, 9, 0, 1));
  Launch();
  Done();
  const SequenceId high = Add(NewRequest(40, 2, 5, 2));
  const SequenceId later = Add(NewRequest(40, 9, 0, 3));
  EXPECT_EQ(Launch()[0].sequence, high);
  EXPECT_EQ(scheduler->TakePreempted(), std::vector{a});
  Launch();
  Done();
  EXPECT_EQ(Done().tokens[0].finish, FinishReason::kLength);
  scheduler->End(high);
  EXPECT_EQ(Launch().at(0).sequence, a);
  EXPECT_EQ(PhaseOf(later), Phase::kWaiting);
}

}  // namespace
}  // namespace baton

#include <gtest/gtest.h>

#include "sim/seeds.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

TEST(SimClusterTest, WithoutFaultsEveryAnswerEqualsTheReferenceAndBlocksReturn) {
  const ScenarioCounts c = RunAll(20, [](uint64_t) { return ScenarioOptions{}; });
  EXPECT_EQ(c.failed, 0u);
  EXPECT_GT(c.done, 300u);
  EXPECT_GT(c.disaggregated, 50u);
  EXPECT_GT(c.cached_tokens, 0u);
  for (const char* name : {"p0", "p1", "d0", "d1"}) EXPECT_GT(c.used.count(name), 0u) << name;
}

// P and D of other block sizes, in turn.
void MakeUnlike(uint64_t seed, SimOptions* cluster) {
  constexpr uint32_t kSizes[][2] = {{16, 32}, {32, 16}, {64, 32}, {32, 128}, {16, 64}, {64, 16}};
  const auto& [writes, reads] = kSizes[seed % 6];
  cluster->pool_blocks = cluster->pool_blocks * cluster->block_tokens / writes;
  cluster->block_tokens = writes;
  cluster->decode_block_tokens = reads;
}

TEST(SimClusterTest, PairsOfUnlikeBlockSizesGiveTheReferencesAnswers) {
  const ScenarioCounts c = RunAll(30, [](uint64_t seed) {
    ScenarioOptions o;
    o.cluster.pool_blocks = 120;
    MakeUnlike(seed, &o.cluster);
    o.every_request_succeeds = true;
    return o;
  });
  EXPECT_GT(c.disaggregated, 100u);
  EXPECT_GT(c.converted, 100u);
  EXPECT_GT(c.cached_tokens, 0u);
}

TEST(SimClusterTest, UnlikePairsKeepEveryPromiseUnderFaults) {
  const ScenarioCounts c = RunAll(150, [](uint64_t seed) {
    ScenarioOptions o = MixedScenario(seed);
    MakeUnlike(seed, &o.cluster);
    // Children that end in the middle of a conversion.
    if (seed % 3 == 0) o.cluster.cost.convert = milliseconds(20);
    if (seed % 4 == 0) o.cancel = 0.4;
    return o;
  });
  EXPECT_GT(c.converted, InFull(500));
  EXPECT_GT(c.converted_unused, InFull(10));
  EXPECT_GT(c.replacements, 0u);
  EXPECT_GT(c.preemptions, 0u);
}

TEST(SimClusterTest, AWriterThatCannotBeAskedIsCutOffByItsKeyAndItsLatePutsLandNowhere) {
  const ScenarioCounts c = RunAll(20, [](uint64_t seed) {
    ScenarioOptions o = MixedScenario(seed);
    o.cluster.mode = TransferMode::kKeyedPut;
    o.pauses += 2;
    o.pair_breaks += 2;
    o.cluster.transfer.post_fail = 0.05;
    o.cluster.transfer.post_delay = 0.3;
    o.cluster.transfer.max_delay = milliseconds(1500);  // longer than it takes until the fence
    return o;
  });
  EXPECT_GT(c.fences, 10u);
}

TEST(SimClusterTest, FullWindowsBetweenPairsKeepEveryPromiseUnderFaults) {
  const ScenarioCounts c = RunAll(16, [](uint64_t seed) {
    ScenarioOptions o = MixedScenario(seed);
    o.cluster.send = {seed % 2 == 0 ? 1u : 8'000u, 16'000};
    o.step_failures += 1;  // also of steps whose layers are on their way
    o.cluster.layers = 8;  // two chunks or more to a hand-off
    o.cluster.transfer.post_delay = 0.5;
    o.cluster.transfer.max_delay = milliseconds(20);
    return o;
  });
  EXPECT_GT(c.chunks_waited, 40u);
}

TEST(SimClusterTest, CorruptStagingIsNeverConverted) {
  const ScenarioCounts c = RunAll(20, [](uint64_t seed) {
    ScenarioOptions o;
    MakeUnlike(seed, &o.cluster);
    o.cluster.transfer.post_truncate = 0.1;
    return o;
  });
  EXPECT_GT(c.corrupt, 0u);
  EXPECT_GT(c.converted, 50u);
}

TEST(SimClusterTest, UnderPoolPressureSequencesArePreemptedAndAnswersStayEqual) {
  const ScenarioCounts c = RunAll(30, [](uint64_t) {
    ScenarioOptions o;
    o.cluster.pool_blocks = 22;
    o.num_requests = 40;
    o.max_answer = 80;
    o.arrivals_over = milliseconds(60);
    return o;
  });
  EXPECT_GT(c.preemptions, 0u);
  EXPECT_EQ(c.failed, 0u);
}

TEST(SimClusterTest, ACommitThatOvertakesItsChunkNoticesIsAnsweredMissingAndPushedAgain) {
  const ScenarioCounts c = RunAll(20, [](uint64_t) {
    ScenarioOptions o;
    o.cluster.transfer.notice_delay = 0.3;
    o.cluster.transfer.min_delay = milliseconds(10);
    o.cluster.transfer.max_delay = milliseconds(150);  // the reader waits 50 ms for them
    o.every_request_succeeds = true;
    return o;
  });
  EXPECT_GT(c.missing, 0u);
  EXPECT_GT(c.repushes, 0u);
  EXPECT_GT(c.disaggregated, 100u);
}

TEST(SimClusterTest, ACancelThatOvertakesReserveOrFollowsTheAckLeavesNothingBehind) {
  const ScenarioCounts c = RunAll(40, [](uint64_t) {
    ScenarioOptions o;
    o.cancel = 1;
    o.max_answer = 100;
    o.cluster.message_late = 0.4;
    o.cluster.message_duplicate = 0.2;
    o.supervisor_stays_out = true;
    return o;
  });
  EXPECT_GT(c.cancelled, 200u);
  EXPECT_GT(c.unwanted_grants, 0u) << "a GRANT met its cancelled child";
}

TEST(SimClusterTest, ASurplusStepInFlightAtTheEndOfAnAnswerHarmsNobody) {
  const ScenarioCounts c = RunAll(20, [](uint64_t) {
    ScenarioOptions o;
    o.cancel = 0;
    o.cluster.pool_blocks = 128;  // nobody is preempted: what is left over is past an end token
    o.shape = [](uint32_t, ClientRequest* r) { r->ignore_eos = false; };
    o.every_request_succeeds = true;
    return o;
  });
  EXPECT_GT(c.surplus_parts, 0u);
  EXPECT_EQ(c.preemptions, 0u);
}

TEST(SimClusterTest, AfterARestartOfTheRouterWorkersAreIdleAgainAndServeTheNewOne) {
  const ScenarioCounts c = RunAll(20, [](uint64_t) {
    ScenarioOptions o;
    o.front_restarts = 2;
    o.num_requests = 40;
    return o;
  });
  EXPECT_GT(c.lost_with_front, 0u);
  EXPECT_GT(c.done, 100u);
}

TEST(SimClusterTest, TwoUnifiedWorkersServeAloneAndHandOffToEachOther) {
  const ScenarioCounts c = RunAll(20, [](uint64_t seed) {
    ScenarioOptions o = MixedScenario(seed);
    o.cluster.num_prefill = o.cluster.num_decode = 0;
    o.cluster.num_unified = 2;
    if (seed % 2 == 0) o.shape = [](uint32_t, ClientRequest* r) { r->placement = PlacementHint::kDisaggregated; };
    return o;
  });
  EXPECT_GT(c.used.count("u0") + c.used.count("u1"), 1u);
  EXPECT_GT(c.disaggregated, 50u);
  EXPECT_GT(c.done, c.disaggregated);
}

// DESIGN: hand-off. Receipts count the bytes that were quiet at D when P's last layer began.
TEST(SimClusterTest, InAOneStepPrefillFourFifthsOfTheBytesAreThereBeforeTheLastLayer) {
  const ScenarioCounts c = RunAll(3, [](uint64_t) {
    ScenarioOptions o;
    o.cluster.num_prefill = o.cluster.num_decode = 1;
    o.cluster.layers = 32;
    o.cluster.max_step_tokens = o.cluster.max_prefill_tokens = 512;
    o.cluster.max_context_tokens = 640;
    o.cluster.pool_blocks = 80;
    o.num_requests = 1;
    o.cancel = 0;
    o.shape = [](uint32_t, ClientRequest* r) {
      std::get<TokenPrompt>(r->prompt).ids.assign(512, 9);
      r->max_tokens = 8;
      r->placement = PlacementHint::kDisaggregated;
    };
    return o;
  });
  EXPECT_EQ(c.transfer_bytes, c.done * 512 * 32 * 16) << "every byte once";
  EXPECT_GE(c.hidden_bytes * 10, c.transfer_bytes * 8);
}

TEST(SimClusterTest, WhateverAnOperatorDrainsAndTurnsUnderLoadNoRequestFails) {
  const ScenarioCounts c = RunAll(100, [](uint64_t seed) {
    ScenarioOptions o;
    o.orders = 12;
    o.cluster.num_unified = seed % 2;
    o.cluster.mode = seed % 4 < 2 ? TransferMode::kOneSided : TransferMode::kReceiverPosted;
    o.cluster.message_late = 0.1;
    o.cluster.message_duplicate = 0.1;
    o.num_requests = 40;
    o.max_answer = 80;
    o.every_request_succeeds = true;
    return o;
  });
  EXPECT_GT(c.done, InFull(3000));
  EXPECT_GT(c.emptied, InFull(100));
  EXPECT_GT(c.role_changes, InFull(200));
  EXPECT_GT(c.orders_refused, InFull(10)) << "somebody has to decode";
  EXPECT_GT(c.replacements, 0u) << "orders met hand-offs on their way";
}

TEST(SimClusterTest, OrdersAmongFaultsOfEveryKindEndAndTheClusterComesToRest) {
  const ScenarioCounts c = RunAll(150, [](uint64_t seed) {
    ScenarioOptions o = seed % 3 == 0 ? WideScenario(seed) : MixedScenario(seed);
    o.orders = 10;
    return o;
  });
  EXPECT_GT(c.done, InFull(2000));
  EXPECT_GT(c.emptied, InFull(100));
  EXPECT_GT(c.role_changes, InFull(200));
  for (const auto& [why, n] : c.failures)
    std::printf("  failed %6lu  %s\n", static_cast<unsigned long>(n), why.c_str());
}

TEST(SimClusterTest, FiveHundredSeedsOfFaultsKeepEveryPromise) {
  const ScenarioCounts c = RunAll(500, MixedScenario);
  EXPECT_GT(c.done, InFull(5000));
  EXPECT_GT(c.disaggregated, InFull(1000));
  EXPECT_GT(c.replacements, 0u);
  EXPECT_GT(c.corrupt, 0u);
  EXPECT_GT(c.repushes, 0u);
  EXPECT_GT(c.cancelled, 0u);
  for (const auto& [why, n] : c.failures)
    std::printf("  failed %6lu  %s\n", static_cast<unsigned long>(n), why.c_str());
  std::printf("  done %lu, disaggregated %lu, replaced %lu, preempted %lu, grants %lu\n",
              static_cast<unsigned long>(c.done), static_cast<unsigned long>(c.disaggregated),
              static_cast<unsigned long>(c.replacements), static_cast<unsigned long>(c.preemptions),
              static_cast<unsigned long>(c.grants));
}

}  // namespace
}  // namespace baton

// Clusters of other shapes: two routers over the same workers, three prefill and three decode workers, cuts that block
// one way, clocks that disagree, drains, waits that could close a circle.
#include "sim/seeds.h"

namespace baton {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

void Disaggregated(uint32_t, ClientRequest* r) { r->placement = PlacementHint::kDisaggregated; }

TEST(SimWideTest, TwoRoutersShareTheirWorkersAndEveryClientOfEachGetsItsAnswer) {
  const ScenarioCounts c = RunAll(20, [](uint64_t) {
    ScenarioOptions o;
    o.cluster.num_fronts = 2;
    o.num_requests = 60;
    o.cancel = 0;
    o.every_request_succeeds = true;
    return o;
  });
  EXPECT_EQ(c.done, 1200u);
  EXPECT_GT(c.done_by_front.at(0), 400u);
  EXPECT_GT(c.done_by_front.at(1), 400u);
  EXPECT_GT(c.disaggregated, 200u);
}

TEST(SimWideTest, WhenOneRouterDiesTheClientsOfTheOtherNoticeNothing) {
  const ScenarioCounts c = RunAll(20, [](uint64_t) {
    ScenarioOptions o;
    o.cluster.num_fronts = 2;
    o.num_requests = 60;
    o.front_restarts = 2;
    o.restarted_front = 1;
    return o;
  });
  EXPECT_GT(c.lost_with_front, 0u);
  EXPECT_EQ(c.failed_by_front.count(0), 0u);
  EXPECT_GT(c.done_by_front.at(0), 400u);
  EXPECT_EQ(c.replacements, 0u) << "no worker was lost to anybody";
}

TEST(SimWideTest, ThreeByThreeSurvivesKillsAndRestartsOnTheSameAddresses) {
  const ScenarioCounts c = RunAll(20, [](uint64_t seed) {
    ScenarioOptions o;
    o.cluster.mode = seed % 2 == 0 ? TransferMode::kOneSided : TransferMode::kReceiverPosted;
    o.cluster.num_prefill = o.cluster.num_decode = 3;
    o.cluster.num_fronts = 2;
    o.num_requests = 60;
    o.kills = 4;
    o.shape = Disaggregated;
    return o;
  });
  EXPECT_GT(c.faults.kills, 70u);
  EXPECT_GT(c.replacements, 0u);
  EXPECT_GT(c.disaggregated, 500u);
  for (const char* name : {"p0", "p1", "p2", "d0", "d1", "d2"}) EXPECT_GT(c.used.count(name), 0u) << name;
}

// FF-014
TEST(SimWideTest, ACutThatBlocksOneWayEndsNoRequestAndLeavesNothingBehind) {
  const ScenarioCounts c = RunAll(30, [](uint64_t seed) {
    ScenarioOptions o;
    o.cluster.mode = seed % 2 == 0 ? TransferMode::kOneSided : TransferMode::kReceiverPosted;
    o.cluster.num_fronts = 1 + seed % 2;
    o.cuts = 4;
    o.num_requests = 40;
    return o;
  });
  EXPECT_GT(c.faults.cuts, 100u);
  EXPECT_GT(c.faults.links_broken, 0u);
  EXPECT_GT(c.done, 900u);
}

// FF-026
TEST(SimWideTest, ClocksThatAreDaysApartAndDriftChangeNothing) {
  const auto scenario = [](bool apart) {
    return [apart](uint64_t) {
      ScenarioOptions o;
      o.cluster.num_fronts = 2;
      o.num_requests = 40;
      o.cancel = 0;
      o.every_request_succeeds = true;
      if (apart) o.cluster.clock_spread = hours(10000);
      if (apart) o.cluster.clock_drift_ppm = 500;
      return o;
    };
  };
  const ScenarioCounts apart = RunAll(10, scenario(true)), together = RunAll(10, scenario(false));
  EXPECT_EQ(apart.done, together.done);
  EXPECT_EQ(apart.replacements, 0u);
  EXPECT_GT(apart.disaggregated, 100u);
}

// Each of two workers prefills for the other and decodes for the other, in pools that a few requests fill.
// FF-028
TEST(SimWideTest, WorkersThatWaitForEachOthersBlocksDoNotWaitInACircle) {
  const ScenarioCounts c = RunAll(10, [](uint64_t seed) {
    ScenarioOptions o;
    o.cluster.num_prefill = o.cluster.num_decode = 0;
    o.cluster.num_unified = 2 + seed % 2;
    o.cluster.pool_blocks = 16;
    o.cluster.prefix_cache = seed % 3 != 0;
    o.num_requests = 40;
    o.max_prompt = 100;
    o.arrivals_over = milliseconds(40);
    o.cancel = 0;
    o.every_request_succeeds = true;
    o.shape = Disaggregated;
    return o;
  });
  EXPECT_GT(c.busy, 100u) << "somebody waited for blocks";
  EXPECT_GT(c.disaggregated, 100u);
}

TEST(SimWideTest, WorkersOfTwoProtocolsServeTogetherWhileTheyAreUpgradedOneAfterAnother) {
  const ScenarioCounts c = RunAll(30, [](uint64_t) {
    ScenarioOptions o;
    o.cluster.upgrades = true;
    o.cluster.num_decode = 3;
    o.drain_each = true;
    o.moves = 40;
    o.faults_over = milliseconds(600);
    o.arrivals_over = milliseconds(900);
    o.num_requests = 60;
    o.cancel = 0;
    o.every_request_succeeds = true;
    return o;
  });
  EXPECT_EQ(c.faults.drains, 150u);
  EXPECT_GT(c.migrated, 20u) << "among those that know how";
}

// FF-120, FF-122
TEST(SimWideTest, WorkersThatDrainOneAfterAnotherCostNoRequest) {
  const ScenarioCounts c = RunAll(20, [](uint64_t) {
    ScenarioOptions o;
    o.drain_each = true;
    o.faults_over = milliseconds(600);
    o.arrivals_over = milliseconds(600);
    o.num_requests = 60;
    o.cancel = 0;
    o.every_request_succeeds = true;
    return o;
  });
  EXPECT_EQ(c.faults.drains, 80u);
  EXPECT_GT(c.disaggregated, 200u);
}

// What was posted under a ticket that ended meets only quarantine, however soon its blocks are wanted again.
// FF-023
TEST(SimWideTest, LateWritesLandInQuarantineOrNowhere) {
  const ScenarioCounts c = RunAll(30, [](uint64_t) {
    ScenarioOptions o;
    o.cluster.mode = TransferMode::kOneSided;
    o.cluster.pool_blocks = 26;
    o.cluster.transfer.post_delay = 0.5;
    o.cluster.transfer.max_delay = milliseconds(60);
    o.cancel = 0.5;
    o.pair_breaks = 6;
    o.num_requests = 40;
    o.shape = Disaggregated;
    return o;
  });
  EXPECT_GT(c.faults.late_puts, 100u);
  EXPECT_EQ(c.faults.stale_bytes, 0u);
}

// A reader that is busy at first, answers that come twice and late, puts that take their time, and others who want the
// writer's blocks: a late BUSY once let go of blocks that a put still read.
TEST(SimWideTest, ALateBusyDoesNotMeetTheHandOffThatHasItsTicketByNow) {
  const ScenarioCounts c = RunAll(30, [](uint64_t) {
    ScenarioOptions o;
    o.cluster.num_prefill = 1;
    o.cluster.pool_blocks = 26;
    o.cluster.message_duplicate = 0.5;
    o.cluster.message_late = 0.5;
    o.cluster.transfer.post_delay = 0.5;
    o.cluster.transfer.max_delay = milliseconds(80);
    o.num_requests = 40;
    o.cancel = 0;
    o.arrivals_over = milliseconds(200);
    o.shape = Disaggregated;
    return o;
  });
  EXPECT_GT(c.busy, 300u);
}

// FF-001
TEST(SimWideTest, ACancelMeetsReserveAndReady) {
  const ScenarioCounts c = RunAll(30, [](uint64_t) {
    ScenarioOptions o;
    o.cancel = 1;
    o.max_answer = 100;
    o.cluster.message_late = 0.4;
    o.supervisor_stays_out = true;
    o.shape = Disaggregated;
    return o;
  });
  EXPECT_GT(c.cancelled_reserving, 0u);
  EXPECT_GT(c.cancelled_ready, 0u);
}

TEST(SimWideTest, SeedsOfEveryShapeKeepEveryPromise) {
  const ScenarioCounts c = RunAll(150, WideScenario);
  EXPECT_GT(c.done, InFull(2000));
  EXPECT_GT(c.done_by_front.at(1), InFull(300));
  EXPECT_GT(c.faults.cuts, InFull(100));
  EXPECT_GT(c.faults.drains, InFull(30));
  EXPECT_GT(c.faults.faulted_handoffs, InFull(300));
  EXPECT_EQ(c.leaked_blocks, 0u);
}

}  // namespace
}  // namespace baton

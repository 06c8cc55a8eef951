// Answers that go on at another worker in the middle (S11, L12): at random, by drains, among faults of every kind.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/seeds.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

void Print(const ScenarioCounts& c) {
  std::printf("  migrations %lu, went on elsewhere %lu, where they were %lu, extensions %lu\n",
              static_cast<unsigned long>(c.migrations), static_cast<unsigned long>(c.migrated),
              static_cast<unsigned long>(c.migrations_failed), static_cast<unsigned long>(c.extensions));
}

// Long answers that are moved again and again.
ScenarioOptions Moving(ScenarioOptions o) {
  o.moves = 60;
  o.max_answer = 120;
  o.cluster.num_decode = std::max(2u, o.cluster.num_decode);
  return o;
}

TEST(SimMigrationTest, AnswersThatMoveInTheMiddleAreTheSame) {
  const ScenarioCounts c = RunAll(40, [](uint64_t seed) {
    ScenarioOptions o = Moving({});
    o.cluster.mode = seed % 2 == 0 ? TransferMode::kOneSided : TransferMode::kReceiverPosted;
    o.cluster.num_unified = seed % 3 == 0 ? 1 : 0;
    o.every_request_succeeds = true;
    return o;
  });
  EXPECT_GT(c.migrated, 300u);
  EXPECT_GT(c.extensions, 80u) << "they grew on the way (L12)";
  EXPECT_EQ(c.replacements, 0u) << "a migration is no failure";
  Print(c);
}

TEST(SimMigrationTest, AnywhereAmongFaultsOfEveryKindEveryPromiseHolds) {
  const ScenarioCounts c = RunAll(120, [](uint64_t seed) {
    ScenarioOptions o = Moving(seed % 3 == 0 ? WideScenario(seed) : MixedScenario(seed));
    o.pair_breaks += 4;
    if (seed % 4 == 0) o.kills += 2;
    if (seed % 5 == 0) o.orders = 6;
    if (seed % 7 == 0) o.cancel = 0.4;
    if (seed % 2 == 0) {
      o.cluster.message_drop = 0.05;
      o.cluster.message_late = o.cluster.message_duplicate = 0.2;
      o.cluster.transfer.post_delay = o.cluster.transfer.notice_delay = 0.3;
      o.cluster.transfer.max_delay = milliseconds(60);
    }
    return o;
  });
  EXPECT_GT(c.migrated, InFull(300));
  EXPECT_GT(c.migrations_failed, InFull(50));
  EXPECT_GT(c.extensions, InFull(50));
  EXPECT_GT(c.preemptions, 0u);
  Print(c);
}

}  // namespace
}  // namespace baton

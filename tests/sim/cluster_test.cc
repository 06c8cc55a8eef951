#include <gtest/gtest.h>

#include <cstdlib>

#include "sim/scenario.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

// First seed and number of seeds; BATON_SIM_SEED replays one.
std::pair<uint64_t, uint64_t> Seeds(uint64_t count) {
  if (const char* one = std::getenv("BATON_SIM_SEED")) return {std::strtoull(one, nullptr, 10), 1};
  return {0, count};
}

ScenarioCounts RunAll(uint64_t count, const std::function<ScenarioOptions(uint64_t)>& make) {
  ScenarioCounts total;
  const auto [first, n] = Seeds(count);
  for (uint64_t seed = first; seed < first + n; ++seed) {
    Scenario scenario(seed, make(seed));
    const std::string violation = scenario.Run();
    if (!violation.empty()) {
      const auto* info = testing::UnitTest::GetInstance()->current_test_info();
      ADD_FAILURE() << "seed " << seed << ": " << violation << "\nreplay: BATON_SIM_SEED=" << seed
                    << " sim_test --gtest_filter=" << info->test_suite_name() << "." << info->name();
      return total;
    }
    total.Add(scenario.counts());
  }
  return total;
}

TEST(SimClusterTest, WithoutFaultsEveryAnswerEqualsTheReferenceAndBlocksReturn) {
  const ScenarioCounts c = RunAll(20, [](uint64_t) { return ScenarioOptions{}; });
  EXPECT_EQ(c.failed, 0u);
  EXPECT_GT(c.done, 300u);
  EXPECT_GT(c.disaggregated, 50u);
  EXPECT_GT(c.cached_tokens, 0u);
  for (const char* name : {"p0", "p1", "d0", "d1"}) EXPECT_GT(c.used.count(name), 0u) << name;
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

TEST(SimClusterTest, FiveHundredSeedsOfFaultsKeepEveryPromise) {
  const ScenarioCounts c = RunAll(500, MixedScenario);
  EXPECT_GT(c.done, 5000u);
  EXPECT_GT(c.disaggregated, 1000u);
  EXPECT_GT(c.replacements, 0u);
  EXPECT_GT(c.corrupt, 0u);
  EXPECT_GT(c.repushes, 0u);
  EXPECT_GT(c.cancelled, 0u);
  for (const auto& [why, n] : c.failures) std::printf("  failed %6lu  %s\n", static_cast<unsigned long>(n), why.c_str());
  std::printf("  done %lu, disaggregated %lu, replaced %lu, preempted %lu, grants %lu\n",
              static_cast<unsigned long>(c.done), static_cast<unsigned long>(c.disaggregated),
              static_cast<unsigned long>(c.replacements), static_cast<unsigned long>(c.preemptions),
              static_cast<unsigned long>(c.grants));
}

}  // namespace
}  // namespace baton

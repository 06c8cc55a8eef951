// Every rule of the hand-off protocol that the code can be told to forget is missed: with the rule weakened, some
// seed of the simulator finds a violation (or a check inside the code stops the run, which is a find as well).
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "sim/scenario.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct RuleCase {
  const char* name;
  Rule rule;
  std::function<ScenarioOptions(uint64_t)> scenario;
};

ScenarioOptions Mixed(uint64_t seed) { return MixedScenario(seed); }

// Late one-sided writes, aborted tickets, a small pool that is used again at once.
ScenarioOptions LateWrites(uint64_t seed) {
  ScenarioOptions o = MixedScenario(seed);
  o.cluster.mode = TransferMode::kOneSided;
  o.cluster.pool_blocks = 26;
  o.cluster.prefix_cache = false;
  o.cluster.transfer.post_delay = 0.4;
  o.cluster.transfer.max_delay = milliseconds(60);
  o.cluster.message_duplicate = 0.2;
  o.cluster.message_late = 0.2;
  o.cluster.message_drop = 0.02;
  o.pair_breaks = 6;
  o.cancel = 0.3;
  o.num_requests = 40;
  return o;
}

ScenarioOptions LostWorkers(uint64_t seed) {
  ScenarioOptions o = MixedScenario(seed);
  o.kills = 3;
  o.front_breaks = 4;
  o.pair_breaks = 3;
  o.pauses = 2;
  o.pause_for = seconds(5);
  return o;
}

ScenarioOptions Pressure(uint64_t seed) {
  ScenarioOptions o = MixedScenario(seed);
  o.cluster.pool_blocks = 14;
  o.num_requests = 40;
  o.max_prompt = 100;
  o.max_answer = 60;
  o.arrivals_over = milliseconds(40);
  return o;
}

[[noreturn]] void ExitAtTheFirstFind(const RuleCase& rule_case) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    ScenarioOptions options = rule_case.scenario(seed);
    options.cluster.rules = Rules::AllBut(rule_case.rule);
    if (!Scenario(seed, options).Run().empty()) std::_Exit(42);
  }
  std::_Exit(0);
}

class RuleIsMissed : public testing::TestWithParam<RuleCase> {};

TEST_P(RuleIsMissed, BySomeSeed) {
  const auto found = [](int status) {
    return (WIFEXITED(status) && WEXITSTATUS(status) == 42) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  };
  EXPECT_EXIT(ExitAtTheFirstFind(GetParam()), found, "");
}

// The same scenarios with every rule in force are clean: a find above is the rule's doing.
TEST_P(RuleIsMissed, AndNothingIsFoundWithIt) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(Scenario(seed, GetParam().scenario(seed)).Run(), "") << GetParam().name << " seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Handoff, RuleIsMissed,
                         testing::Values(RuleCase{"S1", Rule::kS1, LateWrites}, RuleCase{"S3", Rule::kS3, Mixed},
                                         RuleCase{"S4", Rule::kS4, LateWrites}, RuleCase{"S5", Rule::kS5, LostWorkers},
                                         RuleCase{"S6", Rule::kS6, LostWorkers}, RuleCase{"S7", Rule::kS7, LostWorkers},
                                         RuleCase{"S9", Rule::kS9, Mixed}, RuleCase{"L1", Rule::kL1, LostWorkers},
                                         RuleCase{"L2", Rule::kL2, LateWrites}, RuleCase{"L3", Rule::kL3, LateWrites},
                                         RuleCase{"L5", Rule::kL5, Pressure}, RuleCase{"L6", Rule::kL6, Pressure},
                                         RuleCase{"L7", Rule::kL7, LostWorkers}, RuleCase{"L8", Rule::kL8, LostWorkers},
                                         RuleCase{"L9", Rule::kL9, Pressure}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace baton

// The release rules, exhaustively: every interleaving of the shipped machines for a block that goes from hand-off A to
// hand-off B. handoff_model.h says what may happen; the properties are its Violations and "every state can still come
// to rest".
#include <gtest/gtest.h>

#include <cstdio>

#include "unit/handoff/handoff_model.h"

namespace baton::model {
namespace {

constexpr size_t kMostStates = 20'000'000;

ModelResult Check(const char* name, const ModelOptions& options) {
  HandoffModel model(options);
  const ModelResult r = model.Explore(kMostStates);
  std::printf("  %-28s %8zu states %9zu transitions (%zu writer, %zu reader states)\n", name, r.states, r.transitions,
              r.writer_states, r.reader_states);
  return r;
}

std::string Story(const ModelResult& r) {
  std::string story = r.violation;
  for (const std::string& step : r.trace) story += "\n  " + step;
  return story;
}

struct Case {
  const char* name;
  ModelOptions options;
};

ModelOptions World(TransferMode mode, bool two_writers, uint8_t slots, uint8_t generations, Faults faults) {
  ModelOptions o;
  o.bounds.mode = mode;
  o.bounds.slots = slots;
  o.bounds.generations = generations;
  o.writer_of[1] = two_writers ? 1 : 0;
  o.faults = faults;
  return o;
}

ModelOptions Late(ModelOptions o) {
  o.bounds.late_completions = true;
  return o;
}
ModelOptions Repush(ModelOptions o) {
  o.bounds.pushes = 2;
  return o;
}

constexpr auto kW = TransferMode::kOneSided;
constexpr auto kR = TransferMode::kReceiverPosted;
constexpr auto kK = TransferMode::kKeyedPut;

std::vector<Case> Cases() {
  return {
      {"LateCompletions", Late(World(kW, false, 1, 2, {}))},
      {"Repush", Repush(World(kW, false, 1, 2, {}))},
      {"WrongBytes", Repush(World(kW, false, 1, 1, {.wrong_bytes = 1}))},
      {"Cancel", World(kW, false, 1, 2, {.cancels = 1})},
      {"Abort", World(kW, false, 1, 2, {.aborts = 1})},
      {"Forgotten", World(kW, false, 1, 2, {.forgotten = 1})},
      {"Session", World(kW, false, 1, 2, {.session_breaks = 1})},
      {"Broken", World(kW, false, 1, 2, {.broken_puts = 1})},
      {"Crash", World(kW, true, 1, 2, {.crashes = 1})},
      {"PostedBroken", World(kR, false, 1, 2, {.broken_puts = 1})},
      {"PostedCrash", World(kR, true, 1, 2, {.crashes = 1})},
      {"KeyedBroken", World(kK, false, 1, 2, {.broken_puts = 1})},
      {"KeyedCrash", World(kK, true, 1, 1, {.crashes = 1})},
      {"GivenUp", World(kW, false, 1, 1, {.session_breaks = 1, .broken_puts = 1, .given_up = 1})},
  };
}
// 13 million states, 40 s: scripts/night.sh runs them.
std::vector<Case> LongCases() {
  return {
      {"RepushLate", Late(Repush(World(kW, false, 1, 2, {})))},
      {"RepushWrongBytes", Late(Repush(World(kW, false, 1, 2, {.wrong_bytes = 1})))},
      {"RepushCancel", Repush(World(kW, false, 1, 2, {.cancels = 1}))},
      {"RepushPosted", Repush(World(kR, false, 1, 2, {.broken_puts = 1}))},
      {"ThreeGenerations", World(kW, false, 1, 3, {})},
      {"TwoSlots", World(kW, false, 2, 1, {})},
      {"TwoSlotsCancel", World(kW, false, 2, 1, {.cancels = 1})},
      {"Busy", World(kW, false, 1, 2, {.busy = 1})},
      {"LateSession", Late(World(kW, false, 1, 2, {.session_breaks = 1}))},
      {"BrokenSession", World(kW, false, 1, 2, {.session_breaks = 1, .broken_puts = 1})},
      {"GivenUp", World(kW, false, 1, 2, {.session_breaks = 1, .broken_puts = 1, .given_up = 1})},
      {"CrashBroken", World(kW, true, 1, 2, {.crashes = 1, .broken_puts = 1})},
      {"KeyedCrash", World(kK, true, 1, 2, {.crashes = 1})},
      {"KeyedSession", World(kK, false, 1, 2, {.session_breaks = 1, .broken_puts = 1})},
      {"PostedSession", World(kR, false, 1, 2, {.session_breaks = 1, .broken_puts = 1})},
  };
}

class EveryInterleaving : public testing::TestWithParam<Case> {};

TEST_P(EveryInterleaving, KeepsTheBlockAndComesToRest) {
  const ModelResult r = Check(GetParam().name, GetParam().options);
  EXPECT_EQ(r.violation, "") << Story(r);
  EXPECT_TRUE(r.exhausted || !r.violation.empty());
  EXPECT_GT(r.resting, 0u);
  if (GetParam().options.bounds.generations > 1) {
    EXPECT_GT(r.handed_over, 0u) << "both hand-offs succeed in some course";
  }
}
const auto kName = [](const auto& info) { return std::string(info.param.name); };
// Instrumented, a state takes 50 times as long: there the worlds of fewest states run the same code.
std::vector<Case> ShortCases() {
  std::vector<Case> out = Cases();
  if (BATON_SEED_SHARE > 1) std::erase_if(out, [](const Case& c) { return c.options.bounds.generations > 1; });
  return out;
}
INSTANTIATE_TEST_SUITE_P(Handoff, EveryInterleaving, testing::ValuesIn(ShortCases()), kName);
INSTANTIATE_TEST_SUITE_P(DISABLED_Long, EveryInterleaving, testing::ValuesIn(LongCases()), kName);

// ---- the checker finds what it is for -------------------------------------------------------------

struct Weakening {
  const char* name;
  Rule rule;
  ModelOptions options;
};

class Weakened : public testing::TestWithParam<Weakening> {};

TEST_P(Weakened, RuleIsMissed) {
  ModelOptions options = GetParam().options;
  options.bounds.rules = Rules::AllBut(GetParam().rule);
  const ModelResult r = Check(GetParam().name, options);
  EXPECT_NE(r.violation, "");
  std::printf("  in %zu steps: %s\n", r.trace.size(), r.violation.c_str());
}
INSTANTIATE_TEST_SUITE_P(Handoff, Weakened,
                         testing::Values(Weakening{"S1", Rule::kS1, World(kW, false, 1, 2, {})},
                                         Weakening{"S3", Rule::kS3, World(kW, false, 1, 2, {})},
                                         Weakening{"S4", Rule::kS4, World(kW, false, 1, 2, {})},
                                         Weakening{"S5", Rule::kS5, World(kW, false, 1, 2, {})},
                                         Weakening{"L2", Rule::kL2, World(kW, false, 1, 2, {})},
                                         Weakening{"L3", Rule::kL3, World(kW, false, 1, 2, {})}),
                         kName);

TEST(HandoffModelTest, AFenceThatDoesNotHoldIsFound) {
  ModelOptions options = World(kR, false, 1, 2, {.broken_puts = 1});
  options.fence_is_a_lie = true;
  EXPECT_NE(Check("FenceIsALie", options).violation, "");
  options.bounds.mode = kK;
  EXPECT_NE(Check("CutIsALie", options).violation, "");
}

}  // namespace
}  // namespace baton::model

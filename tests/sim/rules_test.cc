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

// Messages come late and twice, requests are cancelled in the middle; the data path is sound, so every writer lets
// go by itself.
ScenarioOptions LateMessages(uint64_t seed) {
  ScenarioOptions o;
  o.cluster.mode = seed % 2 == 0 ? TransferMode::kOneSided : TransferMode::kReceiverPosted;
  o.cluster.pool_blocks = 26;
  o.cluster.message_duplicate = 0.2;
  o.cluster.message_late = 0.3;
  o.cluster.transfer.post_delay = 0.3;
  o.cluster.transfer.max_delay = milliseconds(20);
  o.cancel = 0.4;
  o.pair_breaks = 2;
  o.num_requests = 40;
  o.supervisor_stays_out = true;
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

// The same, and one worker's sampler disagrees with all others'.
ScenarioOptions OddWorker(uint64_t seed) {
  ScenarioOptions o = LostWorkers(seed);
  o.cluster.odd_worker = seed % 4;
  return o;
}

// Nobody is left who could decode: what had started must fail in words, in time.
ScenarioOptions NobodyDecodes(uint64_t) {
  ScenarioOptions o;
  o.decode_workers_die = true;
  o.arrivals_over = milliseconds(30);
  o.cancel = 0;
  return o;
}

// One reader, too small for the crowd before it, and slow transfers.
ScenarioOptions Crowd(uint64_t) {
  ScenarioOptions o;
  o.cluster.num_prefill = o.cluster.num_decode = 1;
  o.cluster.pool_blocks = 20;
  o.cluster.transfer.post_delay = 0.5;
  o.cluster.transfer.max_delay = milliseconds(20);
  o.num_requests = 40;
  o.max_prompt = 100;
  o.max_answer = 60;
  o.arrivals_over = milliseconds(20);
  o.shape = [](uint32_t, ClientRequest* r) { r->placement = PlacementHint::kDisaggregated; };
  return o;
}

// Steps fail while others already want the prefix that they were to compute.
// No fault at all: only that decode workers have other blocks, so what is not converted is nothing.
ScenarioOptions UnlikeBlocks(uint64_t) {
  ScenarioOptions o;
  o.cluster.pool_blocks = 96;
  o.cluster.decode_block_tokens = 32;
  return o;
}

ScenarioOptions FailedSteps(uint64_t) {
  ScenarioOptions o;
  o.cluster.num_prefill = o.cluster.num_decode = 0;
  o.cluster.num_unified = 2;
  o.step_failures = 12;
  o.num_requests = 40;
  o.max_prompt = 30;
  o.arrivals_over = milliseconds(150);
  o.faults_over = milliseconds(200);
  return o;
}

// A worker stands still while its connections stand.
ScenarioOptions HungWorker(uint64_t) {
  ScenarioOptions o;
  o.hangs = 1;
  o.deadline = seconds(20);
  o.every_request_succeeds = true;
  return o;
}

// Two long answers fill both decode workers for seconds; the short ones that come then have deadlines of 4 s.
ScenarioOptions BusyReaders(uint64_t) {
  ScenarioOptions o;
  o.cluster.num_prefill = 1;
  o.cluster.pool_blocks = 26;
  o.cluster.cost.per_decode = milliseconds(20);
  o.cluster.prefix_cache = false;
  o.num_requests = 4;
  o.cancel = 0;
  o.arrivals_over = Duration(0);
  o.every_request_succeeds = true;
  o.shape = [](uint32_t number, ClientRequest* r) {
    const bool occupies = number <= 2;
    std::get<TokenPrompt>(r->prompt).ids.assign(occupies ? 260 : 120, 7);
    std::get<TokenPrompt>(r->prompt).ids[0] = 3 + number;
    r->ignore_eos = true;
    r->min_tokens.reset();
    r->max_tokens = occupies ? 130 : 8;
    r->deadline = occupies ? seconds(60) : seconds(4);
    r->placement = PlacementHint::kDisaggregated;
  };
  return o;
}

// Puts into shared memory that never end, of writers that are alive.
ScenarioOptions StuckWriters(uint64_t) {
  ScenarioOptions o;
  o.cluster.mode = TransferMode::kOneSided;
  o.cluster.transfer.post_never = 0.02;
  return o;
}

// One request kills whoever runs it.
ScenarioOptions Poison(uint64_t) {
  ScenarioOptions o;
  o.cluster.poison_salt = "poison";
  o.num_requests = 10;
  o.shape = [](uint32_t number, ClientRequest* r) {
    if (number == 5) r->cache_salt = "poison";
  };
  return o;
}

// The same beside many that are in its steps: all of them are hit by the first death, the next names it alone.
ScenarioOptions PoisonAmongOthers(uint64_t seed) {
  ScenarioOptions o = Poison(seed);
  if (seed % 2 == 0) {
    o.cluster.num_prefill = o.cluster.num_decode = 0;
    o.cluster.num_unified = 2;
  }
  o.num_requests = 12;
  o.arrivals_over = milliseconds(5);
  o.cancel = 0;
  o.max_prompt = 60;
  o.innocents_survive = true;
  return o;
}

// Running answers are moved.
ScenarioOptions Migrations(uint64_t) {
  ScenarioOptions o;
  o.cancel = 0;
  o.max_answer = 100;
  o.moves = 40;
  return o;
}

// To workers that die meanwhile.
ScenarioOptions MigrationsToTheDying(uint64_t seed) {
  ScenarioOptions o = Migrations(seed);
  o.kills = 4;
  o.pair_breaks = 10;
  o.cluster.transfer.post_delay = 0.5;
  o.cluster.transfer.max_delay = milliseconds(30);
  return o;
}

[[noreturn]] void ExitAtTheFirstFind(const RuleCase& rule_case) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    ScenarioOptions options = rule_case.scenario(seed);
    options.cluster.rules = Rules::AllBut(rule_case.rule);
    const std::string violation = Scenario(seed, options).Run();
    if (violation.empty()) continue;
    std::fprintf(stderr, "seed %lu: %s\n", static_cast<unsigned long>(seed), violation.c_str());
    std::_Exit(42);
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

INSTANTIATE_TEST_SUITE_P(
    Handoff, RuleIsMissed,
    testing::Values(RuleCase{"S1", Rule::kS1, LateWrites}, RuleCase{"S2", Rule::kS2, LostWorkers},
                    RuleCase{"S3", Rule::kS3, Mixed}, RuleCase{"S4", Rule::kS4, LateWrites},
                    RuleCase{"S4OutOfStaging", Rule::kS4, UnlikeBlocks}, RuleCase{"S5", Rule::kS5, LateMessages},
                    RuleCase{"S6", Rule::kS6, LostWorkers}, RuleCase{"S7", Rule::kS7, OddWorker},
                    RuleCase{"S8", Rule::kS8, LostWorkers}, RuleCase{"S9", Rule::kS9, FailedSteps},
                    RuleCase{"S11", Rule::kS11, Migrations}, RuleCase{"L1", Rule::kL1, NobodyDecodes},
                    RuleCase{"L2", Rule::kL2, LateMessages}, RuleCase{"L3", Rule::kL3, LateWrites},
                    RuleCase{"L4", Rule::kL4, HungWorker}, RuleCase{"L5", Rule::kL5, Crowd},
                    RuleCase{"L6", Rule::kL6, BusyReaders}, RuleCase{"L7", Rule::kL7, LostWorkers},
                    RuleCase{"L8", Rule::kL8, Poison}, RuleCase{"L8Apart", Rule::kL8Apart, PoisonAmongOthers},
                    RuleCase{"L9", Rule::kL9, Crowd}, RuleCase{"L9Stuck", Rule::kL9Stuck, StuckWriters},
                    RuleCase{"L10", Rule::kL10, BusyReaders}, RuleCase{"L12", Rule::kL12, MigrationsToTheDying}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace baton

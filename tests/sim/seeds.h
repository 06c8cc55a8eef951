// Scenarios over a range of seeds, in a test: the first violation ends it and prints how to replay its seed.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <utility>

#include "sim/scenario.h"
#include "support/seed_share.h"

namespace baton {

// First seed and number of seeds; BATON_SIM_SEED replays one. A long run is shared in sanitizer builds, and so is what it
// must have seen: InFull(n).
inline constexpr uint64_t kLongRun = 100;
inline std::pair<uint64_t, uint64_t> SeedRange(uint64_t count) {
  if (const char* one = std::getenv("BATON_SIM_SEED")) return {std::strtoull(one, nullptr, 10), 1};
  return {0, count >= kLongRun ? Seeds(count) : count};
}
constexpr uint64_t InFull(uint64_t least) { return Seeds(least); }

inline ScenarioCounts RunAll(uint64_t count, const std::function<ScenarioOptions(uint64_t)>& make) {
  ScenarioCounts total;
  const auto [first, n] = SeedRange(count);
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

}  // namespace baton

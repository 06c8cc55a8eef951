#include "app/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace baton {
namespace {

using ::testing::Contains;
using ::testing::Not;

std::vector<int> Cores(int count) {
  std::vector<int> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 4);  // not from 0: what this process may use
  return out;
}

TEST(SplitCoresTest, EveryWorkerGetsItsOwnCoresAsEvenlyAsCanBe) {
  for (int cores = 1; cores <= 40; ++cores) {
    for (int workers = 1; workers <= cores; ++workers) {
      const auto shares = SplitCores(Cores(cores), cores, workers);
      ASSERT_EQ(shares.size(), static_cast<size_t>(workers));
      std::set<int> seen;
      size_t least = 1000, most = 0;
      for (const auto& share : shares) {
        least = std::min(least, share.size());
        most = std::max(most, share.size());
        for (const int core : share) EXPECT_TRUE(seen.insert(core).second);
      }
      EXPECT_EQ(seen.size(), static_cast<size_t>(cores)) << cores << " cores, " << workers << " workers";
      EXPECT_LE(most - least, 1u);
      EXPECT_GE(least, 1u);
    }
  }
}

TEST(SplitCoresTest, NobodyIsPinnedWhereCoresAreFewerThanWorkersOrAQuotaGivesLess) {
  for (const auto& share : SplitCores(Cores(2), 2, 3)) EXPECT_TRUE(share.empty());
  for (const auto& share : SplitCores(Cores(64), 4, 2)) EXPECT_TRUE(share.empty());
}

Settings Resolve(std::map<std::string, std::string, std::less<>> flags) {
  SettingsInput input;
  input.command = kUp;
  input.flags = std::move(flags);
  auto settings = Settings::Resolve(input);
  BATON_CHECK(settings.ok(), settings.status().message());
  return *std::move(settings);
}

TEST(StuckLineTest, ComesBackAsItWasAndNothingElseReadsAsOne) {
  const Quarantine stuck{{"blue.prefill-0", {3, 4}}, 1234, 12, std::chrono::milliseconds(10'200), true};
  const std::string line = StuckLine(stuck);
  EXPECT_EQ(line, "stuck writer blue.prefill-0 pid 1234: 12 KV blocks have waited for it for 10.2 s");
  const auto parsed = ParseStuckLine(line);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->name, "blue.prefill-0");
  EXPECT_EQ(parsed->pid, 1234u);
  for (const char* other : {"", "stuck writer ", "stuck writer  pid 1:", "stuck writer a pid 1", "stuck writer a pid :",
                            "stuck writer a pid -1:", "stuck writer a pid 99999999999999999999:", "all workers joined",
                            "a stuck writer a pid 1:"}) {
    EXPECT_FALSE(ParseStuckLine(other).has_value()) << other;
  }
}

std::string After(const ChildPlan& child, const std::string& flag) {
  const auto it = std::find(child.arguments.begin(), child.arguments.end(), flag);
  return it == child.arguments.end() || it + 1 == child.arguments.end() ? "" : *(it + 1);
}

TEST(PlanChildrenTest, ARouterAndAProcessPerRoleWithWhatTheUserAskedFor) {
  const Settings settings = Resolve({{"model", "m.gguf"},
                                     {"prefill", "2"},
                                     {"decode", "1"},
                                     {"kv-memory", "64MiB"},
                                     {"max-queue", "5"},
                                     {"stuck-after", "2s"},
                                     {"log-level", "warn"}});
  const auto plan = PlanChildren(settings, Cores(7), 7, "127.0.0.1:0", "127.0.0.1:4000");
  ASSERT_EQ(plan.size(), 4u);
  EXPECT_EQ(plan[0].arguments[0], "router");
  EXPECT_EQ(After(plan[0], "--listen"), "127.0.0.1:0");
  EXPECT_EQ(After(plan[0], "--max-queue"), "5");
  EXPECT_EQ(After(plan[0], "--expect-workers"), "3");
  EXPECT_THAT(plan[0].arguments, Not(Contains("--kv-memory")));  // not the router's
  std::set<std::string> names, cores;
  for (size_t i = 1; i < plan.size(); ++i) {
    EXPECT_EQ(plan[i].arguments[0], i <= 2 ? "prefill" : "decode");
    EXPECT_EQ(plan[i].arguments[1], "m.gguf");
    EXPECT_EQ(After(plan[i], "--router"), "127.0.0.1:4000");
    EXPECT_EQ(After(plan[i], "--listen"), "127.0.0.1:0");
    EXPECT_EQ(After(plan[i], "--kv-memory"), "64MiB");
    EXPECT_EQ(After(plan[i], "--log-level"), "warn");
    EXPECT_EQ(After(plan[i], "--stuck-after"), "2s");
    EXPECT_THAT(plan[i].arguments, Not(Contains("--max-queue")));
    EXPECT_THAT(plan[i].arguments, Not(Contains("--max-running")));  // a default stays the child's default
    names.insert(After(plan[i], "--name"));
    cores.insert(After(plan[i], "--cores"));
  }
  EXPECT_EQ(names, (std::set<std::string>{"prefill-0", "prefill-1", "decode-0"}));
  EXPECT_EQ(cores, (std::set<std::string>{"4,5,6", "7,8", "9,10"}));
}

TEST(PlanChildrenTest, WorkersOfAWildcardListenAndDialOnLoopback) {
  for (const auto& [all, loopback] : {std::pair("0.0.0.0", "127.0.0.1"), std::pair("[::]", "[::1]")}) {
    const std::string listen = std::string(all) + ":4000";
    const Settings settings = Resolve(
        {{"model", "m.gguf"}, {"prefill", "1"}, {"decode", "1"}, {"listen", listen}, {"insecure-listen", "true"}});
    const auto plan = PlanChildren(settings, Cores(1), 1, listen, listen);
    EXPECT_EQ(After(plan[0], "--listen"), listen);
    for (size_t i = 1; i < plan.size(); ++i) {
      EXPECT_EQ(After(plan[i], "--listen"), std::string(loopback) + ":0");
      EXPECT_EQ(After(plan[i], "--router"), std::string(loopback) + ":4000");
    }
  }
}

TEST(PlanChildrenTest, EveryPlannedCommandLineIsOneThatItsCommandKnows) {
  const Settings settings = Resolve({{"model", "m.gguf"},
                                     {"prefill", "1"},
                                     {"decode", "1"},
                                     {"insecure-listen", "true"},
                                     {"listen", "0.0.0.0:9"},
                                     {"transport", "ucx-tcp"},
                                     {"threads", "1"},
                                     {"state-dir", "/x"},
                                     {"max-context", "100"},
                                     {"name", "blue"}});
  for (const ChildPlan& child : PlanChildren(settings, Cores(1), 1, "0.0.0.0:9", "0.0.0.0:9")) {
    SettingsInput input;
    input.command = child.arguments[0] == "router" ? kRouter : child.arguments[0] == "prefill" ? kPrefill : kDecode;
    input.flags["model"] = child.arguments[1];
    for (size_t i = 2; i < child.arguments.size(); ++i) {
      const std::string name = child.arguments[i].substr(2);
      const OptionSpec* spec = FindOption(name, input.command);
      ASSERT_NE(spec, nullptr) << name;
      input.flags[name] = spec->kind == OptionKind::kFlag ? "true" : child.arguments[++i];
    }
    const auto resolved = Settings::Resolve(input);
    EXPECT_TRUE(resolved.ok()) << resolved.status().message();
    EXPECT_EQ(resolved->Text("name").rfind("blue.", 0), 0u);
  }
}

}  // namespace
}  // namespace baton

// What operators do to a cluster that serves: roles, drains, rolling restarts, looking at it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <sstream>

#include "e2e/cluster.h"
#include "support/metric_names.h"

namespace baton::test {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr RoleMask kPrefillOnly{true, false}, kDecodeOnly{false, true}, kUnifiedRole{true, true};

DrainOrder DrainOf(const std::string& worker, bool undo = false) {
  DrainOrder order;
  order.worker = worker;
  order.undo = undo;
  order.wait = seconds(30);
  return order;
}
RoleOrder RoleOf(const std::string& worker, RoleMask roles) {
  RoleOrder order;
  order.worker = worker;
  order.roles = roles;
  order.wait = seconds(10);
  return order;
}

// Clients that ask for the same few answers again and again, each of which must come and be the same.
class Load {
 public:
  Load(const Cluster& cluster, int clients) {
    const auto client = cluster.Client();
    for (uint64_t seed = 0; seed < kPrompts; ++seed) {
      expected_.push_back(Ask(client.get(), Request(seed)).ids);
      EXPECT_FALSE(expected_.back().empty());
    }
    for (int i = 0; i < clients; ++i) {
      threads_.emplace_back([this, &cluster, i] {
        const auto mine = cluster.Client();
        for (uint64_t seed = static_cast<uint64_t>(i); !stop_; ++seed) {
          const Answer answer = Ask(mine.get(), Request(seed % kPrompts));
          std::lock_guard lock(mutex_);
          ++answers_;
          if (!answer.ok()) {
            faults_ += answer.result.status.ToString() + " (" + answer.result.reason + ")\n";
          } else if (answer.ids != expected_[seed % kPrompts]) {
            faults_ += "another answer\n";
          }
          ++used_[answer.done.timings.decode_worker];
        }
      });
    }
  }
  ~Load() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  uint64_t answers() {
    std::lock_guard lock(mutex_);
    return answers_;
  }
  // So that what was ordered meets requests of every age.
  void WaitForAnswers(uint64_t more) {
    const uint64_t until = answers() + more;
    EXPECT_TRUE(Eventually(milliseconds(60'000), [&] { return answers() >= until; }));
  }
  std::string faults() {
    std::lock_guard lock(mutex_);
    return faults_;
  }
  std::map<std::string, uint64_t> used() {
    std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  static constexpr uint64_t kPrompts = 6;
  static ClientRequest Request(uint64_t seed) {
    return GreedyIds(RandomPrompt(900 + seed, 40 + 30 * seed), static_cast<int64_t>(20 + 10 * seed));
  }

  std::vector<std::vector<TokenId>> expected_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::string faults_;
  uint64_t answers_ = 0;
  std::map<std::string, uint64_t> used_;
};

// FF-123
TEST(OperateTest, RolesTurnAndEveryWorkerIsReplacedUnderLoadAndNoAnswerIsLostOrOther) {
  Cluster cluster({.prefill = 1, .decode = 2});
  const auto client = cluster.Client();
  Load load(cluster, 3);
  for (const RoleMask roles : {kDecodeOnly, kPrefillOnly, kUnifiedRole, kDecodeOnly, kPrefillOnly}) {
    const auto turned = client->SetRole(RoleOf("prefill-0", roles));
    ASSERT_TRUE(turned.ok()) << turned.status().ToString();
    EXPECT_TRUE(turned->changed);
    EXPECT_EQ(turned->roles, roles);
    load.WaitForAnswers(5);
  }
  // The pair the other way round.
  for (const auto& [name, roles] : {std::pair("decode-0", kPrefillOnly), std::pair("prefill-0", kDecodeOnly),
                                    std::pair("prefill-0", kPrefillOnly), std::pair("decode-0", kDecodeOnly)}) {
    ASSERT_TRUE(client->SetRole(RoleOf(name, roles)).ok());
    load.WaitForAnswers(5);
  }
  for (const char* name : {"prefill-0", "decode-0", "decode-1"}) {
    const auto drained = client->Drain(DrainOf(name), {});
    ASSERT_TRUE(drained.ok()) << drained.status().ToString();
    EXPECT_TRUE(drained->empty) << name;
    EXPECT_EQ(drained->running + drained->waiting + drained->requests, 0u);
    load.WaitForAnswers(3);
    const size_t mark = cluster.Mark();
    const pid_t old = cluster.Pid(name);
    kill(old, SIGTERM);
    ASSERT_TRUE(cluster.ReadyAgain(mark)) << name;
    EXPECT_NE(cluster.Pid(name), old);
    load.WaitForAnswers(5);
  }
  load.Stop();
  EXPECT_EQ(load.faults(), "");
  EXPECT_GT(load.answers(), 50u);
  EXPECT_GT(load.used().size(), 1u);
  EXPECT_TRUE(cluster.BecomesIdle());
  const auto after = client->GetCluster();
  ASSERT_TRUE(after.ok());
  for (const WorkerDescription& w : after->workers) {
    EXPECT_EQ(w.incarnation, 2u) << w.name;
    EXPECT_FALSE(w.draining) << "a new process admits work";
    EXPECT_EQ(w.roles, w.name == "prefill-0" ? kPrefillOnly : kDecodeOnly) << "and has the role it was started with";
  }
  cluster.StopInOrder();
}

double Total(const ClusterDescription& cluster, const std::string& metric) {
  double sum = 0;
  for (const WorkerDescription& w : cluster.workers) {
    const auto it = w.metrics.find(metric);
    sum += it == w.metrics.end() ? 0 : it->second;
  }
  return sum;
}

// Answers may be over before a drain meets them: then others are asked.
TEST(OperateTest, AnswersInTheMiddleLeaveAWorkerThatDrainsWithTheirKvAndAreTheSame) {
  constexpr int kAnswers = 4;
  constexpr int64_t kTokens = 400;
  constexpr size_t kPrompt = 60;
  Cluster cluster({.prefill = 1, .decode = 2});
  const auto client = cluster.Client();
  const auto request = [&](uint64_t seed) {
    ClientRequest r = GreedyIds(RandomPrompt(seed, kPrompt), kTokens);
    r.placement = PlacementHint::kDisaggregated;
    r.decode_worker = "decode-0";
    return r;
  };
  double asked = 0;
  int moved = 0;
  bool emptied_in_the_middle = false;
  std::vector<Answer> answers(kAnswers);
  uint64_t seed = 0;
  for (int round = 0; round < 20 && !(moved > 0 && emptied_in_the_middle); ++round) {
    seed = 5000 + 100 * static_cast<uint64_t>(round);
    std::atomic<int> begun{0}, over{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < kAnswers; ++i) {
      clients.emplace_back([&, i] {
        const auto mine = cluster.Client();
        bool told = false;
        answers[i] = Ask(mine.get(), request(seed + i), [&](const Answer& a) {
          if (a.ids.size() > 1 && !std::exchange(told, true)) ++begun;  // the second token is the decode worker's
        });
        ++over;
      });
    }
    EXPECT_TRUE(Eventually(milliseconds(30'000), [&] { return begun == kAnswers; }));
    const auto drained = client->Drain(DrainOf("decode-0"), {});
    ASSERT_TRUE(drained.ok()) << drained.status().ToString();
    EXPECT_TRUE(drained->empty);
    emptied_in_the_middle = over < kAnswers;
    for (std::thread& thread : clients) thread.join();
    asked += kAnswers * (kPrompt + kTokens - 1);
    for (const Answer& a : answers) {
      ASSERT_TRUE(a.ok()) << a.result.status.ToString();
      EXPECT_EQ(a.done.timings.retries, 0u);
      EXPECT_EQ(a.done.timings.decode_worker, a.done.timings.migrations > 0 ? "decode-1" : "decode-0");
      moved += static_cast<int>(a.done.timings.migrations);
    }
    ASSERT_TRUE(client->Drain(DrainOf("decode-0", /*undo=*/true), {}).ok());
  }
  EXPECT_GT(moved, 0);
  EXPECT_TRUE(emptied_in_the_middle) << "the drain did not wait for the answers";
  // Reports come once a second.
  const char* const kComputed = "engine_computed_tokens_total";
  StatusOr<ClusterDescription> after = client->GetCluster();
  EXPECT_TRUE(Eventually(milliseconds(15'000), [&] {
    after = client->GetCluster();
    return after.ok() && Total(*after, kComputed) >= asked &&
           Total(*after, "kv_migrations_total{result=\"finished\"}") >= moved;
  }));
  EXPECT_EQ(Total(*after, kComputed), asked) << "every token once: nothing was computed again";
  EXPECT_EQ(Total(*after, "kv_migrations_total{result=\"finished\"}"), moved);
  EXPECT_GE(Total(*after, "kv_migrated_bytes_total"), 1);
  for (int i = 0; i < kAnswers; ++i) {
    const Answer undisturbed = Ask(client.get(), request(seed + i));
    ASSERT_TRUE(undisturbed.ok());
    EXPECT_EQ(answers[i].ids, undisturbed.ids)
        << "of answer " << i << ", migrated " << answers[i].done.timings.migrations << " times";
  }
  EXPECT_TRUE(cluster.BecomesIdle());
  cluster.StopInOrder();
}

// Versions one apart in one cluster, whichever the router has: workers of the other one join under load, those that
// were there drain and leave.
TEST(OperateTest, WorkersOfTheNextAndOfTheLastProtocolReplaceThoseOfARunningCluster) {
  for (const auto& [have, come] : {std::pair("1", "2"), std::pair("2", "1")}) {
    SCOPED_TRACE(have);
    Cluster cluster({.prefill = 1, .decode = 2, .more = {"--protocol", have}});
    const auto client = cluster.Client();
    Load load(cluster, 3);
    ScratchFolder folder;
    std::vector<std::unique_ptr<Process>> others;
    for (const auto& [role, name] : {std::pair("prefill", "next-p"), std::pair("decode", "next-d")}) {
      others.push_back(std::make_unique<Process>(
          folder,
          std::vector<std::string>{BATON_BINARY, role, TinyModel(), "--name", name, "--router", cluster.address(),
                                   "--state-dir", folder.path(), "--kv-memory", "64MiB", "--protocol", come}));
    }
    ASSERT_TRUE(Eventually(kStartLimit, [&] {
      const auto state = client->GetCluster();
      return state.ok() && state->workers.size() == 5;
    }));
    load.WaitForAnswers(20);
    for (const char* name : {"decode-0", "prefill-0", "decode-1"}) {
      const auto drained = client->Drain(DrainOf(name), {});
      ASSERT_TRUE(drained.ok()) << drained.status().ToString();
      EXPECT_TRUE(drained->empty) << name;
      load.WaitForAnswers(5);
    }
    load.Stop();
    EXPECT_EQ(load.faults(), "");
    EXPECT_GT(load.used()["next-d"], 0u);
    for (const auto& process : others) {
      process->Signal(SIGTERM);
      EXPECT_EQ(process->Wait(kStopLimit), 0) << process->err();
    }
    cluster.StopInOrder();
  }
}

TEST(OperateTest, AWatcherSeesAChangeAndTheSnapshotTellsBlocksPathsAndCounts) {
  Cluster cluster({.prefill = 1, .decode = 1});
  const auto client = cluster.Client();
  ASSERT_TRUE(Ask(client.get(), GreedyIds(RandomPrompt(1, 120), 20)).ok());
  std::vector<ClusterDescription> seen;
  bool asked = false;
  const Status watched = client->WatchCluster(milliseconds(100), [&](const ClusterDescription& snapshot) {
    seen.push_back(snapshot);
    const auto other = cluster.Client();
    if (!std::exchange(asked, true)) {
      EXPECT_TRUE(other->SetRole(RoleOf("prefill-0", kUnifiedRole)).ok());
    }
    const bool reported = std::all_of(snapshot.workers.begin(), snapshot.workers.end(), [](const auto& w) {
      return w.metrics.count("kv_reserves_total{answer=\"granted\"}") > 0 && w.uptime > seconds(1);
    });
    return seen.size() < 200 && !(reported && snapshot.workers[1].roles == kUnifiedRole &&
                                  snapshot.workers[1].metrics.at("kv_handed_off_total") > 0);
  });
  ASSERT_TRUE(watched.ok()) << watched.ToString();
  ASSERT_GE(seen.size(), 2u);
  ASSERT_EQ(seen.front().workers.size(), 2u);
  EXPECT_EQ(seen.front().workers[1].name, "prefill-0");
  EXPECT_EQ(seen.front().workers[1].roles, kPrefillOnly);
  const WorkerDescription &d = seen.back().workers[0], &p = seen.back().workers[1];
  EXPECT_EQ(p.roles, kUnifiedRole);
  for (const WorkerDescription* w : {&p, &d}) {
    ASSERT_EQ(w->blocks.size(), 1u);
    const BlockReport& b = w->blocks[0];
    EXPECT_EQ(b.free + b.owned + b.cached + b.quarantined, w->total_blocks[0]);
    EXPECT_GT(b.cached, 0u);
    EXPECT_EQ(w->transport, "ucx");
    EXPECT_EQ(w->tickets.size(), 5u);
    EXPECT_GT(w->decode_step_seconds, 0);
    EXPECT_GT(w->prefill_tokens_per_second, 0);
    EXPECT_EQ(w->metrics.at("kv_aborts_total{code=\"lease\"}"), 0);
    for (const auto* names : {&kHandOffMetrics, &kTransportMetrics}) {
      for (const std::string_view name : *names) EXPECT_TRUE(w->metrics.contains(std::string(name))) << name;
    }
  }
  ASSERT_FALSE(p.lanes.empty());
  EXPECT_EQ(p.lanes[0].peer, "decode-0");
  EXPECT_TRUE(p.lanes[0].up && !p.lanes[0].incoming);
  EXPECT_EQ(p.lanes[0].mode, "one-sided");
  EXPECT_GT(p.lanes[0].bytes, 0u);
  EXPECT_GT(p.lanes[0].bytes_per_second, 0);
  EXPECT_EQ(p.lanes[0].lane, "posix");
  EXPECT_GT(p.lanes[0].credit_bytes, 0u);
  EXPECT_EQ(p.lanes[0].states.size(), 0u) << "nothing is under way";
  EXPECT_GT(p.metrics.at("kv_transfer_seconds_count{mode=\"one-sided\",peer_kind=\"same-host\"}"), 0);
  EXPECT_GT(p.metrics.at("kv_commit_seconds_sum"), 0);
  EXPECT_GT(p.metrics.at("kv_piece_bytes_sum"), 0);
  EXPECT_EQ(p.metrics.at("kv_lane{mode=\"one-sided\"}"), 1);
  ASSERT_FALSE(d.lanes.empty());
  EXPECT_TRUE(d.lanes[0].incoming);
  EXPECT_GT(d.lanes[0].bytes, 0u);
  EXPECT_GT(d.lanes[0].credit_tickets, 0u);
  EXPECT_GE(p.metrics.at("kv_bytes_total{direction=\"out\"}"), static_cast<double>(p.lanes[0].bytes));
  EXPECT_EQ(d.metrics.at("kv_commits_total{answer=\"ack\"}"), p.metrics.at("kv_handed_off_total"));
  cluster.StopInOrder();
}

TEST(OperateTest, TheCommandsShowTheClusterAndRefuseInWords) {
  Cluster cluster({.prefill = 1, .decode = 1});
  ScratchFolder folder;
  struct Said {
    int code = -1;
    std::string out, err;
  };
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), BATON_BINARY);
    arguments.insert(arguments.end(), {"--server", cluster.address()});
    Process process(folder, arguments);
    Said said;
    said.code = process.Wait(milliseconds(30'000)).value_or(-1);
    said.out = process.out();
    said.err = process.err();
    return said;
  };
  ASSERT_TRUE(Ask(cluster.Client().get(), GreedyIds(RandomPrompt(1, 120), 20)).ok());
  EXPECT_TRUE(Eventually(milliseconds(10'000),
                         [&] { return run({"cluster"}).out.find("prefill-0 -> decode-0") != std::string::npos; }));
  const Said table = run({"cluster"});
  EXPECT_EQ(table.code, 0);
  EXPECT_THAT(table.out, AllOf(HasSubstr("decode-0"), HasSubstr("serving"), HasSubstr("one-sided")));
  std::istringstream lines(table.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  const Said json = run({"cluster", "--json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_THAT(json.out, HasSubstr("\"kv_handed_off_total\":1.0"));
  EXPECT_EQ(std::count(json.out.begin(), json.out.end(), '\n'), 1);

  const Said typo = run({"drain", "decode"});
  EXPECT_EQ(typo.code, 1);
  EXPECT_THAT(typo.err, HasSubstr("connected: decode-0, prefill-0"));
  const Said last = run({"role", "decode-0", "prefill"});
  EXPECT_EQ(last.code, 1);
  EXPECT_THAT(last.err, HasSubstr("decode-0 is the last worker that can decode"));
  EXPECT_EQ(run({"role", "decode-0", "both"}).code, 2);
  EXPECT_EQ(run({"drain"}).code, 2);
  EXPECT_THAT(run({"role", "prefill-0", "unified"}).out, HasSubstr("prefill-0 is a unified worker now"));
  EXPECT_THAT(run({"role", "prefill-0", "unified"}).out, HasSubstr("already"));
  const Said drained = run({"drain", "decode-0"});
  EXPECT_EQ(drained.code, 0) << drained.err;
  EXPECT_THAT(drained.out, HasSubstr("decode-0 is drained"));
  EXPECT_THAT(run({"cluster"}).out, HasSubstr("drained"));
  EXPECT_TRUE(Ask(cluster.Client().get(), GreedyIds(RandomPrompt(2, 70), 10)).ok());
  EXPECT_THAT(run({"drain", "decode-0", "--undo"}).out, HasSubstr("decode-0 admits work again"));
  EXPECT_EQ(run({"drain", "--whole-router"}).code, 0);
  const Answer refused = Ask(cluster.Client().get(), GreedyIds({1, 2, 3}, 4));
  EXPECT_EQ(refused.result.reason, "DRAINING");
  EXPECT_EQ(run({"drain", "--whole-router", "--undo"}).code, 0);
  EXPECT_TRUE(Ask(cluster.Client().get(), GreedyIds({5, 6, 7}, 4)).ok());
  cluster.StopInOrder();
}

}  // namespace
}  // namespace baton::test

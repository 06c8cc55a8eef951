// Processes that die, stop or vanish in the middle of requests: the client's answer is the one it would have
// been, or ends with an error, and blocks always return.
#include <algorithm>
#include <atomic>
#include <optional>

#include "disturbed.h"

namespace baton::test {
namespace {

// Asks, and calls `disturb` once, from the stream's own thread, when so many tokens have come. All of the answer may
// have been on its way by then, on a machine where that thread waits for a core: such an answer shows nothing, and the
// request is sent again once the cluster is at rest.
Answer AskAndDisturb(Cluster& cluster, const ClientRequest& request, size_t after,
                     const std::function<void(const Started&)>& disturb) {
  for (int attempt = 1;; ++attempt) {
    bool disturbed = false;
    Answer answer = Ask(cluster.Client().get(), request, [&](const Answer& so_far) {
      if (disturbed || so_far.ids.size() < after) return;
      disturbed = true;
      disturb(so_far.started);
    });
    if (!answer.ok() || answer.done.timings.placements > 1 || attempt == 8) return answer;
    EXPECT_TRUE(cluster.BecomesIdle());
  }
}

class DecodeDiesTest : public ::testing::TestWithParam<std::pair<int, const char*>> {};

// FF-013
TEST_P(DecodeDiesTest, InTheMiddleOfAnAnswerAndTheAnswerIsTheSame) {
  const ClientRequest request = LongRequest(21);
  const auto expected = Undisturbed(request);
  Cluster cluster({.prefill = 1, .decode = GetParam().first, .transport = GetParam().second});
  const Answer answer = AskAndDisturb(
      cluster, request, 10, [&](const Started& started) { kill(cluster.Pid(started.decode_worker), SIGKILL); });
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.ids, expected);
  EXPECT_GE(answer.done.timings.placements, 2u);
  EXPECT_TRUE(cluster.BecomesIdle());  // also: the dead one is back
  const Answer again = Ask(cluster.Client().get(), request);
  ASSERT_TRUE(again.ok()) << again.result.status.ToString();
  EXPECT_EQ(again.ids, expected);
  cluster.StopInOrder();
}

INSTANTIATE_TEST_SUITE_P(Shapes, DecodeDiesTest,
                         ::testing::Values(std::pair{1, "ucx-shm"}, std::pair{1, "ucx-tcp"}, std::pair{2, "ucx-shm"},
                                           std::pair{2, "grpc"}),
                         [](const auto& info) {
                           std::string name = std::to_string(info.param.first) + "D_" + info.param.second;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// FF-008
TEST(PrefillDiesTest, WithARequestInItsHandsAndTheAnswerIsTheSame) {
  const ClientRequest request = LongRequest(22);
  const auto expected = Undisturbed(request);
  for (const char* transport : {"ucx-shm", "ucx-tcp", "grpc"}) {
    Cluster cluster({.prefill = 1, .decode = 1, .transport = transport});
    // Stopped, it takes the request and does nothing with it; then it is gone.
    const pid_t prefill = cluster.Pid("prefill-0");
    kill(prefill, SIGSTOP);
    std::atomic<bool> over{false};
    Answer answer;
    std::thread asking([&] {
      answer = Ask(cluster.Client().get(), request);
      over = true;
    });
    EXPECT_TRUE(Eventually(milliseconds(2000), [&] {
      const auto state = cluster.Client()->GetCluster();
      return state.ok() && state->live > 0;
    }));
    EXPECT_FALSE(over);
    kill(prefill, SIGKILL);
    asking.join();
    ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
    EXPECT_EQ(answer.ids, expected);
    EXPECT_TRUE(cluster.BecomesIdle());
    cluster.StopInOrder();
  }
}

TEST(PrefillDiesTest, WhileItComputesALongPromptAndTheAnswerIsTheSame) {
  if (RealModel().empty()) GTEST_SKIP() << "no model; scripts/fetch_model.sh brings it";
  std::vector<int64_t> ids;
  for (size_t i = 0; i < 600; ++i) ids.push_back(static_cast<int64_t>(1000 + Mix64(i) % 40'000));
  ClientRequest request = GreedyIds(ids, 12);
  const auto expected = Undisturbed(request, RealModel());
  request.placement = PlacementHint::kDisaggregated;
  Cluster cluster({.model = RealModel(), .prefill = 1, .decode = 1, .more = {"--max-step-tokens", "65"}});
  Answer answer;
  std::thread asking([&] { answer = Ask(cluster.Client().get(), request); });
  // Steps are counted: the first of the ten are done, the last is not.
  EXPECT_TRUE(Eventually(milliseconds(20'000), [&] {
    const auto state = cluster.Client()->GetCluster();
    if (!state.ok()) return false;
    for (const WorkerDescription& w : state->workers) {
      if (w.name == "prefill-0" && w.steps >= 2) return true;
    }
    return false;
  }));
  kill(cluster.Pid("prefill-0"), SIGKILL);
  asking.join();
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.ids, expected);
  EXPECT_GE(answer.done.timings.placements, 2u);
  EXPECT_TRUE(cluster.BecomesIdle());
  cluster.StopInOrder();
}

// A prefill worker that was stopped while decode-0 waited for the rest of its bytes, and the request of that time.
class StoppedWriter {
 public:
  StoppedWriter(const Cluster& cluster, std::string worker, pid_t pid)
      : cluster_(cluster), worker_(std::move(worker)), pid_(pid) {
    for (uint64_t seed = 500; seed < 520 && !caught_; ++seed) Try(seed);
    EXPECT_TRUE(caught_) << "never in the middle";
  }
  ~StoppedWriter() {
    if (asking_.joinable()) asking_.join();
  }
  const ClientRequest& request() const { return request_; }
  const Answer& WaitForAnswer() {
    asking_.join();
    return answer_;
  }

 private:
  void Try(uint64_t seed) {
    request_ = GreedyIds(RandomPrompt(seed, 400), 40);
    request_.placement = PlacementHint::kDisaggregated;
    request_.prefill_worker = worker_;
    const auto idle = Look(cluster_, worker_);
    const uint64_t before = idle ? idle->steps : 0;
    over_ = false;
    asking_ = std::thread([this] {
      answer_ = Ask(cluster_.Client().get(), request_);
      over_ = true;
    });
    EXPECT_TRUE(Eventually(milliseconds(20'000), [&] {
      const auto now = Look(cluster_, worker_);
      return over_ || (now && now->steps >= before + 3);
    }));
    kill(pid_, SIGSTOP);
    EXPECT_TRUE(Eventually(milliseconds(20'000), [&] {
      const auto reader = Look(cluster_, "decode-0");
      caught_ = reader && !reader->quarantines.empty();
      return caught_ || over_;
    }));
    if (caught_) return;
    kill(pid_, SIGCONT);
    asking_.join();
  }

  const Cluster& cluster_;
  const std::string worker_;
  const pid_t pid_;
  ClientRequest request_;
  Answer answer_;
  std::thread asking_;
  std::atomic<bool> over_{false};
  bool caught_ = false;
};

// L9, FF-023
TEST(PrefillStopsTest, InTheMiddleOfATransferAndItsSupervisorKillsItSoThatBlocksReturn) {
  Cluster cluster(SlowPrefill());
  const size_t mark = cluster.Mark();
  const pid_t stopped = cluster.Pid("prefill-0");
  StoppedWriter writer(cluster, "prefill-0", stopped);
  const std::string who = "prefill-0: pid " + std::to_string(stopped);
  const size_t killed = cluster.process().WaitForOut(who + " is stuck and is killed", milliseconds(20'000), mark);
  ASSERT_NE(killed, std::string::npos);
  EXPECT_NE(
      cluster.process().WaitForOut(who + " was killed by signal 9; starting it again", milliseconds(10'000), mark),
      std::string::npos);
  EXPECT_TRUE(cluster.ReadyAgain(killed));
  const Answer& answer = writer.WaitForAnswer();
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  const auto expected = Undisturbed(writer.request());
  EXPECT_EQ(answer.ids, expected);
  EXPECT_TRUE(cluster.BecomesIdle());
  EXPECT_NE(cluster.Pid("prefill-0"), stopped);
  const Answer again = Ask(cluster.Client().get(), writer.request());
  ASSERT_TRUE(again.ok()) << again.result.status.ToString();
  EXPECT_EQ(again.ids, expected);
  EXPECT_TRUE(again.done.timings.disaggregated);
  cluster.StopInOrder();
}

TEST(PrefillStopsTest, WhereNoSupervisorStartedItItIsLeftAloneAndOperatorsSeeIt) {
  Cluster cluster(SlowPrefill());
  ScratchFolder folder;
  std::vector<std::string> arguments = {
      BATON_BINARY,  "prefill",       TinyModel(),   "--name",    "outsider",    "--router",  cluster.address(),
      "--state-dir", folder.path(),   "--kv-memory", "64MiB",     "--transport", "ucx-shm",   "--max-step-tokens",
      "16",          "--max-running", "8",           "--kernels", "reference",   "--threads", "1"};
  Process outsider(folder, arguments);
  ASSERT_TRUE(Eventually(kStartLimit, [&] { return Look(cluster, "outsider").has_value(); }));
  StoppedWriter writer(cluster, "outsider", outsider.pid());
  std::optional<WorkerDescription> reader;
  EXPECT_TRUE(Eventually(milliseconds(20'000), [&] {
    reader = Look(cluster, "decode-0");
    return reader && reader->quarantines.size() == 1 && reader->quarantines[0].stuck;
  }));
  ASSERT_TRUE(reader && !reader->quarantines.empty());
  EXPECT_EQ(reader->quarantines[0].writer.name, "outsider");
  EXPECT_EQ(reader->quarantines[0].pid, static_cast<uint64_t>(outsider.pid()));
  EXPECT_GE(reader->quarantines[0].blocks, 1u);
  EXPECT_NE(cluster.process().WaitForOut(
                "outsider: pid " + std::to_string(outsider.pid()) + " is stuck but was not started here",
                milliseconds(10'000)),
            std::string::npos);
  EXPECT_NE(cluster.process().err().find("kill it"), std::string::npos);
  EXPECT_EQ(outsider.Wait(milliseconds(0)), std::nullopt) << "stopped, not killed";
  EXPECT_TRUE(Alive(cluster.Pid("prefill-0")));
  const Answer& answer = writer.WaitForAnswer();
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.ids, Undisturbed(writer.request()));
  outsider.Signal(SIGKILL);
  EXPECT_EQ(outsider.Wait(kStopLimit), 128 + SIGKILL);
  EXPECT_TRUE(cluster.BecomesIdle());
  cluster.StopInOrder();
}

// FF-023, FF-117
TEST(DecodeStopsTest, ForFiveSecondsInTheMiddleOfAnAnswerAndTheAnswerIsTheSame) {
  const ClientRequest request = LongRequest(23);
  const auto expected = Undisturbed(request);
  Cluster cluster({.prefill = 1, .decode = 1});
  std::thread later;
  const Answer answer = AskAndDisturb(cluster, request, 10, [&](const Started&) {
    const pid_t decode = cluster.Pid("decode-0");
    kill(decode, SIGSTOP);
    if (later.joinable()) later.join();
    later = std::thread([decode] {
      std::this_thread::sleep_for(std::chrono::seconds(5));
      kill(decode, SIGCONT);
    });
  });
  later.join();
  ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
  EXPECT_EQ(answer.ids, expected);
  EXPECT_GE(answer.done.timings.placements, 2u);
  EXPECT_TRUE(cluster.BecomesIdle());
  cluster.StopInOrder();
}

// FF-024
TEST(RouterDiesTest, OpenStreamsEndUnavailableWorkersAreIdleAgainAndARetryIsTheSame) {
  const ClientRequest request = LongRequest(24);
  const auto expected = Undisturbed(request);
  Cluster cluster({.prefill = 1, .decode = 1});
  const size_t mark = cluster.Mark();
  const Answer broken =
      AskAndDisturb(cluster, request, 10, [&](const Started&) { kill(cluster.Pid("router"), SIGKILL); });
  EXPECT_EQ(broken.result.status.code(), Code::kUnavailable) << broken.result.status.ToString();
  EXPECT_LT(broken.ids.size(), expected.size());
  EXPECT_EQ(broken.ids,
            std::vector<TokenId>(expected.begin(), expected.begin() + static_cast<ptrdiff_t>(broken.ids.size())));
  EXPECT_TRUE(cluster.ReadyAgain(mark));  // at the same address
  EXPECT_TRUE(cluster.BecomesIdle());
  const Answer again = Ask(cluster.Client().get(), request);
  ASSERT_TRUE(again.ok()) << again.result.status.ToString();
  EXPECT_EQ(again.ids, expected);
  cluster.StopInOrder();
}

// FF-004
TEST(ClientLeavesTest, InTheMiddleOfAnswersAndEveryBlockReturns) {
  Cluster cluster({.prefill = 1, .decode = 1});
  for (uint64_t i = 0; i < 12; ++i) {
    const auto client = cluster.Client();
    const auto result = client->Generate(LongRequest(100 + i), [&](const ClientEvent& event) {
      return std::get_if<Delta>(&event) == nullptr;  // leaves at the first text
    });
    EXPECT_FALSE(result.status.ok());
  }
  EXPECT_TRUE(cluster.BecomesIdle());
  cluster.StopInOrder();
}

TEST(PoolPressureTest, MoreThanThePoolsHoldAtOnceAndEveryAnswerIsTheSame) {
  std::vector<ClientRequest> requests;
  std::vector<std::vector<TokenId>> expected;
  {
    Cluster unified({});
    for (uint64_t i = 0; i < 12; ++i) {
      ClientRequest request = GreedyIds(RandomPrompt(300 + i, 60 + 7 * i), 150);
      expected.push_back(Ask(unified.Client().get(), request).ids);
      request.placement = PlacementHint::kDisaggregated;
      requests.push_back(std::move(request));
    }
  }
  // A few hundred tokens of KV on each side, for 12 requests of about 250.
  Cluster cluster({.prefill = 1, .decode = 1, .kv_memory = "384KiB"});
  std::vector<Answer> answers(requests.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] { answers[i] = Ask(cluster.Client().get(), requests[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(answers[i].ok()) << answers[i].result.status.ToString();
    EXPECT_EQ(answers[i].ids, expected[i]);
  }
  EXPECT_TRUE(cluster.BecomesIdle());
  cluster.StopInOrder();
}

}  // namespace
}  // namespace baton::test

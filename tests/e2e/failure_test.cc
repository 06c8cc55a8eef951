// Processes that die, stop or vanish in the middle of requests: the client's answer is the one it would have
// been, or ends with an error, and blocks always return.
#include <atomic>

#include "cluster.h"

namespace baton::test {
namespace {

constexpr size_t kPrompt = 100;
constexpr int64_t kLongAnswer = kTinyContext - kPrompt - 1;

ClientRequest LongRequest(uint64_t seed) {
  ClientRequest request = GreedyIds(RandomPrompt(seed, kPrompt), kLongAnswer);
  request.placement = PlacementHint::kDisaggregated;
  return request;
}

// What the answer is when nothing happens.
std::vector<TokenId> Undisturbed(const ClientRequest& request, const std::string& model = TinyModel()) {
  Cluster unified({.model = model});
  ClientRequest alone = request;
  alone.placement = PlacementHint::kAuto;
  const Answer answer = Ask(unified.Client().get(), alone);
  EXPECT_TRUE(answer.ok()) << answer.result.status.ToString();
  return answer.ids;
}

// Asks, and calls `disturb` once, from the stream's own thread, when so many tokens have come.
Answer AskAndDisturb(const Cluster& cluster, const ClientRequest& request, size_t after,
                     const std::function<void(const Started&)>& disturb) {
  bool disturbed = false;
  return Ask(cluster.Client().get(), request, [&](const Answer& so_far) {
    if (disturbed || so_far.ids.size() < after) return;
    disturbed = true;
    disturb(so_far.started);
  });
}

class DecodeDiesTest : public ::testing::TestWithParam<std::pair<int, const char*>> {};

TEST_P(DecodeDiesTest, InTheMiddleOfAnAnswerAndTheAnswerIsTheSame) {
  const ClientRequest request = LongRequest(21);
  const auto expected = Undisturbed(request);
  Cluster cluster({.prefill = 1, .decode = GetParam().first, .transport = GetParam().second});
  const Answer answer = AskAndDisturb(cluster, request, 10, [&](const Started& started) {
    kill(cluster.Pid(started.decode_worker), SIGKILL);
  });
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
                         ::testing::Values(std::pair{1, "ucx-shm"}, std::pair{1, "ucx-tcp"},
                                           std::pair{2, "ucx-shm"}),
                         [](const auto& info) {
                           return std::to_string(info.param.first) + "D_" + (info.param.second + 4);
                         });

TEST(PrefillDiesTest, WithARequestInItsHandsAndTheAnswerIsTheSame) {
  const ClientRequest request = LongRequest(22);
  const auto expected = Undisturbed(request);
  for (const char* transport : {"ucx-shm", "ucx-tcp"}) {
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

TEST(DecodeStopsTest, ForFiveSecondsInTheMiddleOfAnAnswerAndTheAnswerIsTheSame) {
  const ClientRequest request = LongRequest(23);
  const auto expected = Undisturbed(request);
  Cluster cluster({.prefill = 1, .decode = 1});
  std::thread later;
  const Answer answer = AskAndDisturb(cluster, request, 10, [&](const Started&) {
    const pid_t decode = cluster.Pid("decode-0");
    kill(decode, SIGSTOP);
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

TEST(RouterDiesTest, OpenStreamsEndUnavailableWorkersAreIdleAgainAndARetryIsTheSame) {
  const ClientRequest request = LongRequest(24);
  const auto expected = Undisturbed(request);
  Cluster cluster({.prefill = 1, .decode = 1});
  const size_t mark = cluster.Mark();
  const Answer broken =
      AskAndDisturb(cluster, request, 10, [&](const Started&) { kill(cluster.Pid("router"), SIGKILL); });
  EXPECT_EQ(broken.result.status.code(), Code::kUnavailable) << broken.result.status.ToString();
  EXPECT_LT(broken.ids.size(), expected.size());
  EXPECT_EQ(broken.ids, std::vector<TokenId>(expected.begin(),
                                             expected.begin() + static_cast<ptrdiff_t>(broken.ids.size())));
  EXPECT_TRUE(cluster.ReadyAgain(mark));  // at the same address
  EXPECT_TRUE(cluster.BecomesIdle());
  const Answer again = Ask(cluster.Client().get(), request);
  ASSERT_TRUE(again.ok()) << again.result.status.ToString();
  EXPECT_EQ(again.ids, expected);
  cluster.StopInOrder();
}

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

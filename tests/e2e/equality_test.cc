// The same tokens wherever a request runs: one process, 1P1D, 2P2D, over shared memory, TCP and gRPC.
#include <set>

#include "cluster.h"
#include "model/model_file.h"

namespace baton::test {
namespace {

constexpr uint32_t kBlockTokens = 32;
constexpr int64_t kAnswer = 24;
const std::vector<size_t> kLengths = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129};

uint64_t BlockBytes(const std::string& model, DType dtype = DType::kBF16) {
  auto file = ModelFile::Open(model);
  BATON_CHECK(file.ok(), file.status().message());
  return MakeKvLayout((*file)->decoder(), kBlockTokens, dtype).BlockBytes(0);
}

// Answers of one process that does everything, by prompt length.
const std::vector<std::vector<TokenId>>& UnifiedAnswers() {
  static const auto answers = [] {
    Cluster unified({});
    const auto client = unified.Client();
    std::vector<std::vector<TokenId>> out;
    for (const size_t length : kLengths) {
      Answer answer = Ask(client.get(), GreedyIds(RandomPrompt(length, length), kAnswer));
      EXPECT_TRUE(answer.ok()) << answer.result.status.ToString();
      EXPECT_EQ(answer.ids.size(), static_cast<size_t>(kAnswer));
      EXPECT_FALSE(answer.done.timings.disaggregated);
      out.push_back(std::move(answer.ids));
    }
    unified.StopInOrder();
    return out;
  }();
  return answers;
}

struct Split {
  int prefill, decode;
  const char* transport;
};
class SplitEqualsUnifiedTest : public ::testing::TestWithParam<Split> {};

// FF-018, FF-029
TEST_P(SplitEqualsUnifiedTest, ForPromptsOfOneTokenToFourBlocksAndOne) {
  const auto& expected = UnifiedAnswers();
  Cluster cluster({.prefill = GetParam().prefill, .decode = GetParam().decode, .transport = GetParam().transport});
  const uint64_t block_bytes = BlockBytes(TinyModel());

  // Together, so that every worker is needed.
  std::vector<Answer> answers(kLengths.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kLengths.size(); ++i) {
    threads.emplace_back([&, i] {
      ClientRequest request = GreedyIds(RandomPrompt(kLengths[i], kLengths[i]), kAnswer);
      request.placement = PlacementHint::kDisaggregated;
      answers[i] = Ask(cluster.Client().get(), request);
    });
  }
  for (std::thread& thread : threads) thread.join();

  std::set<std::string> prefills, decodes;
  for (size_t i = 0; i < kLengths.size(); ++i) {
    const Answer& answer = answers[i];
    ASSERT_TRUE(answer.ok()) << kLengths[i] << " tokens: " << answer.result.status.ToString();
    EXPECT_EQ(answer.ids, expected[i]) << kLengths[i] << " tokens";
    const Timings& t = answer.done.timings;
    EXPECT_TRUE(t.disaggregated);
    EXPECT_EQ(t.retries, 0u);
    const uint64_t blocks = (kLengths[i] + kBlockTokens - 1) / kBlockTokens;
    EXPECT_EQ(t.prefill.transfer_blocks, blocks) << kLengths[i] << " tokens";
    EXPECT_EQ(t.prefill.transfer_bytes, blocks * block_bytes) << kLengths[i] << " tokens";
    prefills.insert(t.prefill_worker);
    decodes.insert(t.decode_worker);
  }
  EXPECT_EQ(prefills.size(), static_cast<size_t>(GetParam().prefill));
  EXPECT_EQ(decodes.size(), static_cast<size_t>(GetParam().decode));

  // Again, warm: what a decode worker holds is not sent a second time, and the answer is the same.
  uint64_t cached = 0;
  for (size_t i = 0; i < kLengths.size(); ++i) {
    ClientRequest request = GreedyIds(RandomPrompt(kLengths[i], kLengths[i]), kAnswer);
    request.placement = PlacementHint::kDisaggregated;
    const Answer answer = Ask(cluster.Client().get(), request);
    ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
    EXPECT_EQ(answer.ids, expected[i]) << kLengths[i] << " tokens, warm";
    cached += answer.done.timings.prefill.cached_tokens;
  }
  EXPECT_GT(cached, 0u);

  // An answer of one token ends where it began: nothing moves.
  ClientRequest one = GreedyIds(RandomPrompt(64, 64), 1);
  one.placement = PlacementHint::kDisaggregated;
  one.cache_salt = "alone";
  const Answer first = Ask(cluster.Client().get(), one);
  ASSERT_TRUE(first.ok()) << first.result.status.ToString();
  EXPECT_EQ(first.ids, std::vector<TokenId>(1, expected[9][0]));
  EXPECT_EQ(first.done.timings.prefill.transfer_bytes, 0u);

  EXPECT_TRUE(cluster.BecomesIdle());
  cluster.StopInOrder();
}

INSTANTIATE_TEST_SUITE_P(Shapes, SplitEqualsUnifiedTest,
                         ::testing::Values(Split{1, 1, "ucx-shm"}, Split{1, 1, "ucx-tcp"}, Split{2, 2, "ucx-shm"},
                                           Split{2, 2, "ucx-tcp"}, Split{1, 1, "auto"}, Split{2, 2, "grpc"}),
                         [](const auto& info) {
                           std::string name = std::to_string(info.param.prefill) + "P" +
                                              std::to_string(info.param.decode) + "D_" + info.param.transport;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// FF-077
TEST(SampledEqualityTest, SeedsAndLogprobsAreTheSameOnOneWorkerAndOnTwo) {
  ClientRequest request = GreedyIds(RandomPrompt(5, 70), 40);
  request.temperature = 0.9;
  request.top_p = 0.95;
  request.seed = 1234;
  request.logprobs = 3;
  std::vector<Answer> answers;
  std::vector<std::vector<OutputToken>> logprobs(2);
  for (const bool split : {false, true}) {
    Cluster cluster({.prefill = split ? 1 : 0, .decode = split ? 1 : 0});
    request.placement = split ? PlacementHint::kDisaggregated : PlacementHint::kAuto;
    Answer answer;
    const auto client = cluster.Client();
    answer.result = client->Generate(request, [&](const ClientEvent& event) {
      if (const auto* delta = std::get_if<Delta>(&event)) {
        answer.ids.insert(answer.ids.end(), delta->token_ids.begin(), delta->token_ids.end());
        logprobs[split].insert(logprobs[split].end(), delta->logprobs.begin(), delta->logprobs.end());
      } else if (const auto* done = std::get_if<Done>(&event)) {
        answer.done = *done;
      }
      return true;
    });
    ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
    EXPECT_EQ(answer.done.timings.prefill.transfer_bytes > 0, split);
    answers.push_back(std::move(answer));
  }
  EXPECT_EQ(answers[0].ids.size(), 40u);
  EXPECT_EQ(answers[0].ids, answers[1].ids);
  EXPECT_EQ(logprobs[0].size(), 40u);
  EXPECT_EQ(logprobs[0], logprobs[1]);
}

ClientRequest Question(const std::string& text) {
  ClientRequest request;
  ChatPrompt chat;
  chat.messages.push_back({"user", text, ""});
  request.prompt = std::move(chat);
  request.temperature = 0;
  request.max_tokens = 48;
  request.want_token_ids = true;
  request.timings = true;
  return request;
}

// A router and two workers that were started by hand with KV layouts of their own: the router pairs them, the decode
// worker converts.
class ByHand {
 public:
  using Flags = std::vector<std::string>;
  ByHand(const Flags& prefill, const Flags& decode) {
    const std::string state = folder_.path() + "/state";
    router_ = std::make_unique<Process>(
        folder_, Flags{BATON_BINARY, "router", TinyModel(), "--listen", "127.0.0.1:0", "--state-dir", state});
    const size_t at = router_->WaitForOut("listening on ", kStartLimit);
    BATON_CHECK(at != std::string::npos, router_->err());
    address_ = router_->out().substr(at + 13);
    address_ = address_.substr(0, address_.find('\n'));
    for (const auto& [role, flags] : {std::pair("prefill", prefill), std::pair("decode", decode)}) {
      Flags all = {BATON_BINARY, role, TinyModel(), "--router", address_, "--state-dir", state, "--kv-memory", "16MiB"};
      all.insert(all.end(), flags.begin(), flags.end());
      workers_.push_back(std::make_unique<Process>(folder_, all));
      const size_t joined = router_->WaitForOut(std::string(role) + "-0 joined", kStartLimit);
      BATON_CHECK(joined != std::string::npos, router_->out() + workers_.back()->err());
    }
    client_ = InferenceClient::Create({.address = address_, .in_process = nullptr});
  }
  Answer AskBoth(size_t length) {
    ClientRequest request = GreedyIds(RandomPrompt(length, length), kAnswer);
    request.placement = PlacementHint::kDisaggregated;
    Answer answer = Ask(client_.get(), request);
    EXPECT_TRUE(answer.ok()) << answer.result.status.ToString();
    EXPECT_TRUE(answer.done.timings.disaggregated);
    return answer;
  }
  void StopInOrder() {
    for (auto& worker : workers_) {
      worker->Signal(SIGTERM);
      EXPECT_EQ(worker->Wait(kStopLimit), 0) << worker->err();
    }
    router_->Signal(SIGTERM);
    EXPECT_EQ(router_->Wait(kStopLimit), 0) << router_->err();
  }

 private:
  ScratchFolder folder_;
  std::unique_ptr<Process> router_;
  std::string address_;
  std::vector<std::unique_ptr<Process>> workers_;
  std::unique_ptr<InferenceClient> client_;
};

TEST(UnlikeLayoutsTest, AWriterOf64AndAReaderOf16TokensABlockGiveTheAnswersOfOneWorker) {
  const auto& expected = UnifiedAnswers();
  ByHand pair({"--block-tokens", "64"}, {"--block-tokens", "16"});
  for (size_t i = 0; i < kLengths.size(); ++i) {
    EXPECT_EQ(pair.AskBoth(kLengths[i]).ids, expected[i]) << kLengths[i] << " tokens";
  }
  pair.StopInOrder();
}

TEST(UnlikeLayoutsTest, AWriterOfBf16HandsItsPromptToAReaderOfInt8) {
  const auto& bf16 = UnifiedAnswers();
  ByHand pair({"--kv-dtype", "bf16"}, {"--kv-dtype", "int8"});
  const uint64_t block_bytes = BlockBytes(TinyModel());
  for (const size_t i : {5, 11, 14}) {
    const Answer answer = pair.AskBoth(kLengths[i]);
    const Answer again = pair.AskBoth(kLengths[i]);
    EXPECT_EQ(answer.ids.size(), static_cast<size_t>(kAnswer));
    EXPECT_EQ(answer.ids[0], bf16[i][0]) << "the writer's token";
    EXPECT_EQ(answer.ids, again.ids);
    const uint64_t blocks = (kLengths[i] + kBlockTokens - 1) / kBlockTokens;
    EXPECT_EQ(answer.done.timings.prefill.transfer_bytes, blocks * block_bytes) << "bf16 moves";
  }
  pair.StopInOrder();
}

TEST(Int8CacheTest, TwoProcessesGiveTheAnswersOfOne) {
  std::vector<std::vector<TokenId>> expected;
  for (const bool split : {false, true}) {
    Cluster cluster({.prefill = split ? 1 : 0, .decode = split ? 1 : 0, .more = {"--kv-dtype", "int8"}});
    const auto client = cluster.Client();
    for (const size_t length : {1, 33, 129}) {
      ClientRequest request = GreedyIds(RandomPrompt(length, length), kAnswer);
      request.placement = split ? PlacementHint::kDisaggregated : PlacementHint::kAuto;
      const Answer answer = Ask(client.get(), request);
      ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
      if (!split) {
        expected.push_back(answer.ids);
        continue;
      }
      EXPECT_EQ(answer.ids, expected[length == 1 ? 0 : length == 33 ? 1 : 2]) << length << " tokens";
      EXPECT_EQ(answer.done.timings.prefill.transfer_bytes,
                (length + kBlockTokens - 1) / kBlockTokens * BlockBytes(TinyModel(), DType::kI8));
    }
    cluster.StopInOrder();
  }
}

TEST(RealModelTest, TheCapitalOfFranceIsParisOnOneWorkerAndOnTwo) {
  if (RealModel().empty()) GTEST_SKIP() << "no model; scripts/fetch_model.sh brings it";
  const ClientRequest request = Question("What is the capital of France?");
  std::vector<Answer> answers;
  for (const bool split : {false, true}) {
    Cluster cluster({.model = RealModel(), .prefill = split ? 1 : 0, .decode = split ? 1 : 0});
    Answer answer = Ask(cluster.Client().get(), request);
    ASSERT_TRUE(answer.ok()) << answer.result.status.ToString();
    EXPECT_EQ(answer.text, "The capital of France is Paris.");
    EXPECT_EQ(answer.finished.reason, FinishReason::kStop);
    EXPECT_EQ(answer.done.timings.prefill.transfer_bytes > 0, split);
    answers.push_back(std::move(answer));
    cluster.StopInOrder();
  }
  EXPECT_EQ(answers[0].ids, answers[1].ids);
}

}  // namespace
}  // namespace baton::test

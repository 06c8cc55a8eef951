// The same tokens, and the same bits of logits, whatever the topology, transport, batch, chunking, cache, memory
// pressure or number of threads. Every case asserts by counters that its subject happened.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "support/in_process_cluster.h"

namespace baton::test {
namespace {

std::string Model() { return std::string(BATON_SOURCE_DIR) + "/tests/golden/tiny/tiny-q4_1.gguf"; }

ClientRequest Make(uint32_t prompt_tokens, uint64_t seed, int64_t max_tokens, double temperature = 0) {
  Rng rng(seed);
  TokenPrompt prompt;
  for (uint32_t i = 0; i < prompt_tokens; ++i) prompt.ids.push_back(static_cast<int64_t>(3 + rng.Below(250)));
  ClientRequest r;
  r.prompt = std::move(prompt);
  r.temperature = temperature;
  r.seed = seed;
  r.max_tokens = max_tokens;
  r.ignore_eos = true;
  r.want_token_ids = true;
  r.timings = true;
  r.logprobs = 3;
  return r;
}

// Prompt lengths around block boundaries, greedy and drawn, one with a single token of answer.
std::vector<ClientRequest> Workload() {
  std::vector<ClientRequest> all;
  uint64_t seed = 1;
  for (const uint32_t n : {1u, 15u, 16u, 17u, 31u, 33u, 48u, 65u}) all.push_back(Make(n, seed++, 20));
  for (const uint32_t n : {5u, 40u, 64u}) all.push_back(Make(n, seed++, 24, 1.0));
  all.push_back(Make(30, seed++, 1));
  return all;
}

using Logits = std::map<std::pair<uint64_t, uint32_t>, uint64_t>;

struct Reference {
  std::vector<Answer> answers;
  Logits logits;
};
const Reference& Alone() {
  static const Reference reference = [] {
    InProcessCluster cluster({.model = Model(), .num_unified = 1, .prefix_cache = false});
    Reference r;
    for (const ClientRequest& request : Workload()) r.answers.push_back(cluster.Ask(request));
    r.logits = cluster.logits();
    return r;
  }();
  return reference;
}

void ExpectEqual(const std::vector<Answer>& answers, const Logits& logits) {
  const Reference& r = Alone();
  ASSERT_EQ(answers.size(), r.answers.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_TRUE(answers[i].status.ok()) << answers[i].status.ToString();
    EXPECT_EQ(answers[i].tokens, r.answers[i].tokens) << "request " << i;
    EXPECT_EQ(answers[i].logprobs, r.answers[i].logprobs) << "request " << i;
    EXPECT_EQ(answers[i].reason, r.answers[i].reason) << "request " << i;
    EXPECT_EQ(answers[i].text, r.answers[i].text) << "request " << i;
    EXPECT_EQ(answers[i].usage.completion_tokens, r.answers[i].tokens.size()) << "request " << i;
  }
  size_t compared = 0;
  for (const auto& [key, digest] : logits) {
    const auto it = r.logits.find(key);
    if (it == r.logits.end()) continue;
    ++compared;
    EXPECT_EQ(digest, it->second) << "position " << key.second;
  }
  EXPECT_GE(compared, r.logits.size() / 2);
}

struct Topology {
  std::string name;
  ClusterOptions options;
};
Topology Unlike(uint32_t writes, uint32_t reads, const std::string& transport = "local") {
  std::string name = transport == "local" ? "Local" : transport == "ucx-shm" ? "UcxShm" : "UcxTcp";
  return {name + "Blocks" + std::to_string(writes) + "To" + std::to_string(reads),
          {.num_prefill = 1,
           .num_decode = 1,
           .transport = transport,
           .block_tokens = writes,
           .decode_block_tokens = reads}};
}
class SameEverywhere : public testing::TestWithParam<Topology> {};

// FF-020, FF-043, FF-077, FF-080
TEST_P(SameEverywhere, OneAtATimeAndAllAtOnce) {
  ClusterOptions options = GetParam().options;
  options.model = Model();
  InProcessCluster cluster(options);
  std::vector<Answer> one_by_one;
  for (const ClientRequest& request : Workload()) one_by_one.push_back(cluster.Ask(request));
  const std::vector<Answer> together = cluster.Ask(Workload());
  cluster.Stop();
  ExpectEqual(one_by_one, cluster.logits());
  ExpectEqual(together, cluster.logits());
  for (const auto& [key, digest] : cluster.logits()) EXPECT_NE(digest, 0u) << "two runs of one position differ";
  if (options.num_prefill > 0) {
    EXPECT_GT(cluster.bytes_posted(), 0u);
    for (const char* name : {"p0", "d0", "p1", "d1"}) {
      const uint32_t index = name[1] - '0';
      if (index >= options.num_prefill) continue;
      EXPECT_GT(cluster.core(name).counters().steps, 0u) << name << " was never used";
    }
    const uint64_t converted = cluster.core("d0").connector().counters().converted;
    EXPECT_EQ(converted > 0, options.decode_block_tokens != 0);
    size_t handed_off = 0;
    for (const Answer& a : together) handed_off += a.timings.disaggregated;
    EXPECT_GT(handed_off, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Topologies, SameEverywhere,
    testing::Values(Topology{"Unified", {.num_unified = 1}},
                    Topology{"UnifiedTwoThreads", {.num_unified = 1, .threads = 2}},
                    Topology{"UnifiedChunk16", {.num_unified = 1, .max_step_tokens = 48, .max_prefill_tokens = 16}},
                    Topology{"UnifiedBlocks32", {.num_unified = 1, .block_tokens = 32}},
                    Topology{"Local1P1D", {.num_prefill = 1, .num_decode = 1}},
                    Topology{"Local2P2D", {.num_prefill = 2, .num_decode = 2}},
                    Topology{"Local1P1DChunk16",
                             {.num_prefill = 1, .num_decode = 1, .max_step_tokens = 48, .max_prefill_tokens = 16}},
                    Topology{"Local1P1DNoCache", {.num_prefill = 1, .num_decode = 1, .prefix_cache = false}},
                    Topology{"UcxShm1P1D", {.num_prefill = 1, .num_decode = 1, .transport = "ucx-shm"}},
                    Topology{"UcxShm2P2D", {.num_prefill = 2, .num_decode = 2, .transport = "ucx-shm"}},
                    Topology{"UcxTcp1P1D", {.num_prefill = 1, .num_decode = 1, .transport = "ucx-tcp"}},
                    Topology{"UcxTcp2P2D", {.num_prefill = 2, .num_decode = 2, .transport = "ucx-tcp"}}, Unlike(16, 32),
                    Unlike(32, 16), Unlike(64, 32), Unlike(32, 128), Unlike(128, 16), Unlike(16, 32, "ucx-shm"),
                    Unlike(64, 32, "ucx-shm"), Unlike(32, 128, "ucx-shm"), Unlike(16, 32, "ucx-tcp"),
                    Unlike(64, 32, "ucx-tcp"), Unlike(32, 128, "ucx-tcp")),
    [](const auto& info) { return info.param.name; });

TEST(ClusterEqualityTest, ReferenceKernelsGiveTheSameBits) {
  InProcessCluster cluster({.model = Model(), .num_unified = 1, .kernels = "reference"});
  const std::vector<Answer> answers = cluster.Ask(Workload());
  ExpectEqual(answers, cluster.logits());
}

// FF-082, FF-097, FF-099
TEST(ClusterEqualityTest, PreemptionChangesNothing) {
  InProcessCluster cluster({.model = Model(), .num_unified = 1, .pool_blocks = 14});
  const std::vector<Answer> answers = cluster.Ask(Workload());
  cluster.Stop();
  ExpectEqual(answers, cluster.logits());
  EXPECT_GE(cluster.core("u0").counters().preemptions, 1u);
}

// FF-100
TEST(ClusterEqualityTest, PreemptionOnTheDecodeSideChangesNothing) {
  std::vector<ClientRequest> requests;
  for (uint64_t i = 0; i < 8; ++i) requests.push_back(Make(17, 500 + i, 70));
  InProcessCluster roomy({.model = Model(), .num_unified = 1, .prefix_cache = false});
  const std::vector<Answer> expected = roomy.Ask(requests);
  InProcessCluster tight({.model = Model(), .num_prefill = 1, .num_decode = 1, .pool_blocks = 17});
  const std::vector<Answer> answers = tight.Ask(requests);
  tight.Stop();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(answers[i].tokens, expected[i].tokens) << answers[i].status.ToString();
  }
  EXPECT_GE(tight.core("d0").counters().preemptions, 1u);
}

// FF-018, FF-031, FF-035
TEST(ClusterEqualityTest, AWarmReaderIsSentExactlyTheBlocksItLacks) {
  InProcessCluster cluster({.model = Model(), .num_prefill = 1, .num_decode = 1});
  const ClientRequest request = Make(64, 77, 20);
  const Answer cold = cluster.Ask(request);
  const Answer warm = cluster.Ask(request);
  ClientRequest longer = request;
  Rng rng(5);
  for (int i = 0; i < 40; ++i)
    std::get<TokenPrompt>(longer.prompt).ids.push_back(static_cast<int64_t>(3 + rng.Below(250)));
  const Answer half_warm = cluster.Ask(longer);
  cluster.Stop();
  EXPECT_EQ(cold.tokens, warm.tokens);
  const uint64_t block = MakeKvLayout(cluster.file().decoder(), 16, DType::kBF16).BlockBytes(0);
  EXPECT_EQ(cold.timings.prefill.transfer_blocks, 4u);
  EXPECT_EQ(cold.timings.prefill.transfer_bytes, 4 * block);
  EXPECT_EQ(warm.timings.prefill.transfer_bytes, 0u);  // 64 tokens are four whole blocks, all held
  EXPECT_GT(warm.timings.prefill.cached_tokens, 0u);
  EXPECT_EQ(half_warm.timings.prefill.transfer_bytes, 3 * block);  // 104 tokens are seven blocks, four held
  EXPECT_EQ(cluster.bytes_posted(), 7 * block);

  InProcessCluster alone({.model = Model(), .num_unified = 1, .prefix_cache = false});
  EXPECT_EQ(alone.Ask(longer).tokens, half_warm.tokens);
}

TEST(ClusterEqualityTest, AWarmReaderOfOtherBlocksIsSentOnlyBlocksOfWhichItLacksAPart) {
  InProcessCluster cluster(
      {.model = Model(), .num_prefill = 1, .num_decode = 1, .block_tokens = 64, .decode_block_tokens = 32});
  const ClientRequest request = Make(100, 77, 20);  // the reader keeps 96 tokens, then the answer's up to 119
  const Answer cold = cluster.Ask(request);
  const Answer warm = cluster.Ask(request);
  ClientRequest longer = request;
  Rng rng(5);
  for (int i = 0; i < 100; ++i)
    std::get<TokenPrompt>(longer.prompt).ids.push_back(static_cast<int64_t>(3 + rng.Below(250)));
  const Answer half_warm = cluster.Ask(longer);
  cluster.Stop();
  EXPECT_EQ(cold.tokens, warm.tokens);
  const uint64_t block = MakeKvLayout(cluster.file().decoder(), 64, DType::kBF16).BlockBytes(0);
  EXPECT_EQ(cold.timings.prefill.transfer_bytes, 2 * block);
  EXPECT_EQ(warm.timings.prefill.transfer_bytes, block) << "64 of 100 are held as a whole block of the writer";
  EXPECT_EQ(half_warm.timings.prefill.transfer_bytes, 3 * block) << "of 200 tokens 96 are held: not block 0 of 0 to 3";

  InProcessCluster alone({.model = Model(), .num_unified = 1, .prefix_cache = false});
  EXPECT_EQ(alone.Ask(request).tokens, cold.tokens);
  EXPECT_EQ(alone.Ask(longer).tokens, half_warm.tokens);
}

TEST(ClusterEqualityTest, UnlikeBlocksUnderLostTransfersAndPreemptionChangeNothing) {
  FaultRates faults;
  faults.notice_drop = 0.1;
  faults.notice_duplicate = 0.1;
  faults.post_truncate = 0.05;
  faults.post_fail = 0.05;
  faults.max_delay = std::chrono::milliseconds(20);
  InProcessCluster cluster({.model = Model(),
                            .num_prefill = 2,
                            .num_decode = 2,
                            .transport = "fake",
                            .faults = faults,
                            .block_tokens = 32,
                            .decode_block_tokens = 16,
                            .pool_blocks = 24});
  for (int round = 0; round < 3; ++round) {
    const std::vector<Answer> answers = cluster.Ask(Workload());
    ExpectEqual(answers, cluster.logits());
  }
  cluster.Stop();
  uint64_t converted = 0;
  for (const char* d : {"d0", "d1"}) converted += cluster.core(d).connector().counters().converted;
  EXPECT_GT(converted, 0u);
}

TEST(ClusterEqualityTest, WithOneElementTypeOnBothSidesTheAnswersAreThoseOfOneWorkerOfThatType) {
  std::vector<std::vector<Answer>> of_type;
  for (const DType dtype : {DType::kF16, DType::kF32, DType::kI8}) {
    InProcessCluster alone({.model = Model(), .num_unified = 1, .kv_dtype = dtype});
    InProcessCluster split({.model = Model(),
                            .num_prefill = 1,
                            .num_decode = 1,
                            .decode_block_tokens = 64,
                            .kv_dtype = dtype,
                            .decode_kv_dtype = dtype});
    const std::vector<Answer> expected = alone.Ask(Workload()), answers = split.Ask(Workload());
    alone.Stop();
    split.Stop();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, expected[i].tokens) << answers[i].status.ToString();
      EXPECT_EQ(answers[i].logprobs, expected[i].logprobs) << "request " << i;
    }
    const auto logits = alone.logits();
    for (const auto& [key, digest] : split.logits()) {
      if (const auto it = logits.find(key); it != logits.end()) EXPECT_EQ(digest, it->second);
    }
    EXPECT_GT(split.core("d0").connector().counters().converted, 0u);
    of_type.push_back(expected);
  }
  for (const size_t other : {1, 2}) {
    EXPECT_NE(of_type[0][4].logprobs, of_type[other][4].logprobs) << "two round alike: nothing was compared";
  }
}

// Log-probabilities of an answer as far as its tokens are the other's.
double MostApart(const Answer& a, const Answer& b) {
  double most = 0;
  for (size_t i = 0; i < std::min(a.tokens.size(), b.tokens.size()); ++i) {
    if (a.tokens[i] != b.tokens[i]) break;
    most = std::max(most, std::abs(double{a.logprobs[i].logprob} - double{b.logprobs[i].logprob}));
  }
  return most;
}

TEST(ClusterEqualityTest, UnlikeElementTypesAreConvertedCloselyTheSameEveryTimeAndKeptForTheNextHandOff) {
  const ClientRequest request = Make(100, 77, 20);
  InProcessCluster alone({.model = Model(), .num_unified = 1, .kv_dtype = DType::kF32});
  const Answer exact = alone.Ask(request);
  constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kI8};
  for (const DType writes : kTypes) {
    for (const DType reads : kTypes) {
      if (writes == reads) continue;
      InProcessCluster cluster({.model = Model(),
                                .num_prefill = 1,
                                .num_decode = 1,
                                .decode_block_tokens = 32,
                                .kv_dtype = writes,
                                .decode_kv_dtype = reads});
      const Answer cold = cluster.Ask(request), warm = cluster.Ask(request);
      cluster.Stop();
      ASSERT_TRUE(cold.status.ok()) << cold.status.ToString();
      EXPECT_TRUE(cold.timings.disaggregated);
      EXPECT_EQ(cold.tokens, warm.tokens);
      EXPECT_EQ(cold.logprobs, warm.logprobs);
      EXPECT_LT(warm.timings.prefill.transfer_bytes, cold.timings.prefill.transfer_bytes / 3) << "96 tokens are held";
      EXPECT_EQ(cluster.core("d0").connector().counters().converted, 2u);
      const double bound = writes == DType::kI8 || reads == DType::kI8 ? 0.2 : 0.05;
      EXPECT_LT(MostApart(cold, exact), bound) << Traits(writes).name << " to " << Traits(reads).name;
    }
  }
}

// FF-046
TEST(ClusterEqualityTest, AnAnswerOfOneTokenNeedsNoHandOff) {
  InProcessCluster cluster({.model = Model(), .num_prefill = 1, .num_decode = 1});
  const Answer answer = cluster.Ask(Make(40, 9, 1));
  cluster.Stop();
  EXPECT_EQ(answer.tokens.size(), 1u);
  EXPECT_EQ(answer.reason, FinishReason::kLength);
  EXPECT_EQ(cluster.core("d0").connector().counters().grants, 0u);
}

// FF-044
TEST(ClusterEqualityTest, AnAnswerThatStopsAtItsFirstTokenEndsAtTheWriter) {
  InProcessCluster cluster({.model = Model(), .num_prefill = 1, .num_decode = 1});
  ClientRequest request = Make(40, 10, 20);
  const Answer free = cluster.Ask(request);
  request.stop_token_ids.push_back(free.tokens[0]);
  const Answer stopped = cluster.Ask(request);
  EXPECT_EQ(stopped.tokens.size(), 1u);
  EXPECT_EQ(stopped.reason, FinishReason::kStop);
}

// FF-015
TEST(ClusterEqualityTest, LostAndTruncatedTransfersChangeNothing) {
  FaultRates faults;
  faults.notice_drop = 0.1;
  faults.notice_duplicate = 0.1;
  faults.post_truncate = 0.05;
  faults.post_fail = 0.05;
  faults.max_delay = std::chrono::milliseconds(20);
  InProcessCluster cluster(
      {.model = Model(), .num_prefill = 2, .num_decode = 2, .transport = "fake", .faults = faults});
  for (int round = 0; round < 3; ++round) {
    const std::vector<Answer> answers = cluster.Ask(Workload());
    ExpectEqual(answers, cluster.logits());
  }
  cluster.Stop();
  uint64_t repushes = 0;
  for (const char* p : {"p0", "p1"}) repushes += cluster.core(p).connector().writer().counters().repushes;
  EXPECT_GT(repushes, 0u);
}

// ---- what users of other servers saw (tests/field_failures.md) ---------------------------------------

// FF-030, FF-032: every prompt length up to six blocks, in chunks that are no multiple of a block, handed over while it
// is computed, with one thread and with two.
TEST(ClusterEqualityTest, FF030_FF032_EveryPromptLengthInChunksThatCutBlocks) {
  std::vector<ClientRequest> requests;
  for (uint32_t n = 1; n <= 100; ++n) requests.push_back(Make(n, 900 + n, 6));
  InProcessCluster alone({.model = Model(), .num_unified = 1, .prefix_cache = false});
  const std::vector<Answer> expected = alone.Ask(requests);
  alone.Stop();
  const uint64_t block = MakeKvLayout(alone.file().decoder(), 16, DType::kBF16).BlockBytes(0);
  for (const int threads : {1, 2}) {
    InProcessCluster cluster({.model = Model(),
                              .num_prefill = 1,
                              .num_decode = 1,
                              .threads = threads,
                              .pool_blocks = 1024,
                              .max_step_tokens = 64,
                              .max_prefill_tokens = 24,
                              .prefix_cache = false});
    const std::vector<Answer> answers = cluster.Ask(requests);
    cluster.Stop();
    for (uint32_t n = 1; n <= 100; ++n) {
      const Answer& a = answers[n - 1];
      EXPECT_TRUE(a.timings.disaggregated) << n << ": " << a.status.ToString();
      EXPECT_EQ(a.tokens, expected[n - 1].tokens) << n;
      EXPECT_EQ(a.logprobs, expected[n - 1].logprobs) << n;
      EXPECT_EQ(a.timings.prefill.transfer_bytes, (n + 15) / 16 * block) << n << ": each block once, the last one too";
    }
  }
}

// FF-033: nothing the first time; then what P found in its cache, whole blocks, although D was sent less or more.
TEST(ClusterEqualityTest, FF033_CachedTokensAreWhatThePrefillReused) {
  InProcessCluster cluster({.model = Model(), .num_prefill = 1, .num_decode = 1});
  for (const uint32_t n : {10u, 48u, 70u}) {
    const ClientRequest request = Make(n, 40 + n, 8);
    EXPECT_EQ(cluster.Ask(request).usage.cached_tokens, 0u) << n;
    const Answer again = cluster.Ask(request);
    EXPECT_EQ(again.usage.cached_tokens, (n - 1) / 16 * 16) << "all but its last token, in whole blocks";
    EXPECT_EQ(again.usage.prompt_tokens, n);
  }
}

// FF-037: a prompt that says one phrase over and over and ends with the task, so that a block in the wrong place looks
// right: cold and warm, on one worker and on two.
TEST(ClusterEqualityTest, FF037_ARepetitivePromptIsAnsweredTheSameColdAndWarm) {
  const auto ask = [](InProcessCluster* cluster) {
    std::vector<Answer> answers;
    for (int round = 0; round < 2; ++round) {
      for (const int64_t task : {7, 8}) {
        ClientRequest r = Make(1, 5, 24);
        std::vector<int64_t> ids;
        while (ids.size() < 296) ids.push_back(static_cast<int64_t>(20 + ids.size() % 20));
        for (int64_t i = 0; i < 4; ++i) ids.push_back(task * 20 + i);
        r.prompt = TokenPrompt{ids};
        answers.push_back(cluster->Ask(r));
      }
    }
    return answers;
  };
  InProcessCluster alone({.model = Model(), .num_unified = 1}),
      split({.model = Model(), .num_prefill = 1, .num_decode = 1});
  InProcessCluster cold({.model = Model(), .num_unified = 1, .prefix_cache = false});
  const std::vector<Answer> expected = ask(&cold), one = ask(&alone), two = ask(&split);
  EXPECT_NE(expected[0].logprobs, expected[1].logprobs);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(one[i].tokens, expected[i].tokens);
    EXPECT_EQ(two[i].tokens, expected[i].tokens);
    EXPECT_EQ(one[i].logprobs, expected[i].logprobs);
    EXPECT_EQ(two[i].logprobs, expected[i].logprobs);
  }
  EXPECT_EQ(two[3].usage.cached_tokens, 288u);
}

// FF-153: two tenants with salts of their own send one prompt. Neither P, nor D, nor the router knows that it is one;
// each finds his own.
TEST(ClusterEqualityTest, FF153_TenantsOfOtherSaltsShareNoPrefixAnywhere) {
  InProcessCluster cluster({.model = Model(), .num_prefill = 1, .num_decode = 1});
  ClientRequest request = Make(200, 3, 8);
  const auto ask = [&](const std::string& salt) {
    request.cache_salt = salt;
    const Answer answer = cluster.Ask(request);
    EXPECT_TRUE(answer.timings.disaggregated) << answer.status.ToString();
    return answer;
  };
  const Answer first = ask("one");
  for (const char* salt : {"two", "", "one "}) {
    const Answer other = ask(salt);
    EXPECT_EQ(other.usage.cached_tokens, 0u) << "at P";
    EXPECT_EQ(other.timings.prefill.transfer_bytes, first.timings.prefill.transfer_bytes) << "at D";
    EXPECT_EQ(other.tokens, first.tokens);
  }
  const Answer own = ask("one");
  EXPECT_EQ(own.usage.cached_tokens, 192u);
  EXPECT_LT(own.timings.prefill.transfer_bytes, first.timings.prefill.transfer_bytes / 10);
}

}  // namespace
}  // namespace baton::test

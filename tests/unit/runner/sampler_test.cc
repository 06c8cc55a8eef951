#include "runner/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/rng.h"

namespace baton {
namespace {

using testing::HasSubstr;

std::vector<float> RandomLogits(size_t n, uint64_t seed, double spread = 8) {
  Rng rng(seed);
  std::vector<float> out;
  for (size_t i = 0; i < n; ++i) out.push_back(static_cast<float>((rng.Unit() - 0.5) * spread));
  return out;
}

StatusOr<OutputToken> Sample(const std::vector<float>& logits, const Request& request, uint32_t index = 0) {
  SamplerScratch scratch;
  return SampleToken(logits, request, index, &scratch);
}

TokenId SampleId(const std::vector<float>& logits, const Request& request, uint32_t index = 0) {
  auto token = Sample(logits, request, index);
  EXPECT_TRUE(token.ok()) << token.status().message();
  return token.ok() ? token->id : -1;
}

Request Greedy() {
  Request r;
  r.sampling.temperature = 0;
  return r;
}

TEST(Sampler, GreedyTakesTheLargestLogitAndTheLowestIdAmongEquals) {
  EXPECT_EQ(SampleId({1, 3, 3, 2}, Greedy()), 1);
  EXPECT_EQ(SampleId({-0.0f, 0.0f}, Greedy()), 0);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto logits = RandomLogits(97, seed);
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(SampleId(logits, Greedy()), best);
  }
}

TEST(Sampler, TopKOfOneAndATinyTopPAreGreedyAtAnyTemperature) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto logits = RandomLogits(97, seed);
    const TokenId greedy = SampleId(logits, Greedy());
    Request k;
    k.sampling = {.temperature = 5, .top_k = 1, .seed = seed, .logit_bias = {}};
    EXPECT_EQ(SampleId(logits, k), greedy);
    Request p;
    p.sampling = {.temperature = 1, .top_p = 1e-6f, .seed = seed, .logit_bias = {}};
    EXPECT_EQ(SampleId(logits, p), greedy);
  }
}

// FF-082
TEST(Sampler, TheDrawIsAFunctionOfSeedChoiceAndIndexAlone) {
  const auto logits = RandomLogits(300, 1);
  SamplerScratch used;
  std::set<TokenId> by_seed, by_choice, by_index;
  for (uint32_t i = 0; i < 50; ++i) {
    Request r;
    r.sampling.seed = 7;
    r.id.choice = 3;
    const TokenId id = SampleId(logits, r, i);
    auto again = SampleToken(logits, r, i, &used);  // scratch left over from other calls changes nothing
    EXPECT_EQ(again->id, id);
    by_index.insert(id);
    r.id.choice = i;
    by_choice.insert(SampleId(logits, r, 5));
    r.id.choice = 3;
    r.sampling.seed = i;
    by_seed.insert(SampleId(logits, r, 5));
    r.id.number = 99 + i;  // of no importance
    EXPECT_EQ(SampleId(logits, r, 5), SampleId(logits, r, 5));
  }
  EXPECT_GT(by_index.size(), 10u);
  EXPECT_GT(by_choice.size(), 10u);
  EXPECT_GT(by_seed.size(), 10u);
}

// What top_k and top_p leave, worked out the slow way.
std::set<TokenId> Allowed(const std::vector<float>& logits, const SamplingParams& p) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (p.top_k > 0) order.resize(std::min<size_t>(order.size(), p.top_k));
  std::vector<double> weight;
  double total = 0;
  for (const TokenId id : order) {
    weight.push_back(std::exp(double{logits[static_cast<size_t>(id)]} / p.temperature));
    total += weight.back();
  }
  std::set<TokenId> out;
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    out.insert(order[i]);
    sum += weight[i];
    if (sum >= p.top_p * total * (1 + 1e-12)) break;
  }
  return out;
}

TEST(Sampler, EveryDrawLiesInsideTopKAndTopP) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    const auto logits = RandomLogits(20 + rng.Below(400), seed, 1 + 10 * rng.Unit());
    Request r;
    r.sampling.temperature = static_cast<float>(0.2 + 2 * rng.Unit());
    r.sampling.top_k = rng.Chance(0.5) ? static_cast<uint32_t>(1 + rng.Below(40)) : 0;
    r.sampling.top_p = rng.Chance(0.7) ? static_cast<float>(0.05 + 0.9 * rng.Unit()) : 1.0f;
    r.sampling.seed = seed;
    const TokenId id = SampleId(logits, r);
    EXPECT_TRUE(Allowed(logits, r.sampling).count(id)) << "seed " << seed;
  }
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {2, 1, 0, -1, 0.5f};
  constexpr int kDraws = 40000;
  for (const float temperature : {0.7f, 1.0f, 2.0f}) {
    std::map<TokenId, int> count;
    Request r;
    r.sampling.temperature = temperature;
    for (uint32_t i = 0; i < kDraws; ++i) ++count[SampleId(logits, r, i)];
    double total = 0;
    for (const float x : logits) total += std::exp(double{x} / temperature);
    for (size_t i = 0; i < logits.size(); ++i) {
      const double expected = std::exp(double{logits[i]} / temperature) / total;
      EXPECT_NEAR(count[static_cast<TokenId>(i)] / double{kDraws}, expected, 0.012) << i;
    }
  }
}

TEST(Sampler, TiesAtTheEdgeOfTopKGoToTheLowerIds) {
  std::set<TokenId> seen;
  for (uint32_t i = 0; i < 200; ++i) {
    Request r;
    r.sampling.top_k = 2;
    seen.insert(SampleId({1, 1, 1, 1}, r, i));
  }
  EXPECT_EQ(seen, (std::set<TokenId>{0, 1}));
}

// FF-088
TEST(Sampler, BiasIsAddedBeforeEverythingElseAndNotToTheLogprobs) {
  Request r = Greedy();
  r.sampling.logit_bias = {{0, 5.0f}, {3, -100.0f}, {1000, 7.0f}};
  r.sampling.logprobs = 0;
  const std::vector<float> logits = {1, 2, 3, 9};
  auto token = Sample(logits, r);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->id, 0);
  const double lse = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0) + std::exp(9.0));
  EXPECT_NEAR(token->logprob, 1 - lse, 1e-6);
  r.sampling.logit_bias = {{1, std::numeric_limits<float>::max()}};
  EXPECT_EQ(SampleId({std::numeric_limits<float>::max(), 1e30f}, r), 0);  // both clamp to the largest: lower id
}

// FF-090
TEST(Sampler, EndAndStopTokensCannotBeChosenBeforeMinTokens) {
  Request r = Greedy();
  r.stop.min_tokens = 2;
  r.stop.eos_token_ids = {3};
  r.stop.stop_token_ids = {2};
  const std::vector<float> logits = {0, 1, 2, 3};
  EXPECT_EQ(SampleId(logits, r, 0), 1);
  EXPECT_EQ(SampleId(logits, r, 1), 1);
  EXPECT_EQ(SampleId(logits, r, 2), 3);
  r.stop.ignore_eos = true;  // then an end token is an ordinary one
  EXPECT_EQ(SampleId(logits, r, 0), 3);
  r.sampling.temperature = 100;
  for (uint32_t i = 0; i < 100; ++i) {
    r.stop.min_tokens = i + 1;
    EXPECT_NE(SampleId(logits, r, i), 2);
  }
}

TEST(Sampler, WhenMinTokensForbidsEverythingTheSequenceFailsInWords) {
  Request r = Greedy();
  r.stop.min_tokens = 1;
  r.stop.stop_token_ids = {0, 1};
  EXPECT_THAT(Sample({1, 2}, r).status().message(), HasSubstr("min_tokens"));
  r.sampling.temperature = 1;
  EXPECT_FALSE(Sample({1, 2}, r).ok());
}

// FF-078
TEST(Sampler, LogprobsAreTheLogSoftmaxOfTheRawRowMostLikelyFirst) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto logits = RandomLogits(500, seed, 30);
    Request r;
    r.sampling = {.temperature = 0.5f, .top_k = 3, .seed = seed, .logit_bias = {{5, 3.0f}}, .logprobs = 20};
    auto token = Sample(logits, r);
    ASSERT_TRUE(token.ok());
    double total = 0;
    for (const float x : logits) total += std::exp(double{x});
    EXPECT_NEAR(token->logprob, logits[static_cast<size_t>(token->id)] - std::log(total), 1e-5);
    ASSERT_EQ(token->top.size(), 20u);
    std::vector<TokenId> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    for (size_t i = 0; i < 20; ++i) EXPECT_EQ(token->top[i].id, order[i]);
  }
}

TEST(Sampler, WithoutLogprobsNoneAreGivenAndMoreThanThereAreIsNoError) {
  EXPECT_EQ(Sample({1, 2}, Greedy())->logprob, 0);
  Request r = Greedy();
  r.sampling.logprobs = 20;
  EXPECT_EQ(Sample({1, 2}, r)->top.size(), 2u);
}

// FF-145
TEST(Sampler, LogitsThatAreNotFiniteFailTheSequenceWithTheFirstBadId) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {inf, -inf, std::nanf("")}) {
    std::vector<float> logits = RandomLogits(100, 1);
    logits[41] = bad;
    for (const float temperature : {0.0f, 1.0f}) {
      Request r;
      r.sampling.temperature = temperature;
      auto token = Sample(logits, r);
      EXPECT_EQ(token.status().code(), Code::kDataLoss);
      EXPECT_THAT(token.status().message(), HasSubstr("token 41"));
    }
  }
}

TEST(Sampler, ExtremeButFiniteLogitsAndTemperaturesStillGiveAToken) {
  const float max = std::numeric_limits<float>::max();
  for (const float temperature : {1e-30f, 1e-3f, 100.0f}) {
    Request r;
    r.sampling.temperature = temperature;
    r.sampling.top_p = 0.9f;
    EXPECT_EQ(SampleId({-max, max, -max, 0}, r), 1);
    EXPECT_EQ(SampleId({-max}, r), 0);
  }
}

}  // namespace
}  // namespace baton

#include "cost/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"

namespace baton {
namespace {

// Steps as a unified worker sees them: decode only, prefill only, mixed.
StepFeatures RandomStep(Rng* rng) {
  StepFeatures f;
  const uint64_t decodes = rng->Chance(0.7) ? 1 + rng->Below(32) : 0;
  for (uint64_t i = 0; i < decodes; ++i) f.AddChunk(static_cast<uint32_t>(rng->Below(2000)), 1);
  if (decodes == 0 || rng->Chance(0.4)) {
    f.AddChunk(static_cast<uint32_t>(rng->Below(1500)), static_cast<uint32_t>(2 + rng->Below(510)));
  }
  return f;
}
double TrueSeconds(const CostCoefficients& t, const StepFeatures& f) {
  return t[0] + t[1] * f.prefill_tokens + t[2] * f.prefill_pairs + t[3] * f.decodes + t[4] * f.decode_context;
}
double Noise(Rng* rng, double spread) { return 1 + spread * (2 * rng->Unit() - 1); }
bool AllNonNegative(const CostModel& m) {
  for (const double c : m.coefficients()) {
    if (!(c >= 0) || !std::isfinite(c)) return false;
  }
  return true;
}

TEST(CostModel, LearnsPlantedCoefficientsFromAWrongPriorWithinFivePercentAfterTwoHundredSteps) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed);
    CostCoefficients truth = {2e-3, 1e-4, 2e-8, 5e-4, 3e-7};
    CostCoefficients prior = truth;
    for (size_t i = 0; i < truth.size(); ++i) {
      truth[i] *= std::exp2(4 * rng.Unit() - 2);
      prior[i] = truth[i] * std::exp2(6 * rng.Unit() - 3);  // wrong by up to eight times
    }
    CostModel model(prior);
    for (int i = 0; i < 200; ++i) {
      const StepFeatures f = RandomStep(&rng);
      model.Observe(f, FromSeconds(TrueSeconds(truth, f) * Noise(&rng, 0.05)));
      ASSERT_TRUE(AllNonNegative(model)) << seed;
    }
    double error = 0;
    for (int i = 0; i < 200; ++i) {
      const StepFeatures f = RandomStep(&rng);
      error += std::abs(Seconds(model.Predict(f)) / TrueSeconds(truth, f) - 1) / 200;
    }
    EXPECT_LT(error, 0.05) << seed;
  }
}

TEST(CostModel, CoefficientsStayNonNegativeAndFiniteWhateverItObserves) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed);
    CostModel model({1e-3, 1e-4, 0, 0, 1e-7});
    for (int i = 0; i < 100; ++i) {
      model.Observe(RandomStep(&rng), Duration(static_cast<int64_t>(std::exp2(rng.Unit() * 40)) - 5));
      ASSERT_TRUE(AllNonNegative(model)) << seed;
      ASSERT_GE(model.Predict(RandomStep(&rng)).count(), 0);
    }
  }
}

TEST(CostModel, AnOutlierIsCountedAndMovesNothing) {
  Rng rng(1);
  const CostCoefficients truth = {2e-3, 1e-4, 2e-8, 5e-4, 3e-7};
  CostModel model(truth);
  for (int i = 0; i < 200; ++i) {
    const StepFeatures f = RandomStep(&rng);
    model.Observe(f, FromSeconds(TrueSeconds(truth, f) * Noise(&rng, 0.02)));
  }
  const CostCoefficients before = model.coefficients();
  const uint64_t gated = model.num_gated();
  const StepFeatures f = RandomStep(&rng);
  model.Observe(f, FromSeconds(10 * TrueSeconds(truth, f)));
  EXPECT_EQ(model.coefficients(), before);
  EXPECT_EQ(model.num_gated(), gated + 1);
}

TEST(CostModel, AMachineThatBecameSlowerIsLearnedInSpiteOfTheGate) {
  Rng rng(2);
  CostCoefficients truth = {2e-3, 1e-4, 2e-8, 5e-4, 3e-7};
  CostModel model(truth);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 600; ++i) {
      const StepFeatures f = RandomStep(&rng);
      model.Observe(f, FromSeconds(TrueSeconds(truth, f) * Noise(&rng, 0.02)));
    }
    EXPECT_LT(model.error(), 0.1) << round;
    for (double& t : truth) t *= 3;
  }
}

TEST(CostModel, APrefillCostsTheSumOfItsChunks) {
  const CostModel model({1e-3, 1e-4, 2e-8, 5e-4, 3e-7});
  for (const uint32_t chunk : {16u, 100u, 512u, 4096u}) {
    double sum = 0;
    for (uint32_t at = 64; at < 64 + 1000; at += chunk) {
      StepFeatures f;
      f.AddChunk(at, std::min(chunk, 64 + 1000 - at));
      sum += Seconds(model.Predict(f));
    }
    EXPECT_NEAR(Seconds(model.PredictPrefill(1000, 64, chunk)), sum, 1e-6) << chunk;
  }
  EXPECT_EQ(model.PredictPrefill(0, 64, 16).count(), 0);
}

TEST(CostModel, ExportedCoefficientsPredictTheSameElsewhereAndBadOnesAreRefused) {
  Rng rng(3);
  const CostModel model({1e-3, 1e-4, 2e-8, 5e-4, 3e-7});
  auto copy = CostModel::Import(model.Export());
  ASSERT_TRUE(copy.ok());
  const StepFeatures f = RandomStep(&rng);
  EXPECT_EQ(copy->Predict(f), model.Predict(f));
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity(), 1e9}) {
    std::vector<double> values = model.Export();
    values[2] = bad;
    EXPECT_EQ(CostModel::Import(values).status().code(), Code::kInvalidArgument);
  }
  EXPECT_FALSE(CostModel::Import(std::vector<double>(4)).ok());
}

TEST(LinkCost, LearnsLatencyFromSmallAndBandwidthFromLargeTransfers) {
  Rng rng(4);
  LinkCost link;
  const double latency = 2e-4, bandwidth = 6e9;
  for (int i = 0; i < 400; ++i) {
    const uint64_t bytes = rng.Chance(0.5) ? 1 + rng.Below(4096) : (1 << 20) + rng.Below(16 << 20);
    link.Observe(bytes, FromSeconds((latency + static_cast<double>(bytes) / bandwidth) * Noise(&rng, 0.05)));
  }
  EXPECT_NEAR(link.latency_seconds(), latency, 0.1 * latency);
  EXPECT_NEAR(link.bytes_per_second(), bandwidth, 0.1 * bandwidth);
  EXPECT_GT(link.Predict(8 << 20, 4), link.Predict(8 << 20, 1));
}

}  // namespace
}  // namespace baton

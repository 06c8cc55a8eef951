#include "cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "baton/check.h"

namespace baton {
namespace {

using Vector = std::array<double, kCostCoefficients>;

constexpr double kForgetting = 0.998;
constexpr double kNoise = 0.03;       // a step's own scatter, relative: what one observation is worth
constexpr double kPriorSpread = 3.0;  // a prior may be wrong by several times itself
constexpr double kGate = 4.0;         // residuals beyond so many median ones are jitter
constexpr double kGateFloor = 0.05;   // relative; below it nothing is jitter
constexpr uint64_t kGateAfter = 32;   // observations before the gate closes
constexpr int kChanged = 12;          // gated residuals of one side in a row: the machine changed
constexpr double kErrorWeight = 1.0 / 200;
constexpr double kMaxSeconds = 1e6;
// What a coefficient is taken for when the prior says 0: it must be able to move.
constexpr Vector kFloor = {1e-5, 1e-7, 1e-11, 1e-6, 1e-10};

Vector VectorOf(const StepFeatures& f) { return {1.0, f.prefill_tokens, f.prefill_pairs, f.decodes, f.decode_context}; }
double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
Duration ToDuration(double seconds) { return FromSeconds(std::clamp(seconds, 0.0, kMaxSeconds)); }

}  // namespace

void StepFeatures::AddChunk(uint32_t first_position, uint32_t num_tokens) {
  if (num_tokens == 1) {
    decodes += 1;
    decode_context += first_position + 1.0;
    return;
  }
  prefill_tokens += num_tokens;
  prefill_pairs += num_tokens * (first_position + num_tokens / 2.0);
}

StepFeatures FeaturesOf(const StepPlan& plan) {
  StepFeatures f;
  for (const SequenceStep& s : plan.sequences) f.AddChunk(s.first_position, s.num_tokens);
  return f;
}

CostCoefficients PriorFor(const MachineShape& m) {
  return {m.launch_seconds + m.weight_bytes / m.bytes_per_second, 2 * m.active_parameters / m.flops,
          4 * m.attention_width / m.flops, 2 * m.active_parameters / m.flops,
          m.kv_bytes_per_token / m.bytes_per_second + 4 * m.attention_width / m.flops};
}

CostModel::CostModel(const CostCoefficients& prior) : theta_(prior), deviation_(kGateFloor) {
  for (size_t i = 0; i < kN; ++i) {
    BATON_CHECK(std::isfinite(prior[i]) && prior[i] >= 0, "a cost coefficient is negative or not a number");
    spread_[i] = kPriorSpread * std::max(prior[i], kFloor[i]);
  }
  ForgetAll();
}

// The coefficients stay as a guess that is as doubtful as a prior; the gate stays open for a while.
void CostModel::ForgetAll() {
  covariance_ = {};
  for (size_t i = 0; i < kN; ++i) covariance_[i][i] = spread_[i] * spread_[i];
  gate_from_ = num_observed_ + kGateAfter;
  same_side_ = 0;
}

Duration CostModel::Predict(const StepFeatures& step) const { return ToDuration(Dot(theta_, VectorOf(step))); }

Duration CostModel::PredictPrefill(uint32_t tokens, uint32_t cached, uint32_t chunk) const {
  if (tokens == 0) return {};
  const double steps = std::ceil(double{static_cast<double>(tokens)} / std::max(chunk, 1u));
  // The pairs of consecutive chunks add up to those of one.
  const double pairs = tokens * (cached + tokens / 2.0);
  return ToDuration(theta_[0] * steps + theta_[1] * tokens + theta_[2] * pairs);
}

bool CostModel::IsJitter(double relative) {
  const double size = std::abs(relative);
  const bool beyond = num_observed_ > gate_from_ && size > std::max(kGateFloor, kGate * deviation_);
  // A running median: up and down by the same factor.
  deviation_ = std::clamp(deviation_ * (size > deviation_ ? 1.05 : 1 / 1.05), 1e-4, 10.0);
  if (!beyond) {
    same_side_ = 0;
    return false;
  }
  const int side = relative > 0 ? 1 : -1;
  same_side_ = same_side_ * side > 0 ? same_side_ + side : side;
  if (std::abs(same_side_) < kChanged) return true;
  ForgetAll();
  return false;
}

void CostModel::Observe(const StepFeatures& step, Duration actual) {
  const double seconds = Seconds(actual);
  if (!(seconds > 0) || seconds > kMaxSeconds) return;
  const Vector x = VectorOf(step);
  const double predicted = Dot(theta_, x);
  const double residual = seconds - predicted;
  ++num_observed_;
  // The first ones weigh more, so that the figure does not start from an invented value.
  const double weight = std::max(kErrorWeight, 1.0 / static_cast<double>(num_observed_));
  error_ += weight * (std::abs(residual) / seconds - error_);
  if (IsJitter(residual / seconds)) {
    ++num_gated_;
    return;
  }

  Vector px{};
  for (size_t i = 0; i < kN; ++i) px[i] = Dot(covariance_[i], x);
  const double noise = kNoise * seconds;
  const double total = Dot(x, px) + kForgetting * noise * noise;
  for (size_t i = 0; i < kN; ++i) theta_[i] += px[i] / total * residual;
  for (size_t i = 0; i < kN; ++i) {
    for (size_t j = 0; j < kN; ++j) covariance_[i][j] = (covariance_[i][j] - px[i] * px[j] / total) / kForgetting;
  }
  BoundCovariance();
  KeepNonNegative();
}

// Forgetting inflates what the present load says nothing about; never beyond the prior's own doubt.
void CostModel::BoundCovariance() {
  for (size_t i = 0; i < kN; ++i) {
    const double limit = spread_[i] * spread_[i];
    if (covariance_[i][i] <= limit) continue;
    const double scale = std::sqrt(limit / covariance_[i][i]);
    for (size_t j = 0; j < kN; ++j) {
      covariance_[i][j] *= scale;
      covariance_[j][i] *= scale;
    }
  }
}

// A coefficient below 0 is set to 0 as if that had been observed, which moves the others along with it.
void CostModel::KeepNonNegative() {
  for (size_t round = 0; round < kN; ++round) {
    const size_t i = static_cast<size_t>(std::min_element(theta_.begin(), theta_.end()) - theta_.begin());
    if (theta_[i] >= 0) return;
    const double excess = theta_[i];
    for (size_t j = 0; j < kN; ++j) {
      if (j != i && covariance_[i][i] > 0) theta_[j] -= covariance_[j][i] / covariance_[i][i] * excess;
    }
    theta_[i] = 0;
  }
  for (double& t : theta_) t = std::max(t, 0.0);
}

std::vector<double> CostModel::Export() const { return {theta_.begin(), theta_.end()}; }

StatusOr<CostModel> CostModel::Import(std::span<const double> values) {
  if (values.size() != kN) {
    return InvalidArgumentError("cost model: " + std::to_string(values.size()) + " coefficients, expected " +
                                std::to_string(kN));
  }
  CostCoefficients theta{};
  for (size_t i = 0; i < kN; ++i) {
    if (!std::isfinite(values[i]) || values[i] < 0 || values[i] > kMaxSeconds) {
      return InvalidArgumentError("cost model: coefficient " + std::to_string(i) + " is " + std::to_string(values[i]) +
                                  "; it must be in [0, 1e6] seconds");
    }
    theta[i] = values[i];
  }
  return CostModel(theta);
}

Duration LinkCost::Predict(uint64_t bytes, uint32_t flows) const {
  return ToDuration(latency_ + static_cast<double>(bytes) * std::max(flows, 1u) / bandwidth_);
}

void LinkCost::Observe(uint64_t bytes, Duration actual) {
  constexpr double kWeight = 0.1;
  constexpr uint64_t kSmall = 64 << 10;  // below, the time is mostly latency
  const double seconds = Seconds(actual);
  if (!(seconds > 0) || bytes == 0) return;
  if (bytes < kSmall) {
    const double latency = std::max(0.0, seconds - static_cast<double>(bytes) / bandwidth_);
    latency_ += kWeight * (latency - latency_);
    return;
  }
  const double moving = std::max(seconds - latency_, 0.1 * seconds);
  bandwidth_ += kWeight * (static_cast<double>(bytes) / moving - bandwidth_);
}

}  // namespace baton

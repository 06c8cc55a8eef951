// How long a step, a prefill or a transfer will take on one worker, learned from what they took. Pure
// arithmetic; one instance per (model, device, configuration): any change of those starts a new one. The
// worker's engine thread learns; a router predicts with the coefficients that heartbeats carry.
//
//   T_step = th0 + th1 n + th2 a + th3 B + th4 S            seconds, every coefficient >= 0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "baton/clock.h"
#include "baton/ids.h"
#include "baton/status.h"
#include "baton/step_plan.h"

namespace baton {

// What a step's time depends on.
struct StepFeatures {
  double prefill_tokens = 0;  // n
  double prefill_pairs = 0;   // a: sum over chunks of n_i (q_i + n_i / 2), q_i tokens before the chunk
  double decodes = 0;         // B: sequences with one token
  double decode_context = 0;  // S: sum of their contexts in tokens
  void AddChunk(uint32_t first_position, uint32_t num_tokens);  // one token counts as a decode
};
StepFeatures FeaturesOf(const StepPlan& plan);

inline constexpr size_t kCostCoefficients = 5;
using CostCoefficients = std::array<double, kCostCoefficients>;  // th0 .. th4, seconds

// A cold worker's guess from the shape of its model and its machine.
struct MachineShape {
  double active_parameters = 0;  // read per token
  double weight_bytes = 0;       // read per step
  double attention_width = 0;    // layers x query heads x head_dim
  double kv_bytes_per_token = 0;
  double flops = 50e9;             // reached, not peak
  double bytes_per_second = 10e9;  // reached
  double launch_seconds = 20e-6;
};
CostCoefficients PriorFor(const MachineShape& shape);

class CostModel {
 public:
  explicit CostModel(const CostCoefficients& prior);

  Duration Predict(const StepFeatures& step) const;
  // Seconds of compute for tokens [cached, cached + tokens) in chunks of `chunk` (>= 1), alone on the worker.
  Duration PredictPrefill(uint32_t tokens, uint32_t cached, uint32_t chunk) const;
  // Learns from one step. A residual beyond the gate (4 median deviations) counts as jitter and moves
  // nothing; a run of them on the same side means that the machine changed, and is learned after all.
  void Observe(const StepFeatures& step, Duration actual);

  const CostCoefficients& coefficients() const { return theta_; }
  uint64_t num_observed() const { return num_observed_; }
  uint64_t num_gated() const { return num_gated_; }
  // Mean |actual - predicted| / actual, exponentially forgotten over about 200 steps; predicted before
  // learning.
  double error() const { return error_; }

  // Heartbeat::cost, and back. Import validates: a peer's numbers may be anything.
  std::vector<double> Export() const;
  static StatusOr<CostModel> Import(std::span<const double> values);

 private:
  static constexpr size_t kN = kCostCoefficients;
  bool IsJitter(double relative_residual);
  void ForgetAll();
  void BoundCovariance();
  void KeepNonNegative();
  CostCoefficients theta_;
  std::array<std::array<double, kN>, kN> covariance_{};
  CostCoefficients spread_{};  // how far from the prior a coefficient may well be
  double deviation_;           // running median of |residual| / actual
  double error_ = 0;
  uint64_t num_observed_ = 0;
  uint64_t num_gated_ = 0;
  uint64_t gate_from_ = 0;  // the gate is open up to this observation
  int same_side_ = 0;       // length of the present run of gated residuals, signed
};

// Seconds for bytes on a link: latency + bytes / bandwidth, both learned.
class LinkCost {
 public:
  explicit LinkCost(double latency_seconds = 50e-6, double bytes_per_second = 2e9)
      : latency_(latency_seconds), bandwidth_(bytes_per_second) {}
  // `flows` transfers share the link.
  Duration Predict(uint64_t bytes, uint32_t flows = 1) const;
  void Observe(uint64_t bytes, Duration actual);
  double latency_seconds() const { return latency_; }
  double bytes_per_second() const { return bandwidth_; }

 private:
  double latency_;
  double bandwidth_;
};

}  // namespace baton

// Requests whose answers tests disturb: long enough to be in the middle of, and comparable to what an undisturbed
// worker says.
#pragma once

#include <optional>

#include "e2e/cluster.h"

namespace baton::test {

inline constexpr size_t kPrompt = 100;
inline constexpr int64_t kLongAnswer = kTinyContext - kPrompt - 1;

inline ClientRequest LongRequest(uint64_t seed) {
  ClientRequest request = GreedyIds(RandomPrompt(seed, kPrompt), kLongAnswer);
  request.placement = PlacementHint::kDisaggregated;
  return request;
}

// What the answer is when nothing happens.
inline std::vector<TokenId> Undisturbed(const ClientRequest& request, const std::string& model = TinyModel()) {
  Cluster unified({.model = model});
  ClientRequest alone = request;
  alone.placement = PlacementHint::kAuto;
  alone.prefill_worker.clear();
  const Answer answer = Ask(unified.Client().get(), alone);
  EXPECT_TRUE(answer.ok()) << answer.result.status.ToString();
  return answer.ids;
}

inline std::optional<WorkerDescription> Look(const InferenceClient& client, const std::string& worker) {
  const auto state = const_cast<InferenceClient&>(client).GetCluster();
  if (!state.ok()) return std::nullopt;
  for (const WorkerDescription& w : state->workers) {
    if (w.name == worker) return w;
  }
  return std::nullopt;
}
inline std::optional<WorkerDescription> Look(const Cluster& cluster, const std::string& worker) {
  return Look(*cluster.Client(), worker);
}

// Prefill takes many small steps, so that a prompt and its transfer have a middle.
inline const std::vector<std::string> kSmallSteps = {"--threads", "1", "--max-running", "8", "--max-step-tokens", "16"};
inline ClusterShape SlowPrefill() {
  ClusterShape shape{.prefill = 1, .decode = 1, .transport = "ucx-shm", .more = kSmallSteps};
  shape.more.insert(shape.more.end(), {"--kernels", "reference", "--stuck-after", "1s"});
  return shape;
}

}  // namespace baton::test

// What a worker is asked to do, and how far it got. A Request never changes after the front made it; a
// Progress travels beside it. Together they rebuild every other state (sampler, stop rules), so preemption,
// hand-off and failover are one path.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "baton/clock.h"
#include "baton/ids.h"
#include "baton/sampling.h"

namespace baton {

// Token-level stops; stop strings belong to the front.
struct StopRules {
  uint32_t max_tokens = 16;  // >= 1, counted from the request's own start
  uint32_t min_tokens = 0;   // stop and end tokens cannot be chosen before that many tokens
  bool ignore_eos = false;   // end tokens are ordinary tokens; stop_token_ids still stop
  std::vector<TokenId> stop_token_ids;
  std::vector<TokenId> eos_token_ids;  // of the model; filled in by the front
};

enum class FinishReason : uint8_t { kNone, kStop, kLength };

struct Request {
  ChildId id;
  std::vector<TokenId> prompt;  // >= 1 token, every id in the vocabulary
  SamplingParams sampling;
  StopRules stop;
  int32_t priority = 0;    // higher runs first and is preempted last
  std::string cache_salt;  // requests with unlike salts share no cached block
};
using RequestPtr = std::shared_ptr<const Request>;

struct Progress {
  std::vector<OutputToken> tokens;  // the answer so far, from index 0; forced, never sampled again
  uint32_t delivered = 0;           // how many of them the front has; set by the front alone
  Duration deadline_remaining{};    // of the whole request
  // It was in a launched step when a worker died (L8): it runs apart from others of that kind. Set by the front.
  bool once_hit = false;
};

// The stop rules applied to the token at `index` (0 = the first of the answer): kStop for an end or stop
// token, else kLength when it is the last allowed, else kNone. `stopped_by_token` rules come first.
FinishReason FinishAt(const StopRules& stop, TokenId token, uint32_t index);

}  // namespace baton

// How a token is chosen from logits. Values only; the arithmetic lives in runner. Validated by front before
// a worker sees them: temperature in [0, 100], top_p in (0, 1], top_k >= 0, finite biases.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "baton/ids.h"

namespace baton {

struct SamplingParams {
  float temperature = 1.0f;  // 0 = greedy: the largest logit, the lowest id among equals
  uint32_t top_k = 0;        // 0 = all
  float top_p = 1.0f;
  // The draw for output position i is a function of (seed, choice, i) alone.
  uint64_t seed = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;  // ascending ids, added before everything else
  // -1: none. n >= 0: the chosen token's log-probability and the n most likely ones, from the raw logits
  // (before bias and temperature). At most kMaxTopLogprobs.
  int32_t logprobs = -1;
};

inline constexpr int32_t kMaxTopLogprobs = 20;

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0;
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

// One token of an answer.
struct OutputToken {
  TokenId id = 0;
  float logprob = 0;              // 0 when not asked for
  std::vector<TokenLogprob> top;  // most likely first, ties by lower id
  friend bool operator==(const OutputToken&, const OutputToken&) = default;
};

}  // namespace baton

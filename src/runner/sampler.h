// Chooses one token from a row of logits: a pure function of (logits, Request, index). No state, no clock;
// the draw is keyed by (seed, choice, index), so that a replay anywhere gives the same token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "baton/request.h"
#include "baton/sampling.h"
#include "baton/status.h"

namespace baton {

// Memory that calls share; sized by the first. One per thread.
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<TokenId> order;
  std::vector<double> weights;
};

// `index`: of the sampled token in the answer. In this order: non-finite logits are refused
// (DATA_LOSS, with the first bad id; -inf is one too: no model here gives it), log-probabilities are taken
// from the raw row, then logit_bias, end and stop tokens masked before min_tokens, temperature (0: greedy),
// top_k, top_p, draw. Ties everywhere go to the lower id.
StatusOr<OutputToken> SampleToken(std::span<const float> logits, const Request& request, uint32_t index,
                                  SamplerScratch* scratch);

}  // namespace baton

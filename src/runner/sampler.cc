#include "runner/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/rng.h"

namespace baton {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

Status CheckFinite(std::span<const float> logits) {
  // x * 0 is 0 for every finite x and NaN for the rest: one pass without branches.
  float sum = 0;
  for (const float x : logits) sum += x * 0.0f;
  if (sum == 0.0f) return OkStatus();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return DataLossError("the model gave the logit " + std::to_string(logits[i]) + " for token " + std::to_string(i) +
                           "; nothing can be sampled from it");
    }
  }
  return OkStatus();
}

// The first of the largest.
TokenId Argmax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Larger value first, lower id among equals: a total order.
struct Before {
  std::span<const float> logits;
  bool operator()(TokenId a, TokenId b) const {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

double LogSumExp(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  return max + std::log(sum);
}

std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, size_t n, double lse) {
  std::vector<TokenId> best;  // sorted by Before, at most n
  const Before before{logits};
  n = std::min(n, logits.size());
  for (size_t i = 0; i < logits.size() && n > 0; ++i) {
    const auto id = static_cast<TokenId>(i);
    if (best.size() == n && !before(id, best.back())) continue;
    if (best.size() == n) best.pop_back();
    best.insert(std::upper_bound(best.begin(), best.end(), id, before), id);
  }
  std::vector<TokenLogprob> out;
  for (const TokenId id : best) out.push_back({id, static_cast<float>(logits[static_cast<size_t>(id)] - lse)});
  return out;
}

bool MasksStops(const Request& request, uint32_t index) {
  const StopRules& stop = request.stop;
  return index < stop.min_tokens && (!stop.stop_token_ids.empty() || (!stop.ignore_eos && !stop.eos_token_ids.empty()));
}

// The row with bias and masks. Ids outside the vocabulary change nothing.
void Adjust(const Request& request, uint32_t index, std::vector<float>* logits) {
  constexpr float kLimit = std::numeric_limits<float>::max();
  const auto at = [&](TokenId id) { return static_cast<uint32_t>(id) < logits->size() ? &(*logits)[id] : nullptr; };
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    if (float* x = at(id)) *x = std::clamp(*x + bias, -kLimit, kLimit);
  }
  if (!MasksStops(request, index)) return;
  const auto mask = [&](const std::vector<TokenId>& ids) {
    for (const TokenId id : ids) {
      if (float* x = at(id)) *x = kMasked;
    }
  };
  mask(request.stop.stop_token_ids);
  if (!request.stop.ignore_eos) mask(request.stop.eos_token_ids);
}

// Sorts the first `n` of `order` to its front.
void SortFirst(std::span<const float> logits, size_t n, std::vector<TokenId>* order) {
  const Before before{logits};
  n = std::min(n, order->size());
  if (n < order->size()) std::nth_element(order->begin(), order->begin() + n, order->end(), before);
  std::sort(order->begin(), order->begin() + n, before);
}

// Draws from `order` with weights exp((logit - max) / temperature): token number i with u in
// [sum of weights before i, sum up to i) / total.
TokenId Draw(std::span<const TokenId> order, std::span<const double> weights, double total, double unit) {
  const double target = unit * total;
  double sum = 0;
  TokenId last = order.front();
  for (size_t i = 0; i < order.size(); ++i) {
    if (weights[i] <= 0) continue;
    sum += weights[i];
    last = order[i];
    if (target < sum) break;
  }
  return last;
}

// How many of the sorted candidates top_p keeps: the fewest whose probabilities reach it. Sorts as many as it
// needs to see; `limit` candidates are in play and `total` is the sum of their weights.
size_t NucleusSize(std::span<const float> logits, double top_p, double max, double temperature, double total,
                   size_t limit, SamplerScratch* s) {
  for (size_t sorted = std::min<size_t>(limit, 64);; sorted = std::min(limit, sorted * 8)) {
    SortFirst(logits, sorted, &s->order);
    double sum = 0;
    for (size_t i = 0; i < sorted; ++i) {
      sum += std::exp((logits[static_cast<size_t>(s->order[i])] - max) / temperature);
      if (sum >= top_p * total) return i + 1;
    }
    if (sorted == limit) return limit;
  }
}

TokenId DrawToken(std::span<const float> logits, const Request& request, uint32_t index, SamplerScratch* s) {
  const SamplingParams& p = request.sampling;
  const double unit = ToUnit(KeyedDraw(p.seed, request.id.choice, index));
  const double max = *std::max_element(logits.begin(), logits.end());
  const double temperature = p.temperature;
  const auto weight = [&](TokenId id) { return std::exp((logits[static_cast<size_t>(id)] - max) / temperature); };

  s->order.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) s->order[i] = static_cast<TokenId>(i);
  size_t kept = logits.size();
  if (p.top_k > 0 && p.top_k < kept) {
    kept = p.top_k;
    SortFirst(logits, kept, &s->order);
    s->order.resize(kept);
  }
  s->weights.resize(kept);
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += s->weights[i] = weight(s->order[i]);
  if (p.top_p < 1.0f) {
    kept = NucleusSize(logits, p.top_p, max, temperature, total, kept, s);
    total = 0;
    for (size_t i = 0; i < kept; ++i) total += s->weights[i] = weight(s->order[i]);
  }
  return Draw(std::span(s->order).first(kept), std::span(s->weights).first(kept), total, unit);
}

}  // namespace

StatusOr<OutputToken> SampleToken(std::span<const float> logits, const Request& request, uint32_t index,
                                  SamplerScratch* scratch) {
  const SamplingParams& p = request.sampling;
  if (logits.empty() || !(p.temperature >= 0) || !(p.top_p > 0)) {
    return InvalidArgumentError("temperature " + std::to_string(p.temperature) + ", top_p " + std::to_string(p.top_p) +
                                ": nothing can be sampled so");
  }
  BATON_RETURN_IF_ERROR(CheckFinite(logits));

  std::span<const float> row = logits;
  if (!p.logit_bias.empty() || MasksStops(request, index)) {
    scratch->logits.assign(logits.begin(), logits.end());
    Adjust(request, index, &scratch->logits);
    row = scratch->logits;
  }
  OutputToken out;
  out.id = p.temperature == 0 ? Argmax(row) : 0;
  if (row[static_cast<size_t>(Argmax(row))] == kMasked) {
    return FailedPreconditionError("every token of the vocabulary is a stop token that min_tokens forbids");
  }
  if (p.temperature > 0) out.id = DrawToken(row, request, index, scratch);
  if (p.logprobs >= 0) {
    const double lse = LogSumExp(logits);
    out.logprob = static_cast<float>(logits[static_cast<size_t>(out.id)] - lse);
    out.top = TopLogprobs(logits, static_cast<size_t>(std::min(p.logprobs, kMaxTopLogprobs)), lse);
  }
  return out;
}

}  // namespace baton

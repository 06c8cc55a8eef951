// One worker as the Router sees it: what it said, projected to now, plus what was dispatched to it since.
//
// Always true: unconfirmed work leaves the view exactly once, by confirmation or with its worker; promised work
// by Release. Sums never wrap.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "baton/check.h"
#include "baton/clock.h"
#include "baton/front_link.h"
#include "cost/cost_model.h"
#include "route/router.h"

namespace baton {

// Workers of one class are alike. They hand off to each other byte for byte, and to those of the classes in `readers`,
// where layouts convert and numeric identities are equal, or unlike only as the element types are.
struct CompatibilityClass {
  Hash128 weights;
  Hash128 numeric;
  KvLayout layout;
  std::vector<uint32_t> readers;  // its own among them
  bool IsAlike(const CompatibilityClass& o) const {
    return weights == o.weights && numeric == o.numeric && layout == o.layout;
  }
  bool MayHandOffTo(const CompatibilityClass& o) const {
    return weights == o.weights && CanConvert(layout, o.layout).ok() &&
           (numeric == o.numeric || !SameElementTypes(layout, o.layout));
  }
};

// What one dispatch adds to one worker until the worker reports it.
struct LedgerShare {
  double seconds = 0;  // of prefill
  uint32_t sequences = 0;
  uint64_t tokens = 0;
  uint32_t blocks = 0;  // per group
};

// Compute of prompt tokens behind cached ones, in the units that a worker's coefficients price.
struct PrefillWork {
  static constexpr uint32_t kChunk = 512;  // tokens of a step, for the prediction
  PrefillWork(uint32_t num_tokens, uint32_t cached)
      : steps((num_tokens + kChunk - 1) / kChunk), tokens(num_tokens), pairs(tokens * (cached + tokens / 2)) {}
  double steps, tokens, pairs;
};

// What a decision reads of one worker, worked out whenever the worker changes, and the formulas over it. Two cache
// lines that own nothing: a thousand of them are scanned in microseconds.
struct alignas(64) LoadLine {
  TimePoint idle_at{};     // the queue that it reported is empty then
  double unconfirmed = 0;  // seconds of prefill, dispatched and not yet reported
  std::array<double, 3> prefill_cost{};
  double step = 0;          // seconds of a decode step with one answer more, but for that answer's context
  double context_cost = 0;  // and of each token of that
  double answers = 0;       // that run there or are on their way

  WorkerId id{};
  uint64_t capacity = 0;     // tokens of prompt and answer that fit at all; 0: nobody is here
  uint64_t free_tokens = 0;  // in free blocks that nobody is on the way to
  uint32_t free_blocks = 0;
  uint32_t used_blocks = 1;
  uint32_t block_tokens = 1;
  uint32_t compatibility = 0;
  double bytes_per_token = 0;
  uint32_t layers = 1;
  bool prefills = false, decodes = false;  // by its roles, unless it drains
  bool has_peers = false;                  // serves other workers: it has an address
  bool has_credit = false;

  bool Holds(uint32_t prompt, uint32_t answer) const { return uint64_t{prompt} + answer <= capacity; }
  double QueuedSeconds(TimePoint now) const {
    return 1e-9 * static_cast<double>(std::max<Duration>(idle_at - now, Duration(0)).count()) + unconfirmed;
  }
  double PrefillSeconds(const PrefillWork& work) const {
    return prefill_cost[0] * work.steps + prefill_cost[1] * work.tokens + prefill_cost[2] * work.pairs;
  }
  double StepSeconds(uint32_t context) const { return step + context_cost * context; }
  // Blocks for so many tokens that are missing now come free as answers of `typical` tokens end.
  double WaitForBlocks(uint64_t tokens, uint32_t typical, double step_seconds) const {
    if (tokens <= free_tokens) return 0;
    const auto missing = static_cast<double>((tokens + block_tokens - 1) / block_tokens - free_blocks);
    return missing / used_blocks * typical * step_seconds * std::max(1.0, answers);
  }
};

struct WorkerView {
  static constexpr Duration kLongestQueue = std::chrono::hours(1000);  // a peer's number may be anything

  WorkerView(WorkerId worker, const WorkerHello& h, uint32_t cls, const CostCoefficients& prior, TimePoint now)
      : id(worker), compatibility(cls), roles(h.roles), cost(prior), heard(now), connected(now), hello(h) {
    draining = h.draining;
    block_tokens = h.layout.block_tokens;
    num_blocks = free_blocks = *std::min_element(h.num_blocks.begin(), h.num_blocks.end());
    // The last token's KV is never written.
    capacity = std::min<uint64_t>(h.max_context_tokens, uint64_t{num_blocks} * block_tokens + 1);
    credits = h.submit_credits;
    bytes_per_token = static_cast<double>(h.layout.BytesPerToken());
    has_peers = !h.self.address.empty();
    layers = 1;
    for (const KvGroup& g : h.layout.groups) layers = std::max(layers, g.num_layers);
    heartbeat.roles = h.roles;
    heartbeat.free_blocks = h.num_blocks;
  }

  WorkerId id;
  uint32_t compatibility;
  RoleMask roles;
  bool draining = false;
  uint64_t order = 0;      // the latest that was sent; heartbeats from before it do not count
  bool has_peers = false;  // serves other workers: it has an address
  bool cache_known = false;
  bool resync_asked = false;
  uint32_t credits = 0;
  uint32_t credits_used = 0;
  uint64_t capacity = 0;  // tokens of prompt and answer that fit at all
  uint32_t block_tokens = 0;
  uint32_t num_blocks = 0;   // of the smallest group
  uint32_t free_blocks = 0;  // of the scarcest group, as last reported
  uint32_t running = 0;
  uint64_t context_tokens = 0;
  CostCoefficients cost;
  Duration queued{};  // as last reported
  TimePoint heard, connected;
  // Dispatched here and not yet in a heartbeat.
  double unconfirmed_seconds = 0;
  uint32_t inbound_sequences = 0;
  uint32_t inbound_blocks = 0;
  uint64_t inbound_tokens = 0;
  double bytes_per_token = 0;
  uint32_t layers = 1;
  uint64_t cache_sequence = 0;
  Heartbeat heartbeat;
  WorkerReport report;
  TimePoint reported{};
  WorkerHello hello;

  bool MayDecode() const { return roles.decode && !draining; }
  uint32_t CreditsLeft() const { return credits > credits_used ? credits - credits_used : 0; }
  uint32_t BlocksFor(uint64_t tokens) const {
    return static_cast<uint32_t>((tokens + block_tokens - 1) / block_tokens);
  }
  LoadLine Line() const {
    LoadLine l;
    l.idle_at = heard + queued;
    l.unconfirmed = unconfirmed_seconds;
    l.prefill_cost = {cost[0], cost[1], cost[2]};
    const uint32_t now_here = running + inbound_sequences;
    l.step = cost[0] + cost[3] * (now_here + 1.0) + cost[4] * static_cast<double>(context_tokens + inbound_tokens);
    l.context_cost = cost[4];
    l.answers = now_here;
    l.id = id;
    l.capacity = capacity;
    l.free_blocks = free_blocks > inbound_blocks ? free_blocks - inbound_blocks : 0;
    l.free_tokens = uint64_t{l.free_blocks} * block_tokens;
    l.used_blocks = std::max(1u, num_blocks - std::min(num_blocks, l.free_blocks));
    l.block_tokens = block_tokens;
    l.compatibility = compatibility;
    l.bytes_per_token = bytes_per_token;
    l.layers = layers;
    l.has_peers = has_peers;
    l.prefills = roles.prefill && !draining;
    l.decodes = MayDecode();
    l.has_credit = CreditsLeft() > 0;
    return l;
  }

  // Work whose command was sent now: the next heartbeats will tell of it. Returns its number, for Forget.
  uint64_t Expect(const LedgerShare& share, TimePoint now) {
    Promise(share);
    expected_.push_back({now, share, true});
    return first_expected_ + expected_.size() - 1;
  }
  // It ended, perhaps before any heartbeat told of it.
  void Forget(uint64_t number) {
    if (number < first_expected_) return;  // confirmed
    Expected& e = expected_[number - first_expected_];
    if (std::exchange(e.open, false)) Release(e.share);
  }
  // Work that another worker will bring; stays until Release.
  void Promise(const LedgerShare& share) {
    unconfirmed_seconds += share.seconds;
    inbound_sequences += share.sequences;
    inbound_tokens += share.tokens;
    inbound_blocks += share.blocks;
  }
  void Release(const LedgerShare& share) {
    BATON_CHECK(inbound_sequences >= share.sequences && inbound_tokens >= share.tokens &&
                inbound_blocks >= share.blocks);
    inbound_sequences -= share.sequences;
    inbound_tokens -= share.tokens;
    inbound_blocks -= share.blocks;
    // A sum of doubles: the rest after the last one is rounding.
    unconfirmed_seconds = std::max(0.0, unconfirmed_seconds - share.seconds);
  }
  void OnHeartbeat(const Heartbeat& h, TimePoint now, Duration confirm_after) {
    heartbeat = h;
    heard = now;
    if (h.order >= order) {
      roles = h.roles;
      draining = h.draining;
    }
    running = h.running;
    context_tokens = h.context_tokens;
    queued = std::clamp<Duration>(h.queued_work, Duration(0), kLongestQueue);
    free_blocks = h.free_blocks.empty() ? 0 : *std::min_element(h.free_blocks.begin(), h.free_blocks.end());
    if (const auto model = CostModel::Import(h.cost); model.ok()) cost = (*model).coefficients();
    while (!expected_.empty() && expected_.front().at + confirm_after <= now) {
      if (expected_.front().open) Release(expected_.front().share);
      expected_.pop_front();
      ++first_expected_;
    }
    if (expected_.empty() && inbound_sequences == 0) unconfirmed_seconds = 0;
  }

 private:
  struct Expected {
    TimePoint at;
    LedgerShare share;
    bool open;
  };
  std::deque<Expected> expected_;  // by dispatch time
  uint64_t first_expected_ = 0;    // number of the first one
};

}  // namespace baton

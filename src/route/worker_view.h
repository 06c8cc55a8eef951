// One worker as the Router sees it: what it said, projected to now, plus what was dispatched to it since.
//
// Always true: unconfirmed work leaves the view exactly once, by confirmation or with its worker; promised work
// by Release. Sums never wrap.
#pragma once

#include <algorithm>
#include <deque>
#include <utility>

#include "baton/check.h"
#include "baton/clock.h"
#include "baton/front_link.h"
#include "cost/cost_model.h"
#include "route/router.h"

namespace baton {

// Workers of one class may hand off to each other: blocks go byte for byte, and mean the same tokens' KV.
struct CompatibilityClass {
  Hash128 weights;
  Hash128 numeric;
  KvLayout layout;
  friend bool operator==(const CompatibilityClass&, const CompatibilityClass&) = default;
};

// What one dispatch adds to one worker until the worker reports it.
struct LedgerShare {
  double seconds = 0;  // of prefill
  uint32_t sequences = 0;
  uint64_t tokens = 0;
  uint32_t blocks = 0;  // per group
};

// Fields that every decision reads come first and own no memory of their own: a thousand views are scanned in
// microseconds.
struct WorkerView {
  static constexpr uint32_t kChunk = 512;  // tokens of a prefill step, for the prediction

  WorkerView(WorkerId worker, const WorkerHello& h, uint32_t cls, const CostCoefficients& prior, TimePoint now)
      : id(worker), compatibility(cls), roles(h.roles), cost(prior), heard(now), hello(h) {
    block_tokens = h.layout.block_tokens;
    num_blocks = free_blocks = *std::min_element(h.num_blocks.begin(), h.num_blocks.end());
    // The last token's KV is never written.
    capacity = std::min<uint64_t>(h.max_context_tokens, uint64_t{num_blocks} * block_tokens + 1);
    credits = h.submit_credits;
    bytes_per_token = static_cast<double>(h.layout.BytesPerToken());
    layers = 1;
    for (const KvGroup& g : h.layout.groups) layers = std::max(layers, g.num_layers);
    heartbeat.roles = h.roles;
    heartbeat.free_blocks = h.num_blocks;
  }

  WorkerId id;
  uint32_t compatibility;
  RoleMask roles;
  bool draining = false;
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
  double queued_seconds = 0;  // as last reported
  TimePoint heard;
  // Dispatched here and not yet in a heartbeat.
  double unconfirmed_seconds = 0;
  uint32_t inbound_sequences = 0;
  uint32_t inbound_blocks = 0;
  uint64_t inbound_tokens = 0;
  double bytes_per_token = 0;
  uint32_t layers = 1;
  uint64_t cache_sequence = 0;
  Heartbeat heartbeat;
  WorkerHello hello;

  uint32_t CreditsLeft() const { return credits > credits_used ? credits - credits_used : 0; }
  bool Holds(uint32_t prompt, uint32_t answer) const { return uint64_t{prompt} + answer <= capacity; }
  uint32_t BlocksFor(uint64_t tokens) const {
    return static_cast<uint32_t>((tokens + block_tokens - 1) / block_tokens);
  }
  uint32_t FreeBlocks() const { return free_blocks > inbound_blocks ? free_blocks - inbound_blocks : 0; }
  double QueuedSeconds(TimePoint now) const {
    return std::max(0.0, queued_seconds - Seconds(now - heard)) + unconfirmed_seconds;
  }
  // Compute of `tokens` after `cached` ones, alone here.
  double Prefill(uint32_t tokens, uint32_t cached) const {
    const double n = tokens;
    return cost[0] * ((tokens + kChunk - 1) / kChunk) + cost[1] * n + cost[2] * n * (cached + n / 2);
  }
  double DecodeStep(uint32_t batch, uint64_t context) const {
    return cost[0] + cost[3] * batch + cost[4] * static_cast<double>(context);
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
    roles = h.roles;
    draining = h.draining;
    running = h.running;
    context_tokens = h.context_tokens;
    queued_seconds = std::max(0.0, Seconds(h.queued_work));
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

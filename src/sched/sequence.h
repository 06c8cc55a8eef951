// One request's progress on one worker, under one epoch. Owned by the Scheduler; everybody else holds its
// SequenceId and reads. A plain record: what may be done with it is decided in scheduler.cc.
//
// Positions count tokens of prompt + answer from 0. Always true:
//   num_computed <= num_launched <= tokens.size() + samples in flight
//   num_launched <= block_tokens * blocks of every group
//   Waiting and Finished hold no block and name no launched step of the current run
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "baton/clock.h"
#include "baton/ids.h"
#include "baton/request.h"
#include "kv/block_pool.h"

namespace baton {

enum class Phase : uint8_t {
  kWaiting,    // holds no blocks: queued for the first time, or preempted
  kComputing,  // holds every block its known tokens need; some of them are not launched yet
  kSending,    // hand-off: the prompt is computed and the next token is known; launches nothing more
  kReceiving,  // a writer fills its blocks
  kRunning,    // decodes: every known token's step is launched
  kFinished,   // ended by its stop rules or failed; holds no blocks unless pinned, waits for End
};
std::string_view PhaseName(Phase phase);

// What planning a decode reads and writes comes first and fits in two cache lines: a thousand of them are planned in
// microseconds.
struct alignas(64) Sequence {
  SequenceId id{};
  std::vector<TokenId> tokens;  // prompt, then the answer so far
  uint32_t prompt_tokens = 0;
  uint32_t max_known = 0;      // prompt and max_tokens: with so many tokens the answer is complete
  uint32_t first_counted = 0;  // S8: draws and stop rules count from the answer's own start, always

  // ---- what is computed
  // Raised whenever the blocks are given up while the sequence lives (preemption, a failed step). A launched
  // part of an older run is discarded when it retires: recomputing gives the same tokens.
  uint32_t run = 1;
  uint32_t num_computed = 0;  // KV of [0, num_computed) is in the blocks: hit, received, or by retired steps
  uint32_t num_launched = 0;  // the same, with the steps in flight
  uint32_t told_tokens = 0;   // positions in those blocks that plans of this run told the runner of
  uint32_t samples_in_flight = 0;
  uint32_t steps_in_flight = 0;  // of this run
  StepId last_step{};            // the last one that was launched with a part of it
  Phase phase = Phase::kWaiting;
  bool stalled = false;  // wanted a block in the last Schedule and got none
  bool held = false;     // a migration's cut-over: no step of it is planned
  bool told = false;     // some plan named it, in any run: one has to tell of its end
  // A reader works on its blocks (RESERVE sent, or a ticket): never preempted (L5). Set by the hand-off.
  bool pinned = false;
  bool once_hit = false;  // Progress::once_hit: never in flight together with another such sequence (L8)
  bool handoff = false;   // computes its prompt here and decodes elsewhere
  FinishReason finish = FinishReason::kNone;
  // Tokens that this run computes before its first sample, known when it got its blocks: for a hand-off the
  // number of tokens whose KV is handed over (Reserve::num_tokens).
  uint32_t prefill_tokens = 0;
  uint32_t hit_tokens = 0;         // of them found in the prefix cache, or held by the reader before the hand-off
  uint32_t clean_blocks = 0;       // leading blocks of each table that are never zeroed: hits, a writer's
  std::vector<BlockTable> tables;  // [group]
  // Receiving from a writer of another layout: what the writer fills instead of `tables` [group].
  std::vector<BlockTable> staging;

  // ---- prefix cache
  uint32_t num_indexed = 0;  // leading blocks that were offered to the index
  bool indexable = true;     // false: this run's chain cannot be continued
  Hash128 root;
  std::vector<Hash128> page_hashes;   // of the full pages of `tokens`, as far as needed
  std::vector<PrefixCursor> cursors;  // [group]

  // ---- what is asked and answered
  RequestPtr request;
  Epoch epoch = 0;
  uint64_t arrival = 0;             // counts up; keeps its place through preemptions
  std::vector<OutputToken> output;  // the answer so far, as Progress carries it
  uint32_t delivered = 0;           // of it the front has; events start here
  uint32_t preemptions = 0;
  uint32_t failed_steps = 0;

  // ---- receipt
  uint32_t cached_tokens = 0;  // hit_tokens of the first run
  TimePoint added{};
  TimePoint first_launch = kNever;
  TimePoint prefill_end = kNever;  // the first run's last prompt step retired

  uint32_t num_prompt() const { return prompt_tokens; }
  uint32_t num_known() const { return static_cast<uint32_t>(tokens.size()); }
  bool WasPreempted() const { return preemptions > 0 || failed_steps > 0; }
  // Everything a peer or a front needs to go on from here.
  Progress ProgressNow(Duration deadline_remaining) const { return {output, delivered, deadline_remaining, once_hit}; }
};

}  // namespace baton

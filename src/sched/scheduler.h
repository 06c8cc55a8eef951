// Decides what the next step computes, and owns every Sequence of a worker: continuous batching, chunked
// prefill beside decodes under a token budget, prefix reuse, preemption by recompute, both sides of a
// hand-off as far as blocks are concerned. Pure: time is an argument, nothing is random, order is total
// (priority, then arrival). Engine thread.
//
// A step: Schedule plans it and counts it as launched; the caller launches it; when its result comes,
// OnStepDone. At most max_steps_in_flight are launched and not done. A sequence is planned again while its
// last step is in flight: the next chunk, or position + 1 with "the token sampled by the last step" as input.
//
// Always true:
//  - A block that a launched step names stays owned until that step is done: a sequence that gives up its
//    blocks before leaves them with the last launched step that names them.
//  - A sequence gets its blocks all at once: everything its known tokens need, before its first chunk. Only
//    decoding grows, a block at a time (L5: nobody holds a part and waits for the rest).
//  - No step past the last known prompt token is planned for a sequence that hands off (S3).
//  - A block enters the prefix cache when a step that is done wrote its last byte, or with MakeReady (S9).
//  - Of the sequences that were in a step when a worker died (once_hit), one at a time is in launched steps: a
//    second death names it alone (L8). The others wait for their turn, and nobody waits for them.
//  - Results do not depend on chunking, neighbours, preemption or the number of steps in flight.
// Bounded: max_waiting sequences wait, max_running hold blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/slot_map.h"
#include "baton/clock.h"
#include "baton/front_link.h"
#include "baton/model_runner.h"
#include "baton/rules.h"
#include "baton/status.h"
#include "baton/step_plan.h"
#include "kv/block_pool.h"
#include "sched/sequence.h"

namespace baton {

struct SchedulerOptions {
  uint32_t max_step_tokens = 512;      // of all sequences of a step; > max_running, so prefill always gets room (L5)
  uint32_t max_prefill_tokens = 512;   // of prefill chunks in a step; >= 1
  uint32_t max_running = 64;           // sequences that hold blocks, Receiving and Sending included
  uint32_t max_waiting = 256;          // queued before Add refuses; preempted ones always find room
  uint32_t max_context_tokens = 2048;  // prompt + max_tokens
  // Blocks per group that admission leaves for running sequences to grow into; ignored when nothing runs.
  uint32_t watermark_blocks = 2;
  uint32_t max_steps_in_flight = kMaxStepsInFlight;
  bool prefix_cache = true;
  RoleMask roles;
  Hash128 weights;  // ModelIdentity::weights, and
  Hash128 numeric;  // the numeric identity of this worker's KV: roots of the prefix hashes (S9)
  Rules rules;
};
Status Validate(const SchedulerOptions& options);  // INVALID_ARGUMENT with value and limit

// One sequence's part of a launched step.
struct LaunchedPart {
  SequenceId sequence{};
  uint32_t run = 0;  // counts only while Sequence::run is still this
  uint32_t first_position = 0;
  uint32_t num_tokens = 0;
  bool sample = false;
  uint32_t sample_index = 0;
};
struct LaunchedStep {
  StepId id{};
  TimePoint launched{};
  std::vector<LaunchedPart> parts;   // in plan order
  std::vector<SequenceId> once_hit;  // of them (L8)
  std::vector<uint32_t> leaving;     // [group]: how many blocks of `left` nobody else holds
  std::vector<BlockTable> left;      // blocks of sequences that gave them up; released when the step is done
};

struct NewToken {
  SequenceId sequence{};
  uint32_t index = 0;  // in the answer; below Sequence::delivered it is not to be sent
  OutputToken token;
  FinishReason finish = FinishReason::kNone;  // not none: the sequence is Finished now
};
struct StepOutcome {
  std::vector<NewToken> tokens;        // in plan order
  std::vector<SequenceId> prefilled;   // their last known token was computed by this step; before `tokens`
  std::vector<FailedSequence> failed;  // now Finished
};

// What a reader may promise a writer.
struct ReceiveGrant {
  SequenceId sequence{};
  uint32_t hit_tokens = 0;  // whole blocks, held already
  // [group]: for the writer, in order; they cover [hit_tokens, num_tokens). Not zeroed: the writer's chunks
  // cover every byte of them, and none is read before all of it came.
  std::vector<std::vector<BlockId>> fresh;
  // [group]: the writer's instead, where layouts are unlike; `fresh` is then filled from them by a conversion.
  std::vector<std::vector<BlockId>> staging;
};
// [group]: staging blocks that a hand-off needs when hit_tokens of its num_tokens are held already.
using StagingNeed = std::function<std::vector<uint32_t>(uint32_t hit_tokens, uint32_t num_tokens)>;

// Load as a heartbeat tells it.
struct SchedulerLoad {
  uint32_t waiting = 0;
  uint32_t running = 0;                      // sequences that hold blocks
  uint64_t queued_tokens = 0;                // known tokens not launched yet, Waiting and Computing
  uint64_t context_tokens = 0;               // known tokens of Running sequences
  std::vector<uint32_t> free_blocks;         // [group], free or evictable
  std::vector<uint32_t> quarantined_blocks;  // [group]
};

class Scheduler {
 public:
  // Options are valid; the pool outlives the scheduler.
  Scheduler(const SchedulerOptions& options, BlockPool* pool);

  // ---- admission ------------------------------------------------------------------------------
  // Queues a request. `progress.tokens` are forced: its answer goes on behind them. handoff: compute the
  // prompt (and those tokens) only, then Sending. A takeover of an older epoch is End(old), then Add: the
  // old one's full blocks are in the prefix cache by then, most recently used.
  // RESOURCE_EXHAUSTED: the queue is full, try again. INVALID_ARGUMENT: it can never fit here, or makes no
  // sense (empty prompt, answer already complete). FAILED_PRECONDITION: not in this worker's roles.
  // runs_here: it goes on with what an older epoch held here, which no role mask ends (L10).
  StatusOr<SequenceId> Add(RequestPtr request, const Progress& progress, Epoch epoch, bool handoff, TimePoint now,
                           bool runs_here = false);

  // Reader: blocks for a hand-off of the KV of all of prompt + progress.tokens, and for the first growth.
  // RESOURCE_EXHAUSTED: BUSY, now is not the time. INVALID_ARGUMENT: never (kTooLarge). FAILED_PRECONDITION:
  // role. With `staging` also blocks for the writer's bytes, all or none (L5), until MakeReady. `numeric`: identity of
  // what will lie there (S9), for its prefix hits too; a sequence that starts over has the worker's own again.
  StatusOr<ReceiveGrant> Receive(RequestPtr request, const Progress& progress, Epoch epoch, TimePoint now,
                                 const StagingNeed& staging = nullptr, std::optional<Hash128> numeric = std::nullopt);
  // Reader: a migrating sequence grew: the blocks [group] for num_tokens behind those granted before, and one to grow.
  // RESOURCE_EXHAUSTED: not now. INVALID_ARGUMENT: never.
  StatusOr<std::vector<std::vector<BlockId>>> ExtendReceive(SequenceId id, uint32_t num_tokens);
  // Reader: every byte is there and right. `progress` extends that of Receive by exactly one token, or, of a
  // migration, by at least one, with as many tokens before the last as the granted blocks hold. The sequence joins
  // the next step. INVALID_ARGUMENT: it does not; nothing changed.
  Status MakeReady(SequenceId id, const Progress& progress, TimePoint now);
  // Reader: the hand-off broke. Ends the Receiving sequence; its fresh blocks come back as quarantined
  // [group], the hit and the growth block are released. With staging that is what comes back, and all of its own
  // blocks are released: no writer knows them.
  std::vector<QuarantinedBlocks> Quarantine(SequenceId id);
  // Reader: ends a Receiving sequence whose writer is quiet, and releases everything.
  void Abandon(SequenceId id);

  // ---- steps ----------------------------------------------------------------------------------
  // The next step, or an empty plan: nothing to do, or max_steps_in_flight reached. A plan that is not
  // empty counts as launched. Ids count from 1.
  StepPlan Schedule(TimePoint now);
  // `result` is that of the oldest launched step. Not ok: none of its KV counts; a sequence of it starts
  // over from its known tokens if this was its first failed step, and fails if it was its second, or if it
  // hands off (layers may have been posted already). result.failed fail by themselves.
  StepOutcome OnStepDone(const StepResult& result, TimePoint now);
  // A plan that came back: its memory serves a next one.
  void Recycle(StepPlan plan);
  const LaunchedStep* FindLaunched(StepId id) const;
  const std::deque<LaunchedStep>& launched() const { return launched_; }
  // Whether the sequence still counts on that part.
  bool IsCurrent(const LaunchedPart& part) const;
  // Sequences preempted since the last call, in order. A hand-off that was held for want of a grant (L6)
  // learns here that it starts over.
  std::vector<SequenceId> TakePreempted() { return std::exchange(preempted_, {}); }

  // ---- sequences ------------------------------------------------------------------------------
  const Sequence* Find(SequenceId id) const;
  // A hand-off's blocks are promised to a reader from RESERVE on: not preempted while set.
  void SetPinned(SequenceId id, bool pinned);
  // Its KV is what this worker would have computed, not a conversion of what another rounded (S9).
  bool IsNative(SequenceId id) const;
  // A migration's cut-over: no step of it is planned while set. What is launched ends.
  void SetHeld(SequenceId id, bool held) { Get(id).held = held; }
  // A worker died with it in a launched step; it may be in one here already (L8).
  void SetOnceHit(SequenceId id);
  void SetDelivered(SequenceId id, uint32_t delivered);
  // Forgets the sequence, whatever its phase but Receiving. Its blocks go back at once (full ones stay
  // cached), or when the launched steps that name them are done.
  void End(SequenceId id);
  // The same, but its blocks go to the caller [group] (an outbound hand-off that is still being read).
  std::vector<BlockTable> TakeBlocks(SequenceId id);
  // Fn(const Sequence&), in slot order.
  template <typename Fn>
  void ForEach(Fn fn) {
    sequences_.ForEach([&](SequenceId, const Sequence& s) { fn(s); });
  }

  void set_roles(RoleMask roles) { options_.roles = roles; }
  const SchedulerOptions& options() const { return options_; }
  SchedulerLoad Load() const;
  // A sequence that is READY or later, was preempted, or leads the queue waits for blocks: no GRANT (L5).
  bool WaitsForBlocks() const;
  bool idle() const { return sequences_.size() == 0 && launched_.empty(); }
  // Aborts where a record contradicts itself. For tests and the simulator, after every event.
  void Audit() const;

 private:
  // Who goes first: higher priority, then earlier arrival. Unique.
  struct Rank {
    int64_t minus_priority = 0;
    uint64_t arrival = 0;
    friend auto operator<=>(const Rank&, const Rank&) = default;
  };
  struct Ranked {
    Rank rank;
    Sequence* sequence = nullptr;
    friend bool operator<(const Ranked& a, const Ranked& b) { return a.rank < b.rank; }
  };
  // A step while it is planned.
  struct Draft {
    StepPlan plan;
    LaunchedStep step;
    std::vector<Sequence*> computing;  // Computing with tokens to launch, by rank
    bool stalled = false;              // somebody wanted a block and got none
    uint32_t tokens_left = 0;          // of max_step_tokens
    uint32_t prefill_left = 0;         // of max_prefill_tokens
    SequenceId turn{};                 // of the once-hit sequences, the one whose turn it is (L8)
    uint32_t room() const { return std::min(prefill_left, tokens_left); }  // for chunks
  };
  static Rank RankOf(const Sequence& s) { return {-int64_t{s.request->priority}, s.arrival}; }

  Status Check(const Request& request, const Progress& progress) const;
  // INVALID_ARGUMENT if a group has fewer than `blocks` blocks in all; `what` says what needs them.
  Status CheckFits(uint32_t blocks, const char* what) const;
  Sequence Make(RequestPtr request, const Progress& progress, Epoch epoch, TimePoint now);
  void SetRoot(Sequence* s, const Hash128& numeric) const;
  Sequence& Get(SequenceId id);
  void InsertActive(Sequence* s);
  void InsertWaiting(Sequence* s);
  void EraseWaiting(Sequence* s);
  void CompactActive();  // drops entries that are no longer Computing, Running or Sending

  std::vector<BlockTable> MatchPrefix(Sequence* s, uint32_t max_blocks);
  bool Available(uint32_t blocks, uint32_t reserve) const;      // now, in every group
  bool AvailableSoon(uint32_t blocks, uint32_t reserve) const;  // when the launched steps are done
  uint32_t AdmissionReserve() const;
  void IndexComplete(Sequence* s);
  // The sequence's blocks go back: at once, or to its last launched step while that is not done.
  void GiveUpBlocks(Sequence* s);
  void StartOver(Sequence* s);  // to Waiting, with its tokens
  void Preempt(Sequence* s);
  void Finish(Sequence* s);
  void FinishPinned(Sequence* s);  // S1: a transfer reads its blocks, which go with End

  void MakeRoomForHead();
  void PlanDecodes(Draft* draft);
  void PlanChunks(Draft* draft);
  bool IsShort(const Sequence& s) const;
  void PlanShortBehind(const Sequence& first, Draft* draft);
  bool MayAdmit(const Draft& draft) const;
  void BeginComputing(Sequence* s);
  void Admit(Draft* draft);
  bool TryAllocate(Sequence* s);
  bool MayDecode(const Sequence& s) const;
  bool WantsChunk(const Sequence& s) const;
  bool RunsApart(const Sequence& s) const { return s.once_hit && options_.rules.Holds(Rule::kL8Apart); }
  bool AnotherInFlight(const Sequence& s) const;
  bool WaitsForTurn(const Sequence& s) const;
  Sequence* HeadOfQueue() const;
  bool TakesTurn(const Sequence& s, Draft* draft) const;
  bool EnsureNextBlock(Sequence* s);
  bool MayPreempt(const Sequence& s) const;
  Sequence* VictimBelow(const Sequence& s);
  uint32_t PlanChunk(Sequence* s, uint32_t limit, Draft* draft);
  void PlanPart(Sequence* s, uint32_t num_tokens, bool sample, Draft* draft);
  void TellBlocks(Sequence* s, uint32_t end, Draft* draft);
  void PartDone(const LaunchedPart& part, Sequence* s, const SampledToken* token, TimePoint now, StepOutcome* outcome);

  SchedulerOptions options_;
  BlockPool* pool_;
  SlotMap<Sequence, SequenceId> sequences_;
  std::set<Ranked> waiting_;
  uint64_t waiting_tokens_ = 0;
  uint32_t waiting_preempted_ = 0;
  std::vector<Ranked> active_;  // Computing, Running, Sending; sorted
  bool active_dirty_ = false;
  uint32_t num_receiving_ = 0;
  std::deque<LaunchedStep> launched_;
  // Empty lists of steps that are done. Thousands of parts a step are too many to ask the system for every time.
  std::vector<LaunchedPart> spare_parts_;
  std::vector<StepPlan> spare_plans_;  // at most max_steps_in_flight + 1
  std::vector<uint32_t> grow_by_;      // scratch, [group]
  std::vector<uint32_t> leaving_;      // [group]: blocks that come back when launched steps are done
  std::vector<SequenceId> preempted_;
  std::vector<SequenceId> ended_;  // the runner knows them still; the next plan tells
  // The head of the queue that found no blocks, the pool's release count and the reserve then: no use to
  // try again before one of them changes.
  SequenceId blocked_head_{};
  uint64_t blocked_at_ = 0;
  uint32_t blocked_reserve_ = 0;
  uint64_t next_arrival_ = 1;
  uint64_t next_step_ = 1;
};

}  // namespace baton

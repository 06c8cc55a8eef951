// What a step computes, and what becomes of its result.
#include <algorithm>
#include <string>

#include "baton/check.h"
#include "sched/scheduler.h"

namespace baton {
namespace {
// After that many preemptions a sequence gives way only if nobody else can.
constexpr uint32_t kMaxPreemptions = 2;
}  // namespace

StepPlan Scheduler::Schedule(TimePoint now) {
  if (launched_.size() >= options_.max_steps_in_flight) return {};
  Draft draft;
  if (!spare_plans_.empty()) {
    draft.plan = std::move(spare_plans_.back());
    spare_plans_.pop_back();
  }
  draft.plan.id = draft.step.id = StepId{next_step_};
  draft.plan.zero.resize(pool_->num_groups());
  draft.step.launched = now;
  draft.plan.sequences.reserve(active_.size());
  draft.step.parts = std::exchange(spare_parts_, {});
  draft.step.parts.reserve(active_.size());
  draft.tokens_left = options_.max_step_tokens;
  draft.prefill_left = options_.max_prefill_tokens;

  MakeRoomForHead();
  PlanDecodes(&draft);
  PlanChunks(&draft);
  Admit(&draft);
  if (draft.plan.sequences.empty()) {
    Recycle(std::move(draft.plan));
    spare_parts_ = std::move(draft.step.parts);
    return {};
  }
  draft.plan.ended.swap(ended_);
  ++next_step_;
  launched_.push_back(std::move(draft.step));
  return std::move(draft.plan);
}

void Scheduler::Recycle(StepPlan plan) {
  if (spare_plans_.size() > options_.max_steps_in_flight) return;
  plan.Clear();
  spare_plans_.push_back(std::move(plan));
}

// A request of higher priority does not wait for lower ones to end: they start over, if that makes room.
// Counts as if nothing of it were cached.
void Scheduler::MakeRoomForHead() {
  if (waiting_.empty() || active_.empty()) return;
  const Sequence* first = HeadOfQueue();
  if (first == nullptr) return;
  const Sequence& head = *first;
  const auto below = [&head](const Sequence& s) { return s.request->priority < head.request->priority; };
  if (!below(*active_.back().sequence)) return;
  const uint32_t need = pool_->BlocksFor(head.num_known());
  uint32_t reserve = options_.watermark_blocks;
  for (uint32_t g = 0; g < pool_->num_groups(); ++g) reserve = std::min(reserve, pool_->counts(g).total - need);
  size_t places = active_.size() + num_receiving_;
  const auto has_room = [&](uint32_t blocks) {
    return places < options_.max_running && AvailableSoon(blocks, reserve);
  };
  if (has_room(need)) return;
  uint32_t could_free = 0;
  size_t could_go = 0;
  for (const Ranked& r : active_) {
    if (!below(*r.sequence) || !MayPreempt(*r.sequence)) continue;
    ++could_go;
    could_free += r.sequence->tables[0].size();
  }
  if (could_go == 0 || !AvailableSoon(need - std::min(need, could_free), 0)) return;
  for (size_t i = active_.size(); i-- > 0 && !has_room(need) && below(*active_[i].sequence);) {
    if (!MayPreempt(*active_[i].sequence)) continue;
    Preempt(active_[i].sequence);
    --places;
  }
  CompactActive();
}

bool Scheduler::MayDecode(const Sequence& s) const {
  const bool decodes = s.phase == Phase::kRunning || (s.phase == Phase::kSending && !options_.rules.Holds(Rule::kS3));
  const uint32_t will_know = s.num_known() + s.samples_in_flight;
  return decodes && !s.held && s.num_launched < will_know && will_know < s.max_known;
}

bool Scheduler::WantsChunk(const Sequence& s) const {
  return s.phase == Phase::kComputing && s.num_launched < s.num_known();
}

// ---- L8: once-hit sequences run apart ----------------------------------------------------------------
//
// The turn belongs to the first in rank of those that hold blocks and can go on; with none of them, to the first of
// the queue. It is given anew for every step, but nobody is planned while another one's step is in flight: a turn
// passes on when the launched steps of the last one are done. Who cannot go on for want of a block passes it on, so
// the first in rank always goes on, as without turns.

bool Scheduler::AnotherInFlight(const Sequence& s) const {
  return std::any_of(launched_.begin(), launched_.end(), [&s](const LaunchedStep& step) {
    return std::any_of(step.once_hit.begin(), step.once_hit.end(), [&s](SequenceId id) { return id != s.id; });
  });
}

// A queued one: somebody who holds blocks goes first.
bool Scheduler::WaitsForTurn(const Sequence& s) const {
  if (!RunsApart(s)) return false;
  if (AnotherInFlight(s)) return true;
  return std::any_of(active_.begin(), active_.end(), [this](const Ranked& r) {
    return RunsApart(*r.sequence) && (WantsChunk(*r.sequence) || MayDecode(*r.sequence));
  });
}

Sequence* Scheduler::HeadOfQueue() const {
  for (const Ranked& r : waiting_) {
    if (!WaitsForTurn(*r.sequence)) return r.sequence;
  }
  return nullptr;
}

// Takes the turn where it is free. False: not in this step.
bool Scheduler::TakesTurn(const Sequence& s, Draft* draft) const {
  if (!RunsApart(s)) return true;
  if (draft->turn == SequenceId{}) draft->turn = s.id;
  return draft->turn == s.id && !AnotherInFlight(s);
}

void Scheduler::PlanDecodes(Draft* draft) {
  // Sequences lie apart, and the tables of those that grow were not read for a block's length of steps: each would be
  // a cache miss of its own.
  constexpr size_t kAhead = 8;
  const auto fetch_ahead = [this](size_t i) {
    if (i + kAhead >= active_.size()) return;
    const auto* far = reinterpret_cast<const char*>(active_[i + kAhead].sequence);
    __builtin_prefetch(far, /*rw=*/1);
    __builtin_prefetch(far + 64, /*rw=*/1);
    const Sequence& near = *active_[i + kAhead / 2].sequence;
    if (near.num_launched >= near.told_tokens) __builtin_prefetch(near.tables.data());
  };
  // Victims rank below the one that needs a block, so none of them is planned yet; they stay listed until
  // the loop is over.
  for (size_t i = 0; i < active_.size() && draft->tokens_left > 0; ++i) {
    fetch_ahead(i);
    Sequence* s = active_[i].sequence;
    const bool wants_chunk = WantsChunk(*s);
    if (wants_chunk) TakesTurn(*s, draft);  // PlanChunks is next: a turn goes by rank alone
    const bool may = MayDecode(*s) && !(RunsApart(*s) && draft->turn != SequenceId{});
    s->stalled = may && s->num_launched >= s->told_tokens && !EnsureNextBlock(s);
    if (may && !s->stalled && TakesTurn(*s, draft)) PlanPart(s, 1, true, draft);
    draft->stalled |= s->stalled;
    if (wants_chunk) draft->computing.push_back(s);
  }
  CompactActive();
}

bool Scheduler::EnsureNextBlock(Sequence* s) {
  const uint32_t blocks = s->num_launched / pool_->block_tokens() + 1;
  if (std::all_of(s->tables.begin(), s->tables.end(), [&](const BlockTable& t) { return t.size() >= blocks; })) {
    return true;
  }
  grow_by_.clear();
  for (const BlockTable& table : s->tables) grow_by_.push_back(table.size() < blocks ? 1 : 0);
  while (!pool_->Grow(s->tables, grow_by_)) {
    if (AvailableSoon(1, 0)) return false;
    Sequence* victim = VictimBelow(*s);
    if (victim == nullptr) return false;
    Preempt(victim);
  }
  return true;
}

// A sequence that a reader works on never starts over (L5); one that would not fit again must not.
bool Scheduler::MayPreempt(const Sequence& s) const {
  if (s.phase != Phase::kComputing && s.phase != Phase::kRunning && s.phase != Phase::kSending) return false;
  if (s.pinned && options_.rules.Holds(Rule::kL5)) return false;
  for (uint32_t g = 0; g < pool_->num_groups(); ++g) {
    if (pool_->BlocksFor(s.num_known()) > pool_->counts(g).total) return false;
  }
  return true;
}

// The lowest priority, then the latest arrival. The requester itself only stalls: it keeps what it holds
// until somebody who ranks above it needs that, so the first in rank always goes on.
Sequence* Scheduler::VictimBelow(const Sequence& s) {
  const Rank rank = RankOf(s);
  for (const bool spare : {true, false}) {
    for (size_t i = active_.size(); i-- > 0 && rank < active_[i].rank;) {
      Sequence* victim = active_[i].sequence;
      if (MayPreempt(*victim) && !(spare && victim->preemptions >= kMaxPreemptions)) return victim;
    }
  }
  return nullptr;
}

void Scheduler::PlanChunks(Draft* draft) {
  bool shared = false;
  for (Sequence* s : draft->computing) {
    if (draft->room() == 0) return;
    const bool planned = s->last_step == draft->step.id;  // as one of the short ones
    if (planned || !TakesTurn(*s, draft)) continue;
    if (!shared && !IsShort(*s)) PlanShortBehind(*s, draft);
    shared |= !IsShort(*s);
    PlanChunk(s, draft->room(), draft);
  }
}

bool Scheduler::IsShort(const Sequence& s) const {
  return s.num_known() - s.num_launched <= options_.max_prefill_tokens;
}

// Half of what is left of the step, before a prompt of more than a chunk: to shorter ones of its priority or above that
// come behind it, queued ones included. In the queue they pass only such as are long themselves, and nobody who waits
// for blocks, whom they would keep waiting.
void Scheduler::PlanShortBehind(const Sequence& first, Draft* draft) {
  uint32_t share = draft->room() / 2;
  const int32_t priority = first.request->priority;
  for (Sequence* s : draft->computing) {
    if (share == 0) return;
    if (s->last_step == draft->step.id || s->request->priority < priority || !IsShort(*s) || RunsApart(*s)) continue;
    share -= PlanChunk(s, share, draft);
  }
  for (auto next = waiting_.begin(); next != waiting_.end() && share > 0 && MayAdmit(*draft);) {
    Sequence* s = next->sequence;
    ++next;
    if (s->request->priority < priority) return;
    if (RunsApart(*s)) continue;
    if (!IsShort(*s)) {
      if (s->WasPreempted() || !Available(pool_->BlocksFor(s->num_known()), AdmissionReserve())) return;
      continue;
    }
    if (!TryAllocate(s)) return;
    BeginComputing(s);
    share -= PlanChunk(s, share, draft);
  }
}

// At most `limit` of its tokens, and how many.
uint32_t Scheduler::PlanChunk(Sequence* s, uint32_t limit, Draft* draft) {
  const uint32_t tokens = std::min(s->num_known() - s->num_launched, limit);
  const bool last = s->num_launched + tokens == s->num_known();
  PlanPart(s, tokens, last, draft);
  draft->prefill_left -= tokens;
  // A hand-off stays Computing until its last chunk is done; nothing more is planned for it (S3).
  if (last && !s->handoff) s->phase = Phase::kRunning;
  return tokens;
}

void Scheduler::PlanPart(Sequence* s, uint32_t num_tokens, bool sample, Draft* draft) {
  StepPlan& plan = draft->plan;
  const uint32_t first = s->num_launched;
  const uint32_t end = first + num_tokens;
  if (end > s->told_tokens) TellBlocks(s, end, draft);
  const bool known = first < s->num_known();
  const uint32_t index = sample ? end - s->num_prompt() - s->first_counted : 0;
  // Built in place: a copy would wait for the stores before it.
  SequenceStep& part = plan.sequences.emplace_back();
  part.sequence = s->id;
  part.first_position = first;
  part.num_tokens = num_tokens;
  part.first_input = static_cast<uint32_t>(plan.inputs.size());
  part.num_inputs = known ? num_tokens : 0;
  part.sample_index = index;
  part.sample = sample;
  if (known) plan.inputs.insert(plan.inputs.end(), s->tokens.begin() + first, s->tokens.begin() + end);
  if (s->once_hit) draft->step.once_hit.push_back(s->id);
  LaunchedPart& launched = draft->step.parts.emplace_back();
  launched.sequence = s->id;
  launched.run = s->run;
  launched.first_position = first;
  launched.num_tokens = num_tokens;
  launched.sample = sample;
  launched.sample_index = index;
  draft->tokens_left -= num_tokens;
  s->num_launched = end;
  s->samples_in_flight += sample ? 1 : 0;
  ++s->steps_in_flight;
  s->last_step = draft->step.id;
  if (!options_.rules.Holds(Rule::kS9)) IndexComplete(s);
}

// What the runner lacks for the positions up to `end`: the request, if this run starts, and the next blocks.
void Scheduler::TellBlocks(Sequence* s, uint32_t end, Draft* draft) {
  StepPlan& plan = draft->plan;
  const uint32_t told = s->told_tokens / pool_->block_tokens(), blocks = pool_->BlocksFor(end);
  plan.updates.push_back(
      {s->id, told == 0 ? s->request : nullptr, static_cast<uint32_t>(plan.blocks.size()), blocks - told});
  for (uint32_t g = 0; g < s->tables.size(); ++g) {
    const std::span<const BlockId> table = s->tables[g].blocks();
    const auto next = table.subspan(told, blocks - told);
    plan.blocks.insert(plan.blocks.end(), next.begin(), next.end());
    const auto fresh = next.subspan(std::min<size_t>(next.size(), s->clean_blocks - std::min(s->clean_blocks, told)));
    plan.zero[g].insert(plan.zero[g].end(), fresh.begin(), fresh.end());
  }
  s->told_tokens = blocks * pool_->block_tokens();
  s->told = true;
  if (s->first_launch == kNever) s->first_launch = draft->step.launched;
}

// Who runs goes first: while one of them lacks a block, nobody new takes any.
bool Scheduler::MayAdmit(const Draft& draft) const {
  return !draft.stalled && draft.room() > 0 && active_.size() + num_receiving_ < options_.max_running;
}

void Scheduler::BeginComputing(Sequence* s) {
  EraseWaiting(s);
  s->phase = Phase::kComputing;
  InsertActive(s);
}

void Scheduler::Admit(Draft* draft) {
  for (auto next = waiting_.begin(); next != waiting_.end() && MayAdmit(*draft);) {
    Sequence* s = next->sequence;
    ++next;
    // Those behind it do not wait for its turn.
    if (RunsApart(*s) && (draft->turn != SequenceId{} || AnotherInFlight(*s))) continue;
    if (!TryAllocate(s)) return;
    TakesTurn(*s, draft);
    BeginComputing(s);
    PlanChunk(s, draft->room(), draft);
  }
}

// All blocks that the known tokens need, or none.
bool Scheduler::TryAllocate(Sequence* s) {
  const uint32_t reserve = AdmissionReserve();
  if (blocked_head_ == s->id && blocked_at_ == pool_->num_released() && blocked_reserve_ == reserve) return false;
  // At least the last known token is computed, for its logits.
  std::vector<BlockTable> tables = MatchPrefix(s, (s->num_known() - 1) / pool_->block_tokens());
  const uint32_t hit = tables[0].size();
  const uint32_t need = pool_->BlocksFor(s->num_known()) - hit;
  if (!Available(need, reserve)) {
    tables.clear();
    blocked_head_ = s->id;
    blocked_reserve_ = reserve;
    blocked_at_ = pool_->num_released();
    return false;
  }
  BATON_CHECK(pool_->Grow(tables, std::vector<uint32_t>(tables.size(), need)));
  blocked_head_ = SequenceId{};
  s->tables = std::move(tables);
  s->clean_blocks = hit;
  s->prefill_tokens = s->num_known();
  s->hit_tokens = s->num_computed = s->num_launched = hit * pool_->block_tokens();
  if (!s->WasPreempted()) s->cached_tokens = s->hit_tokens;
  return true;
}

// ---- results ---------------------------------------------------------------------------------------

StepOutcome Scheduler::OnStepDone(const StepResult& result, TimePoint now) {
  BATON_CHECK(!launched_.empty() && launched_.front().id == result.id, "a result out of launch order");
  LaunchedStep step = std::move(launched_.front());
  launched_.pop_front();
  for (size_t g = 0; g < step.leaving.size(); ++g) leaving_[g] -= step.leaving[g];

  StepOutcome outcome;
  outcome.tokens.reserve(result.tokens.size());
  auto token = result.tokens.begin();
  auto failed = result.failed.begin();
  for (const LaunchedPart& part : step.parts) {
    const SampledToken* sampled = nullptr;
    const Status* why = result.status.ok() ? nullptr : &result.status;
    if (failed != result.failed.end() && failed->sequence == part.sequence) {
      why = why != nullptr ? why : &failed->why;
      ++failed;
    } else if (part.sample && result.status.ok()) {
      BATON_CHECK(token != result.tokens.end() && token->sequence == part.sequence && token->index == part.sample_index,
                  "the runner's tokens do not match the plan");
      sampled = &*token++;
    }
    Sequence* s = sequences_.Find(part.sequence);
    if (s == nullptr || s->run != part.run) continue;  // discarded, see Sequence::run
    --s->steps_in_flight;
    if (s->phase == Phase::kFinished) continue;  // it failed before, and a hand-off still reads its blocks
    if (why == nullptr) {
      PartDone(part, s, sampled, now, &outcome);
    } else if (!result.status.ok() && !s->handoff && s->failed_steps == 0) {
      ++s->failed_steps;
      StartOver(s);
    } else {
      outcome.failed.push_back({s->id, *why});
      s->pinned&& options_.rules.Holds(Rule::kS1) ? FinishPinned(s) : Finish(s);
    }
  }
  CompactActive();
  spare_parts_ = std::move(step.parts);
  spare_parts_.clear();
  return outcome;
}

void Scheduler::PartDone(const LaunchedPart& part, Sequence* s, const SampledToken* token, TimePoint now,
                         StepOutcome* outcome) {
  s->num_computed = part.first_position + part.num_tokens;
  if (part.first_position < s->prefill_tokens && s->num_computed == s->prefill_tokens) {
    if (s->prefill_end == kNever) s->prefill_end = now;
    outcome->prefilled.push_back(s->id);
  }
  if (token != nullptr) {
    --s->samples_in_flight;
    s->tokens.push_back(token->token.id);
    s->output.push_back(token->token);
    s->finish = FinishAt(s->request->stop, token->token.id, token->index);
    outcome->tokens.push_back({s->id, token->index + s->first_counted, token->token, s->finish});
  }
  IndexComplete(s);
  if (s->finish != FinishReason::kNone) {
    Finish(s);
  } else if (token != nullptr && s->handoff) {
    s->phase = Phase::kSending;
  }
}

}  // namespace baton

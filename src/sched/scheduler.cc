// Admission, both sides of a hand-off, and the giving up of blocks. What a step computes: see step.cc.
#include "sched/scheduler.h"

#include <algorithm>
#include <string>

#include "base/hash.h"
#include "baton/check.h"

namespace baton {

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kWaiting:
      return "waiting";
    case Phase::kComputing:
      return "computing";
    case Phase::kSending:
      return "sending";
    case Phase::kReceiving:
      return "receiving";
    case Phase::kRunning:
      return "running";
    case Phase::kFinished:
      return "finished";
  }
  return "?";
}

Status Validate(const SchedulerOptions& o) {
  const auto bad = [](const std::string& what) { return InvalidArgumentError("scheduler: " + what); };
  if (o.max_running == 0) return bad("max_running is 0; it must be at least 1");
  if (o.max_step_tokens <= o.max_running) {
    return bad("max_step_tokens is " + std::to_string(o.max_step_tokens) + ", but must exceed max_running (" +
               std::to_string(o.max_running) + "), so that prefill always gets room");
  }
  if (o.max_prefill_tokens == 0) return bad("max_prefill_tokens is 0; it must be at least 1");
  if (o.max_waiting == 0) return bad("max_waiting is 0; it must be at least 1");
  if (o.max_context_tokens < 2) return bad("max_context_tokens must be at least 2");
  if (o.max_steps_in_flight == 0 || o.max_steps_in_flight > uint32_t{kMaxStepsInFlight}) {
    return bad("max_steps_in_flight is " + std::to_string(o.max_steps_in_flight) + "; it must be 1 to " +
               std::to_string(kMaxStepsInFlight));
  }
  return OkStatus();
}

Scheduler::Scheduler(const SchedulerOptions& options, BlockPool* pool)
    : options_(options), pool_(pool), leaving_(pool->num_groups()) {
  const Status valid = Validate(options);
  BATON_CHECK(valid.ok(), valid.message());
}

// ---- admission -----------------------------------------------------------------------------------

Status Scheduler::Check(const Request& request, const Progress& progress) const {
  if (request.prompt.empty()) return InvalidArgumentError("the prompt has no tokens; give at least one");
  const uint64_t max_tokens = request.stop.max_tokens;
  if (progress.tokens.size() >= max_tokens) {
    return InvalidArgumentError("nothing is left to generate: " + std::to_string(progress.tokens.size()) +
                                " tokens are given, max_tokens is " + std::to_string(max_tokens));
  }
  if (progress.delivered > progress.tokens.size()) {
    return InvalidArgumentError("progress: " + std::to_string(progress.delivered) + " tokens delivered of " +
                                std::to_string(progress.tokens.size()));
  }
  const uint64_t context = request.prompt.size() + max_tokens;
  if (context > options_.max_context_tokens) {
    return InvalidArgumentError("prompt (" + std::to_string(request.prompt.size()) + " tokens) + max_tokens (" +
                                std::to_string(max_tokens) + ") = " + std::to_string(context) +
                                " exceeds the context of " + std::to_string(options_.max_context_tokens) +
                                " tokens; shorten the prompt or lower max_tokens");
  }
  return OkStatus();
}

Status Scheduler::CheckFits(uint32_t blocks, const char* what) const {
  for (uint32_t g = 0; g < pool_->num_groups(); ++g) {
    if (blocks <= pool_->counts(g).total) continue;
    return InvalidArgumentError(std::string(what) + " needs " + std::to_string(blocks) + " KV blocks of " +
                                std::to_string(pool_->block_tokens()) + " tokens, this worker's pool has " +
                                std::to_string(pool_->counts(g).total) +
                                "; shorten the prompt, lower max_tokens or give the worker more KV memory");
  }
  return OkStatus();
}

Sequence Scheduler::Make(RequestPtr request, const Progress& progress, Epoch epoch, TimePoint now) {
  Sequence s;
  s.epoch = epoch;
  s.arrival = next_arrival_++;
  s.prompt_tokens = static_cast<uint32_t>(request->prompt.size());
  s.max_known = s.prompt_tokens + request->stop.max_tokens;  // within max_context_tokens
  s.tokens = request->prompt;
  for (const OutputToken& t : progress.tokens) s.tokens.push_back(t.id);
  s.output = progress.tokens;
  s.delivered = progress.delivered;
  s.once_hit = progress.once_hit;
  if (!options_.rules.Holds(Rule::kS8)) s.first_counted = static_cast<uint32_t>(progress.tokens.size());
  s.added = now;
  s.tables.resize(pool_->num_groups());
  s.cursors.resize(pool_->num_groups());
  s.request = std::move(request);
  SetRoot(&s, options_.numeric);
  return s;
}

void Scheduler::SetRoot(Sequence* s, const Hash128& numeric) const {
  const Hash128 root = ChainRoot(options_.weights, numeric, s->request->cache_salt);
  if (root == s->root) return;
  s->root = root;
  s->page_hashes.clear();
}

StatusOr<SequenceId> Scheduler::Add(RequestPtr request, const Progress& progress, Epoch epoch, bool handoff,
                                    TimePoint now, bool runs_here) {
  if (handoff && !options_.roles.prefill && !runs_here) {
    return FailedPreconditionError("this worker's role does not take prefill work");
  }
  if (!handoff && !options_.roles.decode && !runs_here) {
    return FailedPreconditionError("this worker's role does not take decode work");
  }
  BATON_RETURN_IF_ERROR(Check(*request, progress));
  const uint64_t known = request->prompt.size() + progress.tokens.size();
  // The last token's own KV is never computed.
  const uint64_t peak = handoff ? known : request->prompt.size() + request->stop.max_tokens - 1;
  BATON_RETURN_IF_ERROR(CheckFits(pool_->BlocksFor(peak), handoff ? "the prompt" : "prompt + max_tokens"));
  if (waiting_.size() >= options_.max_waiting) {
    return ResourceExhaustedError("the worker's queue is full (" + std::to_string(waiting_.size()) +
                                  " requests wait, the limit is " + std::to_string(options_.max_waiting) +
                                  "); try again later");
  }
  const SequenceId id = sequences_.Insert(Make(std::move(request), progress, epoch, now));
  Sequence& s = Get(id);
  s.id = id;
  s.handoff = handoff;
  InsertWaiting(&s);
  return id;
}

// ---- reader ----------------------------------------------------------------------------------------

StatusOr<ReceiveGrant> Scheduler::Receive(RequestPtr request, const Progress& progress, Epoch epoch, TimePoint now,
                                          const StagingNeed& staging, std::optional<Hash128> numeric) {
  if (!options_.roles.decode) return FailedPreconditionError("this worker's role does not take decode work");
  BATON_RETURN_IF_ERROR(Check(*request, progress));
  if (progress.tokens.size() + 1 >= request->stop.max_tokens) {
    return InvalidArgumentError("the answer ends with the writer's token; it has nothing to hand off");
  }
  const uint64_t known = request->prompt.size() + progress.tokens.size();
  const uint32_t peak = pool_->BlocksFor(request->prompt.size() + request->stop.max_tokens - 1);
  BATON_RETURN_IF_ERROR(CheckFits(peak, "prompt + max_tokens"));
  if (options_.rules.Holds(Rule::kL5) && WaitsForBlocks()) {
    return ResourceExhaustedError("sequences of this worker wait for KV blocks");
  }
  if (active_.size() + num_receiving_ >= options_.max_running) {
    return ResourceExhaustedError("all " + std::to_string(options_.max_running) + " running places are taken");
  }
  Sequence s = Make(std::move(request), progress, epoch, now);
  SetRoot(&s, numeric.value_or(options_.numeric));
  const uint32_t granted = pool_->BlocksFor(known);
  const uint32_t total = std::min(granted + 1, peak);
  std::vector<BlockTable> tables = MatchPrefix(&s, static_cast<uint32_t>(known / pool_->block_tokens()));
  uint32_t hit = tables[0].size();
  std::vector<uint32_t> staged(tables.size(), 0);
  if (staging) staged = staging(hit * pool_->block_tokens(), static_cast<uint32_t>(known));
  const uint32_t most_staged = *std::max_element(staged.begin(), staged.end());
  if (most_staged > 0) BATON_RETURN_IF_ERROR(CheckFits(total + most_staged, "the prompt and its staging"));
  if (!Available(total - hit + most_staged, AdmissionReserve())) {
    return ResourceExhaustedError(std::to_string(total - hit + most_staged) +
                                  " KV blocks are not to be had now: " + pool_->Describe());
  }
  const std::vector<uint32_t> count(tables.size(), total - hit);
  BATON_CHECK(pool_->Grow(tables, count));
  if (most_staged > 0) s.staging = *pool_->Allocate(staged);

  // S2: only the new blocks are the writer's; what was found may be shared.
  if (!options_.rules.Holds(Rule::kS2) && hit > 0) --hit;
  ReceiveGrant grant;
  grant.hit_tokens = hit * pool_->block_tokens();
  for (const BlockTable& table : tables) {
    const std::vector<BlockId>& b = table.blocks();
    grant.fresh.emplace_back(b.begin() + hit, b.begin() + granted);
  }
  for (const BlockTable& table : s.staging) grant.staging.push_back(table.blocks());
  s.phase = Phase::kReceiving;
  s.prefill_tokens = static_cast<uint32_t>(known);
  s.hit_tokens = s.cached_tokens = grant.hit_tokens;
  s.tables = std::move(tables);
  s.clean_blocks = granted;
  grant.sequence = sequences_.Insert(std::move(s));
  Get(grant.sequence).id = grant.sequence;
  ++num_receiving_;
  return grant;
}

StatusOr<std::vector<std::vector<BlockId>>> Scheduler::ExtendReceive(SequenceId id, uint32_t num_tokens) {
  Sequence& s = Get(id);
  BATON_CHECK(s.phase == Phase::kReceiving && s.staging.empty(), PhaseName(s.phase));
  const uint32_t peak = pool_->BlocksFor(s.max_known - 1);
  const uint32_t had = pool_->BlocksFor(s.prefill_tokens), granted = pool_->BlocksFor(num_tokens);
  if (granted <= had || granted > peak) {
    return InvalidArgumentError("EXTEND to " + std::to_string(num_tokens) + " tokens: " + std::to_string(had) +
                                " blocks are granted, the whole answer needs " + std::to_string(peak));
  }
  if (options_.rules.Holds(Rule::kL5) && WaitsForBlocks()) {
    return ResourceExhaustedError("sequences of this worker wait for KV blocks");
  }
  const uint32_t has = s.tables[0].size(), wants = std::min(granted + 1, peak);
  if (wants > has) {
    if (!Available(wants - has, 0))
      return ResourceExhaustedError("no KV blocks are to be had now: " + pool_->Describe());
    BATON_CHECK(pool_->Grow(s.tables, std::vector<uint32_t>(s.tables.size(), wants - has)));
  }
  s.prefill_tokens = num_tokens;
  s.clean_blocks = granted;
  std::vector<std::vector<BlockId>> more;
  for (const BlockTable& table : s.tables) {
    more.emplace_back(table.blocks().begin() + had, table.blocks().begin() + granted);
  }
  return more;
}

Status Scheduler::MakeReady(SequenceId id, const Progress& progress, TimePoint now) {
  Sequence& s = Get(id);
  BATON_CHECK(s.phase == Phase::kReceiving, PhaseName(s.phase));
  const uint64_t computed = s.num_prompt() + progress.tokens.size() - 1;
  if (progress.tokens.size() <= s.output.size() || computed < s.prefill_tokens ||
      pool_->BlocksFor(computed) != pool_->BlocksFor(s.prefill_tokens)) {
    return InvalidArgumentError("COMMIT carries " + std::to_string(progress.tokens.size()) +
                                " tokens of the answer, RESERVE " + std::to_string(s.output.size()) +
                                "; blocks are for " + std::to_string(s.prefill_tokens) + " tokens");
  }
  for (size_t i = 0; i < s.output.size(); ++i) {
    if (progress.tokens[i].id == s.output[i].id) continue;
    return InvalidArgumentError("COMMIT and RESERVE differ in token " + std::to_string(i) + " of the answer");
  }
  if (progress.delivered > progress.tokens.size()) {
    return InvalidArgumentError("COMMIT: more tokens delivered than there are");
  }
  for (size_t i = s.output.size(); i < progress.tokens.size(); ++i) {
    if (FinishAt(s.request->stop, progress.tokens[i].id, static_cast<uint32_t>(i)) == FinishReason::kNone) continue;
    return InvalidArgumentError("COMMIT's token " + std::to_string(i) +
                                " ends the answer; the writer should have ended it");
  }
  for (size_t i = s.output.size(); i < progress.tokens.size(); ++i) s.tokens.push_back(progress.tokens[i].id);
  s.output = progress.tokens;
  s.delivered = std::max(s.delivered, progress.delivered);
  s.staging.clear();
  s.prefill_tokens = static_cast<uint32_t>(computed);
  s.num_computed = s.num_launched = s.prefill_tokens;
  s.first_launch = s.prefill_end = now;
  s.phase = Phase::kRunning;
  --num_receiving_;
  IndexComplete(&s);
  InsertActive(&s);
  return OkStatus();
}

std::vector<QuarantinedBlocks> Scheduler::Quarantine(SequenceId id) {
  Sequence& s = Get(id);
  BATON_CHECK(s.phase == Phase::kReceiving, PhaseName(s.phase));
  const uint32_t hit = s.hit_tokens / pool_->block_tokens();
  std::vector<QuarantinedBlocks> out;
  for (BlockTable& table : s.staging) out.push_back(pool_->Quarantine(std::move(table)));
  for (BlockTable& table : s.tables) {
    if (!s.staging.empty()) break;
    table.Truncate(pool_->BlocksFor(s.prefill_tokens));
    out.push_back(pool_->Quarantine(table.SplitOff(hit)));
  }
  --num_receiving_;
  sequences_.Erase(id);
  return out;
}

void Scheduler::Abandon(SequenceId id) {
  BATON_CHECK(Get(id).phase == Phase::kReceiving, PhaseName(Get(id).phase));
  --num_receiving_;
  sequences_.Erase(id);
}

// ---- sequences -------------------------------------------------------------------------------------

const Sequence* Scheduler::Find(SequenceId id) const { return sequences_.Find(id); }

Sequence& Scheduler::Get(SequenceId id) {
  Sequence* s = sequences_.Find(id);
  BATON_CHECK(s != nullptr, "no such sequence");
  return *s;
}

bool Scheduler::IsNative(SequenceId id) const {
  const Sequence* s = Find(id);
  return s != nullptr && s->root == ChainRoot(options_.weights, options_.numeric, s->request->cache_salt);
}
void Scheduler::SetPinned(SequenceId id, bool pinned) { Get(id).pinned = pinned; }
void Scheduler::SetOnceHit(SequenceId id) {
  Get(id).once_hit = true;
  for (LaunchedStep& step : launched_) {
    const bool in_it = std::any_of(step.parts.begin(), step.parts.end(),
                                   [id](const LaunchedPart& part) { return part.sequence == id; });
    if (in_it && std::count(step.once_hit.begin(), step.once_hit.end(), id) == 0) step.once_hit.push_back(id);
  }
}
void Scheduler::SetDelivered(SequenceId id, uint32_t delivered) {
  Sequence& s = Get(id);
  s.delivered = std::max(s.delivered, std::min(delivered, static_cast<uint32_t>(s.output.size())));
}

void Scheduler::End(SequenceId id) {
  Sequence& s = Get(id);
  BATON_CHECK(s.phase != Phase::kReceiving, "a Receiving sequence ends through Quarantine");
  if (s.phase == Phase::kWaiting) EraseWaiting(&s);
  if (s.phase != Phase::kFinished) {
    Finish(&s);
  } else {
    GiveUpBlocks(&s);  // those of FinishPinned
  }
  CompactActive();
  if (s.told) ended_.push_back(id);
  sequences_.Erase(id);
}

std::vector<BlockTable> Scheduler::TakeBlocks(SequenceId id) {
  Sequence& s = Get(id);
  std::vector<BlockTable> out;
  for (const BlockTable& table : s.tables) out.push_back(table.Share(table.size()));
  End(id);
  return out;
}

void Scheduler::InsertWaiting(Sequence* s) {
  s->phase = Phase::kWaiting;
  waiting_.insert({RankOf(*s), s});
  waiting_tokens_ += s->num_known();
  waiting_preempted_ += s->WasPreempted() ? 1 : 0;
}

void Scheduler::EraseWaiting(Sequence* s) {
  waiting_.erase({RankOf(*s), s});
  waiting_tokens_ -= s->num_known();
  waiting_preempted_ -= s->WasPreempted() ? 1 : 0;
}

void Scheduler::InsertActive(Sequence* s) {
  const Ranked entry{RankOf(*s), s};
  active_.insert(std::lower_bound(active_.begin(), active_.end(), entry), entry);
}

void Scheduler::CompactActive() {
  if (!std::exchange(active_dirty_, false)) return;
  std::erase_if(active_, [](const Ranked& r) {
    return r.sequence->phase == Phase::kWaiting || r.sequence->phase == Phase::kFinished;
  });
}

// ---- blocks ----------------------------------------------------------------------------------------

std::vector<BlockTable> Scheduler::MatchPrefix(Sequence* s, uint32_t max_blocks) {
  s->num_indexed = 0;
  s->indexable = options_.prefix_cache;
  s->cursors.assign(pool_->num_groups(), PrefixCursor{});
  if (!options_.prefix_cache) return std::vector<BlockTable>(pool_->num_groups());
  ExtendPageHashes(s->root, s->tokens, &s->page_hashes);
  std::vector<BlockTable> tables = pool_->Match(s->root, s->page_hashes, s->tokens, max_blocks);
  s->num_indexed = tables[0].size();
  for (uint32_t g = 0; g < tables.size(); ++g) {
    if (!tables[g].empty()) s->cursors[g] = pool_->CursorOf(g, tables[g].blocks().back());
  }
  return tables;
}

bool Scheduler::Available(uint32_t blocks, uint32_t reserve) const {
  for (uint32_t g = 0; g < pool_->num_groups(); ++g) {
    if (pool_->counts(g).available() < uint64_t{blocks} + reserve) return false;
  }
  return true;
}

bool Scheduler::AvailableSoon(uint32_t blocks, uint32_t reserve) const {
  for (uint32_t g = 0; g < pool_->num_groups(); ++g) {
    if (pool_->counts(g).available() + leaving_[g] < uint64_t{blocks} + reserve) return false;
  }
  return true;
}

uint32_t Scheduler::AdmissionReserve() const {
  return active_.empty() && num_receiving_ == 0 ? 0 : options_.watermark_blocks;
}

void Scheduler::IndexComplete(Sequence* s) {
  const uint32_t block_tokens = pool_->block_tokens();
  // S9: only what steps that are done have written.
  const uint32_t written =
      options_.rules.Holds(Rule::kS9) ? s->num_computed : std::min(s->num_launched, s->num_known());
  while (s->indexable && uint64_t{s->num_indexed + 1} * block_tokens <= written) {
    ExtendPageHashes(s->root, s->tokens, &s->page_hashes);
    for (uint32_t g = 0; g < s->tables.size(); ++g) {
      s->indexable = s->indexable && pool_->IndexBlock(s->tables[g], s->num_indexed, s->root, s->page_hashes, s->tokens,
                                                       &s->cursors[g]);
    }
    ++s->num_indexed;
  }
}

void Scheduler::GiveUpBlocks(Sequence* s) {
  LaunchedStep* last = nullptr;
  if (s->steps_in_flight > 0 && options_.rules.Holds(Rule::kS1)) {
    for (LaunchedStep& step : launched_) {
      if (step.id == s->last_step) last = &step;
    }
    BATON_CHECK(last != nullptr, "a step in flight that was never launched");
    last->leaving.resize(s->tables.size());
  }
  for (uint32_t g = 0; g < s->tables.size(); ++g) {
    if (last != nullptr && !s->tables[g].empty()) {
      const uint32_t sole = s->tables[g].CountSole();
      last->leaving[g] += sole;
      leaving_[g] += sole;
      last->left.push_back(std::move(s->tables[g]));
    }
    s->tables[g] = BlockTable();
  }
  ++s->run;
  s->num_computed = s->num_launched = s->steps_in_flight = s->samples_in_flight = 0;
  s->prefill_tokens = s->hit_tokens = s->num_indexed = s->clean_blocks = s->told_tokens = 0;
  s->stalled = false;
  s->pinned = false;
  s->held = false;
}

void Scheduler::StartOver(Sequence* s) {
  GiveUpBlocks(s);
  SetRoot(s, options_.numeric);
  InsertWaiting(s);
  active_dirty_ = true;
}

void Scheduler::Preempt(Sequence* s) {
  ++s->preemptions;
  preempted_.push_back(s->id);
  StartOver(s);
}

void Scheduler::Finish(Sequence* s) {
  GiveUpBlocks(s);
  s->phase = Phase::kFinished;
  active_dirty_ = true;
}

void Scheduler::FinishPinned(Sequence* s) {
  s->phase = Phase::kFinished;
  active_dirty_ = true;
}

// ---- what others may know --------------------------------------------------------------------------

bool Scheduler::WaitsForBlocks() const {
  // Who waits for its turn (L8) would take no block now.
  const auto preempted = [this](const Ranked& r) { return r.sequence->WasPreempted() && !WaitsForTurn(*r.sequence); };
  if (waiting_preempted_ > 0 && std::any_of(waiting_.begin(), waiting_.end(), preempted)) return true;
  const Sequence* head = HeadOfQueue();
  if (head != nullptr && head->id == blocked_head_) return true;
  return std::any_of(active_.begin(), active_.end(), [](const Ranked& r) { return r.sequence->stalled; });
}

SchedulerLoad Scheduler::Load() const {
  SchedulerLoad load;
  load.waiting = static_cast<uint32_t>(waiting_.size());
  load.running = static_cast<uint32_t>(active_.size()) + num_receiving_;
  load.queued_tokens = waiting_tokens_;
  for (const Ranked& r : active_) {
    const Sequence& s = *r.sequence;
    if (s.phase == Phase::kComputing) load.queued_tokens += s.num_known() - s.num_launched;
    if (s.phase == Phase::kRunning) load.context_tokens += s.num_known();
  }
  for (uint32_t g = 0; g < pool_->num_groups(); ++g) {
    load.free_blocks.push_back(pool_->counts(g).available());
    load.quarantined_blocks.push_back(pool_->counts(g).quarantined);
  }
  return load;
}

const LaunchedStep* Scheduler::FindLaunched(StepId id) const {
  for (const LaunchedStep& step : launched_) {
    if (step.id == id) return &step;
  }
  return nullptr;
}

bool Scheduler::IsCurrent(const LaunchedPart& part) const {
  const Sequence* s = Find(part.sequence);
  return s != nullptr && s->run == part.run;
}

void Scheduler::Audit() const {
  std::vector<uint32_t> leaving(leaving_.size());
  for (const LaunchedStep& step : launched_) {
    for (size_t g = 0; g < step.leaving.size(); ++g) leaving[g] += step.leaving[g];
  }
  BATON_CHECK(leaving == leaving_ && launched_.size() <= options_.max_steps_in_flight);
  uint64_t waiting_tokens = 0;
  uint32_t waiting = 0, preempted = 0, active = 0, receiving = 0;
  const auto check = [&](const Sequence& s) {
    const bool holds = s.phase != Phase::kWaiting && (s.phase != Phase::kFinished || s.pinned);
    BATON_CHECK(s.num_computed <= s.num_launched && s.num_launched <= s.num_known() + s.samples_in_flight);
    BATON_CHECK(s.tokens.size() == s.num_prompt() + s.output.size());
    BATON_CHECK(s.output.size() <= s.request->stop.max_tokens);
    uint32_t parts = 0;
    for (const LaunchedStep& step : launched_) {
      for (const LaunchedPart& part : step.parts) parts += part.sequence == s.id && part.run == s.run ? 1 : 0;
    }
    BATON_CHECK(parts == s.steps_in_flight);
    BATON_CHECK(s.told_tokens == 0 || s.num_launched <= s.told_tokens);
    for (const BlockTable& table : s.tables) {
      const uint64_t room = uint64_t{table.size()} * pool_->block_tokens();
      BATON_CHECK(holds ? room >= std::max(s.num_launched, s.told_tokens) : table.empty());
    }
    if (s.phase == Phase::kComputing || s.phase == Phase::kSending) {
      BATON_CHECK(s.tables[0].size() >= pool_->BlocksFor(s.prefill_tokens), "holds a part and waits");
    }
    if (s.phase == Phase::kWaiting) {
      ++waiting;
      waiting_tokens += s.num_known();
      preempted += s.WasPreempted();
      BATON_CHECK(waiting_.contains({RankOf(s), nullptr}));
    } else if (s.phase == Phase::kReceiving) {
      ++receiving;
    } else if (holds && s.phase != Phase::kFinished) {
      ++active;
      BATON_CHECK(std::binary_search(active_.begin(), active_.end(), Ranked{RankOf(s), nullptr}));
    }
  };
  const_cast<Scheduler*>(this)->ForEach(check);
  BATON_CHECK(waiting == waiting_.size() && active == active_.size() && receiving == num_receiving_);
  BATON_CHECK(waiting_tokens == waiting_tokens_ && preempted == waiting_preempted_);
  BATON_CHECK(active + receiving <= options_.max_running, "too many sequences hold blocks");
}

}  // namespace baton

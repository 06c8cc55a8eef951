#include "engine/engine_core.h"

#include <algorithm>
#include <utility>

namespace baton {
namespace {

constexpr size_t kMaxFloors = 65536;

SchedulerOptions WithIdentity(const EngineOptions& o) {
  SchedulerOptions s = o.scheduler;
  s.roles = o.roles;
  s.weights = o.model.weights;
  s.numeric = o.numeric;
  s.rules = o.rules;
  return s;
}

KvConnectorOptions ConnectorOptions(const EngineOptions& o) {
  KvConnectorOptions c;
  c.protocol = o.protocol;
  c.self = o.self;
  c.model = o.model;
  c.layout = o.layout;
  c.pool = o.pool;
  c.numeric = o.numeric;
  c.host = o.host;
  c.pid = o.pid;
  c.reader = o.reader;
  c.writer = o.writer;
  c.send = o.send;
  c.stuck_after = o.stuck_after;
  c.seed = o.seed;
  c.rules = o.rules;
  return c;
}

}  // namespace

EngineCore::EngineCore(EngineOptions options, ModelRunner* runner, KvTransport* transport)
    : options_(std::move(options)),
      runner_(runner),
      pool_(options_.layout.block_tokens, options_.pool.num_blocks),
      scheduler_(WithIdentity(options_), &pool_),
      connector_(ConnectorOptions(options_), &scheduler_, &pool_, transport),
      cost_(options_.prior),
      roles_(options_.roles) {}

void EngineCore::Step(TimePoint now, std::vector<EngineCommand>* commands, Outbox* out) {
  started_ = std::min(started_, now);
  for (EngineCommand& command : *commands) Apply(command, now, out);
  commands->clear();
  connector_.PollTransport(now, out);
  HandleFacts(now);
  PollRunner(now, out);
  connector_.Tick(now, out);
  if (!out->stuck.empty()) {  // its death, which comes next, is not the fault of what it runs (L8)
    for (auto& [link, front] : fronts_) front.next_heartbeat = now;
  }
  ExpireDeadlines(now, out);
  HandleFacts(now);
  AdvanceMigrations(now, out);
  HandleFacts(now);
  LaunchSteps(now, out);
  HandleFacts(now);
  FlushEvents(now, out);
}

// ---- commands -------------------------------------------------------------------------------------

void EngineCore::Apply(EngineCommand& command, TimePoint now, Outbox* out) {
  if (auto* up = std::get_if<LinkUp>(&command)) {
    if (up->kind != LinkKind::kFront) return connector_.OnLinkUp(up->link, up->kind, now, out);
    fronts_[up->link] = {};
    fronts_[up->link].next_heartbeat = now + options_.heartbeat;
    WorkerHello hello;
    hello.self = options_.self;
    hello.roles = roles_;
    hello.model = options_.model;
    hello.layout = options_.layout;
    hello.num_blocks = options_.pool.num_blocks;
    hello.numeric = options_.numeric;
    hello.max_context_tokens = options_.scheduler.max_context_tokens;
    hello.submit_credits = options_.submit_credits;
    hello.draining = draining();
    hello.protocol = options_.protocol;
    out->to_fronts.emplace_back(up->link, std::move(hello));
  } else if (auto* down = std::get_if<LinkDown>(&command)) {
    if (fronts_.find(down->link) != fronts_.end()) return OnFrontDown(down->link, now, out);
    connector_.OnLinkDown(down->link, down->why, now, out);
  } else if (auto* from_front = std::get_if<FromFront>(&command)) {
    if (fronts_.find(from_front->link) != fronts_.end()) OnFront(from_front->link, from_front->command, now, out);
  } else if (auto* from_peer = std::get_if<FromPeer>(&command)) {
    if (const auto* reserve = std::get_if<Reserve>(&from_peer->message)) {
      OnReserve(from_peer->link, *reserve, now, out);
    } else {
      connector_.OnMessage(from_peer->link, from_peer->message, now, out);
    }
  } else if (auto* watched = std::get_if<ProcessWatched>(&command)) {
    connector_.OnProcessWatched(*watched);
  } else if (auto* died = std::get_if<ProcessDied>(&command)) {
    connector_.OnProcessDied(died->process, now, out);
  } else if (std::holds_alternative<BeginDrain>(command)) {
    stopping_ = true;
    for (auto& [link, front] : fronts_) front.next_heartbeat = now;
  }
  HandleFacts(now);
}

void EngineCore::OnFront(LinkId link, FrontCommand& command, TimePoint now, Outbox* out) {
  FrontSession& front = fronts_[link];
  if (const auto* hello = std::get_if<FrontHello>(&command)) {
    // A newer session of the same front ends the older one and its children.
    const auto old = front_links_.find(hello->fingerprint);
    if (old != front_links_.end() && old->second != link) {
      const LinkId old_link = old->second;
      OnFrontDown(old_link, now, out);
      out->close.push_back(old_link);
    }
    front.fingerprint = hello->fingerprint;
    front_links_[hello->fingerprint] = link;
  } else if (auto* prefill = std::get_if<PrefillCommand>(&command)) {
    Submit(link, std::move(prefill->request), std::move(prefill->progress), prefill->epoch, &prefill->decode, now, out);
  } else if (auto* decode = std::get_if<DecodeCommand>(&command)) {
    Submit(link, std::move(decode->request), std::move(decode->progress), decode->epoch, nullptr, now, out);
  } else if (const auto* cancel = std::get_if<CancelCommand>(&command)) {
    if (cancel->child.front == front.fingerprint) EndEpochs(cancel->child, cancel->epoch, now, out);
  } else if (const auto* adopt = std::get_if<AdoptCommand>(&command)) {
    OnAdopt(link, *adopt, now, out);
  } else if (const auto* migrate = std::get_if<MigrateCommand>(&command)) {
    OnMigrate(link, *migrate, now, out);
  } else if (const auto* drain = std::get_if<DrainCommand>(&command)) {
    told_to_drain_ = !drain->undo;
    OnOrder(&front, drain->order, now);
  } else if (const auto* role = std::get_if<SetRoleCommand>(&command)) {
    roles_ = role->roles;
    scheduler_.set_roles(roles_);
    OnOrder(&front, role->order, now);
  } else if (std::holds_alternative<CacheResyncCommand>(command)) {
    front.snapshot_due = true;
  }
}

// Every front hears at once of what it may place here from now on.
void EngineCore::OnOrder(FrontSession* front, uint64_t order, TimePoint now) {
  front->order = std::max(front->order, order);
  for (auto& [link, any] : fronts_) any.next_heartbeat = now;
}

// L7: a worker's children are leased by their front's session.
void EngineCore::OnFrontDown(LinkId link, TimePoint now, Outbox* out) {
  const auto it = fronts_.find(link);
  if (it == fronts_.end()) return;
  const auto by_name = front_links_.find(it->second.fingerprint);
  if (by_name != front_links_.end() && by_name->second == link) front_links_.erase(by_name);
  fronts_.erase(it);
  if (!options_.rules.Holds(Rule::kL7)) return;
  for (auto child = children_.begin(); child != children_.end();) {
    const auto next = std::next(child);
    if (child->second.front == link) EndChild(child, now, out);
    child = next;
  }
}

Status EngineCore::CheckRequest(const Request& request, const Progress& progress) const {
  const auto in_vocabulary = [this](TokenId id) { return id >= 0 && static_cast<uint32_t>(id) < options_.vocab_size; };
  for (const TokenId id : request.prompt) {
    if (!in_vocabulary(id))
      return InvalidArgumentError("prompt: token " + std::to_string(id) + " is not in the vocabulary");
  }
  for (const OutputToken& token : progress.tokens) {
    if (!in_vocabulary(token.id)) {
      return InvalidArgumentError("progress: token " + std::to_string(token.id) + " is not in the vocabulary");
    }
  }
  if (progress.delivered > progress.tokens.size()) {
    return InvalidArgumentError("progress: more tokens delivered than there are");
  }
  return OkStatus();
}

bool EngineCore::IsOldEpoch(const ChildId& id, Epoch epoch) const {
  const auto floor = floors_.find(id);
  if (floor != floors_.end() && epoch <= floor->second.epoch) return true;
  const auto child = children_.find(id);
  return child != children_.end() && epoch < child->second.epoch;
}

void EngineCore::Submit(LinkId link, RequestPtr request, Progress progress, Epoch epoch, const PeerAddress* decode,
                        TimePoint now, Outbox* out) {
  const ChildId id = request->id;
  const auto existing = children_.find(id);
  if (id.front != fronts_[link].fingerprint || IsOldEpoch(id, epoch) ||
      (existing != children_.end() && existing->second.epoch == epoch)) {
    ++counters_.stale_commands;
    return;
  }
  // A higher epoch ends the lower one; its full blocks are in the prefix cache when the new one is admitted.
  // L10: what ran here goes on here, whatever the role mask says, and while draining.
  const bool ran_here = existing != children_.end(), runs_here = ran_here && options_.rules.Holds(Rule::kL10);
  if (ran_here) EndChild(existing, now, out);
  Child child;
  child.epoch = epoch;
  child.front = link;
  child.deadline = now + std::clamp<Duration>(progress.deadline_remaining, Duration(0), options_.max_deadline);
  // Itself as reader is no hand-off (L10).
  const bool handoff = decode != nullptr && decode->process != options_.self.process;
  child.role = handoff ? Child::Role::kWriter : Child::Role::kLocal;
  if (decode != nullptr) child.decode = *decode;
  Status status = draining() && !runs_here ? UnavailableError(options_.self.process.name + " is draining")
                                           : CheckRequest(*request, progress);
  if (status.ok()) {
    StatusOr<SequenceId> added = scheduler_.Add(request, progress, epoch, handoff, now, runs_here);
    status = added.status();
    if (added.ok()) child.sequence = *added;
    // Not the request's fault: a role that changed on the way. Others admit it.
    if (status.code() == Code::kFailedPrecondition && !ran_here) status = UnavailableError(status.message());
  }
  if (!status.ok()) return Emit(child, ChildFailed{id, epoch, std::move(status)});
  by_sequence_[child.sequence] = id;
  // S7: a worker emits from the delivered count on.
  for (uint32_t i = progress.delivered; i < progress.tokens.size(); ++i) {
    Emit(child, TokenEvent{id, epoch, i, progress.tokens[i], FinishReason::kNone});
  }
  children_.emplace(id, std::move(child));
}

void EngineCore::OnReserve(LinkId link, const Reserve& reserve, TimePoint now, Outbox* out) {
  if (connector_.WriterOf(link) == nullptr || reserve.request == nullptr) {
    out->close.push_back(link);
    return;
  }
  if (std::optional<PairMessage> recorded = connector_.Recorded(link, reserve)) {
    return connector_.Answer(link, *std::move(recorded), out);
  }
  const auto refuse = [&](RefuseReason why, std::string detail) {
    connector_.Answer(link, Refused{reserve.child, reserve.epoch, reserve.attempt, why, std::move(detail)}, out);
  };
  const auto existing = children_.find(reserve.child);
  if (IsOldEpoch(reserve.child, reserve.epoch)) return refuse(RefuseReason::kOldEpoch, "a newer epoch was seen");
  if (existing != children_.end() && existing->second.epoch == reserve.epoch &&
      existing->second.role != Child::Role::kReader) {
    return refuse(RefuseReason::kOldEpoch, "the child runs here in this epoch");
  }
  const auto front = front_links_.find(reserve.child.front);
  if (front == front_links_.end() && options_.rules.Holds(Rule::kL7)) {
    return refuse(RefuseReason::kNoFrontSession, "no session with the request's front");
  }
  if (draining()) return refuse(RefuseReason::kDraining, options_.self.process.name + " is draining");
  if (Status s = CheckRequest(*reserve.request, reserve.progress); !s.ok()) {
    return refuse(RefuseReason::kTooLarge, s.message());
  }
  if (existing != children_.end()) {  // a lower epoch, or an older attempt's ticket
    // A front that raised the epoch knows; one that did not, because the writer made it up, places the child anew.
    const Child& child = existing->second;
    if (child.epoch < reserve.epoch) {
      Emit(child, ChildFailed{reserve.child, child.epoch, AbortedError("a worker reserved for a newer epoch")});
    }
    EndChild(existing, now, out);
  }
  const std::optional<ReceiveGrant> grant = connector_.Admit(link, reserve, now, out);
  HandleFacts(now);
  if (!grant) return;
  Child child;
  child.role = Child::Role::kReader;
  child.epoch = reserve.epoch;
  child.front = front == front_links_.end() ? LinkId{} : front->second;
  child.sequence = grant->sequence;
  child.deadline = now + std::clamp<Duration>(reserve.progress.deadline_remaining, Duration(0), options_.max_deadline);
  child.ticket = *connector_.TicketOf({reserve.child, reserve.epoch});
  by_sequence_[child.sequence] = reserve.child;
  children_.emplace(reserve.child, std::move(child));
}

void EngineCore::OnAdopt(LinkId link, const AdoptCommand& adopt, TimePoint now, Outbox* out) {
  FrontSession& front = fronts_[link];
  if (adopt.child.front != front.fingerprint) return;
  const auto it = children_.find(adopt.child);
  if (it != children_.end() && it->second.epoch == adopt.epoch) {
    Child& child = it->second;
    const ReaderTicket* ticket = child.role == Child::Role::kReader ? connector_.FindTicket(child.ticket) : nullptr;
    const bool running =
        child.role == Child::Role::kLocal ||
        (ticket != nullptr && (ticket->state == TicketState::kReady || ticket->state == TicketState::kRunning));
    if (running) {
      // Whatever became of its migration, the front wants it here.
      if (child.migration) {
        connector_.CancelSend({adopt.child, child.migration->next}, now, out);
        Resume(adopt.child, &child);
      }
      if (adopt.once_hit) scheduler_.SetOnceHit(child.sequence);
      front.events.push_back(Running{adopt.child, adopt.epoch});
      return;
    }
  }
  EndEpochs(adopt.child, adopt.epoch, now, out);
  front.events.push_back(NotHeld{adopt.child, adopt.epoch});
}

void EngineCore::OnMigrate(LinkId link, const MigrateCommand& m, TimePoint now, Outbox* out) {
  FrontSession& front = fronts_[link];
  if (m.child.front != front.fingerprint) return;
  const auto refuse = [&](HandoffFailure why, const char* detail) {
    front.events.push_back(HandoffFailed{m.child, m.next, why, detail});
  };
  const auto it = children_.find(m.child);
  if (it == children_.end() || it->second.epoch != m.epoch || m.next <= m.epoch) {
    return refuse(HandoffFailure::kRefused, "it does not run here in that epoch");
  }
  // S11: this higher epoch does not end the lower one.
  if (!options_.rules.Holds(Rule::kS11)) return EndEpochs(m.child, m.epoch, now, out);
  Child& child = it->second;
  const Sequence* s = scheduler_.Find(child.sequence);
  const bool decodes = child.role != Child::Role::kWriter && s->phase == Phase::kRunning && !s->output.empty() &&
                       s->num_computed + 1 == s->num_known();
  if (!decodes || child.migration) return refuse(HandoffFailure::kNotAdmitted, "it does not decode here now");
  if (m.to.process == options_.self.process || s->output.size() + 1 >= s->request->stop.max_tokens) {
    return refuse(HandoffFailure::kRefused, "there is nothing to hand over");
  }
  // S9: the reader could not tell such blocks from its own.
  if (!scheduler_.IsNative(child.sequence)) {
    return refuse(HandoffFailure::kRefused, "its KV was converted from another element type");
  }
  scheduler_.SetDelivered(child.sequence, m.delivered);
  if (!connector_.BeginMigration(*s, m.next, m.to, child.deadline, now, out)) {
    return refuse(HandoffFailure::kRefused, "that epoch was used before");
  }
  child.migration = Child::Migration{m.next, s->run, false, false};
  migrating_.insert(m.child);
}

void EngineCore::AdvanceMigrations(TimePoint now, Outbox* out) {
  const std::set<ChildId> all = migrating_;
  for (const ChildId& id : all) AdvanceMigration(id, &children_.at(id), now, out);
}

void EngineCore::AdvanceMigration(const ChildId& id, Child* child, TimePoint now, Outbox* out) {
  Child::Migration& m = *child->migration;
  if (m.undecided) return;
  const ChildEpoch key{id, m.next};
  const Sequence* s = scheduler_.Find(child->sequence);
  if (s->run != m.run || s->phase != Phase::kRunning) {  // a step failed: it starts over
    connector_.CancelSend(key, now, out);
    const Epoch next = m.next;
    Resume(id, child);
    return Emit(*child, HandoffFailed{id, next, HandoffFailure::kNotAdmitted, "it starts over"});
  }
  const WriterChild* send = connector_.FindSend(key);
  if (send == nullptr || send->final_progress) return;
  connector_.AdvanceMigration(key, *s, now, out);
  if (!m.cut_over && connector_.MayCutOver(key)) {
    m.cut_over = true;
    scheduler_.SetHeld(child->sequence, true);
  }
  // S3: the last block goes when nobody writes it any more.
  const bool still = s->steps_in_flight == 0 || !options_.rules.Holds(Rule::kS3);
  if (!m.cut_over || !still) return;
  Progress progress = s->ProgressNow(child->deadline - now);
  for (uint32_t i = 0; i < progress.delivered; ++i) progress.tokens[i] = {progress.tokens[i].id, 0, {}};
  connector_.FinishSend(key, std::move(progress), now, out);
}

void EngineCore::Resume(const ChildId& id, Child* child) {
  scheduler_.SetHeld(child->sequence, false);
  child->migration.reset();
  migrating_.erase(id);
}

void EngineCore::EndEpochs(const ChildId& id, Epoch epoch, TimePoint now, Outbox* out) {
  EpochFloor& floor = floors_[id];
  floor.epoch = std::max(floor.epoch, epoch);
  floor.until = now + options_.epoch_memory;
  const auto it = children_.find(id);
  if (it != children_.end() && it->second.epoch <= epoch) EndChild(it, now, out);
}

// ---- results --------------------------------------------------------------------------------------

void EngineCore::PollRunner(TimePoint now, Outbox* out) {
  std::vector<RunnerEvent> events;
  runner_->Poll(&events);
  for (RunnerEvent& event : events) {
    if (const auto* ready = std::get_if<LayersReady>(&event)) {
      OnLayers(*ready, now, out);
    } else if (const auto* converted = std::get_if<KvConverted>(&event)) {
      connector_.OnConverted(*converted, now, out);
    } else {
      OnStepDone(std::get<StepResult>(std::move(event)), now, out);
    }
    HandleFacts(now);
  }
}

void EngineCore::OnLayers(const LayersReady& ready, TimePoint now, Outbox* out) {
  const LaunchedStep* step = scheduler_.FindLaunched(ready.id);
  if (step == nullptr) return;
  for (const LaunchedPart& part : step->parts) {
    const auto it = by_sequence_.find(part.sequence);
    if (it == by_sequence_.end() || !scheduler_.IsCurrent(part)) continue;
    const Child& child = children_.at(it->second);
    if (child.role != Child::Role::kWriter || !child.send_begun) continue;
    const Sequence* sequence = scheduler_.Find(part.sequence);
    connector_.AdvanceSend({it->second, child.epoch}, sequence->num_computed, part.first_position + part.num_tokens,
                           ready.layers, now, out);
  }
}

void EngineCore::OnStepDone(StepResult result, TimePoint now, Outbox* out) {
  if (const auto it = running_.find(result.id); it != running_.end()) {
    if (result.status.ok() && result.compute > Duration(0)) cost_.Observe(it->second.features, result.compute);
    running_.erase(it);
  }
  if (!result.status.ok()) ++counters_.failed_steps;
  std::vector<LaunchedPart> parts;
  if (const LaunchedStep* step = scheduler_.FindLaunched(result.id)) parts = step->parts;
  const StepOutcome outcome = scheduler_.OnStepDone(result, now);
  scheduler_.Recycle(std::move(result.plan));
  for (const LaunchedPart& part : parts) {
    const auto it = by_sequence_.find(part.sequence);
    if (it == by_sequence_.end() || !result.status.ok()) continue;
    const Child& child = children_.at(it->second);
    if (child.role != Child::Role::kWriter || !child.send_begun || !scheduler_.IsCurrent(part)) continue;
    connector_.AdvanceSend({it->second, child.epoch}, scheduler_.Find(part.sequence)->num_computed, 0, 0, now, out);
  }
  for (const NewToken& token : outcome.tokens) OnToken(token, now, out);
  for (const FailedSequence& failed : outcome.failed) {
    const auto it = FindSequence(failed.sequence);
    if (it == children_.end()) continue;
    // A step that failed as a whole is this worker's trouble, not the request's: the front may try elsewhere.
    FailChild(it, result.status.ok() ? failed.why : AbortedError("a step failed: " + result.status.ToString()), now,
              out);
  }
}

void EngineCore::OnToken(const NewToken& token, TimePoint now, Outbox* out) {
  const auto it = FindSequence(token.sequence);
  if (it == children_.end()) return;
  Child& child = it->second;
  const Sequence* sequence = scheduler_.Find(token.sequence);
  ++counters_.tokens;
  // A stop string may end a local answer at any token: a receipt goes with the first, and again with the last.
  if (child.role == Child::Role::kLocal && !child.receipt_sent) {
    SendReceipt(it->first, &child, nullptr, now);
    child.receipt_sent = token.finish == FinishReason::kNone;
  }
  if (token.finish != FinishReason::kNone) {
    child.receipt_sent = child.receipt_sent && child.role != Child::Role::kLocal;
    SendReceipt(it->first, &child, nullptr, now);
  }
  if (token.index >= sequence->delivered) {
    Emit(child, TokenEvent{it->first, child.epoch, token.index, token.token, token.finish});
  }
  if (token.finish != FinishReason::kNone) return EndChild(it, now, out);
  if (child.role == Child::Role::kWriter && child.send_begun) {
    connector_.FinishSend({it->first, child.epoch}, sequence->ProgressNow(child.deadline - now), now, out);
  }
}

void EngineCore::HandleFacts(TimePoint now) {
  for (int round = 0; round < 64; ++round) {
    ConnectorFacts facts = connector_.TakeFacts();
    if (facts.ready.empty() && facts.lost.empty() && facts.handed_off.empty() && facts.failed.empty() &&
        facts.convert.empty() && facts.unpinned.empty()) {
      return;
    }
    for (KvConversion& conversion : facts.convert) runner_->Convert(std::move(conversion));
    for (const Commit& commit : facts.ready) OnReady(commit, now);
    for (const auto& [key, sequence] : facts.lost) {
      by_sequence_.erase(sequence);
      const auto it = children_.find(key.child);
      if (it != children_.end() && it->second.epoch == key.epoch && it->second.sequence == sequence)
        children_.erase(it);
    }
    for (const WriterChild& send : facts.handed_off) {
      const auto it = children_.find(send.key.child);
      if (send.reserve.migration) {
        if (it == children_.end() || !it->second.migration || it->second.migration->next != send.key.epoch) continue;
        Emit(it->second, HandedOff{send.key.child, send.key.epoch});
        EndRunning(it, now);
        continue;
      }
      if (it != children_.end() && it->second.epoch == send.key.epoch) {
        Child& child = it->second;
        SendReceipt(it->first, &child, &send, now);
        Emit(child, HandedOff{send.key.child, send.key.epoch});
        EndSequence(child.sequence);
        children_.erase(it);
      } else if (const auto orphan = orphans_.find(send.key); orphan != orphans_.end()) {
        EndSequence(orphan->second);
        orphans_.erase(orphan);
      }
    }
    for (const WriterFailure& failure : facts.failed) {
      const auto it = children_.find(failure.key.child);
      if (it == children_.end()) continue;
      Child& child = it->second;
      if (child.migration && child.migration->next == failure.key.epoch) {
        OnMigrationFailed(failure, &child);
        continue;
      }
      if (child.epoch != failure.key.epoch) continue;
      child.handoff_failed = true;
      child.hold_until = now + options_.hold_lease;
      SendReceipt(it->first, &child, connector_.FindSend(failure.key), now);
      Emit(child, HandoffFailed{failure.key.child, failure.key.epoch, failure.why, failure.detail});
    }
    for (const ChildEpoch& key : facts.unpinned) {
      if (const auto orphan = orphans_.find(key); orphan != orphans_.end()) {
        EndSequence(orphan->second);
        orphans_.erase(orphan);
      } else if (const auto it = children_.find(key.child); it != children_.end() && it->second.epoch == key.epoch) {
        it->second.send_begun = false;  // a failed hand-off's KV stays for the next epoch
      }
    }
  }
  BATON_CHECK(false, "facts beget facts without end");
}

// L12: it goes on here, unless the reader may have it.
void EngineCore::OnMigrationFailed(const WriterFailure& failure, Child* child) {
  const bool undecided = failure.why == HandoffFailure::kUndecided;
  const bool lost = failure.why == HandoffFailure::kPeerLost || failure.why == HandoffFailure::kTransfer;
  if (undecided) {
    child->migration->undecided = true;
  } else if (!lost || options_.rules.Holds(Rule::kL12)) {
    Resume(failure.key.child, child);
  }
  Emit(*child, HandoffFailed{failure.key.child, failure.key.epoch, failure.why, failure.detail});
}

void EngineCore::OnReady(const Commit& commit, TimePoint now) {
  const auto it = children_.find(commit.child);
  if (it == children_.end() || it->second.epoch != commit.epoch) return;
  Child& child = it->second;
  child.deadline = std::min(child.deadline, now + std::clamp<Duration>(commit.progress.deadline_remaining, Duration(0),
                                                                       options_.max_deadline));
  Status status;
  for (const OutputToken& token : commit.progress.tokens) {
    if (token.id < 0 || static_cast<uint32_t>(token.id) >= options_.vocab_size) {
      status = InvalidArgumentError("COMMIT: token outside the vocabulary");
    }
  }
  if (commit.token_count + 1 != scheduler_.Find(child.sequence)->num_prompt() + commit.progress.tokens.size()) {
    status = InvalidArgumentError("COMMIT: " + std::to_string(commit.token_count) + " tokens have KV, but " +
                                  std::to_string(commit.progress.tokens.size()) + " were said");
  }
  if (status.ok()) status = scheduler_.MakeReady(child.sequence, commit.progress, now);
  if (!status.ok()) {
    Emit(child, ChildFailed{commit.child, commit.epoch, status.Annotate("COMMIT")});
    connector_.EndTicket(child.ticket, now);
    by_sequence_.erase(child.sequence);
    // Its writer is quiet: the ticket was READY.
    for (QuarantinedBlocks& blocks : scheduler_.Quarantine(child.sequence)) pool_.Release(std::move(blocks));
    children_.erase(it);
    return;
  }
  for (uint32_t i = commit.progress.delivered; i < commit.progress.tokens.size(); ++i) {
    Emit(child, TokenEvent{commit.child, commit.epoch, i, commit.progress.tokens[i], FinishReason::kNone});
  }
}

// ---- children -------------------------------------------------------------------------------------

void EngineCore::Emit(const Child& child, ChildEvent event) {
  const auto it = fronts_.find(child.front);
  if (it != fronts_.end()) it->second.events.push_back(std::move(event));
}

void EngineCore::SendReceipt(const ChildId& id, Child* child, const WriterChild* send, TimePoint now) {
  const Sequence* s = scheduler_.Find(child->sequence);
  if (child->receipt_sent || s == nullptr) return;
  child->receipt_sent = true;
  Receipt r;
  if (s->first_launch != kNever) r.queue = s->first_launch - s->added;
  if (s->prefill_end != kNever && s->first_launch != kNever) r.prefill = s->prefill_end - s->first_launch;
  r.prompt_tokens = s->num_prompt();
  r.cached_tokens = s->cached_tokens;
  r.preemptions = s->preemptions;
  if (send != nullptr && send->granted != kNever) {
    r.reserve = send->granted - send->begun;
    if (send->last_quiesced != kNever) r.transfer = send->last_quiesced - send->first_post;
    if (send->finished != kNever) r.exposed = now - send->finished;
    r.transfer_bytes = send->bytes_quiesced;
    r.transfer_blocks = static_cast<uint32_t>(send->grant.blocks.size()) *
                        NumMovingBlocks(options_.layout, send->grant.hit_tokens, send->num_tokens);
    r.hidden_bytes = send->bytes_hidden;
  }
  Emit(*child, ReceiptEvent{id, child->epoch, r});
}

void EngineCore::EndChild(ChildMap::iterator it, TimePoint now, Outbox* out) {
  const ChildId id = it->first;
  const Child child = it->second;
  children_.erase(it);
  if (child.migration) {
    migrating_.erase(id);
    connector_.CancelSend({id, child.migration->next}, now, out);
  }
  switch (child.role) {
    case Child::Role::kLocal:
      EndSequence(child.sequence);
      break;
    case Child::Role::kWriter:
      if (!child.send_begun) {
        EndSequence(child.sequence);
        break;
      }
      // Its blocks go when the hand-off says that nothing reads them.
      by_sequence_.erase(child.sequence);
      orphans_[{id, child.epoch}] = child.sequence;
      connector_.CancelSend({id, child.epoch}, now, out);
      break;
    case Child::Role::kReader: {
      const ReaderTicket* ticket = connector_.FindTicket(child.ticket);
      if (ticket != nullptr && (ticket->state == TicketState::kReserved || ticket->state == TicketState::kReceiving)) {
        by_sequence_.erase(child.sequence);
        connector_.AbortTicketOf(child.ticket, now, out);  // quarantines and ends the sequence
        break;
      }
      connector_.EndTicket(child.ticket, now);
      if (connector_.IsConverting(child.sequence)) {
        by_sequence_.erase(child.sequence);
        break;
      }
      EndSequence(child.sequence);
      break;
    }
  }
}

// It runs elsewhere now: what is left here is its ticket, if it came by one, and its blocks.
void EngineCore::EndRunning(ChildMap::iterator it, TimePoint now) {
  const Child child = it->second;
  migrating_.erase(it->first);
  children_.erase(it);
  if (child.role == Child::Role::kReader) connector_.EndTicket(child.ticket, now);
  EndSequence(child.sequence);
}

void EngineCore::FailChild(ChildMap::iterator it, Status why, TimePoint now, Outbox* out) {
  SendReceipt(it->first, &it->second, nullptr, now);
  Emit(it->second, ChildFailed{it->first, it->second.epoch, std::move(why)});
  EndChild(it, now, out);
}

void EngineCore::EndSequence(SequenceId id) {
  by_sequence_.erase(id);
  if (const Sequence* s = scheduler_.Find(id)) {
    counters_.cached_tokens += s->cached_tokens;
    counters_.preemptions += s->preemptions;
    scheduler_.End(id);
  }
}

EngineCore::ChildMap::iterator EngineCore::FindSequence(SequenceId id) {
  const auto it = by_sequence_.find(id);
  return it == by_sequence_.end() ? children_.end() : children_.find(it->second);
}

void EngineCore::ExpireDeadlines(TimePoint now, Outbox* out) {
  for (auto it = children_.begin(); it != children_.end();) {
    const auto next = std::next(it);
    if (it->second.deadline <= now) {
      ++counters_.expired;
      FailChild(it, DeadlineExceededError("the request's deadline passed on " + options_.self.process.name), now, out);
    } else if (it->second.hold_until <= now) {
      EndChild(it, now, out);
    }
    it = next;
  }
  for (auto it = floors_.begin(); it != floors_.end();) {
    it = it->second.until <= now || floors_.size() > kMaxFloors ? floors_.erase(it) : std::next(it);
  }
}

// ---- steps ----------------------------------------------------------------------------------------

void EngineCore::LaunchSteps(TimePoint now, Outbox* out) {
  while (running_.size() < static_cast<size_t>(kMaxStepsInFlight)) {
    StepPlan plan = scheduler_.Schedule(now);
    for (const SequenceId id : scheduler_.TakePreempted()) {
      const auto it = FindSequence(id);
      if (it == children_.end()) continue;
      // L6
      if (it->second.migration) connector_.HandBack({it->first, it->second.migration->next}, now, out);
      if (it->second.role != Child::Role::kWriter || !it->second.send_begun) continue;
      connector_.HandBack({it->first, it->second.epoch}, now, out);
    }
    if (plan.sequences.empty()) return;
    RunningStep step;
    step.features = FeaturesOf(plan);
    step.started = now;
    step.predicted = cost_.Predict(step.features);
    std::vector<SequenceId> begin;
    for (const SequenceStep& part : plan.sequences) {
      const auto it = FindSequence(part.sequence);
      if (it != children_.end() && it->second.role == Child::Role::kWriter && !it->second.send_begun &&
          !it->second.handoff_failed) {
        begin.push_back(part.sequence);
      }
      if (it != children_.end() && it->second.role == Child::Role::kReader) connector_.MarkRunning(it->second.ticket);
      // L8: should this step kill the worker, the front has heard that the child was in it.
      if (it != children_.end() && !std::exchange(it->second.launch_told, true)) {
        const auto front = fronts_.find(it->second.front);
        if (front != fronts_.end()) front->second.next_heartbeat = now;
      }
    }
    ++counters_.steps;
    counters_.computed_tokens += plan.NumTokens();
    running_[plan.id] = step;
    runner_->Launch(std::move(plan));
    for (const SequenceId id : begin) {
      Child& child = FindSequence(id)->second;
      const Sequence* sequence = scheduler_.Find(id);
      // An answer that can only have one more token ends here: no RESERVE.
      if (sequence->output.size() + 1 >= sequence->request->stop.max_tokens) continue;
      child.send_begun = true;
      connector_.BeginSend(*sequence, child.decode, child.deadline, now, out);
    }
  }
}

// Of every front, in launch order.
std::vector<ChildId> EngineCore::OnceHitInStep() const {
  std::vector<ChildId> out;
  for (const LaunchedStep& step : scheduler_.launched()) {
    for (const SequenceId id : step.once_hit) {
      const auto it = by_sequence_.find(id);
      if (it == by_sequence_.end() || std::count(out.begin(), out.end(), it->second) > 0) continue;
      out.push_back(it->second);
    }
  }
  return out;
}

Heartbeat EngineCore::MakeHeartbeat(TimePoint now) const {
  Heartbeat h;
  h.steps = counters_.steps;
  if (!running_.empty()) {
    const RunningStep& step = running_.begin()->second;
    const Duration allowed = std::max<Duration>(options_.step_grace, step.predicted * 10);
    h.step_overdue_in = std::max<Duration>(Duration(1), step.started + allowed - now);
  }
  h.draining = draining();
  h.idle = h.draining && idle();
  h.roles = roles_;
  const SchedulerLoad load = scheduler_.Load();
  h.waiting = load.waiting;
  h.running = load.running;
  h.queued_tokens = load.queued_tokens;
  h.context_tokens = load.context_tokens;
  h.free_blocks = load.free_blocks;
  h.quarantined_blocks = load.quarantined_blocks;
  h.quarantines = connector_.Quarantines(now);
  const auto queued = static_cast<uint32_t>(std::min<uint64_t>(load.queued_tokens, UINT32_MAX));
  h.queued_work = queued == 0 ? Duration(0) : cost_.PredictPrefill(queued, 0, options_.scheduler.max_prefill_tokens);
  h.cost = cost_.Export();
  return h;
}

void EngineCore::FlushEvents(TimePoint now, Outbox* out) {
  const PrefixEvents cache = pool_.TakeEvents();
  std::vector<Hash128> snapshot;
  bool snapshot_taken = false;
  const std::vector<ChildId> once_hit = OnceHitInStep();
  const bool empty = draining() && idle();
  for (auto& [link, front] : fronts_) {
    if (front.fingerprint == 0) continue;
    if (std::exchange(front.empty_told, empty) != empty) front.next_heartbeat = now;
    // L8: told before it can matter. Should a launched step kill this worker, the front knows who was in it.
    std::vector<ChildId> told;
    for (const ChildId& id : once_hit) {
      if (id.front == front.fingerprint) told.push_back(id);
    }
    if (told != front.once_hit_told) front.next_heartbeat = now;
    CacheEvents changes;
    if (front.snapshot_due) {
      if (!snapshot_taken) snapshot = pool_.TakeSnapshot();
      snapshot_taken = true;
      front.snapshot_due = false;
      changes = {++front.cache_sequence, true, snapshot, {}};
    } else if (!cache.stored.empty() || !cache.removed.empty()) {
      changes = {++front.cache_sequence, false, cache.stored, cache.removed};
    }
    if (front.events.empty() && changes.sequence == 0 && now < front.next_heartbeat) continue;
    front.next_heartbeat = now + options_.heartbeat;
    WorkerBatch batch;
    batch.events = std::move(front.events);
    front.events.clear();
    batch.heartbeat = MakeHeartbeat(now);
    batch.heartbeat.order = front.order;
    batch.heartbeat.once_hit_in_step = front.once_hit_told = std::move(told);
    if (front.next_report <= now) {
      front.next_report = now + options_.report;
      batch.report.push_back(MakeReport(now));
    }
    batch.cache = std::move(changes);
    out->to_fronts.emplace_back(link, std::move(batch));
  }
}

TimePoint EngineCore::NextTimer() const {
  TimePoint next = connector_.NextTimer();
  for (const auto& [id, child] : children_) next = std::min({next, child.deadline, child.hold_until});
  for (const auto& [link, front] : fronts_) {
    if (front.fingerprint != 0) next = std::min(next, front.next_heartbeat);
  }
  return next;
}

bool EngineCore::idle() const { return children_.empty() && orphans_.empty() && running_.empty() && connector_.idle(); }

void EngineCore::Audit() const {
  pool_.Audit();
  scheduler_.Audit();
  connector_.Audit();
  for (const auto& [sequence, id] : by_sequence_) {
    const auto it = children_.find(id);
    BATON_CHECK(it != children_.end() && it->second.sequence == sequence, "a sequence without its child");
  }
  for (const ChildId& id : migrating_) BATON_CHECK(children_.at(id).migration.has_value());
}

}  // namespace baton

#include "unit/handoff/machine_states.h"

#include <algorithm>
#include <utility>

namespace baton {

// Befriended by both machines.
struct TicketsUnderTest {
  static std::string Canonical(const model::Bounds& bounds, WriterTickets* m, model::WriterView* view);
  static std::string Canonical(const model::Bounds& bounds, ReaderTickets* m, model::ReaderView* view);
  // The timer is due, whatever the others say.
  static void MakeDue(WriterTickets* m, const ChildEpoch& key, bool give_up);
  static void MakeDue(WriterTickets* m, const Ticket& ticket);
  static void EndHold(WriterTickets* m, const ChildEpoch& key);
  static void MakeDue(ReaderTickets* m, uint32_t slot, model::ReaderEvent timer);
  static uint32_t FreeSlot(const ReaderTickets& m) { return *m.free_slots_.begin(); }
  static uint32_t Generation(const ReaderTickets& m, uint32_t slot) { return m.slots_[slot].generation; }
};

namespace model {
namespace {

constexpr TimePoint kNow = TimePoint{} + std::chrono::hours(1);
constexpr TimePoint kArmed = kNow + std::chrono::hours(10000);
constexpr Duration kAnyWait = std::chrono::milliseconds(20);

TimePoint Timer(TimePoint t) { return t == kNever ? kNever : kArmed; }
TimePoint TimerOrDue(TimePoint t) { return t == kNever || t > kNow ? Timer(t) : kNow; }

KvLayout Layout() {
  KvLayout layout;
  layout.block_tokens = kTokens;
  layout.groups.push_back({KvKind::kFull, 8, 1, 2, DType::kBF16});  // two chunks of four layers
  return layout;
}
ReaderOptions ReaderOpts(const Bounds& bounds) {
  ReaderOptions o;
  o.num_slots = bounds.slots;
  return o;
}
WriterOptions WriterOpts(const Bounds& bounds) {
  WriterOptions o;
  o.max_repushes = bounds.pushes - 1;
  return o;
}

ChildEpoch KeyOf(int child) { return {{1, static_cast<uint64_t>(child), 0}, 1}; }
int ChildOf(const ChildId& id) { return static_cast<int>(id.number); }
int WriterOf(const ProcessId& id) { return static_cast<int>(id.incarnation.counter) - 1; }
int IndexOf(const Bounds& bounds, const Ticket& t) {
  return static_cast<int>(t.slot * bounds.generations + t.generation - 1);
}
Ticket TicketAt(const Bounds& bounds, int index) {
  return {ReaderId().incarnation, static_cast<uint32_t>(index / bounds.generations),
          static_cast<uint32_t>(index % bounds.generations + 1)};
}

class Encoder {
 public:
  explicit Encoder(const Bounds& bounds) : bounds_(bounds) {}
  template <typename T>
  Encoder& operator<<(T number) {
    bytes.push_back(static_cast<char>(number));
    return *this;
  }
  Encoder& operator<<(const Ticket& t) { return *this << (t == Ticket{} ? 255 : IndexOf(bounds_, t)); }
  Encoder& operator<<(TimePoint t) { return *this << (t == kNever ? 0 : t == kNow ? 1 : 2); }
  std::string bytes;

 private:
  const Bounds& bounds_;
};

}  // namespace

const ProcessId& ReaderId() {
  static const ProcessId id{"d", {1, 11}};
  return id;
}
const ProcessId& WriterId(int writer) {
  static const ProcessId ids[] = {{"p", {1, 22}}, {"q", {2, 33}}};
  return ids[writer];
}

uint8_t MessageTable::Number(const PairMessage& message) {
  Encoder e(bounds_);
  e << message.index();
  std::string name;
  int about = -1, answers = -1;
  const auto ticket = [&](const Ticket& t) {
    about = IndexOf(bounds_, t);
    return " of ticket " + std::to_string(t.slot) + "." + std::to_string(t.generation);
  };
  const auto attempt = [](Attempt a) { return " attempt " + std::to_string(a); };
  const auto child = [](const ChildId& c) { return std::string(" for ") + "AB"[ChildOf(c)]; };
  if (const auto* m = std::get_if<Reserve>(&message)) {
    e << ChildOf(m->child) << m->attempt;
    name = "RESERVE" + child(m->child) + attempt(m->attempt);
  } else if (const auto* m = std::get_if<Commit>(&message)) {
    e << ChildOf(m->child) << m->ticket << m->attempt;
    for (const ChunkDigest& d : m->digests) e << d.chunk << d.digest;
    name = "COMMIT" + child(m->child) + ticket(m->ticket) + attempt(m->attempt);
  } else if (const auto* m = std::get_if<Drained>(&message)) {
    e << m->ticket << m->severed;
    name = std::string("DRAINED") + (m->severed ? "(severed)" : "") + ticket(m->ticket);
  } else if (const auto* m = std::get_if<Grant>(&message)) {
    e << ChildOf(m->child) << m->attempt << m->ticket;
    name = "GRANT" + child(m->child) + attempt(m->attempt) + ticket(m->ticket);
  } else if (const auto* m = std::get_if<Busy>(&message)) {
    e << ChildOf(m->child) << m->attempt;
    answers = ChildOf(m->child);
    name = "BUSY" + child(m->child) + attempt(m->attempt);
  } else if (const auto* m = std::get_if<Refused>(&message)) {
    e << ChildOf(m->child) << m->attempt;
    answers = ChildOf(m->child);
    name = "REFUSED" + child(m->child) + attempt(m->attempt);
  } else if (const auto* m = std::get_if<CommitAnswer>(&message)) {
    e << ChildOf(m->child) << m->ticket << m->attempt << m->verdict;
    for (const ChunkIndex c : m->missing) e << c;
    const char* verdicts[] = {"ACK", "MISSING", "CORRUPT", "STALE"};
    name = verdicts[static_cast<int>(m->verdict)] + child(m->child) + ticket(m->ticket) + attempt(m->attempt);
    answers = ChildOf(m->child);
    if (m->attempt == 0) about = -1;  // to a RESERVE: it says that the ticket is not the one to come
  } else if (const auto* m = std::get_if<AbortTicket>(&message)) {
    e << m->ticket;
    name = "ABORT" + ticket(m->ticket);
  } else if (const auto* m = std::get_if<DrainedAck>(&message)) {
    e << m->ticket;
    name = "acknowledgement of DRAINED" + ticket(m->ticket);
  } else {
    BATON_CHECK(false, "the machines sent a message that the model does not know");
  }
  const auto [it, fresh] = numbers_.try_emplace(e.bytes, static_cast<uint8_t>(messages_.size()));
  if (fresh) {
    BATON_CHECK(messages_.size() < MessageSet().size(), "more kinds of messages than the model has room for");
    if (about >= 0) of_ticket_[about].set(messages_.size());
    if (answers >= 0) answers_to_[answers].set(messages_.size());
    messages_.push_back(message);
    names_.push_back(name);
  }
  return it->second;
}

// ---- writer ---------------------------------------------------------------------------------------

WriterStates::WriterStates(const Bounds& bounds, MessageTable* to_reader, const MessageTable* to_writer)
    : bounds_(bounds), to_reader_(to_reader), to_writer_(to_writer) {
  Keep(std::make_unique<WriterTickets>(Layout(), WriterOpts(bounds), bounds.rules));
}

uint32_t WriterStates::Keep(std::unique_ptr<WriterTickets> m) {
  WriterView view;
  const std::string canonical = TicketsUnderTest::Canonical(bounds_, m.get(), &view);
  return Number(std::move(m), canonical, view);
}

const Outcome& WriterStates::Apply(uint32_t state, uint32_t event) {
  const uint64_t key = uint64_t{state} << 32 | event;
  if (const auto it = outcomes_.find(key); it != outcomes_.end()) return it->second;
  auto m = std::make_unique<WriterTickets>(*states_[state]);
  WriterActions actions;
  Run(m.get(), event, &actions);
  Outcome outcome;
  for (const WriterPost& post : actions.post) {
    const WriterChild* c = m->Find(post.key);
    if (c == nullptr) continue;
    BATON_CHECK(post.attempt <= kAttempts, "a push beyond the model's attempts");
    const int put =
        PutIndex({IndexOf(bounds_, c->ticket), static_cast<int>(post.chunk), static_cast<int>(post.attempt) - 1});
    m->Posted(post, OpId{static_cast<uint64_t>(put) + 1}, kNow);
    outcome.posts.push_back(static_cast<uint8_t>(put));
  }
  for (const auto& [reader, message] : actions.send) {
    outcome.sends.emplace_back(0, to_reader_->Number(message));
    if (const auto* reserve = std::get_if<Reserve>(&message)) outcome.reserve = reserve->attempt;
  }
  for (const WriterChild& c : actions.handed_off) outcome.handed_off |= 1 << ChildOf(c.key.child);
  for (const ChildEpoch& key_over : actions.unpinned) outcome.unpinned |= 1 << ChildOf(key_over.child);
  outcome.unpinned |= outcome.handed_off;
  outcome.sever = !actions.sever.empty();
  outcome.next = Keep(std::move(m));
  return outcomes_.emplace(key, std::move(outcome)).first->second;
}

void WriterStates::Run(WriterTickets* m, uint32_t event, WriterActions* out) const {
  const uint32_t a = event >> 8 & 0xffff, b = event & 0xff;
  const ProcessId& reader = ReaderId();
  switch (static_cast<WriterEvent>(event >> 24)) {
    case WriterEvent::kBegin: {
      Reserve reserve;
      reserve.child = KeyOf(a).child;
      reserve.epoch = 1;
      reserve.num_tokens = kTokens;
      reserve.mode = bounds_.mode;
      return m->Begin(reader, reserve, b != 0, kArmed, kNow, out);
    }
    case WriterEvent::kBusyTooLong:
      TicketsUnderTest::EndHold(m, {std::get<Busy>(to_writer_->At(a)).child, 1});
      [[fallthrough]];
    case WriterEvent::kDeliver: {
      const PairMessage& message = to_writer_->At(a);
      if (const auto* grant = std::get_if<Grant>(&message)) m->OnGrant(reader, *grant, kNow, out);
      if (const auto* busy = std::get_if<Busy>(&message)) m->OnBusy(reader, *busy, kNow, out);
      if (const auto* refused = std::get_if<Refused>(&message)) m->OnRefused(reader, *refused, kNow, out);
      if (const auto* answer = std::get_if<CommitAnswer>(&message)) m->OnCommitAnswer(reader, *answer, kNow, out);
      if (const auto* abort = std::get_if<AbortTicket>(&message)) m->OnAbort(reader, *abort, kNow, out);
      if (const auto* ack = std::get_if<DrainedAck>(&message)) m->OnDrainedAck(reader, *ack);
      return;
    }
    case WriterEvent::kCompute:
      m->Advance(KeyOf(a), b == 2 ? kTokens : 0, kTokens, b * 4, kNow, out);
      if (b == 2) m->Finished(KeyOf(a), Progress{}, kNow, out);
      return;
    case WriterEvent::kQuiesced:
      return m->OnQuiesced({OpId{a + 1}, OkStatus(), b}, kNow, out);
    case WriterEvent::kBroken:
      return m->OnQuiesced({OpId{a + 1}, UnavailableError("broken"), 0}, kNow, out);
    case WriterEvent::kSessionLost:
      return m->SessionLost(reader, "lost", kNow, out);
    case WriterEvent::kSessionUp: {
      std::vector<Ticket> open;
      for (int t = 0; t < kTickets; ++t) {
        if (a & 1u << t) open.push_back(TicketAt(bounds_, t));
      }
      return m->SessionUp(reader, bounds_.mode, open, kNow, out);
    }
    case WriterEvent::kCancel:
      return m->Cancel(KeyOf(a), kNow, out);
    case WriterEvent::kTimer:
    case WriterEvent::kGiveUpCommit:
      TicketsUnderTest::MakeDue(m, KeyOf(a), static_cast<WriterEvent>(event >> 24) == WriterEvent::kGiveUpCommit);
      return m->Tick(kNow, out);
    case WriterEvent::kDrainTimer:
      TicketsUnderTest::MakeDue(m, TicketAt(bounds_, a));
      return m->Tick(kNow, out);
    case WriterEvent::kGiveUpReader:
      return m->GiveUp(reader, kNow, out);
  }
}

// ---- reader ---------------------------------------------------------------------------------------

ReaderStates::ReaderStates(const Bounds& bounds, const MessageTable* to_reader, MessageTable* to_writer)
    : bounds_(bounds), to_reader_(to_reader), to_writer_(to_writer) {
  Keep(std::make_unique<ReaderTickets>(ReaderId().incarnation, ReaderOpts(bounds), bounds.rules));
}

uint32_t ReaderStates::Keep(std::unique_ptr<ReaderTickets> m) {
  ReaderView view;
  const std::string canonical = TicketsUnderTest::Canonical(bounds_, m.get(), &view);
  return Number(std::move(m), canonical, view);
}

const Outcome& ReaderStates::Apply(uint32_t state, uint32_t event) {
  const uint64_t key = uint64_t{state} << 32 | event;
  if (const auto it = outcomes_.find(key); it != outcomes_.end()) return it->second;
  auto m = std::make_unique<ReaderTickets>(*states_[state]);
  ReaderActions actions;
  Outcome outcome;
  Run(m.get(), event, &actions, &outcome);
  for (const auto& [writer, message] : actions.send) {
    outcome.sends.emplace_back(static_cast<uint8_t>(WriterOf(writer)), to_writer_->Number(message));
  }
  for (const Commit& c : actions.ready) outcome.ready.push_back(static_cast<uint8_t>(IndexOf(bounds_, c.ticket)));
  for (const Ticket& t : actions.quarantined) outcome.quarantined.push_back(static_cast<uint8_t>(IndexOf(bounds_, t)));
  for (const ProcessId& writer : actions.fence) outcome.fence |= 1 << WriterOf(writer);
  for (const Ticket& t : actions.freed) outcome.freed.push_back(static_cast<uint8_t>(IndexOf(bounds_, t)));
  outcome.next = Keep(std::move(m));
  return outcomes_.emplace(key, std::move(outcome)).first->second;
}

// As EngineCore::OnReserve and KvConnector::Admit decide it.
void ReaderStates::OnReserve(ReaderTickets* m, const Reserve& reserve, int writer, ReaderEvent kind, ReaderActions* out,
                             Outcome* outcome) const {
  const ProcessId& from = WriterId(writer);
  if (const std::optional<PairMessage> recorded = m->Recorded(from, reserve)) {
    out->send.emplace_back(from, *recorded);
    return;
  }
  if (const std::optional<Ticket> old = m->FindChild(reserve.child, reserve.epoch)) m->Abort(*old, kNow, out);
  const bool room = m->HasFreeSlot();
  const uint32_t slot = room ? TicketsUnderTest::FreeSlot(*m) : 0;
  bool refused = kind == ReaderEvent::kRefuse;
  refused = refused || (room && TicketsUnderTest::Generation(*m, slot) > bounds_.generations);
  if (refused) {
    out->send.emplace_back(from, Refused{reserve.child, reserve.epoch, reserve.attempt, RefuseReason::kRole, "no"});
    return;
  }
  if (!room || kind == ReaderEvent::kBusy) {
    outcome->busy = true;
    out->send.emplace_back(from, Busy{reserve.child, reserve.epoch, reserve.attempt, kAnyWait});
    return;
  }
  Grant grant;
  grant.blocks = {{BlockId{slot}}};
  grant.base = {{0}};
  const ReaderTicket& t = m->Open(from, reserve, grant, kChunks, kNow, out);
  outcome->opened = IndexOf(bounds_, t.ticket);
  outcome->opened_for = ChildOf(reserve.child);
}

void ReaderStates::Run(ReaderTickets* m, uint32_t event, ReaderActions* out, Outcome* outcome) const {
  const uint32_t a = event >> 8 & 0xffff, b = event & 0xff;
  const auto kind = static_cast<ReaderEvent>(event >> 24);
  switch (kind) {
    case ReaderEvent::kDeliver:
    case ReaderEvent::kRefuse:
    case ReaderEvent::kBusy: {
      const PairMessage& message = to_reader_->At(a);
      if (const auto* reserve = std::get_if<Reserve>(&message)) OnReserve(m, *reserve, b, kind, out, outcome);
      if (const auto* commit = std::get_if<Commit>(&message)) m->OnCommit(WriterId(b), *commit, kNow, out);
      if (const auto* drained = std::get_if<Drained>(&message)) m->OnDrained(WriterId(b), *drained, kNow, out);
      return;
    }
    case ReaderEvent::kNotice: {
      const Put put = PutAt(a >> 1);
      m->OnChunk({WriterId(a & 1), TicketAt(bounds_, put.ticket), static_cast<ChunkIndex>(put.chunk),
                  static_cast<Attempt>(put.attempt + 1), b},
                 kNow, out);
      return;
    }
    case ReaderEvent::kQuiet:
      return m->OnQuiet(TicketAt(bounds_, a), kNow, out);
    case ReaderEvent::kFenced:
      return m->OnFenced(WriterId(a), kNow, out);
    case ReaderEvent::kSessionLost:
      return m->OnSessionLost(WriterId(a), kNow, out);
    case ReaderEvent::kWriterDead:
      return m->OnWriterDead(WriterId(a), kNow, out);
    case ReaderEvent::kAbort:
      return m->Abort(TicketAt(bounds_, a), kNow, out);
    case ReaderEvent::kEnd:
      return m->End(TicketAt(bounds_, a), kNow);
    case ReaderEvent::kGraceTimer:
    case ReaderEvent::kLeaseTimer:
    case ReaderEvent::kAbortTimer:
    case ReaderEvent::kFenceTimer:
    case ReaderEvent::kForget:
      TicketsUnderTest::MakeDue(m, a, kind);
      return m->Tick(kNow, out);
  }
}

}  // namespace model

// ---- canonical forms ------------------------------------------------------------------------------

std::string TicketsUnderTest::Canonical(const model::Bounds& bounds, WriterTickets* m, model::WriterView* view) {
  using namespace model;
  auto& [layout, options, rules, children, ops, draining, dead, counters] = *m;
  Encoder e(bounds);
  counters = {};
  for (auto& [key, c] : children) {
    auto& [state, same_key, reader, reserve, begun, granted, first_post, last_quiesced, finished, deadline, next_send,
           first_busy, ticket, grant, target_base, grid, granted_tokens, grown_tokens, extension, extending,
           next_extend, extend_until, chunks, chunks_quiesced, ops_in_flight, target_in_doubt, tokens_done, tokens_now,
           layers_now, num_tokens, final_progress, commit_attempt, missing_acted, commit_wait, commit_until,
           bytes_quiesced, bytes_hidden] = c;
    // For receipts alone.
    begun = granted = first_post = last_quiesced = finished = kNever;
    bytes_quiesced = bytes_hidden = 0;
    deadline = kArmed;
    next_send = Timer(next_send);
    commit_until = Timer(commit_until);
    if (first_busy) first_busy = kNow;
    commit_wait = kAnyWait;
    // Nothing migrates here.
    BATON_CHECK(!extending && extension == 0 && next_extend == kNever && extend_until == kNever);
    (void)target_base, (void)granted_tokens, (void)grown_tokens, (void)num_tokens;
    const int child = ChildOf(key.child);
    e << child << state << reserve.attempt << next_send << first_busy.has_value() << ticket << grant.ticket
      << chunks.size() << chunks_quiesced << ops_in_flight << target_in_doubt << tokens_done << tokens_now << layers_now
      << final_progress.has_value() << commit_attempt << missing_acted << commit_until;
    for (const auto& [posted, quiesced, digest] : chunks) e << posted << quiesced << digest;
    view->live |= 1 << child;
    if (next_send != kNever) view->armed |= 1 << child;
    if (state == WriterState::kCommitting) view->committing |= 1 << child;
    if (state == WriterState::kStopping) view->stopping |= 1 << child;
    if (state == WriterState::kReserving && reserve.attempt >= kMostReserves) view->asked_often |= 1 << child;
  }
  e << 254;
  for (const auto& [op, record] : ops) {
    const auto& [post, ticket] = record;
    e << static_cast<uint64_t>(op) << ChildOf(post.key.child) << post.chunk << post.attempt << ticket;
  }
  e << 253;
  for (auto& [ticket, d] : draining) {
    auto& [message, reader, next_send] = d;
    next_send = kArmed;
    e << ticket << message.severed;
    view->draining |= 1 << IndexOf(bounds, ticket);
  }
  e << 252;
  for (const auto& [slot, at] : dead) {
    const auto& [generation, severed] = at;
    e << slot.second << generation << severed;
    for (uint32_t g = 1; g <= generation; ++g) {
      view->dead |= 1 << IndexOf(bounds, {slot.first, slot.second, g});
    }
  }
  (void)layout, (void)options, (void)rules;
  return e.bytes;
}

std::string TicketsUnderTest::Canonical(const model::Bounds& bounds, ReaderTickets* m, model::ReaderView* view) {
  using namespace model;
  auto& [self, options, rules, slots, free_slots, counters] = *m;
  Encoder e(bounds);
  counters = {};
  for (size_t i = 0; i < slots.size(); ++i) {
    auto& [now, generation, outcomes] = slots[i];
    auto& [state, ticket, writer, mode, child, epoch, reserve_attempt, num_tokens, most_tokens, grant, extended, chunks,
           chunks_arrived, commit, commit_until, answer, lease_end, next_abort, fence_at, quarantined_at, retired,
           fence] = now;
    BATON_CHECK(num_tokens == most_tokens && extended.extension == 0, "nothing migrates here");
    e << 251 << state << generation;
    SlotView& v = view->slots[i];
    v.state = state;
    v.remembers = !outcomes.empty();
    if (state != TicketState::kFree) {
      commit_until = Timer(commit_until);
      lease_end = Timer(lease_end);
      next_abort = Timer(next_abort);
      fence_at = TimerOrDue(fence_at);
      if (quarantined_at != kNever) quarantined_at = kNow;
      e << ticket << WriterOf(writer) << ChildOf(child) << epoch << reserve_attempt << chunks_arrived << commit_until
        << lease_end << next_abort << fence_at << retired << fence;
      for (const std::optional<uint64_t>& digest : chunks) e << digest.value_or(0);
      e << commit.has_value();
      if (commit) {
        e << commit->ticket << commit->attempt << commit->digests.size();
        for (const ChunkDigest& d : commit->digests) e << d.chunk << d.digest;
      }
      e << answer.has_value();
      if (answer) {
        e << answer->ticket << answer->attempt << answer->verdict << answer->missing.size();
        for (const ChunkIndex c : answer->missing) e << c;
      }
      v.ticket = IndexOf(bounds, ticket);
      v.writer = WriterOf(writer);
      v.grace = commit.has_value();
      v.lease = lease_end != kNever;
      v.abort = next_abort != kNever;
      v.fence = fence_at != kNever && (bounds.mode == TransferMode::kKeyedPut ? fence == ReaderTicket::Fence::kNone : retired);
      view->open_tickets[v.writer] |= 1 << v.ticket;
    }
    for (auto& [gone, gone_writer, gone_child, gone_epoch, gone_attempt, acked, until] : outcomes) {
      until = kArmed;
      e << gone << WriterOf(gone_writer) << ChildOf(gone_child) << gone_epoch << gone_attempt << acked;
    }
  }
  for (const uint32_t slot : free_slots) e << slot;
  (void)self, (void)options, (void)rules, (void)counters;
  return e.bytes;
}

void TicketsUnderTest::MakeDue(WriterTickets* m, const ChildEpoch& key, bool give_up) {
  WriterChild* c = m->Get(key);
  c->next_send = model::kNow;
  if (give_up) c->commit_until = model::kNow;
}
void TicketsUnderTest::MakeDue(WriterTickets* m, const Ticket& ticket) {
  m->draining_.at(ticket).next_send = model::kNow;
}
void TicketsUnderTest::EndHold(WriterTickets* m, const ChildEpoch& key) {
  WriterChild* c = m->Get(key);
  if (c != nullptr) c->first_busy = c->deadline = model::kNow;
}
void TicketsUnderTest::MakeDue(ReaderTickets* m, uint32_t slot, model::ReaderEvent timer) {
  ReaderTicket& t = m->slots_[slot].now;
  if (timer == model::ReaderEvent::kGraceTimer) t.commit_until = model::kNow;
  if (timer == model::ReaderEvent::kLeaseTimer) t.lease_end = model::kNow;
  if (timer == model::ReaderEvent::kAbortTimer) t.next_abort = model::kNow;
  if (timer == model::ReaderEvent::kFenceTimer) t.fence_at = model::kNow;
  if (timer == model::ReaderEvent::kForget) m->slots_[slot].outcomes.front().until = model::kNow;
}

}  // namespace baton

#include "handoff/reader_tickets.h"

#include <algorithm>

namespace baton {
namespace {

bool IsReserving(TicketState s) { return s == TicketState::kReserved || s == TicketState::kReceiving; }
bool IsReadyOrLater(TicketState s) { return s == TicketState::kReady || s == TicketState::kRunning; }

// Said to be MISSING, so it will be written again: a notice of the push before says nothing about those bytes.
bool IsPushedAgain(const ReaderTicket& t, const ChunkArrived& chunk) {
  if (!t.answer || t.answer->verdict != CommitVerdict::kMissing || chunk.attempt > t.answer->attempt) return false;
  const std::vector<ChunkIndex>& missing = t.answer->missing;
  return std::find(missing.begin(), missing.end(), chunk.chunk) != missing.end();
}

CommitAnswer AnswerTo(const Commit& commit, CommitVerdict verdict) {
  CommitAnswer answer;
  answer.child = commit.child;
  answer.epoch = commit.epoch;
  answer.ticket = commit.ticket;
  answer.attempt = commit.attempt;
  answer.verdict = verdict;
  return answer;
}

CommitAnswer AnswerTo(const Reserve& reserve, const Ticket& ticket, CommitVerdict verdict) {
  CommitAnswer answer;
  answer.child = reserve.child;
  answer.epoch = reserve.epoch;
  answer.ticket = ticket;
  answer.attempt = 0;
  answer.verdict = verdict;
  return answer;
}

}  // namespace

ReaderTickets::ReaderTickets(Incarnation self, ReaderOptions options, Rules rules)
    : self_(self), options_(options), rules_(rules), slots_(options.num_slots) {
  for (uint32_t i = 0; i < options_.num_slots; ++i) free_slots_.insert(i);
}

std::optional<PairMessage> ReaderTickets::Recorded(const ProcessId& writer, const Reserve& reserve) {
  const auto refuse = [&] {
    ++counters_.stale_reserves;
    return Refused{reserve.child, reserve.epoch, reserve.attempt, RefuseReason::kOldEpoch,
                   "another worker hands this request over in this epoch"};
  };
  for (const Slot& slot : slots_) {
    const ReaderTicket& t = slot.now;
    if (t.state != TicketState::kFree && t.child == reserve.child && t.epoch == reserve.epoch) {
      if (t.writer != writer) return refuse();
      if (IsReadyOrLater(t.state)) return AnswerTo(reserve, t.ticket, CommitVerdict::kAck);
      if (reserve.attempt < t.reserve_attempt) {
        ++counters_.stale_reserves;
        return AnswerTo(reserve, t.ticket, CommitVerdict::kStaleTicket);
      }
      if (reserve.attempt == t.reserve_attempt) {
        ++counters_.duplicates;
        // A GRANT is repeated only while its ticket can still be used.
        if (IsReserving(t.state)) return t.grant;
        return AnswerTo(reserve, t.ticket, CommitVerdict::kStaleTicket);
      }
    }
    for (const Outcome& o : slot.outcomes) {
      if (o.child != reserve.child || o.epoch != reserve.epoch) continue;
      if (o.writer != writer) return refuse();
      Ticket ticket{self_, static_cast<uint32_t>(&slot - slots_.data()), o.generation};
      if (o.acked) return AnswerTo(reserve, ticket, CommitVerdict::kAck);
      if (reserve.attempt <= o.reserve_attempt) {
        ++counters_.stale_reserves;
        return AnswerTo(reserve, ticket, CommitVerdict::kStaleTicket);
      }
    }
  }
  return std::nullopt;
}

const ReaderTicket& ReaderTickets::Open(const ProcessId& writer, const Reserve& reserve, Grant grant,
                                        uint32_t num_chunks, TimePoint now, ReaderActions* out, uint32_t most_tokens) {
  BATON_CHECK(!free_slots_.empty(), "Open without a free slot");
  // A newer attempt of the same epoch replaces the older ticket: its GRANT was not taken.
  if (const std::optional<Ticket> old = FindChild(reserve.child, reserve.epoch)) Abort(*old, now, out);
  const uint32_t index = *free_slots_.begin();
  free_slots_.erase(free_slots_.begin());
  Slot& slot = slots_[index];
  ReaderTicket t;
  t.state = TicketState::kReserved;
  t.ticket = {self_, index, slot.generation};
  t.writer = writer;
  t.mode = reserve.mode;
  t.child = reserve.child;
  t.epoch = reserve.epoch;
  t.reserve_attempt = reserve.attempt;
  t.num_tokens = reserve.num_tokens;
  t.most_tokens = std::max(reserve.num_tokens, most_tokens);
  t.chunks.resize(num_chunks);
  t.lease_end = now + options_.reserved_lease;
  grant.ticket = t.ticket;
  grant.child = reserve.child;
  grant.epoch = reserve.epoch;
  grant.attempt = reserve.attempt;
  t.grant = std::move(grant);
  slot.now = std::move(t);
  out->send.emplace_back(writer, slot.now.grant);
  return slot.now;
}

const ReaderTicket* ReaderTickets::Extending(const ProcessId& writer, const Extend& extend, ReaderActions* out) {
  ReaderTicket* t = Current(extend.ticket);
  if (t == nullptr || t->writer != writer || t->child != extend.child || t->epoch != extend.epoch ||
      !IsReserving(t->state)) {
    ++counters_.stale_extends;
    return nullptr;
  }
  if (extend.extension == t->extended.extension) {
    ++counters_.duplicates;
    out->send.emplace_back(writer, t->extended);
    return nullptr;
  }
  if (extend.extension != t->extended.extension + 1 || extend.num_tokens <= t->most_tokens || t->grant.staged()) {
    ++counters_.stale_extends;
    return nullptr;
  }
  return t;
}

void ReaderTickets::Extended(const Extend& extend, Grant more, uint32_t num_chunks, uint32_t most_tokens, TimePoint now,
                             ReaderActions* out) {
  ReaderTicket* t = Current(extend.ticket);
  BATON_CHECK(t != nullptr && IsReserving(t->state), "a ticket that is over grows");
  for (size_t g = 0; g < more.blocks.size(); ++g) {
    t->grant.blocks[g].insert(t->grant.blocks[g].end(), more.blocks[g].begin(), more.blocks[g].end());
    t->grant.base[g].insert(t->grant.base[g].end(), more.base[g].begin(), more.base[g].end());
  }
  more.child = t->child;
  more.epoch = t->epoch;
  more.attempt = t->reserve_attempt;
  more.ticket = t->ticket;
  more.hit_tokens = t->grant.hit_tokens;
  more.extension = extend.extension;
  t->extended = std::move(more);
  t->num_tokens = extend.num_tokens;
  t->most_tokens = most_tokens;
  t->chunks.resize(t->chunks.size() + num_chunks);
  t->lease_end = std::max(t->lease_end, now + options_.receiving_lease);
  out->send.emplace_back(t->writer, t->extended);
}

void ReaderTickets::OnChunk(const ChunkArrived& chunk, TimePoint now, ReaderActions* out) {
  ReaderTicket* t = Current(chunk.ticket);
  if (t == nullptr || !IsReserving(t->state) || chunk.writer != t->writer || chunk.chunk >= t->chunks.size()) {
    ++counters_.stale_chunks;
    return;
  }
  t->state = TicketState::kReceiving;
  t->lease_end = std::max(t->lease_end, now + options_.receiving_lease);
  if (IsPushedAgain(*t, chunk) && rules_.Holds(Rule::kS4)) {
    ++counters_.stale_chunks;
    return;
  }
  std::optional<uint64_t>& seen = t->chunks[chunk.chunk];
  if (seen) {
    ++counters_.duplicates;
  } else {
    ++t->chunks_arrived;
  }
  seen = chunk.digest;
  if (t->commit && t->chunks_arrived == t->chunks.size()) Decide(*t, now, out);
}

void ReaderTickets::OnCommit(const ProcessId& writer, const Commit& commit, TimePoint now, ReaderActions* out) {
  ReaderTicket* t = Current(commit.ticket);
  if (t != nullptr && (t->writer != writer || t->child != commit.child || t->epoch != commit.epoch)) t = nullptr;
  if (t == nullptr || t->state == TicketState::kQuarantined) {
    // The record answers where it still knows; past it, kStaleTicket means undecided.
    CommitVerdict verdict = CommitVerdict::kStaleTicket;
    if (t == nullptr && commit.ticket.reader == self_ && commit.ticket.slot < slots_.size()) {
      for (const Outcome& o : slots_[commit.ticket.slot].outcomes) {
        if (o.generation == commit.ticket.generation && o.child == commit.child && o.epoch == commit.epoch &&
            o.writer == writer && o.acked) {
          verdict = CommitVerdict::kAck;
        }
      }
    }
    ++counters_.stale_commits;
    out->send.emplace_back(writer, AnswerTo(commit, verdict));
    return;
  }
  if (IsReadyOrLater(t->state)) {
    ++counters_.duplicates;
    out->send.emplace_back(writer, AnswerTo(commit, CommitVerdict::kAck));
    return;
  }
  if (t->answer && t->answer->attempt >= commit.attempt && rules_.Holds(Rule::kS4)) {
    ++counters_.duplicates;
    if (t->answer->attempt == commit.attempt) out->send.emplace_back(writer, *t->answer);
    return;
  }
  if (t->state == TicketState::kConverting || (t->commit && t->commit->attempt >= commit.attempt)) {
    ++counters_.duplicates;  // it waits already, for notices or for the conversion
    return;
  }
  t->commit = commit;
  t->commit_until = now + options_.missing_grace;
  if (t->chunks_arrived == t->chunks.size() || !rules_.Holds(Rule::kS4)) Decide(*t, now, out);
}

// Every notice came, or the wait for them is over.
void ReaderTickets::Decide(ReaderTicket& t, TimePoint now, ReaderActions* out) {
  const Commit commit = std::move(*t.commit);
  t.commit.reset();
  t.commit_until = kNever;
  if (rules_.Holds(Rule::kS4)) {
    std::vector<ChunkIndex> missing;
    for (ChunkIndex i = 0; i < t.chunks.size(); ++i) {
      if (!t.chunks[i]) missing.push_back(i);
    }
    if (!missing.empty()) {
      ++counters_.missing;
      return Answer(t, commit, CommitVerdict::kMissing, std::move(missing), out);
    }
    std::vector<bool> named(t.chunks.size(), false);
    bool right = commit.token_count >= t.num_tokens && commit.token_count <= t.most_tokens &&
                 commit.digests.size() == t.chunks.size();
    for (const ChunkDigest& d : commit.digests) {
      if (!right) break;
      right = d.chunk < t.chunks.size() && !named[d.chunk] && *t.chunks[d.chunk] == d.digest;
      if (right) named[d.chunk] = true;
    }
    if (!right) {
      ++counters_.corrupt;
      Answer(t, commit, CommitVerdict::kCorrupt, {}, out);
      return Quarantine(t, now, out);
    }
  }
  t.lease_end = kNever;
  const bool staged = t.grant.staged() && !t.chunks.empty();
  if (!staged || !rules_.Holds(Rule::kS4)) return Accept(t, commit, out);
  // S4: not READY before the conversion is done. A COMMIT that comes again waits for it.
  t.state = TicketState::kConverting;
  t.commit = commit;
  out->convert.push_back(t.ticket);
}

void ReaderTickets::Accept(ReaderTicket& t, const Commit& commit, ReaderActions* out) {
  ++counters_.ready;
  t.state = TicketState::kReady;
  out->ready.push_back(commit);
  Answer(t, commit, CommitVerdict::kAck, {}, out);
}

void ReaderTickets::OnConverted(const Ticket& ticket, bool ok, TimePoint now, ReaderActions* out) {
  ReaderTicket* t = Current(ticket);
  if (t == nullptr || t->state != TicketState::kConverting) return;
  const Commit commit = std::move(*t->commit);
  t->commit.reset();
  if (ok) return Accept(*t, commit, out);
  Answer(*t, commit, CommitVerdict::kCorrupt, {}, out);
  out->unconverted.push_back(ticket);
  Free(*t, /*acked=*/false, now);
}

void ReaderTickets::Answer(ReaderTicket& t, const Commit& commit, CommitVerdict verdict,
                           std::vector<ChunkIndex> missing, ReaderActions* out) {
  CommitAnswer answer = AnswerTo(commit, verdict);
  answer.missing = std::move(missing);
  t.answer = answer;
  out->send.emplace_back(t.writer, std::move(answer));
}

void ReaderTickets::OnDrained(const ProcessId& writer, const Drained& drained, TimePoint now, ReaderActions* out) {
  out->send.emplace_back(writer, DrainedAck{drained.ticket});
  ReaderTicket* t = Current(drained.ticket);
  if (t == nullptr || t->writer != writer) {
    ++counters_.stale_drained;
    return;
  }
  if (IsReadyOrLater(t->state)) return;
  // The writer gives a ticket up that nobody aborted here (an unwanted GRANT, a cancel that came to it first).
  if (IsReserving(t->state)) {
    ++counters_.given_up;
    Quarantine(*t, now, out);
  }
  if (t->state != TicketState::kQuarantined) return;
  if (!drained.severed) return FreeQuarantined(*t, now, out);
  // The source is safe, the target is in doubt: only a fence or a death ends it. No more ABORTs.
  t->next_abort = kNever;
  t->fence_at = now;
  UseFence(*t, now, out);
}

void ReaderTickets::UseFence(ReaderTicket& t, TimePoint now, ReaderActions* out) {
  if (t.fence == ReaderTicket::Fence::kHolds) return FreeQuarantined(t, now, out);
  if (t.fence_at > now) return;
  if (t.mode == TransferMode::kReceiverPosted && t.retired) return FreeQuarantined(t, now, out);
  if (t.mode != TransferMode::kKeyedPut || IsFencing(t.writer)) return;
  // It cuts all that the writer has here.
  for (Slot& slot : slots_) {
    ReaderTicket& other = slot.now;
    if (other.state == TicketState::kFree || other.writer != t.writer || other.mode != TransferMode::kKeyedPut)
      continue;
    if (other.fence == ReaderTicket::Fence::kNone) other.fence = ReaderTicket::Fence::kAsked;
  }
  ++counters_.fences;
  out->fence.push_back(t.writer);
}

bool ReaderTickets::IsFencing(const ProcessId& writer) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.now.fence == ReaderTicket::Fence::kAsked && slot.now.writer == writer;
  });
}

void ReaderTickets::OnFenced(const ProcessId& writer, TimePoint now, ReaderActions* out) {
  for (Slot& slot : slots_) {
    ReaderTicket& t = slot.now;
    if (t.fence != ReaderTicket::Fence::kAsked || t.writer != writer) continue;
    t.fence = ReaderTicket::Fence::kHolds;
    if (t.state == TicketState::kQuarantined) FreeQuarantined(t, now, out);
  }
}

void ReaderTickets::OnHeartbeat(const ProcessId& writer, const PairHeartbeat& heartbeat, TimePoint now) {
  for (const Ticket& ticket : heartbeat.alive) {
    ReaderTicket* t = Current(ticket);
    if (t == nullptr || t->writer != writer || !IsReserving(t->state)) continue;
    const Duration lease = t->state == TicketState::kReserved ? options_.reserved_lease : options_.receiving_lease;
    t->lease_end = std::max(t->lease_end, now + lease);
  }
}

void ReaderTickets::OnQuiet(const Ticket& ticket, TimePoint now, ReaderActions* out) {
  ReaderTicket* t = Current(ticket);
  if (t == nullptr || t->state != TicketState::kQuarantined) return;
  t->retired = true;
  UseFence(*t, now, out);
}

void ReaderTickets::OnSessionLost(const ProcessId& writer, TimePoint now, ReaderActions* out) {
  for (Slot& slot : slots_) {
    if (slot.now.writer != writer || !IsReserving(slot.now.state)) continue;
    ++counters_.sessions_lost;
    Quarantine(slot.now, now, out);
  }
}

void ReaderTickets::OnWriterDead(const ProcessId& writer, TimePoint now, ReaderActions* out) {
  OnSessionLost(writer, now, out);
  for (Slot& slot : slots_) {
    if (slot.now.writer != writer || slot.now.state != TicketState::kQuarantined) continue;
    if (slot.now.mode != TransferMode::kKeyedPut) {
      FreeQuarantined(slot.now, now, out);
    } else {
      slot.now.fence_at = now;  // what it put may still be on its way, or be carried out here
      UseFence(slot.now, now, out);
    }
  }
}

void ReaderTickets::Abort(const Ticket& ticket, TimePoint now, ReaderActions* out) {
  ReaderTicket* t = Current(ticket);
  if (t == nullptr || !IsReserving(t->state)) return;
  ++counters_.cancelled;
  Quarantine(*t, now, out);
}

void ReaderTickets::MarkRunning(const Ticket& ticket) {
  ReaderTicket* t = Current(ticket);
  if (t != nullptr && t->state == TicketState::kReady) t->state = TicketState::kRunning;
}

void ReaderTickets::End(const Ticket& ticket, TimePoint now) {
  ReaderTicket* t = Current(ticket);
  if (t == nullptr) return;
  if (IsReadyOrLater(t->state)) Free(*t, /*acked=*/true, now);
  if (t->state == TicketState::kConverting) Free(*t, /*acked=*/false, now);
}

void ReaderTickets::Tick(TimePoint now, ReaderActions* out) {
  for (Slot& slot : slots_) {
    ReaderTicket& t = slot.now;
    while (!slot.outcomes.empty() && slot.outcomes.front().until <= now) slot.outcomes.erase(slot.outcomes.begin());
    if (t.state == TicketState::kFree) continue;
    if (t.commit && t.commit_until <= now) Decide(t, now, out);
    if (IsReserving(t.state) && t.lease_end <= now) {
      ++counters_.lease_ends;
      Quarantine(t, now, out);
    }
    if (t.state != TicketState::kQuarantined) continue;
    UseFence(t, now, out);
    if (t.state != TicketState::kQuarantined) continue;
    if (t.next_abort <= now) {
      out->send.emplace_back(t.writer, AbortTicket{t.ticket});
      t.next_abort = now + options_.abort_repeat;
    }
  }
}

TimePoint ReaderTickets::NextTimer() const {
  TimePoint next = kNever;
  for (const Slot& slot : slots_) {
    const ReaderTicket& t = slot.now;
    if (t.state == TicketState::kFree) continue;
    if (t.commit) next = std::min(next, t.commit_until);
    if (IsReserving(t.state)) next = std::min(next, t.lease_end);
    if (t.state == TicketState::kQuarantined) {
      next = std::min(next, t.next_abort);
      if (t.mode == TransferMode::kReceiverPosted && t.retired) next = std::min(next, t.fence_at);
      if (t.mode == TransferMode::kKeyedPut && !IsFencing(t.writer)) next = std::min(next, t.fence_at);
    }
  }
  return next;
}

const ReaderTicket* ReaderTickets::Find(const Ticket& ticket) const {
  return const_cast<ReaderTickets*>(this)->Current(ticket);
}

std::optional<Ticket> ReaderTickets::FindChild(const ChildId& child, Epoch epoch) const {
  for (const Slot& slot : slots_) {
    const ReaderTicket& t = slot.now;
    if (t.state != TicketState::kFree && t.state != TicketState::kQuarantined && t.child == child && t.epoch == epoch) {
      return t.ticket;
    }
  }
  return std::nullopt;
}

std::vector<Ticket> ReaderTickets::OpenTicketsOf(const ProcessId& writer) const {
  std::vector<Ticket> tickets;
  for (const Slot& slot : slots_) {
    if (slot.now.state != TicketState::kFree && slot.now.writer == writer) tickets.push_back(slot.now.ticket);
  }
  return tickets;
}

std::vector<const ReaderTicket*> ReaderTickets::Live() const {
  std::vector<const ReaderTicket*> live;
  for (const Slot& slot : slots_) {
    if (slot.now.state != TicketState::kFree) live.push_back(&slot.now);
  }
  return live;
}

ReaderTicket* ReaderTickets::Current(const Ticket& ticket) {
  if (ticket.reader != self_ || ticket.slot >= slots_.size()) return nullptr;
  ReaderTicket& t = slots_[ticket.slot].now;
  if (t.state == TicketState::kFree) return nullptr;
  // S5: a message of another generation of the slot is about another ticket.
  return t.ticket.generation == ticket.generation || !rules_.Holds(Rule::kS5) ? &t : nullptr;
}

void ReaderTickets::Quarantine(ReaderTicket& t, TimePoint now, ReaderActions* out) {
  t.state = TicketState::kQuarantined;
  t.commit.reset();
  t.commit_until = kNever;
  t.lease_end = kNever;
  t.quarantined_at = now;
  t.fence_at = now + options_.fence_after;
  t.next_abort = now + options_.abort_repeat;
  out->quarantined.push_back(t.ticket);
  out->send.emplace_back(t.writer, AbortTicket{t.ticket});
  if (!rules_.Holds(Rule::kS1)) return FreeQuarantined(t, now, out);
  if (t.fence == ReaderTicket::Fence::kHolds) FreeQuarantined(t, now, out);
}

void ReaderTickets::FreeQuarantined(ReaderTicket& t, TimePoint now, ReaderActions* out) {
  ++counters_.drained;
  counters_.quarantined_time += now - t.quarantined_at;
  out->freed.push_back(t.ticket);
  Free(t, /*acked=*/false, now);
}

void ReaderTickets::Free(ReaderTicket& t, bool acked, TimePoint now) {
  Slot& slot = slots_[t.ticket.slot];
  if (slot.outcomes.size() == 2) slot.outcomes.erase(slot.outcomes.begin());
  slot.outcomes.push_back(
      {t.ticket.generation, t.writer, t.child, t.epoch, t.reserve_attempt, acked, now + options_.outcome_kept});
  free_slots_.insert(t.ticket.slot);
  ++slot.generation;
  t = ReaderTicket{};
}

}  // namespace baton

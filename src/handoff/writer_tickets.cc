#include "handoff/writer_tickets.h"

#include <algorithm>

namespace baton {
namespace {
// More than any reader has; what it says of others is not believed, so that it cannot make this side remember them.
constexpr uint32_t kMaxSlots = 65536;

// Whether the ticket can be one of that reader's.
bool IsOf(const ProcessId& reader, const Ticket& ticket) {
  return ticket.reader == reader.incarnation && ticket.slot < kMaxSlots;
}
}  // namespace

WriterTickets::WriterTickets(KvLayout layout, WriterOptions options, Rules rules)
    : layout_(std::move(layout)), options_(options), rules_(rules) {}

void WriterTickets::Begin(const ProcessId& reader, Reserve reserve, bool session_up, TimePoint deadline, TimePoint now,
                          WriterActions* out) {
  const ChildEpoch key{reserve.child, reserve.epoch};
  BATON_CHECK(children_.find(key) == children_.end(), "a hand-off begins once per epoch");
  WriterChild c;
  c.key = key;
  c.reader = reader;
  c.reserve = std::move(reserve);
  c.reserve.attempt = 0;
  c.begun = now;
  c.deadline = deadline;
  c.num_tokens = c.grown_tokens = c.reserve.num_tokens;
  WriterChild& stored = children_.emplace(key, std::move(c)).first->second;
  if (session_up) SendReserve(stored, now, out);
}

void WriterTickets::SendReserve(WriterChild& c, TimePoint now, WriterActions* out) {
  ++c.reserve.attempt;
  c.state = WriterState::kReserving;
  c.next_send = now + options_.reserve_repeat;
  out->send.emplace_back(c.reader, c.reserve);
}

void WriterTickets::SessionUp(const ProcessId& reader, TransferMode mode, const std::vector<Ticket>& open_tickets,
                              TimePoint now, WriterActions* out) {
  for (auto& [key, c] : children_) {
    if (c.reader != reader) continue;
    c.reserve.mode = mode;
    if (c.state == WriterState::kReserving) SendReserve(c, now, out);
    if (c.state == WriterState::kCommitting) c.next_send = now;  // the same attempt: the record answers
  }
  for (auto& [ticket, d] : draining_) {
    if (d.reader == reader) d.next_send = now;
  }
  // The reader still holds tickets of ours: every one that no child works on is answered (L2).
  for (const Ticket& ticket : open_tickets) {
    if (!IsOf(reader, ticket)) continue;
    const bool held = std::any_of(children_.begin(), children_.end(), [&](const auto& entry) {
      return entry.second.grant.ticket == ticket && entry.second.state != WriterState::kReserving;
    });
    if (!held && draining_.find(ticket) == draining_.end()) SendDrained(reader, ticket, false, now, out);
  }
  Tick(now, out);
}

void WriterTickets::SessionLost(const ProcessId& reader, const std::string& why, TimePoint now, WriterActions* out) {
  for (auto it = children_.begin(); it != children_.end();) {
    WriterChild& c = (it++)->second;  // Stop may erase it
    if (c.reader != reader) continue;
    // The reader aborts the session's tickets; only a COMMIT's outcome can still be asked for.
    if (c.state == WriterState::kPushing) {
      Stop(c, WriterFailure{c.key, HandoffFailure::kPeerLost, why}, now, out);
    } else if (c.state == WriterState::kReserving || c.state == WriterState::kHeld) {
      c.state = WriterState::kReserving;
      c.next_send = kNever;  // SessionUp sends the next attempt
    }
  }
}

void WriterTickets::GiveUp(const ProcessId& reader, TimePoint now, WriterActions* out) {
  for (auto it = children_.begin(); it != children_.end();) {
    WriterChild& c = (it++)->second;
    if (c.reader != reader || c.state == WriterState::kStopping) continue;
    const bool undecided = c.state == WriterState::kCommitting;
    Stop(c,
         WriterFailure{c.key, undecided ? HandoffFailure::kUndecided : HandoffFailure::kPeerLost,
                       reader.name + " is gone"},
         now, out);
  }
  std::erase_if(draining_, [&](const auto& entry) { return entry.second.reader == reader; });
}

void WriterTickets::ReaderGone(const ProcessId& reader, TimePoint now, WriterActions* out) {
  GiveUp(reader, now, out);
  std::erase_if(dead_, [&](const auto& entry) { return entry.first.first == reader.incarnation; });
}

void WriterTickets::Unreachable(const ProcessId& reader, const std::string& why, TimePoint now, WriterActions* out) {
  for (auto it = children_.begin(); it != children_.end();) {
    WriterChild& c = (it++)->second;
    if (c.reader != reader || (c.state != WriterState::kReserving && c.state != WriterState::kHeld)) continue;
    Stop(c, WriterFailure{c.key, HandoffFailure::kPeerLost, why}, now, out);
  }
}

void WriterTickets::HandBack(const ChildEpoch& key, TimePoint now, WriterActions* out) {
  WriterChild* c = Get(key);
  if (c == nullptr || (c->state != WriterState::kHeld && c->state != WriterState::kReserving)) return;
  Stop(*c, WriterFailure{key, HandoffFailure::kBusyTooLong, "gave way to others here"}, now, out);
}

bool WriterTickets::IsDead(const Ticket& ticket) const {
  const auto it = dead_.find({ticket.reader, ticket.slot});
  return it != dead_.end() && ticket.generation <= it->second.generation;
}

void WriterTickets::OnGrant(const ProcessId& reader, const Grant& grant, TimePoint now, WriterActions* out) {
  if (!IsOf(reader, grant.ticket)) {
    ++counters_.stale;
    return;
  }
  if (grant.extension > 0) return OnExtended(reader, grant, now, out);
  WriterChild* c = Get({grant.child, grant.epoch});
  const bool current =
      c != nullptr && c->reader == reader && c->state == WriterState::kReserving && grant.attempt == c->reserve.attempt;
  if (!current || IsDead(grant.ticket)) {
    // A duplicate of the GRANT that is in use is nothing; anything else is given back.
    if (c != nullptr && c->grant.ticket == grant.ticket && c->state != WriterState::kReserving) return;
    ++counters_.unwanted_grants;
    if (!rules_.Holds(Rule::kL2)) return;
    if (draining_.find(grant.ticket) == draining_.end()) SendDrained(reader, grant.ticket, false, now, out);
    return;
  }
  const uint32_t moving = NumMovingBlocks(layout_, grant.hit_tokens, c->reserve.num_tokens);
  const bool sane = Fits(grant, c->reserve.num_tokens);
  c->ticket = grant.ticket;
  c->grant = grant;
  c->granted = now;
  c->next_send = kNever;
  if (!sane) {
    return Stop(*c, WriterFailure{c->key, HandoffFailure::kTransfer, "GRANT does not fit the request"}, now, out);
  }
  c->state = WriterState::kPushing;
  c->granted_tokens = c->reserve.num_tokens;
  Take(*c, grant, moving);
  PostReady(*c, now, out);
  MaybeCommit(*c, now, out);
}

// Blocks of a GRANT behind those of the GRANTs before.
void WriterTickets::Take(WriterChild& c, const Grant& grant, uint32_t num_blocks) {
  for (const std::vector<uint64_t>& group : grant.base) {
    c.target_base.insert(c.target_base.end(), group.begin(), group.end());
  }
  if (c.reserve.migration) {
    c.grid.AppendLastApart(layout_, num_blocks);
  } else {
    c.grid.Append(layout_, num_blocks);
  }
  c.chunks.resize(c.grid.size());
}

void WriterTickets::Grown(const ChildEpoch& key, uint32_t num_tokens, TimePoint now, WriterActions* out) {
  WriterChild* c = Get(key);
  if (c == nullptr || c->state == WriterState::kStopping) return;
  c->grown_tokens = std::max(c->grown_tokens, num_tokens);
  if (c->state != WriterState::kPushing || c->extending) return;
  if (layout_.BlocksFor(c->grown_tokens) <= layout_.BlocksFor(c->granted_tokens)) return;
  ++c->extension;
  c->extending = true;
  c->extend_until = now + options_.extend_give_up;
  SendExtend(*c, now, out);
}

// Also when it is repeated it asks for what is needed then.
void WriterTickets::SendExtend(WriterChild& c, TimePoint now, WriterActions* out) {
  c.next_extend = now + options_.extend_repeat;
  out->send.emplace_back(c.reader, Extend{c.key.child, c.key.epoch, c.ticket, c.extension, c.grown_tokens});
}

void WriterTickets::OnExtended(const ProcessId& reader, const Grant& grant, TimePoint now, WriterActions* out) {
  WriterChild* c = Get({grant.child, grant.epoch});
  if (c == nullptr || c->reader != reader || c->ticket != grant.ticket || c->state != WriterState::kPushing ||
      !c->extending || grant.extension != c->extension) {
    ++counters_.stale;
    return;
  }
  // The reader may have answered an earlier sending of that EXTEND, which asked for less.
  const size_t more = grant.blocks.empty() ? 0 : grant.blocks[0].size();
  bool sane = more > 0 && grant.blocks.size() == layout_.groups.size() && grant.base.size() == grant.blocks.size();
  for (size_t g = 0; sane && g < grant.blocks.size(); ++g) {
    sane = grant.blocks[g].size() == more && grant.base[g].size() == more;
  }
  const uint32_t had = layout_.BlocksFor(c->granted_tokens);
  sane = sane && had + more <= layout_.BlocksFor(c->grown_tokens);
  if (!sane) {
    return Stop(*c, WriterFailure{c->key, HandoffFailure::kTransfer, "GRANT does not fit the EXTEND"}, now, out);
  }
  for (size_t g = 0; g < grant.blocks.size(); ++g) {
    c->grant.blocks[g].insert(c->grant.blocks[g].end(), grant.blocks[g].begin(), grant.blocks[g].end());
    c->grant.base[g].insert(c->grant.base[g].end(), grant.base[g].begin(), grant.base[g].end());
  }
  c->granted_tokens = std::min(c->grown_tokens, (had + static_cast<uint32_t>(more)) * layout_.block_tokens);
  c->extending = false;
  c->next_extend = c->extend_until = kNever;
  Take(*c, grant, static_cast<uint32_t>(more));
  PostReady(*c, now, out);
  MaybeCommit(*c, now, out);
  // It grew while it asked.
  if (c->state == WriterState::kPushing) Grown(c->key, c->grown_tokens, now, out);
}

bool WriterTickets::MayCutOver(const ChildEpoch& key) const {
  const WriterChild* c = Find(key);
  if (c == nullptr || c->state != WriterState::kPushing || c->ops_in_flight > 0) return false;
  for (ChunkIndex i = 0; i < c->chunks.size(); ++i) {
    if (!c->chunks[i].quiesced && ChunkReady(*c, c->grid.At(i))) return false;
  }
  return !c->extending || c->extension > options_.max_extensions;
}

// Whether the blocks of a GRANT are those that the request's KV, or its staging, needs.
bool WriterTickets::Fits(const Grant& grant, uint32_t num_tokens) const {
  const uint32_t unit = grant.staged() ? kPageTokens : layout_.block_tokens;
  bool fits = grant.hit_tokens % unit == 0 &&
              grant.hit_tokens <= layout_.BlocksFor(num_tokens) * layout_.block_tokens &&
              grant.blocks.size() == layout_.groups.size() && grant.base.size() == grant.blocks.size() &&
              (!grant.staged() || grant.staging_block_bytes.size() == grant.blocks.size());
  for (uint32_t g = 0; fits && g < grant.blocks.size(); ++g) {
    uint32_t blocks = NumMovingBlocks(layout_, grant.hit_tokens, num_tokens);
    if (grant.staged()) {
      const StagingMap staging(layout_, g, grant.staging_block_bytes[g]);
      fits = staging.fits();
      blocks = fits ? staging.BlocksFor(blocks) : 0;
    }
    fits = fits && grant.blocks[g].size() == blocks && grant.base[g].size() == blocks;
  }
  return fits;
}

void WriterTickets::OnBusy(const ProcessId& reader, const Busy& busy, TimePoint now, WriterActions* out) {
  WriterChild* c = Get({busy.child, busy.epoch});
  if (c == nullptr || c->reader != reader || c->state != WriterState::kReserving ||
      busy.attempt != c->reserve.attempt) {
    ++counters_.stale;
    return;
  }
  ++counters_.busy;
  if (!c->first_busy || !rules_.Holds(Rule::kL6)) c->first_busy = now;
  // L6: the hold runs from the epoch's first BUSY and is at most a quarter of what remained then.
  const TimePoint give_up = *c->first_busy + (c->deadline - *c->first_busy) / 4;
  if (now >= give_up) {
    return Stop(*c, WriterFailure{c->key, HandoffFailure::kBusyTooLong, "no room at " + reader.name}, now, out);
  }
  c->state = WriterState::kHeld;
  c->next_send = std::min(give_up, now + std::max<Duration>(busy.retry_after, std::chrono::milliseconds(1)));
}

void WriterTickets::OnRefused(const ProcessId& reader, const Refused& refused, TimePoint now, WriterActions* out) {
  WriterChild* c = Get({refused.child, refused.epoch});
  if (c == nullptr || c->reader != reader || c->state != WriterState::kReserving ||
      refused.attempt != c->reserve.attempt) {
    ++counters_.stale;
    return;
  }
  const bool for_now = refused.why == RefuseReason::kDraining || refused.why == RefuseReason::kRole;
  const HandoffFailure why = for_now ? HandoffFailure::kNotAdmitted : HandoffFailure::kRefused;
  Stop(*c, WriterFailure{c->key, why, refused.detail}, now, out);
}

bool WriterTickets::ChunkReady(const WriterChild& c, const Chunk& chunk) const {
  const uint32_t first_block = FirstMovingBlock(layout_, c.grant.hit_tokens, c.reserve.num_tokens);
  const uint32_t end_block = first_block + chunk.first_block + chunk.num_blocks;
  uint32_t end = end_block * layout_.block_tokens;
  // The last block of a migrating sequence is being written until the cut-over.
  if (!c.reserve.migration || c.final_progress || !rules_.Holds(Rule::kS3)) end = std::min(end, c.num_tokens);
  if (end <= c.tokens_done) return true;
  // S3: only after the last step that will ever write it has reported the layer.
  if (!rules_.Holds(Rule::kS3) && c.tokens_now > 0) return true;
  return end <= c.tokens_now && chunk.first_layer + chunk.num_layers <= c.layers_now;
}

void WriterTickets::PostReady(WriterChild& c, TimePoint now, WriterActions* out) {
  if (c.state != WriterState::kPushing) return;
  for (ChunkIndex i = 0; i < c.chunks.size(); ++i) {
    if (c.chunks[i].posted != 0 || !ChunkReady(c, c.grid.At(i))) continue;
    c.chunks[i].posted = c.commit_attempt + 1;
    if (c.first_post == kNever) c.first_post = now;
    out->post.push_back({c.key, i, c.chunks[i].posted});
  }
}

void WriterTickets::Advance(const ChildEpoch& key, uint32_t tokens_done, uint32_t tokens_now, uint32_t layers_now,
                            TimePoint now, WriterActions* out) {
  WriterChild* c = Get(key);
  if (c == nullptr) return;
  c->tokens_done = std::max(c->tokens_done, tokens_done);
  c->tokens_now = tokens_now;
  c->layers_now = layers_now;
  PostReady(*c, now, out);
}

void WriterTickets::Finished(const ChildEpoch& key, Progress progress, TimePoint now, WriterActions* out) {
  WriterChild* c = Get(key);
  if (c == nullptr || c->state == WriterState::kStopping) return;
  if (c->reserve.migration) {  // the last token's own KV is the reader's to compute
    c->num_tokens = static_cast<uint32_t>(c->reserve.request->prompt.size() + progress.tokens.size()) - 1;
  }
  c->final_progress = std::move(progress);
  c->finished = now;
  PostReady(*c, now, out);
  MaybeCommit(*c, now, out);
}

void WriterTickets::Posted(const WriterPost& post, OpId op, TimePoint now) {
  WriterChild* c = Get(post.key);
  BATON_CHECK(c != nullptr, "Posted for an unknown child");
  ops_[op] = {post, c->ticket};
  ++c->ops_in_flight;
  c->next_send = now + options_.stall_after;
}

void WriterTickets::OnQuiesced(const Quiesced& quiesced, TimePoint now, WriterActions* out) {
  const auto it = ops_.find(quiesced.op);
  if (it == ops_.end()) return;
  const Op op = it->second;
  ops_.erase(it);
  WriterChild* c = Get(op.post.key);
  BATON_CHECK(c != nullptr && c->ops_in_flight > 0, "an op outlived its child");
  --c->ops_in_flight;
  if (!quiesced.status.ok()) c->target_in_doubt = true;
  if (c->state == WriterState::kStopping) {
    if (c->ops_in_flight == 0) Over(*c, now, out);
    return;
  }
  if (!quiesced.status.ok()) {
    return Stop(*c, WriterFailure{c->key, HandoffFailure::kPeerLost, quiesced.status.ToString()}, now, out);
  }
  WriterChild::ChunkState& chunk = c->chunks[op.post.chunk];
  if (op.post.attempt != chunk.posted) return;
  if (!chunk.quiesced) ++c->chunks_quiesced;
  chunk.quiesced = true;
  chunk.digest = quiesced.digest;
  c->last_quiesced = now;
  c->next_send = c->ops_in_flight > 0 ? now + options_.stall_after : kNever;
  const uint64_t bytes = c->grid.BytesOf(c->grid.At(op.post.chunk));
  c->bytes_quiesced += bytes;
  const uint32_t layers = layout_.groups.empty() ? 0 : layout_.groups[0].num_layers;
  const bool before_last_layer = !c->final_progress && c->tokens_done < c->reserve.num_tokens &&
                                 (c->tokens_now < c->reserve.num_tokens || c->layers_now + 1 < layers);
  if (before_last_layer) c->bytes_hidden += bytes;
  MaybeCommit(*c, now, out);
}

void WriterTickets::MaybeCommit(WriterChild& c, TimePoint now, WriterActions* out) {
  if (c.state != WriterState::kPushing || !c.final_progress) return;
  if (c.chunks_quiesced != c.chunks.size() && rules_.Holds(Rule::kS4)) return;
  if (layout_.BlocksFor(c.num_tokens) > layout_.BlocksFor(c.granted_tokens)) return;  // an extension is due
  c.state = WriterState::kCommitting;
  ++c.commit_attempt;
  c.commit_wait = options_.commit_repeat;
  const Duration give_up = c.reserve.migration ? options_.migration_give_up : options_.commit_give_up;
  c.commit_until = std::min(c.deadline, now + give_up);
  SendCommit(c, now, out);
}

void WriterTickets::SendCommit(WriterChild& c, TimePoint now, WriterActions* out) {
  Commit commit;
  commit.child = c.key.child;
  commit.epoch = c.key.epoch;
  commit.ticket = c.ticket;
  commit.attempt = c.commit_attempt;
  commit.progress = *c.final_progress;
  commit.progress.deadline_remaining = std::max<Duration>(c.deadline - now, Duration(0));
  commit.token_count = c.num_tokens;
  for (ChunkIndex i = 0; i < c.chunks.size(); ++i) commit.digests.push_back({i, c.chunks[i].digest});
  out->send.emplace_back(c.reader, std::move(commit));
  c.next_send = now + c.commit_wait;
  c.commit_wait = std::min(options_.commit_repeat_max, c.commit_wait * 2);
}

void WriterTickets::OnCommitAnswer(const ProcessId& reader, const CommitAnswer& answer, TimePoint now,
                                   WriterActions* out) {
  WriterChild* c = Get({answer.child, answer.epoch});
  if (c == nullptr || c->reader != reader || c->state == WriterState::kStopping) {
    ++counters_.stale;
    return;
  }
  if (answer.attempt == 0) {  // to a RESERVE
    // READY or later is what was committed: before that nobody can say so, and bytes may still be on their way.
    if (answer.verdict == CommitVerdict::kAck && c->state == WriterState::kCommitting) {
      out->handed_off.push_back(*c);
      Stop(*c, std::nullopt, now, out);
    } else if (answer.verdict == CommitVerdict::kStaleTicket && c->state == WriterState::kReserving) {
      SendReserve(*c, now, out);  // that ticket is over: the next attempt gets a new one
    }
    return;
  }
  if (c->state != WriterState::kCommitting || answer.ticket != c->ticket) {
    ++counters_.stale;
    return;
  }
  switch (answer.verdict) {
    case CommitVerdict::kAck: {
      const ChildEpoch key = c->key;
      BATON_CHECK(c->ops_in_flight == 0 || !rules_.Holds(Rule::kS4), "ACK with ops in flight");
      out->handed_off.push_back(std::move(*c));
      children_.erase(key);
      std::erase_if(ops_, [&](const auto& entry) { return entry.second.post.key == key; });
      return;
    }
    case CommitVerdict::kMissing:
      return Repush(*c, answer, now, out);
    case CommitVerdict::kCorrupt:
      return Stop(*c, WriterFailure{c->key, HandoffFailure::kTransfer, "digests differ at the reader"}, now, out);
    case CommitVerdict::kStaleTicket:
      return Stop(*c, WriterFailure{c->key, HandoffFailure::kUndecided, "the ticket is stale"}, now, out);
  }
}

void WriterTickets::Repush(WriterChild& c, const CommitAnswer& answer, TimePoint now, WriterActions* out) {
  // S4: acted on once, and only if it answers the latest attempt sent.
  if (rules_.Holds(Rule::kS4) && (answer.attempt != c.commit_attempt || answer.attempt <= c.missing_acted)) {
    ++counters_.stale;
    return;
  }
  bool sane = !answer.missing.empty();
  for (const ChunkIndex i : answer.missing) sane = sane && i < c.chunks.size();
  if (!sane || c.commit_attempt > options_.max_repushes) {
    return Stop(c, WriterFailure{c.key, HandoffFailure::kTransfer, "chunks still missing after re-pushes"}, now, out);
  }
  c.missing_acted = answer.attempt;
  c.state = WriterState::kPushing;
  c.next_send = kNever;
  ++counters_.repushes;
  for (const ChunkIndex i : answer.missing) {
    if (c.chunks[i].quiesced) --c.chunks_quiesced;
    c.chunks[i] = {};
  }
  PostReady(c, now, out);
}

void WriterTickets::OnAbort(const ProcessId& reader, const AbortTicket& abort, TimePoint now, WriterActions* out) {
  if (!IsOf(reader, abort.ticket)) return;
  for (auto& [key, c] : children_) {
    if (c.reader != reader || c.grant.ticket != abort.ticket || c.ticket != abort.ticket) continue;
    if (c.state == WriterState::kStopping) return;
    return Stop(c, WriterFailure{key, HandoffFailure::kPeerLost, "the reader aborted the ticket"}, now, out);
  }
  const auto it = draining_.find(abort.ticket);
  if (it != draining_.end()) {
    it->second.next_send = now;
    return Tick(now, out);
  }
  // L2: also a ticket that was never heard of is answered; its GRANT, should it still come, is dead.
  if (rules_.Holds(Rule::kL2)) SendDrained(reader, abort.ticket, false, now, out);
}

void WriterTickets::OnDrainedAck(const ProcessId& reader, const DrainedAck& ack) {
  const auto it = draining_.find(ack.ticket);
  if (it != draining_.end() && it->second.reader == reader) draining_.erase(it);
}

void WriterTickets::Cancel(const ChildEpoch& key, TimePoint now, WriterActions* out) {
  WriterChild* c = Get(key);
  if (c != nullptr && c->state != WriterState::kStopping) Stop(*c, std::nullopt, now, out);
}

void WriterTickets::Stop(WriterChild& c, std::optional<WriterFailure> failure, TimePoint now, WriterActions* out) {
  if (failure) out->failed.push_back(std::move(*failure));
  c.state = WriterState::kStopping;
  c.next_send = now + options_.sever_after;
  c.extending = false;
  c.next_extend = c.extend_until = kNever;
  if (c.ops_in_flight == 0 || !rules_.Holds(Rule::kL3)) Over(c, now, out);
}

void WriterTickets::Over(WriterChild& c, TimePoint now, WriterActions* out) {
  const ChildEpoch key = c.key;
  out->unpinned.push_back(key);
  if (c.ticket != Ticket{}) SendDrained(c.reader, c.ticket, c.target_in_doubt, now, out);
  children_.erase(key);
  std::erase_if(ops_, [&](const auto& entry) { return entry.second.post.key == key; });
}

void WriterTickets::SendDrained(const ProcessId& reader, const Ticket& ticket, bool severed, TimePoint now,
                                WriterActions* out) {
  DeadSlot& dead = dead_[{ticket.reader, ticket.slot}];
  dead.generation = std::max(dead.generation, ticket.generation);
  if (severed) dead.severed = std::max(dead.severed, ticket.generation);
  severed = dead.severed == ticket.generation;
  out->send.emplace_back(reader, Drained{ticket, severed});
  // Said again until it is acknowledged; an older ticket of the slot is over, or this one were not there.
  if (ticket.generation < dead.generation) return;
  draining_.erase(draining_.lower_bound(Ticket{ticket.reader, ticket.slot, 0}), draining_.lower_bound(ticket));
  draining_[ticket] = {Drained{ticket, severed}, reader, now + options_.drained_repeat};
}

void WriterTickets::Tick(TimePoint now, WriterActions* out) {
  for (auto it = children_.begin(); it != children_.end();) {
    WriterChild& c = (it++)->second;  // Stop may erase it
    if (c.next_extend <= now) {
      if (now >= c.extend_until) {
        Stop(c, WriterFailure{c.key, HandoffFailure::kBusyTooLong, "no room to grow at " + c.reader.name}, now, out);
        continue;
      }
      SendExtend(c, now, out);
    }
    if (c.next_send > now) continue;
    switch (c.state) {
      case WriterState::kReserving:
        c.next_send = now + options_.reserve_repeat;
        out->send.emplace_back(c.reader, c.reserve);
        break;
      case WriterState::kHeld:
        SendReserve(c, now, out);
        break;
      case WriterState::kPushing:
        Stop(c, WriterFailure{c.key, HandoffFailure::kPeerLost, "a transfer does not end"}, now, out);
        break;
      case WriterState::kCommitting:
        if (now >= c.commit_until) {
          Stop(c, WriterFailure{c.key, HandoffFailure::kUndecided, "no answer to COMMIT"}, now, out);
        } else {
          SendCommit(c, now, out);
        }
        break;
      case WriterState::kStopping:
        out->sever.push_back(c.reader);
        c.next_send = now + options_.sever_after;
        break;
    }
  }
  for (auto& [ticket, d] : draining_) {
    if (d.next_send > now) continue;
    out->send.emplace_back(d.reader, d.message);
    d.next_send = now + options_.drained_repeat;
  }
}

TimePoint WriterTickets::NextTimer() const {
  TimePoint next = kNever;
  for (const auto& [key, c] : children_) next = std::min({next, c.next_send, c.next_extend});
  for (const auto& [ticket, d] : draining_) next = std::min(next, d.next_send);
  return next;
}

WriterChild* WriterTickets::Get(const ChildEpoch& key) {
  const auto it = children_.find(key);
  return it == children_.end() ? nullptr : &it->second;
}
const WriterChild* WriterTickets::Find(const ChildEpoch& key) const {
  return const_cast<WriterTickets*>(this)->Get(key);
}
std::vector<const WriterChild*> WriterTickets::Live() const {
  std::vector<const WriterChild*> live;
  for (const auto& [key, c] : children_) live.push_back(&c);
  return live;
}
std::vector<Ticket> WriterTickets::AliveTickets(const ProcessId& reader) const {
  std::vector<Ticket> alive;
  for (const auto& [key, c] : children_) {
    if (c.reader == reader && (c.state == WriterState::kPushing || c.state == WriterState::kCommitting)) {
      alive.push_back(c.ticket);
    }
  }
  return alive;
}
bool WriterTickets::NeedsSession(const ProcessId& reader) const {
  for (const auto& [key, c] : children_) {
    if (c.reader == reader) return true;
  }
  for (const auto& [ticket, d] : draining_) {
    if (d.reader == reader) return true;
  }
  return false;
}

}  // namespace baton

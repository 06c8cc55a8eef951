#include "engine/kv_connector.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "base/hash.h"

namespace baton {
namespace {

uint32_t NumBlocks(const std::vector<std::vector<BlockId>>& blocks) {
  size_t n = 0;
  for (const auto& group : blocks) n += group.size();
  return static_cast<uint32_t>(n);
}

}  // namespace

KvConnector::KvConnector(KvConnectorOptions options, Scheduler* scheduler, BlockPool* pool, KvTransport* transport)
    : options_(std::move(options)),
      scheduler_(scheduler),
      pool_(pool),
      transport_(transport),
      reader_(options_.self.process.incarnation, options_.reader, options_.rules),
      writer_(options_.layout, options_.writer, options_.rules),
      rng_(options_.seed) {}

// ---- links ----------------------------------------------------------------------------------------

void KvConnector::OnLinkUp(LinkId link, LinkKind kind, TimePoint now, Outbox* out) {
  if (kind == LinkKind::kPairReader) {
    accepted_[link] = {};
    return;
  }
  WriterSession* s = SessionOn(link);
  if (s == nullptr) return CloseLink(link, out);
  s->session = rng_.Next();
  PairHello hello;
  hello.protocol = options_.protocol;
  hello.writer = options_.self.process;
  hello.reader = s->peer.process;
  hello.session = s->session;
  hello.model = options_.model;
  hello.layout = options_.layout;
  hello.numeric = options_.numeric;
  hello.host = options_.host;
  hello.pid = options_.pid;
  out->to_peers.emplace_back(link, std::move(hello));
  (void)now;
}

void KvConnector::OnLinkDown(LinkId link, const Status& why, TimePoint now, Outbox* out) {
  if (const auto it = accepted_.find(link); it != accepted_.end()) {
    const std::optional<ProcessId> writer = it->second.writer;
    const TimePoint heard = it->second.heard;
    accepted_.erase(it);
    if (!writer) return;
    if (const auto watch = watches_.find(*writer); watch != watches_.end()) watch->second.heard = heard;
    const auto current = accepted_by_writer_.find(*writer);
    if (current == accepted_by_writer_.end() || current->second != link) return;  // a newer session took over
    accepted_by_writer_.erase(current);
    if (Receives(*writer)) CountDetected(DetectCause::kSession, heard, now);
    ReaderActions actions;
    reader_.OnSessionLost(*writer, now, &actions);
    return Do(&actions, now, out);
  }
  if (WriterSession* s = SessionOn(link)) {
    s->link.reset();
    if (!writer_.AliveTickets(s->peer.process).empty()) CountDetected(DetectCause::kSession, s->heard, now);
    DropSession(*s, why.ToString(), now, out);
  }
}

// The connection of a dialed session is gone (or is being closed): its tickets are over, redial if needed.
void KvConnector::DropSession(WriterSession& s, const std::string& why, TimePoint now, Outbox* out) {
  if (s.link) CloseLink(*s.link, out);
  s.link.reset();
  s.greeted = false;
  ++s.failures;
  Duration wait = options_.redial_first;
  for (uint32_t i = 1; i < s.failures && wait < options_.redial_max; ++i) wait *= 2;
  s.next_dial = now + std::min(wait, options_.redial_max);
  s.next_heartbeat = s.greet_by = kNever;
  WriterActions actions;
  writer_.SessionLost(s.peer.process, why, now, &actions);
  if (s.failures >= options_.unreachable_after) writer_.Unreachable(s.peer.process, why, now, &actions);
  Do(&actions, now, out);
}

void KvConnector::CloseLink(LinkId link, Outbox* out) { out->close.push_back(link); }

KvConnector::WriterSession* KvConnector::SessionOn(LinkId link) {
  for (auto& [peer, s] : dialed_) {
    if (s.link == link) return &s;
  }
  return nullptr;
}

// ---- messages -------------------------------------------------------------------------------------

void KvConnector::OnMessage(LinkId link, const PairMessage& message, TimePoint now, Outbox* out) {
  if (const auto it = accepted_.find(link); it != accepted_.end()) {
    return OnWriterMessage(link, it->second, message, now, out);
  }
  if (WriterSession* s = SessionOn(link)) OnReaderMessage(link, *s, message, now, out);
}

void KvConnector::OnWriterMessage(LinkId link, ReaderSession& s, const PairMessage& m, TimePoint now, Outbox* out) {
  s.heard = now;
  if (const auto* hello = std::get_if<PairHello>(&m)) return OnHello(link, *hello, now, out);
  if (!s.writer) {
    ++counters_.protocol_errors;
    return CloseLink(link, out);
  }
  ReaderActions actions;
  const ProcessId writer = *s.writer;
  if (const auto* commit = std::get_if<Commit>(&m)) {
    const ReaderTicket* t = reader_.Find(commit->ticket);
    if (t != nullptr && t->writer == writer && commit->digests.size() > t->chunks.size()) {
      ++counters_.protocol_errors;
      return CloseLink(link, out);
    }
    reader_.OnCommit(writer, *commit, now, &actions);
  } else if (const auto* extend = std::get_if<Extend>(&m)) {
    return OnExtend(writer, *extend, now, out);
  } else if (const auto* drained = std::get_if<Drained>(&m)) {
    reader_.OnDrained(writer, *drained, now, &actions);
  } else if (const auto* heartbeat = std::get_if<PairHeartbeat>(&m)) {
    reader_.OnHeartbeat(writer, *heartbeat, now);
  } else {
    ++counters_.protocol_errors;
    return CloseLink(link, out);
  }
  Do(&actions, now, out);
}

void KvConnector::OnReaderMessage(LinkId link, WriterSession& s, const PairMessage& m, TimePoint now, Outbox* out) {
  s.heard = now;
  if (const auto* answer = std::get_if<PairHelloAnswer>(&m)) return OnHelloAnswer(s, *answer, now, out);
  if (!s.greeted) {
    ++counters_.protocol_errors;
    return CloseLink(link, out);
  }
  WriterActions actions;
  const ProcessId reader = s.peer.process;
  if (const auto* grant = std::get_if<Grant>(&m)) {
    writer_.OnGrant(reader, *grant, now, &actions);
    const ChildEpoch key{grant->child, grant->epoch};
    if (const WriterChild* c = writer_.Find(key); c != nullptr && c->ticket != Ticket{}) {
      Pin(key, true);
    }
  } else if (const auto* busy = std::get_if<Busy>(&m)) {
    writer_.OnBusy(reader, *busy, now, &actions);
    const ChildEpoch key{busy->child, busy->epoch};
    // L6: without a ticket it gives way when others need its blocks. A BUSY that comes late may meet one that has a
    // ticket by now, and puts that read its blocks.
    if (const WriterChild* c = writer_.Find(key); c != nullptr && c->state == WriterState::kHeld) {
      Pin(key, false);
    }
  } else if (const auto* refused = std::get_if<Refused>(&m)) {
    writer_.OnRefused(reader, *refused, now, &actions);
  } else if (const auto* commit_answer = std::get_if<CommitAnswer>(&m)) {
    writer_.OnCommitAnswer(reader, *commit_answer, now, &actions);
  } else if (const auto* abort = std::get_if<AbortTicket>(&m)) {
    writer_.OnAbort(reader, *abort, now, &actions);
  } else if (const auto* ack = std::get_if<DrainedAck>(&m)) {
    writer_.OnDrainedAck(reader, *ack);
  } else {
    ++counters_.protocol_errors;
    return CloseLink(link, out);
  }
  Do(&actions, now, out);
}

Status KvConnector::CheckPeer(const PairHello& hello) const {
  BATON_RETURN_IF_ERROR(CommonProtocol(options_.protocol, hello.protocol).status());
  if (hello.reader != options_.self.process) {
    return FailedPreconditionError("the writer looks for " + hello.reader.name + " in another incarnation");
  }
  if (!(hello.model == options_.model)) {
    return FailedPreconditionError("the writer serves " + hello.model.name + ", this worker " + options_.model.name +
                                   ": weights differ");
  }
  if (Status s = CanConvert(hello.layout, options_.layout); !s.ok()) return s.Annotate("writer and reader");
  for (uint32_t g = 0; g < hello.layout.groups.size(); ++g) {
    if (StagingMap(hello.layout, g, options_.layout.BlockBytes(g)).fits()) continue;
    return FailedPreconditionError("no room for staging: a tile of the writer (" + hello.layout.Describe() +
                                   ") is larger than a block of the reader (" + options_.layout.Describe() + ")");
  }
  if (hello.numeric != options_.numeric && SameElementTypes(hello.layout, options_.layout)) {
    return FailedPreconditionError("numeric identities differ: KV format or instruction set of the kernels");
  }
  return OkStatus();
}

void KvConnector::OnHello(LinkId link, const PairHello& hello, TimePoint now, Outbox* out) {
  PairHelloAnswer answer;
  answer.status = CheckPeer(hello);
  answer.reader = options_.self.process;
  answer.session = hello.session;
  // Of two incarnations of one name the higher counter wins.
  for (const auto& [writer, other] : accepted_by_writer_) {
    if (writer.name == hello.writer.name && writer.incarnation.counter > hello.writer.incarnation.counter) {
      answer.status = FailedPreconditionError("superseded: a newer " + writer.name + " is connected");
    }
  }
  if (!answer.status.ok()) {
    out->to_peers.emplace_back(link, std::move(answer));
    return CloseLink(link, out);
  }
  // A Hello closes the pair's older session, and every session of an older incarnation, before anything else.
  for (auto it = accepted_by_writer_.begin(); it != accepted_by_writer_.end();) {
    if (it->first.name != hello.writer.name) {
      ++it;
      continue;
    }
    const ProcessId writer = it->first;
    const LinkId old = it->second;
    it = accepted_by_writer_.erase(it);
    ReaderActions actions;
    reader_.OnSessionLost(writer, now, &actions);
    Do(&actions, now, out);
    if (old != link) {
      accepted_.erase(old);
      CloseLink(old, out);
    }
  }
  accepted_[link] = {hello.writer, hello.session, hello.layout, hello.numeric, now, 0};
  accepted_by_writer_[hello.writer] = link;
  ++counters_.sessions;
  if (watches_.find(hello.writer) == watches_.end()) {
    const bool same_host = !options_.host.empty() && hello.host == options_.host;
    watches_[hello.writer] =
        same_host ? WatchedWriter{Watch::kPending, hello.pid, kNever} : WatchedWriter{Watch::kImpossible, 0, kNever};
    if (same_host) out->watch.push_back({hello.writer, hello.host, hello.pid});
  }
  answer.descriptor = transport_->LocalDescriptor();
  answer.open_tickets = reader_.OpenTicketsOf(hello.writer);
  out->to_peers.emplace_back(link, std::move(answer));
}

void KvConnector::OnHelloAnswer(WriterSession& s, const PairHelloAnswer& answer, TimePoint now, Outbox* out) {
  if (s.greeted || answer.session != s.session) {
    ++counters_.protocol_errors;
    return DropSession(s, "an answer to another Hello", now, out);
  }
  const bool replaced = answer.reader.incarnation != s.peer.process.incarnation;
  if (!answer.status.ok() || replaced) {
    const std::string why =
        replaced ? s.peer.process.name + " was replaced by another incarnation" : answer.status.message();
    const ProcessId reader = s.peer.process;
    DropSession(s, why, now, out);
    WriterActions actions;
    writer_.Unreachable(reader, why, now, &actions);
    if (replaced) writer_.ReaderGone(reader, now, &actions);
    Do(&actions, now, out);
    return;
  }
  s.greeted = true;
  s.greet_by = kNever;
  s.descriptor = answer.descriptor;
  s.open_tickets = answer.open_tickets;
  if (s.open) return SessionIsUp(s, now, out);
  OpenEndpoint(s);
}

void KvConnector::OpenEndpoint(WriterSession& s) {
  if (s.opening || s.closing) return;
  s.opening = true;
  transport_->Open(s.peer.process, s.descriptor);
}

void KvConnector::SessionIsUp(WriterSession& s, TimePoint now, Outbox* out) {
  s.failures = 0;
  s.last_up = now;
  s.next_heartbeat = now + options_.pair_heartbeat;
  ++counters_.sessions;
  WriterActions actions;
  writer_.SessionUp(s.peer.process, s.mode, s.open_tickets, now, &actions);
  Do(&actions, now, out);
}

void KvConnector::OnProcessWatched(const ProcessWatched& watched) {
  const auto it = watches_.find(watched.process);
  if (it != watches_.end()) it->second.watch = watched.ok ? Watch::kOpened : Watch::kImpossible;
}

void KvConnector::OnProcessDied(const ProcessId& process, TimePoint now, Outbox* out) {
  if (const auto it = watches_.find(process); it != watches_.end()) {
    const auto link = accepted_by_writer_.find(process);
    const bool ties = CreditTickets(process) < options_.max_writer_tickets;
    const TimePoint heard = link != accepted_by_writer_.end() ? accepted_.at(link->second).heard : it->second.heard;
    if (ties) CountDetected(DetectCause::kDeath, heard, now);
    watches_.erase(it);
  }
  ReaderActions r;
  reader_.OnWriterDead(process, now, &r);
  Do(&r, now, out);
  WriterActions w;
  writer_.ReaderGone(process, now, &w);
  Do(&w, now, out);
}

// ---- transport ------------------------------------------------------------------------------------

void KvConnector::PollTransport(TimePoint now, Outbox* out) {
  std::vector<TransportEvent> events;
  transport_->Poll(&events);
  for (const TransportEvent& event : events) {
    WriterActions w;
    ReaderActions r;
    std::optional<ProcessId> pump;  // there may be room for more
    if (const auto* quiesced = std::get_if<Quiesced>(&event)) {
      if (const auto it = under_way_.find(quiesced->op); it != under_way_.end()) {
        windows_[it->second.first].Done(it->second.second);
        pump = it->second.first;
        under_way_.erase(it);
        if (const auto s = dialed_.find(*pump); s != dialed_.end() && quiesced->status.ok()) s->second.heard = now;
      }
      writer_.OnQuiesced(*quiesced, now, &w);
    } else if (const auto* chunk = std::get_if<ChunkArrived>(&event)) {
      const auto link = accepted_by_writer_.find(chunk->writer);
      if (link != accepted_by_writer_.end()) accepted_.at(link->second).heard = now;
      reader_.OnChunk(*chunk, now, &r);
    } else if (const auto* fenced = std::get_if<Fenced>(&event)) {
      reader_.OnFenced(fenced->writer, now, &r);
    } else if (const auto* quiet = std::get_if<Quiet>(&event)) {
      reader_.OnQuiet(quiet->ticket, now, &r);
    } else if (const auto* opened = std::get_if<PeerOpened>(&event)) {
      const auto it = dialed_.find(opened->peer);
      if (it != dialed_.end()) {
        WriterSession& s = it->second;
        s.opening = false;
        s.open = opened->status.ok();
        s.mode = opened->mode;
        s.lane = opened->lane;
        if (!s.open) {
          DropSession(s, opened->status.ToString(), now, out);
        } else if (s.greeted) {
          SessionIsUp(s, now, out);
        }
      }
    } else if (const auto* lost = std::get_if<PeerLost>(&event)) {
      const auto it = dialed_.find(lost->peer);
      if (it != dialed_.end() && !it->second.closing) {
        // Opened anew together with a new session: the two break as one.
        ++counters_.peers_lost;
        if (!writer_.AliveTickets(lost->peer).empty()) {
          CountDetected(DetectCause::kTransport, it->second.heard, now);
        }
        it->second.open = false;
        it->second.closing = true;
        transport_->Close(lost->peer);
        DropSession(it->second, lost->why.ToString(), now, out);
      }
    } else if (const auto* severed = std::get_if<Severed>(&event)) {
      const auto it = dialed_.find(severed->peer);
      if (it != dialed_.end()) {
        it->second.closing = it->second.open = false;
        if (it->second.greeted) OpenEndpoint(it->second);
      }
    }
    Do(&w, now, out);
    Do(&r, now, out);
    if (pump) Pump(*pump, now);
  }
}

// ---- writer ---------------------------------------------------------------------------------------

void KvConnector::BeginSend(const Sequence& sequence, const PeerAddress& reader, TimePoint deadline, TimePoint now,
                            Outbox* out) {
  Reserve reserve;
  reserve.child = sequence.request->id;
  reserve.epoch = sequence.epoch;
  reserve.request = sequence.request;
  reserve.progress = sequence.ProgressNow(deadline - now);
  for (OutputToken& token : reserve.progress.tokens) token = {token.id, 0, {}};
  reserve.page_hashes = sequence.page_hashes;
  reserve.num_tokens = sequence.prefill_tokens;
  WriterSession& s = dialed_[reader.process];
  s.peer = reader;
  reserve.mode = s.mode;
  sends_[{reserve.child, reserve.epoch}] = {sequence.id, false, {}};
  scheduler_->SetPinned(sequence.id, true);
  WriterActions actions;
  const ChildEpoch key{reserve.child, reserve.epoch};
  writer_.Begin(reader.process, std::move(reserve), s.up(), deadline, now, &actions);
  writer_.Advance(key, sequence.num_computed, 0, 0, now, &actions);
  Do(&actions, now, out);
  DialDue(now, out);
}

bool KvConnector::BeginMigration(const Sequence& sequence, Epoch next, const PeerAddress& reader, TimePoint deadline,
                                 TimePoint now, Outbox* out) {
  const ChildEpoch key{sequence.request->id, next};
  if (sends_.find(key) != sends_.end()) return false;
  Reserve reserve;
  reserve.child = key.child;
  reserve.epoch = next;
  reserve.request = sequence.request;
  reserve.migration = true;
  reserve.progress = sequence.ProgressNow(deadline - now);
  // The last token comes with COMMIT, as a prefill worker's first one does: its KV is not computed yet. Nor is that
  // of the tokens before it, as far as their steps still run.
  reserve.num_tokens = sequence.num_computed;
  reserve.progress.tokens.resize(sequence.num_computed - sequence.num_prompt());
  for (OutputToken& token : reserve.progress.tokens) token = {token.id, 0, {}};
  reserve.progress.delivered =
      std::min(reserve.progress.delivered, static_cast<uint32_t>(reserve.progress.tokens.size()));
  reserve.page_hashes = sequence.page_hashes;
  reserve.page_hashes.resize(std::min<size_t>(reserve.page_hashes.size(), reserve.num_tokens / kPageTokens));
  WriterSession& s = dialed_[reader.process];
  s.peer = reader;
  reserve.mode = s.mode;
  sends_[key] = {sequence.id, true, std::vector<BlockTable>(sequence.tables.size())};
  scheduler_->SetPinned(sequence.id, true);
  ++counters_.migrations;
  WriterActions actions;
  writer_.Begin(reader.process, std::move(reserve), s.up(), deadline, now, &actions);
  writer_.Advance(key, sequence.num_computed, 0, 0, now, &actions);
  Do(&actions, now, out);
  DialDue(now, out);
  return true;
}

void KvConnector::AdvanceMigration(const ChildEpoch& key, const Sequence& sequence, TimePoint now, Outbox* out) {
  const auto it = sends_.find(key);
  if (it == sends_.end()) return;
  for (uint32_t g = 0; g < sequence.tables.size(); ++g) {
    BlockTable& held = it->second.blocks[g];
    if (held.size() < sequence.tables[g].size()) {
      held.Append(sequence.tables[g].Share(sequence.tables[g].size()).SplitOff(held.size()));
    }
  }
  WriterActions actions;
  writer_.Grown(key, sequence.num_launched, now, &actions);
  writer_.Advance(key, sequence.num_computed, 0, 0, now, &actions);
  Do(&actions, now, out);
}

void KvConnector::Pin(const ChildEpoch& key, bool pinned) {
  const SequenceId id = sends_.at(key).sequence;
  if (scheduler_->Find(id) != nullptr) scheduler_->SetPinned(id, pinned);
}

void KvConnector::EndSend(const ChildEpoch& key) {
  const auto it = sends_.find(key);
  if (it == sends_.end()) return;
  const SequenceId id = it->second.sequence;
  sends_.erase(it);
  // A migration that failed may still be read when the next one of its sequence begins.
  const bool other = std::any_of(sends_.begin(), sends_.end(), [id](const auto& s) { return s.second.sequence == id; });
  if (!other && scheduler_->Find(id) != nullptr) scheduler_->SetPinned(id, false);
}

void KvConnector::AdvanceSend(const ChildEpoch& key, uint32_t tokens_done, uint32_t tokens_now, uint32_t layers,
                              TimePoint now, Outbox* out) {
  WriterActions actions;
  writer_.Advance(key, tokens_done, tokens_now, layers, now, &actions);
  Do(&actions, now, out);
}

void KvConnector::FinishSend(const ChildEpoch& key, Progress progress, TimePoint now, Outbox* out) {
  WriterActions actions;
  writer_.Finished(key, std::move(progress), now, &actions);
  Do(&actions, now, out);
}

void KvConnector::CancelSend(const ChildEpoch& key, TimePoint now, Outbox* out) {
  WriterActions actions;
  writer_.Cancel(key, now, &actions);
  Do(&actions, now, out);
}

void KvConnector::HandBack(const ChildEpoch& key, TimePoint now, Outbox* out) {
  WriterActions actions;
  writer_.HandBack(key, now, &actions);
  Do(&actions, now, out);
}

// A chunk that became final: it goes when the pair's window lets it.
void KvConnector::Queue(const WriterPost& post, TimePoint now) {
  const WriterChild* c = writer_.Find(post.key);
  if (c == nullptr) return;
  const auto [it, fresh] = windows_.try_emplace(c->reader, options_.send);
  const uint64_t bytes = c->grid.BytesOf(c->grid.At(post.chunk));
  if (it->second.in_flight() > 0 && it->second.queued() + bytes > it->second.credit()) ++counters_.chunks_waited;
  it->second.Add({post, c->ticket, bytes}, DecodeDue(*c, now));
}

void KvConnector::Pump(const ProcessId& reader, TimePoint now) {
  const auto it = windows_.find(reader);
  if (it == windows_.end()) return;
  while (const std::optional<SendWindow::Entry> entry = it->second.Next(now)) {
    const WriterChild* c = writer_.Find(entry->post.key);
    const bool wanted = c != nullptr && c->ticket == entry->ticket && c->state != WriterState::kStopping;
    if (wanted) {
      Post(*entry, now);
    } else {
      it->second.Done(entry->bytes);
    }
  }
  if (it->second.idle()) windows_.erase(it);
}

void KvConnector::Post(const SendWindow::Entry& entry, TimePoint now) {
  const WriterPost& post = entry.post;
  const WriterChild* c = writer_.Find(post.key);
  const Send& send = sends_.at(post.key);
  const Sequence* sequence = scheduler_->Find(send.sequence);
  BATON_CHECK(send.migration || sequence != nullptr, "a send outlived its sequence");
  const Chunk chunk = c->grid.At(post.chunk);
  TransferPost transfer;
  transfer.op = OpId{next_op_++};
  transfer.reader = c->reader;
  transfer.ticket = c->ticket;
  transfer.chunk = post.chunk;
  transfer.attempt = post.attempt;
  uint32_t first_target = c->grid.FirstTarget(post.chunk);
  if (c->grant.staged()) {
    first_target = 0;
    for (uint32_t g = 0; g < chunk.group; ++g) first_target += static_cast<uint32_t>(c->grant.blocks[g].size());
  }
  const BlockTable& table = send.migration ? send.blocks[chunk.group] : sequence->tables[chunk.group];
  const uint32_t first_block = FirstMovingBlock(options_.layout, c->grant.hit_tokens, c->reserve.num_tokens);
  const uint64_t staging_bytes = c->grant.staged() ? c->grant.staging_block_bytes[chunk.group] : 0;
  transfer.pieces = PlanCopies(options_.layout, options_.pool, chunk, std::span(table.blocks()).subspan(first_block),
                               first_target, staging_bytes);
  transfer.target_base = c->target_base;
  counters_.bytes_posted += entry.bytes;
  counters_.pieces += transfer.pieces.size();
  ++counters_.chunks_posted;
  under_way_[transfer.op] = {c->reader, entry.bytes};
  writer_.Posted(post, transfer.op, now);
  transport_->Post(std::move(transfer));
}

void KvConnector::Do(WriterActions* actions, TimePoint now, Outbox* out) {
  for (auto& [reader, message] : actions->send) {
    const auto it = dialed_.find(reader);
    if (it == dialed_.end() || !it->second.link || !it->second.greeted) continue;  // repeated when a session is up
    out->to_peers.emplace_back(*it->second.link, std::move(message));
  }
  std::set<ProcessId> posted_to;
  for (const WriterPost& post : actions->post) {
    Queue(post, now);
    if (const WriterChild* c = writer_.Find(post.key)) posted_to.insert(c->reader);
  }
  for (WriterChild& child : actions->handed_off) {
    CountHandedOff(child, now);
    EndSend(child.key);
    facts_.handed_off.push_back(std::move(child));
  }
  for (WriterFailure& failure : actions->failed) {
    const auto it = sends_.find(failure.key);
    auto& failed = it != sends_.end() && it->second.migration ? counters_.migrations_failed : counters_.failed;
    ++failed[static_cast<size_t>(failure.why)];
    facts_.failed.push_back(std::move(failure));
  }
  for (const ChildEpoch& key : actions->unpinned) {
    EndSend(key);
    for (auto& [reader, window] : windows_) window.Drop(key);
    facts_.unpinned.push_back(key);
  }
  for (const ProcessId& reader : posted_to) Pump(reader, now);
  for (const ProcessId& reader : actions->sever) {
    const auto it = dialed_.find(reader);
    if (it == dialed_.end() || it->second.closing) continue;
    it->second.closing = true;
    it->second.open = false;
    transport_->Close(reader);
    DropSession(it->second, "transfers did not end in time", now, out);
  }
}

// ---- reader ---------------------------------------------------------------------------------------

const ProcessId* KvConnector::WriterOf(LinkId link) const {
  const auto it = accepted_.find(link);
  return it == accepted_.end() || !it->second.writer ? nullptr : &*it->second.writer;
}

void KvConnector::Answer(LinkId link, PairMessage message, Outbox* out) {
  out->to_peers.emplace_back(link, std::move(message));
}

// Blocks that nobody else gets before the writer is quiet, or the hand-off READY.
uint32_t KvConnector::TiedUp(const ReaderTicket& t) const {
  uint32_t n = NumBlocks(t.grant.blocks);
  if (!t.grant.staged() || t.state == TicketState::kQuarantined) return n;
  const auto it = receives_.find(t.ticket);
  const Sequence* s = it == receives_.end() ? nullptr : scheduler_->Find(it->second);
  if (s == nullptr) return n;
  return n + static_cast<uint32_t>(s->tables.size()) *
                 (options_.layout.BlocksFor(s->prefill_tokens) - s->hit_tokens / options_.layout.block_tokens);
}

uint64_t KvConnector::TotalBlocks() const {
  uint64_t total = 0;
  for (const uint32_t n : options_.pool.num_blocks) total += n;
  return total;
}

// How many more hand-offs of the writer may be RESERVED, RECEIVING or QUARANTINED.
uint32_t KvConnector::CreditTickets(const ProcessId& writer) const {
  uint32_t held = 0;
  for (const ReaderTicket* t : reader_.Live()) {
    held += t->writer == writer && t->state != TicketState::kReady && t->state != TicketState::kRunning ? 1 : 0;
  }
  return options_.max_writer_tickets - std::min(held, options_.max_writer_tickets);
}

bool KvConnector::OverCap(const ProcessId& writer, uint32_t more_blocks, uint32_t own_tickets) const {
  if (!options_.rules.Holds(Rule::kL9)) return false;
  uint32_t of_writer = 0, of_all = 0, tickets = 0;
  for (const ReaderTicket* t : reader_.Live()) {
    if (t->state == TicketState::kReady || t->state == TicketState::kRunning) continue;
    const uint32_t n = TiedUp(*t);
    of_all += n;
    if (t->writer == writer) {
      of_writer += n;
      ++tickets;
    }
  }
  if (tickets <= own_tickets) return false;  // the caps do not bind a writer's only ticket
  const auto total = static_cast<double>(TotalBlocks());
  return of_writer + more_blocks > options_.max_writer_share * total ||
         of_all + more_blocks > options_.max_all_writers_share * total;
}

// S9: of what a writer hands over, when it is READY here.
Hash128 KvConnector::NumericOf(const KvLayout& from, const Hash128& numeric) const {
  if (SameElementTypes(from, options_.layout)) return options_.numeric;
  const std::array<Hash128, 2> both{numeric, options_.numeric};
  return HashBytes128(std::as_bytes(std::span(both)));
}

std::optional<ReceiveGrant> KvConnector::Admit(LinkId link, const Reserve& reserve, TimePoint now, Outbox* out) {
  const ProcessId writer = *WriterOf(link);
  const auto busy = [&](Duration retry_after) {
    ++counters_.busy;
    Answer(link, Busy{reserve.child, reserve.epoch, reserve.attempt, retry_after}, out);
    return std::nullopt;
  };
  const auto refuse = [&](RefuseReason why, std::string detail) {
    ++counters_.refused;
    Answer(link, Refused{reserve.child, reserve.epoch, reserve.attempt, why, std::move(detail)}, out);
    return std::nullopt;
  };
  const uint64_t known = reserve.request->prompt.size() + reserve.progress.tokens.size();
  if (reserve.num_tokens != known || reserve.request->prompt.empty()) {
    return refuse(RefuseReason::kTooLarge, "RESERVE names " + std::to_string(reserve.num_tokens) + " tokens, not the " +
                                               std::to_string(known) + " of its request");
  }
  if (reserve.mode == TransferMode::kOneSided) {
    const auto watch = watches_.find(writer);
    if (watch == watches_.end() || watch->second.watch == Watch::kImpossible) {
      return refuse(RefuseReason::kRole, "one-sided writes need a pidfd of the writer, and none can be had");
    }
    if (watch->second.watch == Watch::kPending) return busy(std::chrono::milliseconds(1));
    if (watch->second.watch == Watch::kOpened) {
      watch->second.watch = Watch::kOk;
      return busy(std::chrono::milliseconds(1));
    }
  }
  const KvLayout& from = accepted_.at(link).layout;
  const bool staged = !(from == options_.layout);
  if (staged && reserve.migration) {
    return refuse(RefuseReason::kRole, "a running sequence migrates between equal KV layouts only: the writer has " +
                                           from.Describe() + ", this worker " + options_.layout.Describe());
  }
  const StagingNeed need = [&](uint32_t hit_tokens, uint32_t num_tokens) {
    std::vector<uint32_t> blocks;
    for (uint32_t g = 0; g < from.groups.size(); ++g) {
      const StagingMap staging(from, g, options_.layout.BlockBytes(g));
      blocks.push_back(staging.BlocksFor(NumMovingBlocks(from, hit_tokens, num_tokens)));
    }
    return blocks;
  };
  uint32_t more = options_.layout.BlocksFor(known);
  for (const uint32_t n : staged ? need(0, reserve.num_tokens) : std::vector<uint32_t>{}) more += n;
  if (!reader_.HasFreeSlot() || CreditTickets(writer) == 0 || OverCap(writer, more)) return busy(options_.busy_retry);
  StatusOr<ReceiveGrant> granted =
      scheduler_->Receive(reserve.request, reserve.progress, reserve.epoch, now, staged ? need : StagingNeed(),
                          NumericOf(from, accepted_.at(link).numeric));
  if (!granted.ok()) {
    switch (granted.status().code()) {
      case Code::kResourceExhausted:
        return busy(options_.busy_retry);
      case Code::kFailedPrecondition:
        return refuse(RefuseReason::kRole, granted.status().message());
      default:
        return refuse(RefuseReason::kTooLarge, granted.status().message());
    }
  }
  Grant grant;
  grant.hit_tokens = granted->hit_tokens;
  grant.blocks = staged ? granted->staging : granted->fresh;
  grant.blocks.resize(options_.layout.groups.size());
  std::vector<uint64_t> bases, sizes;
  Place(&grant, &bases, &sizes);
  for (uint32_t g = 0; staged && g < grant.blocks.size(); ++g) {
    grant.staging_block_bytes.push_back(options_.layout.BlockBytes(g));
  }
  const uint32_t moving = NumMovingBlocks(from, grant.hit_tokens, reserve.num_tokens);
  ChunkGrid grid;
  if (reserve.migration) {
    grid.AppendLastApart(from, moving);
  } else {
    grid.Append(from, moving);
  }
  const uint32_t most_tokens = reserve.migration ? from.BlocksFor(reserve.num_tokens) * from.block_tokens : 0;
  ReaderActions actions;
  const ReaderTicket& ticket = reader_.Open(writer, reserve, std::move(grant), grid.size(), now, &actions, most_tokens);
  receives_[ticket.ticket] = granted->sequence;
  granted_bytes_[ticket.ticket] = grid.TotalBytes();
  if (staged) staged_[ticket.ticket] = from;
  transport_->Admit(ticket.ticket, writer, std::move(bases), std::move(sizes));
  counters_.bytes_received += grid.TotalBytes();
  ++counters_.grants;
  Do(&actions, now, out);
  return *std::move(granted);
}

// L12. Without room there is no answer: the writer asks again, for what it needs then.
void KvConnector::OnExtend(const ProcessId& writer, const Extend& extend, TimePoint now, Outbox* out) {
  ReaderActions actions;
  if (const ReaderTicket* t = reader_.Extending(writer, extend, &actions)) {
    const uint32_t more = options_.layout.BlocksFor(extend.num_tokens) - options_.layout.BlocksFor(t->most_tokens);
    StatusOr<std::vector<std::vector<BlockId>>> granted =
        OverCap(writer, more, /*own_tickets=*/1)
            ? ResourceExhaustedError("the writer has its share of this pool")
            : scheduler_->ExtendReceive(receives_.at(t->ticket), extend.num_tokens);
    if (granted.ok()) {
      Grant grant;
      grant.blocks = *std::move(granted);
      std::vector<uint64_t> bases, sizes;
      Place(&grant, &bases, &sizes);
      ChunkGrid grid;
      grid.AppendLastApart(options_.layout, more);
      transport_->Admit(t->ticket, writer, std::move(bases), std::move(sizes));
      counters_.bytes_received += grid.TotalBytes();
      granted_bytes_[t->ticket] += grid.TotalBytes();
      ++counters_.extensions;
      reader_.Extended(extend, std::move(grant), grid.size(),
                       options_.layout.BlocksFor(extend.num_tokens) * options_.layout.block_tokens, now, &actions);
    }
  }
  Do(&actions, now, out);
}

// Where the granted blocks lie in this pool: in the GRANT, and in its order for the transport.
void KvConnector::Place(Grant* grant, std::vector<uint64_t>* bases, std::vector<uint64_t>* sizes) const {
  for (uint32_t g = 0; g < grant->blocks.size(); ++g) {
    grant->base.emplace_back();
    for (const BlockId block : grant->blocks[g]) {
      grant->base[g].push_back(options_.pool.BlockOffset(options_.layout, g, block));
      bases->push_back(grant->base[g].back());
      sizes->push_back(options_.layout.BlockBytes(g));
    }
  }
}

void KvConnector::AbortTicketOf(const Ticket& ticket, TimePoint now, Outbox* out) {
  ReaderActions actions;
  reader_.Abort(ticket, now, &actions);
  Do(&actions, now, out);
}

void KvConnector::Do(ReaderActions* actions, TimePoint now, Outbox* out) {
  (void)now;
  for (const Ticket& ticket : actions->convert) Convert(ticket);
  for (const Ticket& ticket : actions->unconverted) {
    const SequenceId id = receives_.at(ticket);
    const Sequence* sequence = scheduler_->Find(id);
    facts_.lost.emplace_back(ChildEpoch{sequence->request->id, sequence->epoch}, id);
    scheduler_->Abandon(id);
    granted_bytes_.erase(ticket);
    receives_.erase(ticket);
    staged_.erase(ticket);
  }
  for (Commit& commit : actions->ready) {
    const ReaderTicket* t = reader_.Find(commit.ticket);
    const bool converted = t != nullptr && t->grant.staged() && !t->chunks.empty();
    if (!converted) transport_->Retire(commit.ticket);  // else before the conversion
    counters_.converted += converted ? 1 : 0;
    if (const auto link = t == nullptr ? accepted_by_writer_.end() : accepted_by_writer_.find(t->writer);
        link != accepted_by_writer_.end()) {
      accepted_.at(link->second).bytes += granted_bytes_[commit.ticket];
    }
    granted_bytes_.erase(commit.ticket);
    staged_.erase(commit.ticket);
    receives_.erase(commit.ticket);
    facts_.ready.push_back(std::move(commit));
  }
  for (const Ticket& ticket : actions->quarantined) {
    granted_bytes_.erase(ticket);
    transport_->Retire(ticket);
    const auto it = receives_.find(ticket);
    BATON_CHECK(it != receives_.end(), "a ticket without a sequence");
    const Sequence* sequence = scheduler_->Find(it->second);
    if (sequence != nullptr) {
      facts_.lost.emplace_back(ChildEpoch{sequence->request->id, sequence->epoch}, it->second);
      quarantine_[ticket] = scheduler_->Quarantine(it->second);
    }
    receives_.erase(it);
    staged_.erase(ticket);
  }
  for (const Ticket& ticket : actions->freed) {
    const auto it = quarantine_.find(ticket);
    if (it == quarantine_.end()) continue;
    for (QuarantinedBlocks& blocks : it->second) pool_->Release(std::move(blocks));
    quarantine_.erase(it);
  }
  for (const ProcessId& writer : actions->fence) transport_->Fence(writer);
  for (auto& [writer, message] : actions->send) {
    const auto it = accepted_by_writer_.find(writer);
    if (it != accepted_by_writer_.end()) out->to_peers.emplace_back(it->second, std::move(message));
  }
}

std::vector<Quarantine> KvConnector::Quarantines(TimePoint now) const {
  std::vector<Quarantine> out;
  if (quarantine_.empty()) return out;
  std::map<ProcessId, Quarantine> by_writer;
  for (const ReaderTicket* t : reader_.Live()) {
    if (t->state != TicketState::kQuarantined) continue;
    Quarantine& q = by_writer[t->writer];
    q.writer = t->writer;
    q.blocks += NumBlocks(t->grant.blocks);
    q.age = std::max(q.age, now - t->quarantined_at);
    // The other mode has a fence.
    q.stuck = q.stuck || (t->mode == TransferMode::kOneSided && now - t->quarantined_at >= options_.stuck_after);
  }
  for (auto& [writer, q] : by_writer) {
    if (const auto watch = watches_.find(writer); watch != watches_.end()) q.pid = watch->second.pid;
    out.push_back(std::move(q));
  }
  return out;
}

// L9. Repeated while it lasts, since a report may be lost on its way; a writer that is gone is forgotten.
void KvConnector::ReportStuck(TimePoint now, Outbox* out) {
  next_stuck_ = kNever;
  if (quarantine_.empty() || !options_.rules.Holds(Rule::kL9Stuck)) return stuck_reported_.clear();
  std::map<ProcessId, TimePoint> reported;
  for (Quarantine& q : Quarantines(now)) {
    TimePoint due = now - q.age + options_.stuck_after;
    const auto before = stuck_reported_.find(q.writer);
    if (before != stuck_reported_.end()) due = std::max(due, before->second + options_.stuck_after);
    if (before != stuck_reported_.end()) reported[q.writer] = before->second;
    if (q.stuck && due <= now) {
      reported[q.writer] = now;
      due = now + options_.stuck_after;
      out->stuck.push_back(std::move(q));
    }
    if (due > now) next_stuck_ = std::min(next_stuck_, due);
  }
  stuck_reported_ = std::move(reported);
}

void KvConnector::Convert(const Ticket& ticket) {
  transport_->Retire(ticket);
  const SequenceId id = receives_.at(ticket);
  const Sequence* sequence = scheduler_->Find(id);
  BATON_CHECK(sequence != nullptr, "a conversion without its sequence");
  KvConversion conversion;
  conversion.op = OpId{next_op_++};
  conversion.from = staged_.at(ticket);
  conversion.first_token = sequence->hit_tokens;
  conversion.num_tokens = sequence->prefill_tokens;
  const uint32_t first = sequence->hit_tokens / options_.layout.block_tokens;
  const uint32_t end = options_.layout.BlocksFor(sequence->prefill_tokens);
  for (uint32_t g = 0; g < sequence->tables.size(); ++g) {
    const std::vector<BlockId>& blocks = sequence->tables[g].blocks();
    conversion.groups.push_back({sequence->staging[g].blocks(), {blocks.begin() + first, blocks.begin() + end}});
  }
  converting_[conversion.op] = {ticket, id};
  facts_.convert.push_back(std::move(conversion));
}

bool KvConnector::IsConverting(SequenceId sequence) const {
  return std::any_of(converting_.begin(), converting_.end(),
                     [&](const auto& entry) { return entry.second.second == sequence; });
}

void KvConnector::OnConverted(const KvConverted& converted, TimePoint now, Outbox* out) {
  const auto it = converting_.find(converted.op);
  BATON_CHECK(it != converting_.end(), "a conversion that nobody asked for");
  const auto [ticket, sequence] = it->second;
  converting_.erase(it);
  if (reader_.Find(ticket) == nullptr) {
    // Its child ended meanwhile.
    ++counters_.converted_unused;
    granted_bytes_.erase(ticket);
    receives_.erase(ticket);
    staged_.erase(ticket);
    return scheduler_->Abandon(sequence);
  }
  ReaderActions actions;
  reader_.OnConverted(ticket, converted.status.ok(), now, &actions);
  Do(&actions, now, out);
}

// ---- time -----------------------------------------------------------------------------------------

void KvConnector::DialDue(TimePoint now, Outbox* out) {
  for (auto it = dialed_.begin(); it != dialed_.end();) {
    WriterSession& s = it->second;
    const bool needed = writer_.NeedsSession(s.peer.process);
    if (!s.link && !needed && s.failures > 0) {
      if (s.open && !s.closing) transport_->Close(s.peer.process);
      it = dialed_.erase(it);
      continue;
    }
    if (!s.link && needed && s.next_dial <= now) {
      s.link = LinkId{next_link_++};
      s.greet_by = now + options_.greet_within;
      out->dial.push_back({*s.link, s.peer});
    }
    ++it;
  }
}

void KvConnector::Audit() const {
  for (const WriterChild* c : writer_.Live()) {
    if (c->ticket == Ticket{}) continue;
    const Send& send = sends_.at(c->key);
    if (send.migration) continue;  // what it reads it holds itself
    const Sequence* s = scheduler_->Find(send.sequence);
    BATON_CHECK(s == nullptr || s->pinned, "a hand-off with a ticket must not lose its blocks");
  }
}

void KvConnector::Tick(TimePoint now, Outbox* out) {
  WriterActions w;
  writer_.Tick(now, &w);
  for (auto& [peer, s] : dialed_) {
    if (!s.up() || s.next_heartbeat > now) continue;
    s.next_heartbeat = now + options_.pair_heartbeat;
    std::vector<Ticket> alive = writer_.AliveTickets(peer);
    if (!alive.empty()) w.send.emplace_back(peer, PairHeartbeat{std::move(alive)});
  }
  for (auto& [peer, s] : dialed_) {
    if (s.greet_by <= now) DropSession(s, peer.name + " does not answer", now, out);
    if (s.up() || s.failures < options_.unreachable_after) continue;
    const TimePoint since = s.last_up == kNever ? TimePoint{} : s.last_up;
    if (s.last_up != kNever && now - since < options_.gone_after) continue;
    writer_.GiveUp(peer, now, &w);
  }
  Do(&w, now, out);
  ReaderActions r;
  const uint64_t lease_ends = reader_.counters().lease_ends;
  reader_.Tick(now, &r);
  if (reader_.counters().lease_ends != lease_ends) {
    for (const Ticket& ticket : r.quarantined) {
      const ReaderTicket* t = reader_.Find(ticket);
      const auto link = t == nullptr ? accepted_by_writer_.end() : accepted_by_writer_.find(t->writer);
      if (link != accepted_by_writer_.end()) {
        CountDetected(DetectCause::kLease, accepted_.at(link->second).heard, now);
      }
    }
  }
  Do(&r, now, out);
  ReportStuck(now, out);
  DialDue(now, out);
}

TimePoint KvConnector::NextTimer() const {
  TimePoint next = std::min({writer_.NextTimer(), reader_.NextTimer(), next_stuck_});
  for (const auto& [peer, s] : dialed_) {
    if (s.up() && !writer_.AliveTickets(peer).empty()) next = std::min(next, s.next_heartbeat);
    next = std::min(next, s.greet_by);
    if (!s.link && writer_.NeedsSession(peer)) next = std::min(next, s.next_dial);
  }
  return next;
}

}  // namespace baton

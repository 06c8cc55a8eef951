// What a worker tells operators of itself, once a second. Names of metrics: kv_ for hand-offs, engine_ for steps.
#include <string>

#include "engine/engine_core.h"

namespace baton {
namespace {

constexpr size_t kNumTicketStates = 5;  // reserved to quarantined; free ones are of no interest
constexpr size_t kNumWriterStates = static_cast<size_t>(WriterState::kStopping) + 1;
constexpr const char* kTicketStates[] = {"reserved", "receiving", "ready", "running", "quarantined"};
constexpr const char* kPeerKinds[] = {"same-host", "other-host"};
constexpr const char* kDetectCauses[] = {"death", "session", "transport", "lease"};
constexpr TransferMode kModes[] = {TransferMode::kOneSided, TransferMode::kReceiverPosted, TransferMode::kKeyedPut};
constexpr double kNewest = 0.25;  // weight of the newest hand-off in a path's recent rate
constexpr const char* kFailureCodes[] = {"busy", "refused", "peer_lost", "undecided", "transfer", "not_admitted"};

class Metrics {
 public:
  explicit Metrics(std::vector<Metric>* to) : to_(to) {}
  void Count(std::string name, uint64_t value) { to_->push_back({std::move(name), static_cast<double>(value)}); }
  void Count(const char* name, const char* label, const char* value, uint64_t count) {
    Count(std::string(name) + "{" + label + "=\"" + value + "\"}", count);
  }
  void Gauge(std::string name, double value) { to_->push_back({std::move(name), value}); }
  // A sum and what it was summed over. `labels`: "" or {...}.
  void Sum(const std::string& name, double sum, uint64_t count, const std::string& labels = "") {
    to_->push_back({name + "_sum" + labels, sum});
    Count(name + "_count" + labels, count);
  }
  void Time(const std::string& name, Duration sum, uint64_t count, const std::string& labels = "") {
    Sum(name, Seconds(sum), count, labels);
  }

 private:
  std::vector<Metric>* to_;
};

// Of host:port. Whoever is on this machine dials it by the loopback or by the address that it is known under.
std::string_view HostOf(std::string_view address) { return address.substr(0, address.rfind(':')); }
bool IsOnHost(std::string_view address, std::string_view self) {
  return HostOf(address) == HostOf(self) || address.starts_with("127.") || address.starts_with("localhost:") ||
         address.starts_with("[::1]");
}

TicketState Shown(TicketState state) {
  // One that is converted is still being received, for whoever reads the report.
  return state == TicketState::kConverting ? TicketState::kReceiving : state;
}

}  // namespace

void KvConnector::CountDetected(DetectCause cause, TimePoint heard, TimePoint now) {
  if (heard == kNever) return;
  ConnectorCounters::Times& times = counters_.detected[static_cast<size_t>(cause)];
  times.sum += now - heard;
  ++times.count;
}

bool KvConnector::Receives(const ProcessId& writer) const {
  for (const ReaderTicket* t : reader_.Live()) {
    if (t->writer == writer && (t->state == TicketState::kReserved || t->state == TicketState::kReceiving)) return true;
  }
  return false;
}

// L9: what the writer may still tie up. It is more for one that ties up nothing: the caps do not bind its only ticket.
uint64_t KvConnector::CreditBlocks(const ProcessId& writer) const {
  uint64_t of_writer = 0, of_all = 0;
  for (const ReaderTicket* t : reader_.Live()) {
    if (t->state == TicketState::kReady || t->state == TicketState::kRunning) continue;
    of_all += TiedUp(*t);
    of_writer += t->writer == writer ? TiedUp(*t) : 0;
  }
  const auto total = static_cast<double>(TotalBlocks());
  const auto left = [total](double share, uint64_t used) {
    const auto cap = static_cast<uint64_t>(share * total);
    return cap - std::min(cap, used);
  };
  return std::min(left(options_.max_writer_share, of_writer), left(options_.max_all_writers_share, of_all));
}

void KvConnector::CountHandedOff(const WriterChild& child, TimePoint now) {
  ++counters_.handed_off;
  counters_.bytes_handed_off += child.bytes_quiesced;
  counters_.migrated += child.reserve.migration ? 1 : 0;
  counters_.bytes_migrated += child.reserve.migration ? child.bytes_quiesced : 0;
  if (child.granted != kNever) counters_.reserve_time += child.granted - child.begun;
  if (child.finished != kNever) counters_.exposed_time += now - child.finished;
  if (child.finished != kNever) {
    const TimePoint complete = child.last_quiesced == kNever ? child.finished : child.last_quiesced;
    counters_.commit_time += now - std::max(child.finished, complete);
  }
  if (child.last_quiesced == kNever) return;  // the reader had everything
  const Duration transfer = child.last_quiesced - child.first_post;
  const auto it = dialed_.find(child.reader);
  if (it == dialed_.end()) return;
  WriterSession& s = it->second;
  const bool other_host = !IsOnHost(s.peer.address, options_.self.address);
  ConnectorCounters::Times& times = counters_.transfers[static_cast<size_t>(s.mode)][other_host ? 1 : 0];
  times.sum += transfer;
  ++times.count;
  s.bytes += child.bytes_quiesced;
  s.transfer_time += transfer;
  if (transfer <= Duration(0)) return;
  const double rate = static_cast<double>(child.bytes_quiesced) / Seconds(transfer);
  s.bytes_per_second += (s.bytes_per_second > 0 ? kNewest : 1) * (rate - s.bytes_per_second);
}

std::vector<PeerReport> KvConnector::Peers(TimePoint now) const {
  std::map<ProcessId, PeerReport> readers, writers;
  for (const auto& [peer, s] : dialed_) {
    PeerReport& r = readers[peer];
    r.up = s.up();
    r.mode = s.mode;
    r.lane = s.lane;
    r.bytes = s.bytes;
    r.transfer_time = s.transfer_time;
    r.bytes_per_second = s.bytes_per_second;
  }
  for (const WriterChild* c : writer_.Live()) {
    PeerReport& r = readers[c->reader];
    ++r.hand_offs;
    r.states.resize(kNumWriterStates);
    ++r.states[static_cast<size_t>(c->state)];
  }
  for (auto& [peer, r] : readers) {
    const auto window = windows_.find(peer);
    r.credit_bytes = window == windows_.end() ? options_.send.window_bytes : window->second.credit();
    if (window == windows_.end()) continue;
    r.in_flight_bytes = window->second.in_flight();
    r.queued_bytes = window->second.queued();
  }
  const uint64_t block_bytes = options_.pool.total_bytes / std::max<uint64_t>(1, TotalBlocks());
  for (const auto& [peer, link] : accepted_by_writer_) {
    PeerReport& r = writers[peer];
    r.up = true;
    r.bytes = accepted_.at(link).bytes;
    r.credit_bytes = CreditBlocks(peer) * block_bytes;
    r.credit_tickets = CreditTickets(peer);
  }
  for (const ReaderTicket* t : reader_.Live()) {
    PeerReport& r = writers[t->writer];
    r.mode = t->mode;
    r.states.resize(kNumTicketStates);
    ++r.states[static_cast<size_t>(Shown(t->state)) - 1];
    if (const auto it = granted_bytes_.find(t->ticket); it != granted_bytes_.end() && !t->chunks.empty()) {
      r.in_flight_bytes += it->second - it->second * t->chunks_arrived / t->chunks.size();
    }
    if (t->state != TicketState::kQuarantined) {
      r.hand_offs += t->state == TicketState::kReady || t->state == TicketState::kRunning ? 0 : 1;
      continue;
    }
    for (const auto& group : t->grant.blocks) r.quarantined_blocks += static_cast<uint32_t>(group.size());
    r.oldest_quarantine = std::max<Duration>(r.oldest_quarantine, now - t->quarantined_at);
  }
  std::vector<PeerReport> out;
  const auto add = [&out](std::map<ProcessId, PeerReport>& peers, bool writes_here) {
    for (auto& [peer, r] : peers) {
      r.name = peer.name;
      r.incarnation = peer.incarnation.counter;
      r.writes_here = writes_here;
      out.push_back(std::move(r));
    }
  };
  add(readers, false);
  add(writers, true);
  return out;
}

void KvConnector::AppendMetrics(TimePoint now, std::vector<Metric>* metrics) const {
  Metrics m(metrics);
  uint64_t credits[2] = {}, lanes[std::size(kModes)] = {}, peers[2] = {}, quarantined = 0;
  Duration oldest{};
  for (const PeerReport& peer : Peers(now)) {
    credits[peer.writes_here ? 1 : 0] += peer.credit_bytes;
    ++peers[peer.up ? 0 : 1];
    if (peer.up && !peer.writes_here) ++lanes[static_cast<size_t>(peer.mode)];
    quarantined += peer.quarantined_blocks;
    oldest = std::max(oldest, peer.oldest_quarantine);
  }
  m.Count("kv_credits_bytes", "direction", "out", credits[0]);
  m.Count("kv_credits_bytes", "direction", "in", credits[1]);
  m.Count("kv_peer_state", "state", "up", peers[0]);
  m.Count("kv_peer_state", "state", "down", peers[1]);
  // A pair of one host that is not one-sided where it should be shows here.
  for (size_t i = 0; i < std::size(kModes); ++i) m.Count("kv_lane", "mode", Word(kModes[i]).data(), lanes[i]);
  m.Count("kv_quarantine_blocks", quarantined);
  m.Gauge("kv_quarantine_age_seconds", Seconds(oldest));
  transport_->AppendMetrics(metrics);
}

WorkerReport EngineCore::MakeReport(TimePoint now) const {
  WorkerReport out;
  out.uptime = now - started_;
  out.transport = connector_.transport_name();
  for (uint32_t g = 0; g < pool_.num_groups(); ++g) {
    const BlockCounts& c = pool_.counts(g);
    out.blocks.push_back({c.free, c.owned, c.cached, c.quarantined});
  }
  out.tickets.resize(kNumTicketStates);
  for (const ReaderTicket* t : connector_.reader().Live()) {
    ++out.tickets[static_cast<size_t>(Shown(t->state)) - 1];
  }
  out.sends.resize(kNumWriterStates);
  for (const WriterChild* c : connector_.writer().Live()) ++out.sends[static_cast<size_t>(c->state)];
  out.peers = connector_.Peers(now);

  Metrics m(&out.metrics);
  m.Count("engine_steps_total", counters_.steps);
  m.Count("engine_tokens_total", counters_.tokens);
  m.Count("engine_computed_tokens_total", counters_.computed_tokens);
  m.Count("engine_cached_tokens_total", counters_.cached_tokens);
  m.Count("engine_preemptions_total", counters_.preemptions);
  m.Count("engine_failed_steps_total", counters_.failed_steps);
  m.Count("engine_expired_total", counters_.expired);
  m.Count("engine_stale_commands_total", counters_.stale_commands);

  const ConnectorCounters& c = connector_.counters();
  const ReaderCounters& r = connector_.reader().counters();
  const WriterCounters& w = connector_.writer().counters();
  m.Count("kv_reserves_total", "answer", "granted", c.grants);
  m.Count("kv_reserves_total", "answer", "busy", c.busy);
  m.Count("kv_reserves_total", "answer", "refused", c.refused);
  m.Count("kv_commits_total", "answer", "ack", r.ready);
  m.Count("kv_commits_total", "answer", "missing", r.missing);
  m.Count("kv_commits_total", "answer", "corrupt", r.corrupt);
  m.Count("kv_checksum_fail_total", r.corrupt);
  // A transport's failure and the end of a lease are two things, and are counted as such.
  m.Count("kv_aborts_total", "code", "lease", r.lease_ends);
  m.Count("kv_aborts_total", "code", "session", r.sessions_lost);
  m.Count("kv_aborts_total", "code", "cancelled", r.cancelled);
  m.Count("kv_aborts_total", "code", "writer", r.given_up);
  m.Count("kv_aborts_total", "code", "checksum", r.corrupt);
  m.Count("kv_transport_failures_total", "kind", "peer", c.peers_lost);
  m.Time("kv_drain_seconds", r.quarantined_time, r.drained);
  m.Count("kv_fences_total", r.fences);
  m.Count("kv_stale_dropped_total", "kind", "reserve", r.stale_reserves);
  m.Count("kv_stale_dropped_total", "kind", "extend", r.stale_extends);
  m.Count("kv_stale_dropped_total", "kind", "chunk", r.stale_chunks);
  m.Count("kv_stale_dropped_total", "kind", "commit", r.stale_commits);
  m.Count("kv_stale_dropped_total", "kind", "drained", r.stale_drained);
  m.Count("kv_stale_dropped_total", "kind", "answer", w.stale);
  m.Count("kv_duplicates_total", r.duplicates);
  m.Count("kv_handed_off_total", c.handed_off);
  m.Count("kv_handed_off_bytes_total", c.bytes_handed_off);
  m.Count("kv_repushes_total", w.repushes);
  for (size_t i = 0; i < c.failed.size(); ++i) {
    m.Count("kv_handoff_failures_total", "code", kFailureCodes[i], c.failed[i]);
  }
  m.Count("kv_migrations_total", "result", "started", c.migrations);
  m.Count("kv_migrations_total", "result", "finished", c.migrated);
  m.Count("kv_migrated_bytes_total", c.bytes_migrated);
  m.Count("kv_extensions_total", c.extensions);
  for (size_t i = 0; i < c.migrations_failed.size(); ++i) {
    m.Count("kv_migration_failures_total", "code", kFailureCodes[i], c.migrations_failed[i]);
  }
  m.Time("kv_reserve_seconds", c.reserve_time, c.handed_off);
  for (const TransferMode mode : kModes) {
    for (size_t kind = 0; kind < std::size(kPeerKinds); ++kind) {
      const ConnectorCounters::Times& times = c.transfers[static_cast<size_t>(mode)][kind];
      m.Time("kv_transfer_seconds", times.sum, times.count,
             "{mode=\"" + std::string(Word(mode)) + "\",peer_kind=\"" + kPeerKinds[kind] + "\"}");
    }
  }
  m.Time("kv_exposed_tail_seconds", c.exposed_time, c.handed_off);
  m.Time("kv_commit_seconds", c.commit_time, c.handed_off);
  m.Count("kv_chunks_waited_total", c.chunks_waited);
  m.Sum("kv_pieces_per_chunk", static_cast<double>(c.pieces), c.chunks_posted);
  m.Sum("kv_piece_bytes", static_cast<double>(c.bytes_posted), c.pieces);
  for (size_t cause = 0; cause < c.detected.size(); ++cause) {
    m.Time("kv_detect_seconds", c.detected[cause].sum, c.detected[cause].count,
           std::string("{cause=\"") + kDetectCauses[cause] + "\"}");
  }
  for (size_t state = 0; state < out.tickets.size(); ++state) {
    m.Count("kv_tickets", "state", kTicketStates[state], out.tickets[state]);
  }
  m.Count("kv_sessions_total", c.sessions);
  m.Count("kv_protocol_errors_total", c.protocol_errors);
  connector_.AppendMetrics(now, &out.metrics);
  return out;
}

}  // namespace baton

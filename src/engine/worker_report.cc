// What a worker tells operators of itself, once a second. Names of metrics: kv_ for hand-offs, engine_ for steps.
#include <string>

#include "engine/engine_core.h"

namespace baton {
namespace {

constexpr size_t kNumTicketStates = 5;  // reserved to quarantined; free ones are of no interest
constexpr const char* kFailureCodes[] = {"busy", "refused", "peer_lost", "undecided", "transfer", "not_admitted"};

class Metrics {
 public:
  explicit Metrics(std::vector<Metric>* to) : to_(to) {}
  void Count(std::string name, uint64_t value) { to_->push_back({std::move(name), static_cast<double>(value)}); }
  void Count(const char* name, const char* label, const char* value, uint64_t count) {
    Count(std::string(name) + "{" + label + "=\"" + value + "\"}", count);
  }
  // A sum of seconds and what it was summed over.
  void Time(const std::string& name, Duration sum, uint64_t count) {
    to_->push_back({name + "_sum", Seconds(sum)});
    Count(name + "_count", count);
  }

 private:
  std::vector<Metric>* to_;
};

}  // namespace

void KvConnector::CountHandedOff(const WriterChild& child, TimePoint now) {
  ++counters_.handed_off;
  counters_.bytes_handed_off += child.bytes_quiesced;
  if (child.granted != kNever) counters_.reserve_time += child.granted - child.begun;
  if (child.finished != kNever) counters_.exposed_time += now - child.finished;
  if (child.last_quiesced == kNever) return;  // the reader had everything
  const Duration transfer = child.last_quiesced - child.first_post;
  counters_.transfer_time += transfer;
  const auto it = dialed_.find(child.reader);
  if (it == dialed_.end()) return;
  it->second.bytes += child.bytes_quiesced;
  it->second.transfer_time += transfer;
}

std::vector<PeerReport> KvConnector::Peers(TimePoint now) const {
  std::map<ProcessId, PeerReport> readers, writers;
  for (const auto& [peer, s] : dialed_) {
    PeerReport& r = readers[peer];
    r.up = s.up();
    r.one_sided = s.mode == TransferMode::kOneSided;
    r.bytes = s.bytes;
    r.transfer_time = s.transfer_time;
  }
  for (const WriterChild* c : writer_.Live()) ++readers[c->reader].hand_offs;
  for (const auto& [peer, link] : accepted_by_writer_) writers[peer].up = true;
  for (const ReaderTicket* t : reader_.Live()) {
    PeerReport& r = writers[t->writer];
    r.one_sided = t->mode == TransferMode::kOneSided;
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
    // One that is converted is still being received, for whoever reads the report.
    const TicketState shown = t->state == TicketState::kConverting ? TicketState::kReceiving : t->state;
    ++out.tickets[static_cast<size_t>(shown) - 1];
  }
  out.sends.resize(static_cast<size_t>(WriterState::kStopping) + 1);
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
  m.Count("kv_stale_dropped_total", "kind", "reserve", r.stale_reserves);
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
  m.Time("kv_reserve_seconds", c.reserve_time, c.handed_off);
  m.Time("kv_transfer_seconds", c.transfer_time, c.handed_off);
  m.Time("kv_exposed_tail_seconds", c.exposed_time, c.handed_off);
  m.Count("kv_sessions_total", c.sessions);
  m.Count("kv_protocol_errors_total", c.protocol_errors);
  connector_.AppendTransportMetrics(&out.metrics);
  return out;
}

}  // namespace baton

// VALUE. What one transport did since it started; every field only rises. A snapshot may be taken from any
// thread; fields are read one after another, so sums over two fields can be off by events in flight.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "baton/metric.h"

namespace baton {

struct TransportCounters {
  uint64_t bytes_quiesced = 0;      // writer: bytes of ops that ended ok
  uint64_t ops_ok = 0;              // writer: Quiesced with status ok
  uint64_t ops_failed = 0;          // writer: Quiesced with an error
  uint64_t pieces = 0;              // writer: copies issued, after merging and cutting
  uint64_t bytes_placed = 0;        // reader, receiver-posted: bytes that this side placed
  uint64_t notices = 0;             // reader: delivered as ChunkArrived
  uint64_t notices_dropped = 0;     // reader: ticket unknown, retired or another writer's, or malformed, or no room
  uint64_t placements_refused = 0;  // reader, receiver-posted: data messages dropped without placing a byte
  uint64_t peers_lost = 0;          // writer: PeerLost
  // How late the transport's own thread is: from a command of the engine's thread to the turn that takes it.
  uint64_t turns = 0;   // that took commands
  uint64_t lag_ns = 0;  // their sum
  uint64_t worst_lag_ns = 0;
};

inline void Append(const TransportCounters& c, std::vector<Metric>* to) {
  const auto add = [to](const char* name, uint64_t value) { to->push_back({name, static_cast<double>(value)}); };
  add("kv_bytes_total{direction=\"out\"}", c.bytes_quiesced);
  add("kv_bytes_total{direction=\"placed\"}", c.bytes_placed);
  add("kv_ops_total", c.ops_ok);
  add("kv_pieces_total", c.pieces);
  add("kv_transport_failures_total{kind=\"op\"}", c.ops_failed);
  add("kv_stale_dropped_total{kind=\"notice\"}", c.notices_dropped);
  add("kv_stale_dropped_total{kind=\"data\"}", c.placements_refused);
  const auto seconds = [to](const char* name, uint64_t ns) { to->push_back({name, 1e-9 * static_cast<double>(ns)}); };
  seconds("kv_progress_lag_seconds_sum", c.lag_ns);
  add("kv_progress_lag_seconds_count", c.turns);
  seconds("kv_progress_lag_seconds_max", c.worst_lag_ns);
}

// The live form of TransportCounters: relaxed, because no decision is taken from them.
struct AtomicTransportCounters {
  std::atomic<uint64_t> bytes_quiesced{0}, ops_ok{0}, ops_failed{0}, pieces{0}, bytes_placed{0}, notices{0},
      notices_dropped{0}, placements_refused{0}, peers_lost{0}, turns{0}, lag_ns{0}, worst_lag_ns{0};

  TransportCounters Snapshot() const {
    constexpr auto r = std::memory_order_relaxed;
    return {bytes_quiesced.load(r), ops_ok.load(r),  ops_failed.load(r),      pieces.load(r),
            bytes_placed.load(r),   notices.load(r), notices_dropped.load(r), placements_refused.load(r),
            peers_lost.load(r),     turns.load(r),   lag_ns.load(r),          worst_lag_ns.load(r)};
  }
};
// The transport's thread took commands, the first of which had waited so long.
inline void CountTurn(AtomicTransportCounters& c, uint64_t waited_ns) {
  constexpr auto r = std::memory_order_relaxed;
  c.turns.fetch_add(1, r);
  c.lag_ns.fetch_add(waited_ns, r);
  if (waited_ns > c.worst_lag_ns.load(r)) c.worst_lag_ns.store(waited_ns, r);  // that thread alone writes it
}
inline void Count(std::atomic<uint64_t>& counter, uint64_t by = 1) { counter.fetch_add(by, std::memory_order_relaxed); }

}  // namespace baton

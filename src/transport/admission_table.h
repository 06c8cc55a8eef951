// Which bytes of this pool a peer may touch now: the reader's half of every transport. Admit and Retire come from
// the engine thread and hold at once; the threads that place or digest bytes bracket their work with Begin and
// End. Always true: between Begin and End the ticket is not Quiet, after Quiet no Begin succeeds and no
// ChunkArrived of the ticket is queued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "baton/kv_transport.h"
#include "transport/counters.h"
#include "transport/event_queue.h"
#include "transport/pieces.h"

namespace baton {

class AdmissionTable {
 public:
  // `events` and `counters` must outlive the table.
  AdmissionTable(EventQueue* events, AtomicTransportCounters* counters) : events_(events), counters_(counters) {}

  void SetPool(std::span<std::byte> pool);
  void Admit(const Ticket& ticket, const ProcessId& writer, std::vector<uint64_t> block_base,
             std::vector<uint64_t> block_bytes);
  // Queues Quiet now and returns true, or leaves that to the last End and returns false.
  bool Retire(const Ticket& ticket);

  // The places of `pieces`, if `writer` may write `ticket` now and every piece lies inside one of its blocks; then
  // End must follow. kNotFound: unknown, retired or another writer's ticket. kOutOfRange: a piece lies outside.
  Status Begin(const Ticket& ticket, const ProcessId& writer, std::span<const TargetPiece> pieces,
               std::vector<std::span<std::byte>>* places);
  void End(const Ticket& ticket);
  // End of a digest: queues the arrival unless the ticket was retired meanwhile.
  void EndWithArrival(const ChunkArrived& arrival);

  // The owner goes away: every later Begin fails with kUnavailable.
  void Stop();

 private:
  struct Admission {
    ProcessId writer;
    std::vector<uint64_t> base{}, bytes{};
    uint32_t in_progress = 0;
    bool retired = false;
  };
  void EndLocked(std::map<Ticket, Admission>::iterator it);

  EventQueue* const events_;
  AtomicTransportCounters* const counters_;
  std::mutex mutex_;
  std::span<std::byte> pool_;
  std::map<Ticket, Admission> tickets_;
  bool stopped_ = false;
};

}  // namespace baton

// The reader's half of the hand-off protocol: slots of tickets, what may be written, when an answer is
// complete and right, and when a block of a broken hand-off may be used again. Pure: time is an argument,
// effects are values in ReaderActions, the engine owns the thread. README.md states the rules by name.
//
//   FREE -RESERVE-> RESERVED -chunk-> RECEIVING -COMMIT, all right-> READY -first step-> RUNNING -end-> FREE
//                   RESERVED|RECEIVING -abort, lease, session, CORRUPT-> QUARANTINED -writer quiet-> FREE
//   of unlike layouts: RECEIVING -COMMIT, all right-> CONVERTING -converted-> READY
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "baton/pair_link.h"
#include "baton/rules.h"

namespace baton {

// kConverting: all of it came and is right, and its writer is quiet; the bytes are on their way out of staging.
// It comes last: reports count the others by their numbers.
enum class TicketState : uint8_t { kFree, kReserved, kReceiving, kReady, kRunning, kQuarantined, kConverting };

struct ReaderOptions {
  uint32_t num_slots = 256;
  Duration reserved_lease = std::chrono::seconds(10);  // renewed by the writer's heartbeat
  Duration receiving_lease = std::chrono::seconds(5);
  Duration abort_repeat = std::chrono::milliseconds(200);
  Duration fence_after = std::chrono::seconds(1);          // without DRAINED: fence, where a fence exists
  Duration missing_grace = std::chrono::milliseconds(50);  // COMMIT waits for notices before MISSING
  Duration outcome_kept = std::chrono::seconds(60);
};

// What a slot knows of the ticket it holds now.
struct ReaderTicket {
  TicketState state = TicketState::kFree;
  Ticket ticket;
  ProcessId writer;
  TransferMode mode{};
  ChildId child;
  Epoch epoch = 0;
  Attempt reserve_attempt = 1;
  uint32_t num_tokens = 0;                      // COMMIT's count: at least
  uint32_t most_tokens = 0;                     // and at most; a migration may fill its last block
  Grant grant;                                  // with the blocks of its extensions
  Grant extended;                               // the answer to the last EXTEND; its extension is 0 before that
  std::vector<std::optional<uint64_t>> chunks;  // digest of the bytes here, once its notice came
  uint32_t chunks_arrived = 0;
  std::optional<Commit> commit;        // latest, while it waits for notices
  TimePoint commit_until = kNever;     // end of that wait
  std::optional<CommitAnswer> answer;  // to the attempt in answer->attempt
  TimePoint lease_end = kNever;
  TimePoint next_abort = kNever;
  TimePoint fence_at = kNever;
  TimePoint quarantined_at = kNever;
  bool retired = false;  // the transport reported Quiet after Retire
  // kKeyedPut: a fence against its writer that came after its GRANT. What it holds for is never fenced again.
  enum class Fence : uint8_t { kNone, kAsked, kHolds };
  Fence fence = Fence::kNone;
};

struct ReaderActions {
  std::vector<std::pair<ProcessId, PairMessage>> send;
  std::vector<Commit> ready;        // complete and right: the child may run; its ACK is in `send`
  std::vector<Ticket> convert;      // right, in staging: answer with OnConverted
  std::vector<Ticket> unconverted;  // the conversion failed: end the child; its writer is quiet
  std::vector<Ticket> quarantined;  // end the child; Retire on the transport; keep the blocks apart
  std::vector<Ticket> freed;        // the writer is quiet: the quarantined blocks may be used again
  std::vector<ProcessId> fence;     // cut this writer off: answer with OnFenced
};

struct ReaderCounters {
  // Messages for tickets that are not current.
  uint64_t stale_reserves = 0, stale_extends = 0, stale_chunks = 0, stale_commits = 0, stale_drained = 0;
  uint64_t corrupt = 0;  // digests that differ
  uint64_t missing = 0;  // COMMITs answered MISSING
  uint64_t duplicates = 0;
  // Tickets that ended in quarantine, by cause; beside them `corrupt`.
  uint64_t lease_ends = 0, sessions_lost = 0, cancelled = 0, given_up = 0;
  uint64_t ready = 0;           // complete and right
  uint64_t drained = 0;         // quarantines that ended
  Duration quarantined_time{};  // that these took, together
  uint64_t fences = 0;          // asked for: mode kKeyedPut
};

class ReaderTickets {
 public:
  ReaderTickets(Incarnation self, ReaderOptions options, Rules rules);

  // The recorded answer where this RESERVE was decided before (GRANT while RESERVED or RECEIVING, ACK when
  // READY or later, else kStaleTicket), or nothing: decide it now. An older attempt than the epoch's latest
  // gives kStaleTicket. An epoch is handed over by one writer: of what another one says about it nothing is told, and
  // nothing that the first one holds is touched (REFUSED).
  std::optional<PairMessage> Recorded(const ProcessId& writer, const Reserve& reserve);
  bool HasFreeSlot() const { return !free_slots_.empty(); }
  // RESERVED. Blocks and bases of `grant` are filled in by the caller; its ticket is filled in here.
  // num_chunks: of the grid of the granted blocks; 0 when the reader holds everything. most_tokens: of a migration,
  // that the granted blocks hold.
  const ReaderTicket& Open(const ProcessId& writer, const Reserve& reserve, Grant grant, uint32_t num_chunks,
                           TimePoint now, ReaderActions* out, uint32_t most_tokens = 0);
  // The ticket, if that EXTEND is to be decided now: the next one of a migration that is still written, and for more
  // than there is. A repeat gets its answer again; all else is stale.
  const ReaderTicket* Extending(const ProcessId& writer, const Extend& extend, ReaderActions* out);
  // That EXTEND was granted: blocks and bases of `more`, num_chunks more, for at most most_tokens.
  void Extended(const Extend& extend, Grant more, uint32_t num_chunks, uint32_t most_tokens, TimePoint now,
                ReaderActions* out);

  void OnChunk(const ChunkArrived& chunk, TimePoint now, ReaderActions* out);
  void OnCommit(const ProcessId& writer, const Commit& commit, TimePoint now, ReaderActions* out);
  void OnDrained(const ProcessId& writer, const Drained& drained, TimePoint now, ReaderActions* out);
  void OnHeartbeat(const ProcessId& writer, const PairHeartbeat& heartbeat, TimePoint now);
  // The transport places nothing for the ticket any more: a fence in mode kReceiverPosted.
  void OnQuiet(const Ticket& ticket, TimePoint now, ReaderActions* out);
  // What this writer was granted before the fence was asked for, it can write no more.
  void OnFenced(const ProcessId& writer, TimePoint now, ReaderActions* out);
  // Out of staging, or not to be had. Nothing if the ticket ended in the meantime.
  void OnConverted(const Ticket& ticket, bool ok, TimePoint now, ReaderActions* out);
  // Its tickets that are RESERVED or RECEIVING are aborted.
  void OnSessionLost(const ProcessId& writer, TimePoint now, ReaderActions* out);
  // Proof of death: its quarantined tickets are freed; in mode kKeyedPut by a fence at once.
  void OnWriterDead(const ProcessId& writer, TimePoint now, ReaderActions* out);

  // Cancel, or a higher epoch: aborts what is RESERVED or RECEIVING. READY and later end with End().
  void Abort(const Ticket& ticket, TimePoint now, ReaderActions* out);
  void MarkRunning(const Ticket& ticket);
  // READY or RUNNING: the sequence is over; the slot is FREE and remembers the ACK. CONVERTING: the same, but there
  // was none.
  void End(const Ticket& ticket, TimePoint now);

  void Tick(TimePoint now, ReaderActions* out);
  TimePoint NextTimer() const;

  // Null when the ticket is not current.
  const ReaderTicket* Find(const Ticket& ticket) const;
  std::optional<Ticket> FindChild(const ChildId& child, Epoch epoch) const;
  std::vector<Ticket> OpenTicketsOf(const ProcessId& writer) const;  // not FREE, for Hello's answer
  std::vector<const ReaderTicket*> Live() const;                     // in slot order
  const ReaderCounters& counters() const { return counters_; }

 private:
  friend struct TicketsUnderTest;  // the model check reads and compares whole states
  // How a ticket ended, kept for the last two generations of a slot.
  struct Outcome {
    uint32_t generation = 0;
    ProcessId writer;
    ChildId child;
    Epoch epoch = 0;
    Attempt reserve_attempt = 1;
    bool acked = false;
    TimePoint until = kNever;
  };
  struct Slot {
    ReaderTicket now;
    uint32_t generation = 1;
    std::vector<Outcome> outcomes;  // at most 2, oldest first
  };

  ReaderTicket* Current(const Ticket& ticket);
  void Quarantine(ReaderTicket& t, TimePoint now, ReaderActions* out);
  void Free(ReaderTicket& t, bool acked, TimePoint now);
  void FreeQuarantined(ReaderTicket& t, TimePoint now, ReaderActions* out);
  // Overdue: nobody says any more that the writer is quiet. A fence is used where the mode has one.
  void UseFence(ReaderTicket& t, TimePoint now, ReaderActions* out);
  bool IsFencing(const ProcessId& writer) const;
  void Decide(ReaderTicket& t, TimePoint now, ReaderActions* out);
  void Accept(ReaderTicket& t, const Commit& commit, ReaderActions* out);
  void Answer(ReaderTicket& t, const Commit& commit, CommitVerdict verdict, std::vector<ChunkIndex> missing,
              ReaderActions* out);

  const Incarnation self_;
  const ReaderOptions options_;
  const Rules rules_;
  std::vector<Slot> slots_;
  std::set<uint32_t> free_slots_;
  ReaderCounters counters_;
};

}  // namespace baton

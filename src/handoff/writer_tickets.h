// The writer's half of the hand-off protocol: one record per (child, epoch) that is on its way to a reader,
// and the tickets that it must still prove drained. Pure: time is an argument, effects are values in
// WriterActions, the engine owns the thread. README.md states the rules by name.
//
//   RESERVING <-BUSY-> HELD;  RESERVING -GRANT-> PUSHING -all quiesced, first token known-> COMMITTING -ACK-> over
//   any -cancel, abort, refusal, loss-> STOPPING -ops quiesced-> over; DRAINED repeats without holding blocks
//
// A migration (Reserve::migration) is the same while its sequence is still decoded: the blocks that are full go first,
// EXTEND asks for more as it grows, Finished comes with the cut-over and lets the last block go.
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
#include "handoff/chunk_grid.h"

namespace baton {

enum class WriterState : uint8_t { kReserving, kHeld, kPushing, kCommitting, kStopping };

struct WriterOptions {
  Duration reserve_repeat = std::chrono::milliseconds(250);  // the same attempt again
  Duration commit_repeat = std::chrono::milliseconds(20);    // doubles up to commit_repeat_max
  Duration commit_repeat_max = std::chrono::milliseconds(500);
  Duration commit_give_up = std::chrono::seconds(10);  // then the outcome is undecided
  Duration stall_after = std::chrono::seconds(5);      // PUSHING with ops in flight and none that ends
  Duration drained_repeat = std::chrono::milliseconds(200);
  Duration sever_after = std::chrono::seconds(5);  // STOPPING with ops in flight
  uint32_t max_repushes = 2;
  // Of migrations: a sequence stands still from COMMIT on, so its outcome is asked for sooner.
  Duration migration_give_up = std::chrono::seconds(2);
  Duration extend_repeat = std::chrono::milliseconds(20);
  Duration extend_give_up = std::chrono::seconds(2);  // then the reader has no room for it
  // A sequence that outgrew its GRANT so often stands still for the next one.
  uint32_t max_extensions = 8;
};

struct ChildEpoch {
  ChildId child;
  Epoch epoch = 0;
  friend auto operator<=>(const ChildEpoch&, const ChildEpoch&) = default;
};

struct WriterChild {
  WriterState state = WriterState::kReserving;
  ChildEpoch key;
  ProcessId reader;
  Reserve reserve;  // as last sent; its attempt is the latest
  TimePoint begun = kNever, granted = kNever, first_post = kNever, last_quiesced = kNever, finished = kNever;
  TimePoint deadline = kNever;   // of the request
  TimePoint next_send = kNever;  // repeat of RESERVE or COMMIT, or the end of a BUSY hold
  std::optional<TimePoint> first_busy;
  // From GRANT on.
  Ticket ticket;
  Grant grant;                        // with the blocks of its extensions
  std::vector<uint64_t> target_base;  // of all granted blocks in the order of the ticket
  ChunkGrid grid;
  uint32_t granted_tokens = 0;  // that these blocks are for
  // Of a migration: what the sequence will have when its launched steps are done, and the last EXTEND.
  uint32_t grown_tokens = 0;
  uint32_t extension = 0;
  bool extending = false;  // it is not answered
  TimePoint next_extend = kNever, extend_until = kNever;
  struct ChunkState {
    Attempt posted = 0;     // COMMIT attempt it was last posted for; 0: not yet
    bool quiesced = false;  // of that attempt
    uint64_t digest = 0;
  };
  std::vector<ChunkState> chunks;
  uint32_t chunks_quiesced = 0;
  uint32_t ops_in_flight = 0;
  bool target_in_doubt = false;  // an op ended with an error
  // What of the KV is final: positions [0, tokens_done) in all layers, [0, tokens_now) in layers [0, layers_now).
  uint32_t tokens_done = 0, tokens_now = 0, layers_now = 0;
  // Whose KV is handed over. Of a migration: so far, until final_progress.
  uint32_t num_tokens = 0;
  // With the first token; set when the prompt's last step is done, or at the cut-over.
  std::optional<Progress> final_progress;
  Attempt commit_attempt = 0;  // latest sent
  Attempt missing_acted = 0;   // latest attempt whose MISSING was acted on
  Duration commit_wait{};
  TimePoint commit_until = kNever;
  uint64_t bytes_quiesced = 0;
  uint64_t bytes_hidden = 0;  // quiesced before the last layer of the last step began
};

struct WriterPost {
  ChildEpoch key;
  ChunkIndex chunk = 0;
  Attempt attempt = 1;
};
struct WriterFailure {
  ChildEpoch key;
  HandoffFailure why{};
  std::string detail;
};

struct WriterActions {
  std::vector<std::pair<ProcessId, PairMessage>> send;
  std::vector<WriterPost> post;         // the engine answers each with Posted(op)
  std::vector<WriterChild> handed_off;  // ACK: D owns the request; blocks may go
  std::vector<WriterFailure> failed;    // the hand-off is over; the KV is still here
  std::vector<ChildEpoch> unpinned;     // no op reads the blocks any more (follows failed or a cancel)
  std::vector<ProcessId> sever;         // close the endpoint by force: a STOPPING passed its deadline
};

struct WriterCounters {
  uint64_t stale = 0, repushes = 0, unwanted_grants = 0, busy = 0;
};

class WriterTickets {
 public:
  WriterTickets(KvLayout layout, WriterOptions options, Rules rules);

  // The prompt entered the running batch. `reserve` has everything but its attempt. Sent at once when
  // `session_up`, else with SessionUp.
  void Begin(const ProcessId& reader, Reserve reserve, bool session_up, TimePoint deadline, TimePoint now,
             WriterActions* out);
  // A (new) session with the reader stands. `open_tickets`: from Hello's answer.
  void SessionUp(const ProcessId& reader, TransferMode mode, const std::vector<Ticket>& open_tickets, TimePoint now,
                 WriterActions* out);
  void SessionLost(const ProcessId& reader, const std::string& why, TimePoint now, WriterActions* out);
  // That incarnation is not to be had: nothing is repeated to it any more. Should it come back, Hello's list asks for
  // its tickets.
  void GiveUp(const ProcessId& reader, TimePoint now, WriterActions* out);
  // It is gone for good, and may be forgotten.
  void ReaderGone(const ProcessId& reader, TimePoint now, WriterActions* out);

  // No session can be had: what waits for one fails; what is undecided or drains goes on.
  void Unreachable(const ProcessId& reader, const std::string& why, TimePoint now, WriterActions* out);
  // L6: a child without a ticket gave way to others that needed its blocks.
  void HandBack(const ChildEpoch& key, TimePoint now, WriterActions* out);

  void OnGrant(const ProcessId& reader, const Grant& grant, TimePoint now, WriterActions* out);
  void OnBusy(const ProcessId& reader, const Busy& busy, TimePoint now, WriterActions* out);
  void OnRefused(const ProcessId& reader, const Refused& refused, TimePoint now, WriterActions* out);
  void OnCommitAnswer(const ProcessId& reader, const CommitAnswer& answer, TimePoint now, WriterActions* out);
  void OnAbort(const ProcessId& reader, const AbortTicket& abort, TimePoint now, WriterActions* out);
  void OnDrainedAck(const ProcessId& reader, const DrainedAck& ack);

  // KV that became final; both monotone. Ready chunks are posted.
  void Advance(const ChildEpoch& key, uint32_t tokens_done, uint32_t tokens_now, uint32_t layers_now, TimePoint now,
               WriterActions* out);
  // A migrating sequence has KV, launched steps counted, for so many tokens: EXTEND, where the grant falls short.
  void Grown(const ChildEpoch& key, uint32_t num_tokens, TimePoint now, WriterActions* out);
  // Time for the cut-over: all that is final is at the reader, and there are blocks for the rest.
  bool MayCutOver(const ChildEpoch& key) const;
  // The prompt's last step is done and its token sampled, or a migrating sequence's last step: COMMIT follows when
  // every chunk is quiesced.
  void Finished(const ChildEpoch& key, Progress progress, TimePoint now, WriterActions* out);
  void Posted(const WriterPost& post, OpId op, TimePoint now);
  void OnQuiesced(const Quiesced& quiesced, TimePoint now, WriterActions* out);
  // Cancel, a higher epoch, or an answer that ended with its first token. No `failed` follows.
  void Cancel(const ChildEpoch& key, TimePoint now, WriterActions* out);

  void Tick(TimePoint now, WriterActions* out);
  TimePoint NextTimer() const;

  const WriterChild* Find(const ChildEpoch& key) const;
  std::vector<const WriterChild*> Live() const;
  // Tickets that the writer works on: what PairHeartbeat names.
  std::vector<Ticket> AliveTickets(const ProcessId& reader) const;
  // Whether anything still has to be said to the reader.
  bool NeedsSession(const ProcessId& reader) const;
  const WriterCounters& counters() const { return counters_; }

 private:
  friend struct TicketsUnderTest;  // the model check reads and compares whole states
  using SlotKey = std::pair<Incarnation, uint32_t>;
  struct Draining {
    Drained message;
    ProcessId reader;
    TimePoint next_send = kNever;
  };

  WriterChild* Get(const ChildEpoch& key);
  void SendReserve(WriterChild& c, TimePoint now, WriterActions* out);
  void PostReady(WriterChild& c, TimePoint now, WriterActions* out);
  void MaybeCommit(WriterChild& c, TimePoint now, WriterActions* out);
  void SendCommit(WriterChild& c, TimePoint now, WriterActions* out);
  void Repush(WriterChild& c, const CommitAnswer& answer, TimePoint now, WriterActions* out);
  // STOPPING; `failure` empty: nobody is told.
  void Stop(WriterChild& c, std::optional<WriterFailure> failure, TimePoint now, WriterActions* out);
  void Over(WriterChild& c, TimePoint now, WriterActions* out);  // all ops quiesced in STOPPING
  void SendDrained(const ProcessId& reader, const Ticket& ticket, bool severed, TimePoint now, WriterActions* out);
  bool IsDead(const Ticket& ticket) const;
  bool Fits(const Grant& grant, uint32_t num_tokens) const;
  void OnExtended(const ProcessId& reader, const Grant& grant, TimePoint now, WriterActions* out);
  void SendExtend(WriterChild& c, TimePoint now, WriterActions* out);
  void Take(WriterChild& c, const Grant& grant, uint32_t num_blocks);
  bool ChunkReady(const WriterChild& c, const Chunk& chunk) const;

  const KvLayout layout_;
  const WriterOptions options_;
  const Rules rules_;
  std::map<ChildEpoch, WriterChild> children_;
  struct Op {
    WriterPost post;
    Ticket ticket;
  };
  std::map<OpId, Op> ops_;
  std::map<Ticket, Draining> draining_;  // DRAINED not acknowledged yet
  // Per reader slot the highest dead generation (L2), and the highest that ended with its target in doubt: whatever
  // asks about that ticket again hears the same. A lower one in doubt is over, else the reader had not gone on.
  struct DeadSlot {
    uint32_t generation = 0;
    uint32_t severed = 0;
  };
  std::map<SlotKey, DeadSlot> dead_;
  WriterCounters counters_;
};

}  // namespace baton

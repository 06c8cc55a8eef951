// VALUES on a worker-front session: commands down, one batch of events per step up. The worker dials the
// router and says WorkerHello; the session lives as long as the connection (HANDOFF: session, L7).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "baton/kv_layout.h"
#include "baton/kv_transport.h"
#include "baton/metric.h"
#include "baton/protocol.h"
#include "baton/request.h"
#include "baton/status.h"

namespace baton {

// Which new work a worker admits. What holds blocks runs to its end whatever the mask says (L10).
struct RoleMask {
  bool prefill = true;  // Prefill commands: compute the prompt, hand it off
  bool decode = true;   // Decode commands, and RESERVE from writers
  friend bool operator==(const RoleMask&, const RoleMask&) = default;
};

// Where to find a worker for a pair session.
struct PeerAddress {
  ProcessId process;
  std::string address;  // host:port of its worker-to-worker service
  friend bool operator==(const PeerAddress&, const PeerAddress&) = default;
};

// Weights, revision, adapter, canonical RoPE order: peers of one hand-off must agree on it.
struct ModelIdentity {
  std::string name;  // for people
  Hash128 weights;   // over tensor names, types, shapes and sampled bytes
  friend bool operator==(const ModelIdentity&, const ModelIdentity&) = default;
};

// ---- worker -> front --------------------------------------------------------------------------
struct WorkerHello {
  PeerAddress self;
  RoleMask roles;
  ModelIdentity model;
  KvLayout layout;
  std::vector<uint32_t> num_blocks;  // [group]
  Hash128 numeric;                   // numeric identity: KV format, ISA level, width (S9)
  uint32_t max_context_tokens = 0;
  uint32_t submit_credits = 0;  // new commands that may be outstanding (not yet ended) at once
  bool draining = false;
  uint32_t protocol = kProtocol;  // the highest it speaks
  RoleMask may;                   // never sent: the most that its certificate allows, as the receiver read it
};

struct TokenEvent {
  ChildId child;
  Epoch epoch = 0;
  uint32_t index = 0;
  OutputToken token;
  FinishReason finish = FinishReason::kNone;  // on the last token
};
// P has D's ACK: D owns the request now.
struct HandedOff {
  ChildId child;
  Epoch epoch = 0;
};
enum class HandoffFailure : uint8_t {
  kBusyTooLong,  // L6: handed back once, decode it where it is
  kRefused,      // D can never take it, or will not any more
  kPeerLost,     // before COMMIT was sent
  kUndecided,    // COMMIT was sent and no answer is to be had (L7)
  kTransfer,     // MISSING or CORRUPT beyond the re-pushes
  kNotAdmitted,  // D takes no hand-offs now: it drains, or its role does not
};
struct HandoffFailed {
  ChildId child;
  Epoch epoch = 0;
  HandoffFailure why{};
  std::string detail;
};
struct Running {  // answers Adopt: READY or later here
  ChildId child;
  Epoch epoch = 0;
};
struct NotHeld {  // answers Adopt and Cancel for what is not here (any more)
  ChildId child;
  Epoch epoch = 0;
};
// The request itself failed on this worker (or was refused); blocks are released or quarantined.
struct ChildFailed {
  ChildId child;
  Epoch epoch = 0;
  Status why;
};
// Where the time went, from this worker's side. Sent before the child's last event on this worker; of several
// the latest counts. All durations; 0 where it does not apply.
struct Receipt {
  Duration queue{};     // submit to first launch
  Duration prefill{};   // first launch to the end of the prompt's last step
  Duration reserve{};   // RESERVE to GRANT
  Duration transfer{};  // first post to the last quiesced
  Duration exposed{};   // end of the prompt's last step to ACK (writer)
  uint64_t transfer_bytes = 0;
  uint32_t transfer_blocks = 0;
  uint64_t hidden_bytes = 0;  // quiet at the reader before the last layer started
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // of the prompt, found in this worker's prefix cache
  uint32_t preemptions = 0;
  friend bool operator==(const Receipt&, const Receipt&) = default;
};
struct ReceiptEvent {
  ChildId child;
  Epoch epoch = 0;
  Receipt receipt;
};
using ChildEvent = std::variant<TokenEvent, HandedOff, HandoffFailed, Running, NotHeld, ChildFailed, ReceiptEvent>;

// Blocks that broken hand-offs of one writer keep from use until it is proven quiet (L9).
struct Quarantine {
  ProcessId writer;
  uint64_t pid = 0;  // on the reader's host; 0: on another, or not known
  uint32_t blocks = 0;
  Duration age{};      // of the oldest
  bool stuck = false;  // it had its time, and only its death ends it: whoever started it is to kill it
};

// Liveness of the engine thread, and what a router may know of the load.
struct Heartbeat {
  uint64_t steps = 0;          // launched so far
  Duration step_overdue_in{};  // how long the running step may still take; 0 when idle
  bool draining = false;
  bool idle = false;  // while it drains: nothing lives here, of any front: no request, no hand-off, no step
  RoleMask roles;
  uint64_t order = 0;                        // the latest of this front's orders that was carried out
  uint32_t waiting = 0;                      // sequences queued
  uint32_t running = 0;                      // sequences that hold blocks
  uint64_t queued_tokens = 0;                // prompt tokens admitted and not yet computed
  uint64_t context_tokens = 0;               // over running sequences
  Duration queued_work{};                    // predicted seconds of the queued tokens
  std::vector<uint32_t> free_blocks;         // [group], free or evictable
  std::vector<uint32_t> quarantined_blocks;  // [group]
  std::vector<Quarantine> quarantines;       // by writer
  // L8: children of this front that were hit once and are in a launched step now.
  std::vector<ChildId> once_hit_in_step;
  // The cost model's coefficients, so that a router predicts with the worker's own measurements; see cost.
  std::vector<double> cost;
};

// Prefix-cache contents as events. `sequence` counts batches from 1; a gap means the router asks again.
struct CacheEvents {
  uint64_t sequence = 0;
  bool snapshot = false;  // forget what was known: `stored` is everything
  std::vector<Hash128> stored;
  std::vector<Hash128> removed;
};

// For operators alone; nothing is decided by it. Every second at most, with a batch.
struct BlockReport {  // of a group; total is the sum
  uint32_t free = 0, owned = 0, cached = 0, quarantined = 0;
};
// Another worker that this one writes to or reads from.
struct PeerReport {
  std::string name;
  uint64_t incarnation = 0;
  bool up = false;
  bool writes_here = false;  // it is the writer; else this worker is
  TransferMode mode{};       // of the path, as far as known
  std::string lane;          // what carries the bytes: "posix", "tcp"; empty: unknown, or the transport has one way
  uint32_t hand_offs = 0;    // under way
  uint32_t quarantined_blocks = 0;
  Duration oldest_quarantine{};
  uint64_t bytes = 0;            // of complete hand-offs
  Duration transfer_time{};      // that these took; the writer's knowledge
  double bytes_per_second = 0;   // of the last few
  uint64_t in_flight_bytes = 0;  // posted and not quiesced; as the reader sees it, granted and not arrived
  uint64_t queued_bytes = 0;     // the writer's: final, but waiting for credit
  // What may still be sent now (the writer's), or be granted (the reader's).
  uint64_t credit_bytes = 0;
  uint32_t credit_tickets = 0;   // the reader's
  std::vector<uint32_t> states;  // how many, by state: tickets where it writes here, else hand-offs out
};
struct WorkerReport {
  Duration uptime{};
  std::string transport;
  std::vector<BlockReport> blocks;  // [group]
  // Tickets by state: reserved, receiving, ready, running, quarantined; hand-offs out: reserving, held, pushing,
  // committing, stopping.
  std::vector<uint32_t> tickets, sends;
  std::vector<PeerReport> peers;
  std::vector<Metric> metrics;
};

struct WorkerBatch {
  std::vector<ChildEvent> events;
  Heartbeat heartbeat;
  CacheEvents cache;                 // sequence 0: nothing changed
  std::vector<WorkerReport> report;  // at most one
};
using WorkerMessage = std::variant<WorkerHello, WorkerBatch>;

// ---- front -> worker --------------------------------------------------------------------------
struct FrontHello {
  ProcessId front;
  uint64_t fingerprint = 0;  // ChildId::front of everything that comes from here
};
// Compute the prompt and hand it off to `decode`.
struct PrefillCommand {
  RequestPtr request;
  Progress progress;
  Epoch epoch = 0;
  PeerAddress decode;
};
// Do everything here.
struct DecodeCommand {
  RequestPtr request;
  Progress progress;
  Epoch epoch = 0;
};
struct CancelCommand {  // ends epochs <= epoch
  ChildId child;
  Epoch epoch = 0;
};
struct AdoptCommand {
  ChildId child;
  Epoch epoch = 0;
  bool once_hit = false;  // as in Progress: the loss that led to this may be the hit
};
// Hand the child over to `to`, under `next`, while it goes on here: `epoch` ends only when the reader has it (S11).
// Answered with HandedOff or HandoffFailed of `next`; after the latter it goes on here in `epoch`, by itself or, where
// the outcome is undecided, when an Adopt of `epoch` says so.
struct MigrateCommand {
  ChildId child;
  Epoch epoch = 0;         // that it lives in
  Epoch next = 0;          // higher
  uint32_t delivered = 0;  // of its tokens the front has so many
  PeerAddress to;
};
// Orders of an operator. Numbered by the front; Heartbeat::order tells that one was carried out.
struct DrainCommand {
  uint64_t order = 0;
  bool undo = false;  // admit again; a process that is stopping goes on draining
};
struct SetRoleCommand {
  uint64_t order = 0;
  RoleMask roles;
};
struct CacheResyncCommand {};  // a gap was seen: send a snapshot
using FrontCommand = std::variant<FrontHello, PrefillCommand, DecodeCommand, CancelCommand, AdoptCommand,
                                  MigrateCommand, DrainCommand, SetRoleCommand, CacheResyncCommand>;

}  // namespace baton

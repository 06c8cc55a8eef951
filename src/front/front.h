// The front: every client request of this process, the sessions of its workers, and the Router. Pure: one
// thread drives Handle with what happened and with the time; it answers with values to deliver. rpc and the
// simulator drive the same code.
//
// Always true: every submitted request ends with exactly one Done or Failed; a client sees each token index
// once and in order; whatever a worker holds of a request that is over has been told to it.
//
// The driver delivers messages of one link in order, hands over everything that has arrived before it sends
// Tick (after a pause, late heartbeats must be read before timers fire), and calls again no later than
// NextTimer(). A link that the front lists in `close` is gone for it at once: the driver closes it and need
// not report WorkerDown (if it does, that is ignored).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "baton/clock.h"
#include "baton/front_link.h"
#include "baton/ids.h"
#include "baton/rules.h"
#include "baton/status.h"
#include "baton/tokenizer.h"
#include "front/client_event.h"
#include "front/client_request.h"
#include "route/router.h"

namespace baton {

// One submitted request as the driver names it: drawn by the driver, never reused.
enum class ClientHandle : uint64_t {};

struct ClientSubmit {
  ClientHandle client{};
  ClientRequest request;
};
struct ClientCancel {  // by handle, or by request_id when the handle is 0; an unknown one is ignored
  ClientHandle client{};
  std::string request_id;
};
struct ClientGone {  // the stream broke: like a cancel, but nothing is told to the client any more
  ClientHandle client{};
};
struct WorkerUp {
  LinkId link{};
  WorkerHello hello;
};
struct WorkerDown {
  LinkId link{};
  Status why;
};
struct FromWorker {
  LinkId link{};
  WorkerBatch batch;
};
// That answer is to go on at another worker, if one is fit and it runs: as a drain does it, for the simulator.
struct MoveOrder {
  ClientHandle client{};
};
struct Tick {};        // fires timers that are due
struct FrontDrain {};  // for good: admit nothing new; what lives runs to its end

// An order as the driver names it: drawn by the driver, never reused.
enum class OperatorHandle : uint64_t {};
// Admit nothing new, let what runs end; or admit again. The order ends when nothing lives there any more, or after
// `wait`; it stands in either case.
struct DrainOrder {
  OperatorHandle handle{};
  std::string worker;
  bool router = false;  // this whole router instead
  bool undo = false;
  bool force = false;  // although nobody else decodes
  Duration wait{};
};
// What holds blocks runs to its end, new work follows the mask (L10). Ends when the worker has confirmed.
struct RoleOrder {
  OperatorHandle handle{};
  std::string worker;
  RoleMask roles;
  bool force = false;
  Duration wait{};
};
struct OperatorGone {  // nobody waits for it any more
  OperatorHandle handle{};
};
// How an order stands. The last one ends it; its status is not ok where the order was refused or not confirmed.
struct OrderUpdate {
  bool last = false;
  Status status;
  bool changed = true;  // false: it was so already
  bool left = false;    // the worker's session ended
  bool empty = false;   // nothing lives there any more
  bool draining = false;
  RoleMask roles;
  uint32_t waiting = 0, running = 0;  // sequences there, of every router
  uint32_t requests = 0;              // of this router, that depend on it
  Duration elapsed{};
};

using FrontInput = std::variant<ClientSubmit, ClientCancel, ClientGone, WorkerUp, WorkerDown, FromWorker, Tick,
                                FrontDrain, DrainOrder, RoleOrder, OperatorGone, MoveOrder>;

struct LinkClose {
  LinkId link{};
  Status why;  // told to the worker where the transport can; FAILED_PRECONDITION: refused for good
};

struct FrontOutput {
  std::vector<std::pair<ClientHandle, ClientEvent>> to_clients;
  std::vector<std::pair<LinkId, FrontCommand>> to_workers;  // in order per link
  std::vector<LinkClose> close;                             // after to_workers were written
  std::vector<std::pair<OperatorHandle, OrderUpdate>> to_operators;
  void Clear() { to_clients.clear(), to_workers.clear(), close.clear(), to_operators.clear(); }
  bool empty() const { return to_clients.empty() && to_workers.empty() && close.empty() && to_operators.empty(); }
};

// Limits of one front. Beyond them a request is refused, with the limit in the message.
struct FrontLimits {
  uint32_t max_live = 4096;             // requests, queued ones included
  uint32_t max_queued = 1024;           // waiting here for a credit
  uint32_t max_prompt_bytes = 4 << 20;  // text, or all messages together
  uint32_t max_messages = 1024;
  uint32_t max_stop_strings = 16;
  uint32_t max_stop_token_ids = 64;
  uint32_t max_logit_bias = 1024;
  uint32_t max_request_id_bytes = 128;
  uint32_t max_salt_bytes = 256;
  uint32_t default_max_tokens = 0;                   // when the client does not say; 0: what context and pools leave
  uint32_t retry_budget = 2;                         // L8, per request
  double cluster_retry_fraction = 0.1;               // L8, of requests
  uint32_t cluster_retry_burst = 16;                 // retries that are always there to begin with
  Duration max_deadline = std::chrono::minutes(10);  // and the default
  Duration adopt_deadline = std::chrono::seconds(3);
  Duration hung_after = std::chrono::seconds(3);           // without a heartbeat
  Duration replace_wait = std::chrono::seconds(15);        // a started request waits so long for a fit worker
  Duration receipt_grace = std::chrono::milliseconds(20);  // Done waits so long for P's receipt
};

struct FrontOptions {
  ProcessId self;
  uint64_t seed = 1;              // request ids and sampling seeds of requests that bring none
  uint32_t protocol = kProtocol;  // the highest that this router speaks
  ModelIdentity model;            // workers of another one are refused
  std::string served_name;        // what clients call it; model.name when empty
  uint32_t max_context_tokens = 0;
  RenderOptions chat;  // bos_token and eos_token of the model; the rest as it is
  FrontLimits limits;
  RouterOptions router;
  Rules rules;  // all, in production
};

struct FrontCounters {
  uint64_t submitted = 0, finished = 0, failed = 0, cancelled = 0, rejected = 0;
  uint64_t tokens = 0;         // delivered
  uint64_t duplicates = 0;     // replayed tokens that agreed
  uint64_t replay_faults = 0;  // S7: replayed tokens that differed
  uint64_t index_gaps = 0;     // S6
  uint64_t finish_faults = 0;  // a worker's finish reason that the stop rules do not give
  uint64_t stray_events = 0;   // S5: answered with Cancel
  uint64_t replacements = 0;   // epochs after the first
  uint64_t migrations = 0, migrated = 0, migrations_failed = 0;  // begun, gone on elsewhere, gone on where they were
  uint64_t adopts = 0, handoff_failures = 0, poisoned = 0, hung_workers = 0, superseded = 0;
};

struct ClusterSnapshot {
  ProcessId front;
  std::string model;
  std::vector<WorkerSnapshot> workers;
  uint32_t live = 0, queued = 0;
  bool draining = false;
  Duration uptime{};
  FrontCounters counters;
};

class Front {
 public:
  // `tokenizer` and `chat` outlive the front; chat may be null (chat requests are then refused).
  Front(FrontOptions options, const Tokenizer* tokenizer, const ChatTemplate* chat);
  ~Front();
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  // Appends to *out.
  void Handle(FrontInput input, TimePoint now, FrontOutput* out);
  // When Tick is next wanted; kNever with nothing to wait for.
  TimePoint NextTimer() const;

  bool Knows(std::string_view request_id) const;  // live under that id
  ClusterSnapshot Snapshot(TimePoint now) const;
  // Some worker would take a request: it decodes, and nobody drains.
  bool CouldServe() const;
  const FrontCounters& counters() const;
  uint32_t live() const;
  uint32_t queued() const;
  // The ChildId::front of everything that comes from here.
  uint64_t fingerprint() const;
  // The child of a live request, for tests and timelines; {} when unknown.
  ChildId ChildOf(ClientHandle client) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The fingerprint of a front process, the same everywhere.
uint64_t FrontFingerprint(const ProcessId& self);

// Tokenizes a client's prompt as Front would; for the Tokenize call. Checks sizes and the vocabulary.
StatusOr<std::vector<TokenId>> TokenizePrompt(const ClientRequest& request, const FrontOptions& options,
                                              const Tokenizer& tokenizer, const ChatTemplate* chat);

}  // namespace baton

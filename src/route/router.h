// Where does a request go? The Router answers with a pair (P, D), or with one worker that does everything,
// by predicted seconds. Pure: time is an argument, no clock, no threads, no IO; used by the front's thread.
//
// It knows a worker only from what that worker said: its Hello, its heartbeats (projected to now) and its
// numbered cache events. Beside that it keeps a ledger of what it dispatched and the worker has not yet
// reported, so that a burst does not pile up on the worker that looked idle a moment ago.
//
// Always true: a placement names live workers whose masks admit it, that have a credit (P, or the local
// worker), whose pools could hold the request, and (for a pair) whose model, layout and numeric identity are
// equal. Equal inputs give equal placements.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "baton/clock.h"
#include "baton/front_link.h"
#include "baton/ids.h"
#include "baton/status.h"

namespace baton {

// One incarnation of a worker on one session, as this router names it. Never reused. 0 is "none".
enum class WorkerId : uint64_t {};

struct RouterOptions {
  uint64_t seed = 1;  // breaks ties
  // An uncached prompt of at most that many tokens is prefilled where it is decoded.
  uint32_t local_below_tokens = 16;
  // A dedicated decode worker prefills locally only when that is predicted faster by more than this.
  Duration local_margin = std::chrono::milliseconds(5);
  double local_margin_fraction = 0.25;  // of the predicted time through P
  // A heartbeat that arrives later than this after a dispatch is taken to include the dispatched work.
  Duration confirm_after = std::chrono::milliseconds(20);
  // Priors for workers that have not measured yet: seconds of a step, see cost.
  std::array<double, 5> cost_prior = {1e-3, 5e-4, 0, 5e-3, 1e-6};
  double link_bytes_per_second = 2e9;
  double convert_bytes_per_second = 4e9;  // between unlike KV layouts, at the reader
  double link_latency_seconds = 0.0005;
  uint32_t expected_answer_tokens = 128;  // when max_tokens allows more
};

// May the request be split over two workers?
enum class PlacementHint : uint8_t { kAuto, kDisaggregated, kColocated };

// What the Router needs to know of a request. "Prompt" includes the answer's tokens so far.
struct PlaceQuery {
  uint32_t prompt_tokens = 0;
  uint32_t answer_tokens = 0;  // at most that many more
  // Chained page hashes of the prompt per numeric identity among the workers (Router::numerics()).
  const std::map<Hash128, std::vector<Hash128>>* pages = nullptr;
  PlacementHint hint = PlacementHint::kAuto;
  std::string prefill_worker;  // name asked for; "" = any
  std::string decode_worker;
  const std::set<WorkerId>* excluded = nullptr;       // not for anything
  const std::set<WorkerId>* no_handoff_to = nullptr;  // not as D of a pair (local prefill there is fine)
};

struct Placement {
  enum class Mode : uint8_t { kDisaggregated, kLocal };
  enum class Why : uint8_t {
    kPredicted,    // the least predicted seconds
    kShortPrompt,  // too little uncached to be worth a hand-off
    kNoPrefill,    // no prefill worker is fit
    kAsked,        // the client's hint
  };
  Mode mode = Mode::kLocal;
  WorkerId prefill{};  // kDisaggregated only
  WorkerId decode{};   // kLocal: does everything
  Why why = Why::kPredicted;
  double ttft_seconds = 0;     // predicted, until the first token
  double exposed_seconds = 0;  // predicted part of the transfer that nothing hides
  double step_seconds = 0;     // predicted decode step on D with this request in it
  uint32_t cached_tokens = 0;  // of the prompt, on the worker that prefills
};

struct Refusal {
  enum class Why : uint8_t {
    kNoWorker,    // nobody live admits such work
    kNoCredit,    // somebody would, but every fit worker has its credits out
    kNeverFits,   // no pool or context of any known worker could hold it
    kNotAllowed,  // the hint or the names asked for cannot be met
  };
  Why why{};
  Status status;  // UNAVAILABLE, RESOURCE_EXHAUSTED, INVALID_ARGUMENT, FAILED_PRECONDITION
  Duration retry_after{};
};

// What is known of one worker, for operators and for GetCluster.
struct WorkerSnapshot {
  WorkerId id{};
  ProcessId process;
  std::string address;
  RoleMask roles;
  std::string model;
  KvLayout layout;
  bool draining = false;
  bool confirmed = true;  // what was ordered last is carried out
  Duration heard_ago{};
  Duration connected_for{};
  Heartbeat heartbeat;
  std::vector<uint32_t> num_blocks;
  uint32_t max_context_tokens = 0;
  uint32_t credits = 0;  // granted
  uint32_t credits_used = 0;
  uint64_t cached_pages = 0;  // known from its cache events
  bool cache_known = false;   // false: waiting for a snapshot
  WorkerReport report;        // the latest
  Duration report_age{};
  // By its own measurements, or the prior until there are some.
  double prefill_tokens_per_second = 0;  // of a cold prompt of 512 tokens
  double decode_step_seconds = 0;        // with what runs there now
};

// What a worker admits, as this router places by it: what was ordered last, or what it said since.
struct Admission {
  RoleMask roles;
  bool draining = false;
};

class Router {
 public:
  explicit Router(RouterOptions options);
  ~Router();
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // ---- membership and facts ----
  WorkerId AddWorker(const WorkerHello& hello, TimePoint now);
  void RemoveWorker(WorkerId id);  // ledger entries of it are forgotten too
  void OnHeartbeat(WorkerId id, const Heartbeat& heartbeat, TimePoint now);
  void OnReport(WorkerId id, const WorkerReport& report, TimePoint now);
  // An order was sent to it: placements follow at once; heartbeats count again from the one that confirms it.
  void OnOrder(WorkerId id, uint64_t order, const Admission& admission);
  // False: a gap was seen; what was known of this cache is forgotten and the worker must be asked for a
  // snapshot. Everything until that snapshot is ignored (and gives true).
  bool OnCacheEvents(WorkerId id, const CacheEvents& events);

  // ---- decisions ----
  // Changes nothing but the tie-breaking generator.
  std::variant<Placement, Refusal> Place(const PlaceQuery& query, TimePoint now);
  // Where a running answer of `from` could go on without computing anything again: a worker with the same weights,
  // layout and numeric identity that decodes, has room for it now, and is predicted to be the fastest. Both must know
  // how. Nothing: there is none now.
  std::optional<WorkerId> PlaceMigration(const PlaceQuery& query, WorkerId from) const;
  // True when some live worker has a credit left: a waiting request is worth a try.
  bool HasCredit() const;
  // The longest prompt plus answer that any known worker could hold; 0 without workers.
  uint64_t LargestRequest() const;
  // Distinct numeric identities among the workers, ascending.
  std::vector<Hash128> numerics() const;

  // ---- ledger ----
  // The placement was sent out: takes a credit of P (or of the local worker), counts the work on both.
  void Dispatched(ChildId child, Epoch epoch, const Placement& placement, const PlaceQuery& query, TimePoint now);
  // A migration to that worker was ordered: what it brings there counts until PrefillEnded (it is there) or Ended.
  void Migrates(ChildId child, Epoch next, WorkerId to, const PlaceQuery& query);
  // P let go of the child (HandedOff): its credit returns; D's load is D's to report.
  void PrefillEnded(ChildId child, Epoch epoch);
  // The epoch is over everywhere. Unknown ones are ignored.
  void Ended(ChildId child, Epoch epoch);

  const WorkerHello* hello(WorkerId id) const;    // nullptr: gone
  const Heartbeat* heartbeat(WorkerId id) const;  // the latest; nullptr: gone
  Admission admission(WorkerId id) const;         // of a worker that is here
  // Some worker other than `except` could take a request.
  bool SomeDecoder(WorkerId except = {}) const;
  std::vector<WorkerSnapshot> Snapshot(TimePoint now) const;
  size_t num_workers() const;

 private:
  struct State;
  Refusal Refuse(const PlaceQuery& query) const;  // after Place found nobody
  std::unique_ptr<State> state_;
};

std::string_view Name(Placement::Why why);

}  // namespace baton

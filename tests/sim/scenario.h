// One simulated life of a cluster under load and faults, drawn from a seed, and the oracles over it. A violation is
// a sentence; what is checked after every turn is in oracles.h. A failing seed is replayed with
//   sim_test --gtest_filter=... with BATON_SIM_SEED=<seed> in the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/oracles.h"
#include "sim/sim_cluster.h"

namespace baton {

struct ScenarioOptions {
  SimOptions cluster;
  uint32_t num_requests = 24;
  Duration arrivals_over = std::chrono::milliseconds(300);
  double cancel = 0.1;  // share of requests
  double greedy = 0.5;
  uint32_t max_prompt = 120, max_answer = 40;
  Duration deadline = std::chrono::seconds(60);  // the client's
  // The last word on request number 1, 2, ...: prompt, length, placement.
  std::function<void(uint32_t number, ClientRequest* request)> shape;

  // What counts as a violation besides a wrong answer.
  bool every_request_succeeds = false;  // a failure that the client did not ask for
  bool deadlines_hold = true;           // a request that fails by its deadline: faults are long over by then
  bool innocents_survive = false;       // a failure of one that kills nobody, once it was placed (L8)
  bool supervisor_stays_out = false;    // a worker that only its death could make let go of a block (L9)

  uint32_t kills = 0, pauses = 0, front_breaks = 0, pair_breaks = 0, step_failures = 0, front_restarts = 0;
  uint32_t cuts = 0;  // between two processes, two thirds of them one way only
  Duration cut_for = std::chrono::seconds(5);
  size_t restarted_front = SIZE_MAX;  // which one front_restarts mean; any
  uint32_t drains = 0;                // of a worker, which then starts again
  bool drain_each = false;            // every worker, one after another
  uint32_t moves = 0;                 // of a running answer to another worker, while requests arrive and answers run
  uint32_t orders = 0;                // of an operator: a worker drains for a while, or changes its role
  uint32_t hangs = 0;                 // a worker stands still for 30 s, then it is killed and started again
  bool decode_workers_die = false;    // for good, the first 30 ms after the start
  Duration pause_for = std::chrono::milliseconds(1500);
  Duration faults_over = std::chrono::milliseconds(400);
};

// What happened, so that a test can assert that its subject did.
struct ScenarioCounts {
  uint64_t done = 0, failed = 0, cancelled = 0, tokens = 0, disaggregated = 0, preemptions = 0, cached_tokens = 0;
  uint64_t grants = 0, quarantined = 0, handed_off = 0, repushes = 0, corrupt = 0, replacements = 0;
  uint64_t lost_with_front = 0, step_failures = 0, missing = 0, unwanted_grants = 0, surplus_parts = 0;
  uint64_t converted = 0, converted_unused = 0;  // hand-offs between unlike layouts
  uint64_t transfer_bytes = 0, hidden_bytes = 0, replay_faults = 0;
  uint64_t busy = 0;                                      // RESERVEs that were put off
  uint64_t cancelled_reserving = 0, cancelled_ready = 0;  // P waits for its GRANT; D owns the request
  uint64_t leaked_blocks = 0;                             // neither free nor cached at the end
  uint64_t migrations = 0, migrated = 0, migrations_failed = 0, extensions = 0;
  uint64_t emptied = 0, role_changes = 0, orders_refused = 0;  // drains that ended empty, orders carried out, the rest
  SimFaultCounts faults;
  std::map<size_t, uint64_t> done_by_front, failed_by_front;
  std::map<std::string, uint64_t> used;      // workers by name, in Done's timings
  std::map<std::string, uint64_t> failures;  // by code and reason
  uint64_t chunks_waited = 0, fences = 0;
  void Add(const ScenarioCounts& o);
};

class Scenario {
 public:
  Scenario(uint64_t seed, ScenarioOptions options);
  // "" or the first violation.
  std::string Run();
  const ScenarioCounts& counts() const { return counts_; }

 private:
  struct Client {
    Request reference;  // prompt, sampling and stops, for the reference answer
    std::vector<TokenId> expected;
    std::vector<TokenId> seen;
    bool cancelled = false, ended = false, finished = false;
    bool poison = false;  // kills whoever runs it
    bool odd = false;     // some worker has a numeric fault: no single right answer
  };
  void Arrive();
  void PlanFaults();
  void NoteCancel(ClientHandle handle);  // where the cancel meets the request
  // One order now; a drain is undone later, as often as it takes.
  void Order();
  void Undo(const std::string& worker);
  void OnOrder(OperatorHandle handle, const OrderUpdate& update);
  void OnEvent(ClientHandle handle, const ClientEvent& event);
  void OnEnd(Client& c);
  void Violation(const std::string& what);
  bool AllEnded() const;
  void CollectCounts();

  const ScenarioOptions options_;
  Rng rng_;
  std::unique_ptr<SimCluster> cluster_;
  TurnOracles oracles_;
  std::map<ClientHandle, Client> clients_;
  struct Waiting {
    std::string undo;  // the worker, for an undo
    bool drain = false;
  };
  std::map<OperatorHandle, Waiting> waiting_;  // orders that have not ended
  uint64_t next_order_ = 1;
  std::vector<std::vector<int64_t>> prefixes_;
  uint32_t submitted_ = 0;
  ScenarioCounts counts_;
  std::string violation_;
};

// The random mix that the seeds test runs: a bit of everything.
ScenarioOptions MixedScenario(uint64_t seed);
// The same over clusters of other shapes, one or two fronts, cuts, drains and clocks that disagree.
ScenarioOptions WideScenario(uint64_t seed);
// Hand-offs under as many faults as they still get through: what the night runs (scripts/night.sh).
ScenarioOptions NightScenario(uint64_t seed);

}  // namespace baton

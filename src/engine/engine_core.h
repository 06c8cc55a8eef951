// The step of a worker: one EngineCore is a prefill, a decode or a unified worker by the numbers it is given.
// It owns the scheduler, the block pool, the hand-offs and the children of every front; time, compute and bytes
// reach it through an argument and two ports. Step reads no clock, takes no lock and never waits: a thread calls
// it in production (EngineThread), an event loop in the simulator. README.md is the contract.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "baton/engine_command.h"
#include "baton/kv_transport.h"
#include "baton/model_runner.h"
#include "baton/outbox.h"
#include "cost/cost_model.h"
#include "engine/kv_connector.h"
#include "sched/scheduler.h"

namespace baton {

struct EngineOptions {
  PeerAddress self;
  ModelIdentity model;
  KvLayout layout;
  KvPoolPlan pool;
  uint32_t protocol = kProtocol;  // the highest that this worker speaks
  Hash128 numeric;                // numeric identity of the KV that this worker computes
  uint32_t vocab_size = 0;        // ids of requests and peers are checked against it
  SchedulerOptions scheduler;     // its roles, weights, numeric and rules are taken from here
  RoleMask roles;                 // to begin with; an operator may change them
  uint32_t submit_credits = 64;
  CostCoefficients prior{};  // of the step cost, until steps were measured
  std::string host;          // see KvConnectorOptions
  uint64_t pid = 0;
  ReaderOptions reader;
  WriterOptions writer;
  SendWindowOptions send;
  Duration stuck_after = std::chrono::seconds(10);  // see KvConnectorOptions
  Duration heartbeat = std::chrono::milliseconds(500);
  Duration report = std::chrono::seconds(1);       // least time between two reports to one front
  Duration hold_lease = std::chrono::seconds(30);  // a failed hand-off's KV waits so long for the next epoch
  Duration max_deadline = std::chrono::hours(1);
  Duration epoch_memory = std::chrono::seconds(60);  // how long an ended child's epoch is refused
  Duration step_grace = std::chrono::seconds(3);     // least time until a running step counts as overdue
  uint64_t seed = 1;
  Rules rules;
};

struct EngineCounters {
  uint64_t steps = 0, tokens = 0, preemptions = 0, cached_tokens = 0, computed_tokens = 0;
  uint64_t stale_commands = 0, expired = 0, failed_steps = 0;
};

class EngineCore {
 public:
  // The ports outlive the core.
  EngineCore(EngineOptions options, ModelRunner* runner, KvTransport* transport);

  // One turn: applies the commands (and clears them), takes in what runner and transport report, fires timers,
  // launches steps while there is room, and says what the world should hear. Order of commands is kept.
  void Step(TimePoint now, std::vector<EngineCommand>* commands, Outbox* out);
  // Step must be called no later than this, even if nothing happens.
  TimePoint NextTimer() const;

  bool draining() const { return stopping_ || told_to_drain_; }
  RoleMask roles() const { return roles_; }
  bool idle() const;  // no child, no hand-off, no step in flight
  const BlockPool& pool() const { return pool_; }
  const Scheduler& scheduler() const { return scheduler_; }
  const KvConnector& connector() const { return connector_; }
  const CostModel& cost() const { return cost_; }
  const EngineCounters& counters() const { return counters_; }
  // Blocks conserved, records consistent; aborts otherwise. For tests and the simulator.
  void Audit() const;

 private:
  // One child of a front, in the one epoch that lives here.
  struct Child {
    enum class Role : uint8_t { kLocal, kWriter, kReader } role{};
    Epoch epoch = 0;
    LinkId front{};
    SequenceId sequence{};
    TimePoint deadline = kNever;
    PeerAddress decode;           // kWriter
    bool launch_told = false;     // a heartbeat went out with its first step
    bool send_begun = false;      // kWriter: the hand-off machine has it
    bool handoff_failed = false;  // kWriter: told to the front; the KV waits for its next epoch
    TimePoint hold_until = kNever;
    Ticket ticket;  // kReader
    bool receipt_sent = false;
    // On its way to another worker, under another epoch, while it runs here (S11).
    struct Migration {
      Epoch next = 0;
      uint32_t run = 0;        // Sequence::run: of other blocks there is nothing to hand over
      bool cut_over = false;   // no step is launched any more
      bool undecided = false;  // told to the front, which asks the reader and then this worker
    };
    std::optional<Migration> migration;
  };
  struct FrontSession {
    uint64_t fingerprint = 0;  // 0: not greeted yet
    std::vector<ChildEvent> events;
    CacheEvents cache;
    uint64_t cache_sequence = 0;
    bool snapshot_due = true;
    TimePoint next_heartbeat{};
    TimePoint next_report{};
    uint64_t order = 0;                  // latest carried out
    bool empty_told = false;             // Heartbeat::idle, as last said
    std::vector<ChildId> once_hit_told;  // Heartbeat::once_hit_in_step, as the front heard it last
  };

  // Commands.
  void Apply(EngineCommand& command, TimePoint now, Outbox* out);
  void OnFront(LinkId link, FrontCommand& command, TimePoint now, Outbox* out);
  void OnOrder(FrontSession* front, uint64_t order, TimePoint now);
  void OnFrontDown(LinkId link, TimePoint now, Outbox* out);
  void Submit(LinkId link, RequestPtr request, Progress progress, Epoch epoch, const PeerAddress* decode, TimePoint now,
              Outbox* out);
  void OnReserve(LinkId link, const Reserve& reserve, TimePoint now, Outbox* out);
  void OnAdopt(LinkId link, const AdoptCommand& adopt, TimePoint now, Outbox* out);
  void OnMigrate(LinkId link, const MigrateCommand& migrate, TimePoint now, Outbox* out);
  // Raises the epoch below which the child is refused; ends what lives at or below it.
  void EndEpochs(const ChildId& id, Epoch epoch, TimePoint now, Outbox* out);
  bool IsOldEpoch(const ChildId& id, Epoch epoch) const;
  Status CheckRequest(const Request& request, const Progress& progress) const;

  // Results.
  void PollRunner(TimePoint now, Outbox* out);
  void OnLayers(const LayersReady& ready, TimePoint now, Outbox* out);
  void OnStepDone(StepResult result, TimePoint now, Outbox* out);
  void OnToken(const NewToken& token, TimePoint now, Outbox* out);
  void HandleFacts(TimePoint now);
  void OnReady(const Commit& commit, TimePoint now);

  // Children.
  using ChildMap = std::map<ChildId, Child>;
  void Emit(const Child& child, ChildEvent event);
  void SendReceipt(const ChildId& id, Child* child, const WriterChild* send, TimePoint now);
  // Ends the child here; blocks go when nothing names them. Says nothing to the front.
  void EndChild(ChildMap::iterator it, TimePoint now, Outbox* out);
  void EndRunning(ChildMap::iterator it, TimePoint now);
  void OnMigrationFailed(const WriterFailure& failure, Child* child);
  void FailChild(ChildMap::iterator it, Status why, TimePoint now, Outbox* out);
  void EndSequence(SequenceId id);
  ChildMap::iterator FindSequence(SequenceId id);
  void ExpireDeadlines(TimePoint now, Outbox* out);
  // Blocks that became full go out; a sequence whose rest is a last block stands still, and is committed then.
  void AdvanceMigrations(TimePoint now, Outbox* out);
  void AdvanceMigration(const ChildId& id, Child* child, TimePoint now, Outbox* out);
  // It goes on here; nobody is told.
  void Resume(const ChildId& id, Child* child);

  void LaunchSteps(TimePoint now, Outbox* out);
  void FlushEvents(TimePoint now, Outbox* out);
  std::vector<ChildId> OnceHitInStep() const;
  Heartbeat MakeHeartbeat(TimePoint now) const;
  WorkerReport MakeReport(TimePoint now) const;  // worker_report.cc

  const EngineOptions options_;
  ModelRunner* const runner_;
  BlockPool pool_;
  Scheduler scheduler_;
  KvConnector connector_;
  CostModel cost_;
  EngineCounters counters_;
  ChildMap children_;
  std::map<SequenceId, ChildId> by_sequence_;
  std::set<ChildId> migrating_;               // with Child::migration
  std::map<ChildEpoch, SequenceId> orphans_;  // ended writers whose blocks are still being read
  std::map<LinkId, FrontSession> fronts_;
  std::map<uint64_t, LinkId> front_links_;  // by fingerprint
  struct EpochFloor {
    Epoch epoch = 0;
    TimePoint until{};
  };
  std::map<ChildId, EpochFloor> floors_;
  struct RunningStep {
    StepFeatures features;
    TimePoint started{};
    Duration predicted{};
  };
  std::map<StepId, RunningStep> running_;
  RoleMask roles_;
  bool stopping_ = false;       // SIGTERM: for good
  bool told_to_drain_ = false;  // an operator's order, which another may undo
  TimePoint started_ = kNever;
};

}  // namespace baton

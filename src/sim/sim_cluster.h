// A whole cluster on one thread: the shipped Front and EngineCores, joined by a simulated network, data path and
// devices, driven by one EventLoop from one seed. What can go wrong is asked for by the methods below or drawn from
// the rates in SimOptions; after every turn of a worker its books are audited.
//
// Front links are ordered streams that only break as a whole, as gRPC's do. Pair links lose, double and reorder
// single messages besides: the protocol must not need the stream's promises. A cut between two processes, each way on
// its own, holds what is sent until it heals; connections that it outlasts break, each end learning by itself.
//
// Every process has a monotonic clock of its own. No simulated module reads a wall clock, so one that jumps is nobody's
// business here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/engine_core.h"
#include "front/front.h"
#include "sim/event_loop.h"
#include "sim/sim_runner.h"
#include "sim/sim_transport.h"

namespace baton {

struct SimOptions {
  uint64_t seed = 1;
  uint32_t num_fronts = 1;  // over the same workers
  uint32_t num_prefill = 2, num_decode = 2, num_unified = 0;
  // pool_blocks: of block_tokens; with decode_block_tokens (0: the same) decode workers have as many bytes in others.
  uint32_t block_tokens = 16, layers = 4, pool_blocks = 48;
  uint32_t decode_block_tokens = 0;
  uint32_t max_step_tokens = 64, max_prefill_tokens = 32;
  uint32_t max_running = 12, max_waiting = 64, max_context_tokens = 400;
  TransferMode mode = TransferMode::kOneSided;
  bool prefix_cache = true;
  SendWindowOptions send;
  SimCost cost;
  Duration min_delay = std::chrono::microseconds(50), max_delay = std::chrono::microseconds(400);
  double message_drop = 0, message_duplicate = 0, message_late = 0;  // pair links; late: overtaken by others
  Duration late_by = std::chrono::milliseconds(30);
  Duration keepalive = std::chrono::seconds(2);  // a connection that a cut holds for so long breaks
  // A process's clock starts anywhere in the spread and runs fast or slow by up to so many parts in a million.
  Duration clock_spread{};
  uint32_t clock_drift_ppm = 0;
  FaultRates transfer;
  FrontLimits front_limits;
  // This worker (by index) chooses tokens by another dialect than the rest: a numeric fault. None by default.
  size_t odd_worker = SIZE_MAX;
  // Workers speak the oldest protocol until they are started again.
  bool upgrades = false;
  // A request with this cache salt kills every worker in the middle of a step that holds it. "": nothing does.
  std::string poison_salt;
  Rules rules;
};
inline constexpr uint64_t kOddDialect = 0x0dd;

// A process's own monotonic time. Global() is the first moment that reads at least `local`.
struct SimClock {
  Duration offset{};
  int64_t drift_ppm = 0;
  TimePoint Local(TimePoint global) const;
  TimePoint Global(TimePoint local) const;
};

// What went wrong so far, and whom it met. A hand-off is a ticket that was granted; it is faulted when a message, put
// or notice of it met a fault, or a process or connection under it did.
struct SimFaultCounts {
  uint64_t messages_dropped = 0, messages_duplicated = 0, messages_late = 0;
  uint64_t posts_delayed = 0, posts_truncated = 0, posts_failed = 0, posts_stuck = 0;
  uint64_t notices_delayed = 0, notices_dropped = 0, notices_duplicated = 0;
  uint64_t late_puts = 0;  // into quarantined blocks: where a late write may land
  uint64_t kills = 0, pauses = 0, cuts = 0, links_broken = 0, front_restarts = 0, drains = 0;
  uint64_t handoffs = 0, faulted_handoffs = 0;
  uint64_t stale_bytes = 0;  // landed under a ticket that is over or READY: never
  void Add(const SimFaultCounts& o);
};

class SimCluster {
 public:
  explicit SimCluster(SimOptions options);
  ~SimCluster();

  EventLoop& loop() { return loop_; }
  Rng& rng() { return rng_; }
  TimePoint now() const { return loop_.Now(); }
  bool RunOne() { return loop_.RunOne(); }

  // ---- clients
  ClientHandle Submit(ClientRequest request, size_t front = 0);
  void Cancel(ClientHandle client);
  void Move(ClientHandle client) { FrontInputNow(front_of(client), MoveOrder{client}); }
  std::function<void(ClientHandle, const ClientEvent&)> on_event;
  // ---- operators: a DrainOrder or a RoleOrder, to the first front
  void Operate(FrontInput order) { FrontInputNow(0, std::move(order)); }
  std::function<void(OperatorHandle, const OrderUpdate&)> on_order;
  // After every turn of a worker.
  std::function<void(size_t worker)> on_turn;

  // ---- faults; processes by index: prefill first, then decode, then unified workers, then the fronts
  size_t num_workers() const { return workers_.size(); }
  size_t num_fronts() const { return fronts_.size(); }
  size_t num_processes() const { return workers_.size() + fronts_.size(); }
  bool alive(size_t worker) const { return workers_[worker]->core != nullptr; }
  void Kill(size_t worker);
  void Restart(size_t worker);  // the same name, the next incarnation
  void Pause(size_t worker, Duration how_long);
  // Its engine thread takes no turn any more, though its connections stand. Ends with Kill only.
  void Hang(size_t worker) { workers_[worker]->paused_until = kNever; }
  // Nothing from one process reaches the other until then; the way back stands unless it is cut as well.
  void Cut(size_t from, size_t to, Duration how_long);
  // It finishes what it has, admits nothing, and starts again when it is idle.
  void Drain(size_t worker);
  void BreakFrontLink(size_t worker);
  void BreakPairLinks(size_t worker);
  void FailStep(size_t worker);
  // Every client request of that front is lost; workers redial the new incarnation.
  void RestartFront(size_t front = 0);
  void StopFaults();

  // ---- what is true now
  Front& front(size_t index = 0) { return *fronts_[index]->front; }
  size_t front_of(ClientHandle client) const { return client_front_[static_cast<size_t>(client) - 1]; }
  const EngineCore* core(size_t worker) const { return workers_[worker]->core.get(); }
  const std::string& name(size_t worker) const { return workers_[worker]->name; }
  uint64_t incarnation(size_t worker) const { return workers_[worker]->incarnation; }
  TimePoint local_now(size_t process) const { return ClockOf(process).Local(now()); }
  const SimFaultCounts& faults() const { return counts_; }
  uint32_t poison_deaths() const { return poison_deaths_; }
  uint32_t supervisor_kills() const { return supervisor_kills_; }
  // Nothing lives anywhere: no child, ticket, quarantine; every block is free or cached.
  bool Quiet(std::string* why) const;

 private:
  struct Worker {
    std::string name;
    RoleMask roles;
    uint64_t incarnation = 0;
    PeerAddress self;
    std::unique_ptr<SimTransport> transport;
    std::unique_ptr<SimRunner> runner;
    std::unique_ptr<EngineCore> core;  // null: dead
    std::vector<EngineCommand> inbox;
    bool wake_pending = false;
    TimePoint timer_at = kNever;
    TimePoint paused_until{};
    SimClock clock;
  };
  struct FrontProcess {
    std::unique_ptr<Front> front;
    uint64_t incarnation = 0;
    TimePoint timer_at = kNever;
    SimClock clock;
  };
  // One connection. Side 0 dialed side 1.
  struct Link {
    size_t process[2];
    uint64_t incarnation[2];
    LinkId id[2];
    bool up = true;                   // takes new messages
    bool delivers = true;             // what is on its way arrives: false after a cut, true after a process's death
    TimePoint last_delivery[2] = {};  // to that side
  };
  using LinkKey = std::pair<size_t, LinkId>;  // (process, its name of the link)

  Duration Delay();
  void Wake(size_t worker);
  void Turn(size_t worker);
  void ArmTimer(size_t worker);
  void Command(size_t worker, EngineCommand command);
  void Deliver(size_t worker, Outbox out);
  void DialFront(size_t worker, size_t front);
  void DialPeer(size_t worker, const Dial& dial);
  void SendPair(size_t worker, LinkId link, PairMessage message);
  void SendToFront(size_t worker, LinkId link, WorkerMessage message);
  void Watch(size_t worker, const WatchProcess& watch);
  // As the supervisor does, L9: kills a stuck writer and starts it again.
  void Supervise(const Quarantine& stuck);
  // Both ends learn of it after a delay, each on its own. A death lets arrive what was sent before.
  void Break(const std::shared_ptr<Link>& link, const std::string& why, bool death = false, Duration learn_within = {});
  std::shared_ptr<Link> FindLink(size_t process, LinkId id) const;
  TimePoint NextDelivery(Link& link, int side, bool ordered);
  TimePoint CutUntil(size_t from, size_t to) const;

  void FrontInputNow(size_t front, FrontInput input);
  void ArmFrontTimer(size_t front);
  void BootFront(size_t front);
  bool IsFront(size_t process) const { return process >= workers_.size(); }
  uint64_t IncarnationOf(size_t process) const;
  const SimClock& ClockOf(size_t process) const;
  SimClock DrawClock();
  void RestartWhenIdle(size_t worker, uint64_t incarnation);
  void OnLanded(const ProcessId& reader, const Ticket& ticket, uint64_t bytes);
  void MarkFaulted(const Ticket& ticket);
  void MarkFaulted(size_t worker, size_t peer);    // what the two have in hand; peer = worker: what it has with anybody
  size_t IndexOf(const ProcessId& process) const;  // num_workers(): unknown or another incarnation

  SimOptions options_;
  EventLoop loop_;
  Rng rng_;
  std::unique_ptr<FaultPolicy> faults_;
  SimFabric fabric_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::unique_ptr<FrontProcess>> fronts_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<std::pair<size_t, size_t>, TimePoint> cut_until_;  // (from, to)
  std::vector<size_t> client_front_;
  SimFaultCounts counts_;
  std::set<Ticket> handoffs_, faulted_;
  std::map<LinkKey, std::shared_ptr<Link>> links_;
  struct Watched {
    size_t watcher;
    uint64_t watcher_incarnation;
  };
  std::map<ProcessId, std::vector<Watched>> watched_;
  uint64_t next_link_ = uint64_t{1} << 63;
  uint32_t poison_deaths_ = 0, supervisor_kills_ = 0;
};

}  // namespace baton

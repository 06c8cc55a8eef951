// A whole cluster on one thread: the shipped Front and EngineCores, joined by a simulated network, data path and
// devices, driven by one EventLoop from one seed. What can go wrong is asked for by the methods below or drawn from
// the rates in SimOptions; after every turn of a worker its books are audited.
//
// Front links are ordered streams that only break as a whole, as gRPC's do. Pair links lose, double and reorder
// single messages besides: the protocol must not need the stream's promises.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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
  uint32_t num_prefill = 2, num_decode = 2, num_unified = 0;
  uint32_t block_tokens = 16, layers = 4, pool_blocks = 48;
  uint32_t max_step_tokens = 64, max_prefill_tokens = 32;
  uint32_t max_running = 12, max_waiting = 64, max_context_tokens = 400;
  TransferMode mode = TransferMode::kOneSided;
  bool prefix_cache = true;
  SimCost cost;
  Duration min_delay = std::chrono::microseconds(50), max_delay = std::chrono::microseconds(400);
  double message_drop = 0, message_duplicate = 0, message_late = 0;  // pair links; late: overtaken by others
  Duration late_by = std::chrono::milliseconds(30);
  FaultRates transfer;
  FrontLimits front_limits;
  // This worker (by index) chooses tokens by another dialect than the rest: a numeric fault. None by default.
  size_t odd_worker = SIZE_MAX;
  // A request with this cache salt kills every worker in the middle of a step that holds it. "": nothing does.
  std::string poison_salt;
  Rules rules;
};
inline constexpr uint64_t kOddDialect = 0x0dd;

class SimCluster {
 public:
  explicit SimCluster(SimOptions options);
  ~SimCluster();

  EventLoop& loop() { return loop_; }
  Rng& rng() { return rng_; }
  TimePoint now() const { return loop_.Now(); }
  bool RunOne() { return loop_.RunOne(); }

  // ---- clients
  ClientHandle Submit(ClientRequest request);
  void Cancel(ClientHandle client);
  std::function<void(ClientHandle, const ClientEvent&)> on_event;
  // After every turn of a worker.
  std::function<void(size_t worker)> on_turn;

  // ---- faults; workers by index: prefill first, then decode, then unified
  size_t num_workers() const { return workers_.size(); }
  bool alive(size_t worker) const { return workers_[worker]->core != nullptr; }
  void Kill(size_t worker);
  void Restart(size_t worker);  // the same name, the next incarnation
  void Pause(size_t worker, Duration how_long);
  // Its engine thread takes no turn any more, though its connections stand. Ends with Kill only.
  void Hang(size_t worker) { workers_[worker]->paused_until = kNever; }
  void BreakFrontLink(size_t worker);
  void BreakPairLinks(size_t worker);
  void FailStep(size_t worker);
  // The supervisor (L9): a writer that is alive but keeps a quarantine for 10 s is killed and started again.
  void Supervise();
  // Every client request is lost; workers redial the new incarnation.
  void RestartFront();
  void StopFaults();

  // ---- what is true now
  Front& front() { return *front_; }
  const EngineCore* core(size_t worker) const { return workers_[worker]->core.get(); }
  const std::string& name(size_t worker) const { return workers_[worker]->name; }
  uint64_t incarnation(size_t worker) const { return workers_[worker]->incarnation; }
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
  };
  // One connection. Side 0 dialed side 1. Process index num_workers() is the front.
  struct Link {
    size_t process[2];
    uint64_t incarnation[2];
    LinkId id[2];
    bool up = true;       // takes new messages
    bool delivers = true;  // what is on its way arrives: false after a cut, true after a process's death
    TimePoint last_delivery[2] = {};  // to that side
  };
  using LinkKey = std::pair<size_t, LinkId>;  // (process, its name of the link)

  Duration Delay();
  void Wake(size_t worker);
  void Turn(size_t worker);
  void ArmTimer(size_t worker);
  void Command(size_t worker, EngineCommand command);
  void Deliver(size_t worker, Outbox out);
  void DialFront(size_t worker);
  void DialPeer(size_t worker, const Dial& dial);
  void SendPair(size_t worker, LinkId link, PairMessage message);
  void SendToFront(size_t worker, LinkId link, WorkerMessage message);
  void Watch(size_t worker, const WatchProcess& watch);
  // Both ends learn of it after a delay, each on its own. A death lets arrive what was sent before.
  void Break(const std::shared_ptr<Link>& link, const std::string& why, bool death = false);
  std::shared_ptr<Link> FindLink(size_t process, LinkId id) const;
  TimePoint NextDelivery(Link& link, int side, bool ordered);

  void FrontInputNow(FrontInput input);
  void ArmFrontTimer();
  void BootFront();
  size_t IndexOf(const ProcessId& process) const;  // num_workers(): unknown or another incarnation

  SimOptions options_;
  EventLoop loop_;
  Rng rng_;
  std::unique_ptr<FaultPolicy> faults_;
  SimFabric fabric_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Front> front_;
  uint64_t front_incarnation_ = 0;
  TimePoint front_timer_at_ = kNever;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<LinkKey, std::shared_ptr<Link>> links_;
  struct Watched {
    size_t watcher;
    uint64_t watcher_incarnation;
  };
  std::map<ProcessId, std::vector<Watched>> watched_;
  uint64_t next_link_ = uint64_t{1} << 63;
  uint64_t next_client_ = 1;
  uint32_t poison_deaths_ = 0, supervisor_kills_ = 0;
};

}  // namespace baton

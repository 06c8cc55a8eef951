#include "sim/sim_cluster.h"

#include <algorithm>
#include <utility>

namespace baton {
namespace {

// Ids are the text: "<7>" for token 7.
class SimTokenizer : public Tokenizer {
 public:
  SimTokenizer() {
    for (uint32_t i = 0; i < kSimVocabulary; ++i) text_.push_back("<" + std::to_string(i) + ">");
  }
  void Encode(const std::vector<TextSpan>& text, bool, std::vector<TokenId>* ids) const override {
    for (const TextSpan& span : text) {
      for (const char c : span.text) ids->push_back(static_cast<uint8_t>(c) % kSimVocabulary);
    }
  }
  std::string_view TokenBytes(TokenId id, bool) const override { return text_[static_cast<size_t>(id)]; }
  bool IsSpecial(TokenId) const override { return false; }
  uint32_t vocab_size() const override { return kSimVocabulary; }
  const std::vector<TokenId>& eos_ids() const override { return eos_; }

 private:
  std::vector<std::string> text_;
  std::vector<TokenId> eos_{kSimEos};
};

constexpr ModelIdentity Identity() { return {{}, {1, 2}}; }

}  // namespace

SimCluster::SimCluster(SimOptions options) : options_(std::move(options)), rng_(options_.seed) {
  faults_ = std::make_unique<FaultPolicy>(Mix64(options_.seed), options_.transfer);
  fabric_.loop = &loop_;
  fabric_.rng = &rng_;
  fabric_.mode = options_.mode;
  fabric_.faults = faults_.get();
  tokenizer_ = std::make_unique<SimTokenizer>();
  const auto add = [this](const std::string& name, RoleMask roles) {
    auto w = std::make_unique<Worker>();
    w->name = name;
    w->roles = roles;
    workers_.push_back(std::move(w));
  };
  for (uint32_t i = 0; i < options_.num_prefill; ++i) add("p" + std::to_string(i), {true, false});
  for (uint32_t i = 0; i < options_.num_decode; ++i) add("d" + std::to_string(i), {false, true});
  for (uint32_t i = 0; i < options_.num_unified; ++i) add("u" + std::to_string(i), {true, true});
  BootFront();
  for (size_t i = 0; i < workers_.size(); ++i) Restart(i);
}

SimCluster::~SimCluster() = default;

Duration SimCluster::Delay() {
  const auto span = static_cast<uint64_t>((options_.max_delay - options_.min_delay).count()) + 1;
  return options_.min_delay + Duration(static_cast<int64_t>(rng_.Below(span)));
}

// ---- workers --------------------------------------------------------------------------------------

void SimCluster::Restart(size_t index) {
  Worker& w = *workers_[index];
  if (w.core != nullptr) return;
  ++w.incarnation;
  w.self = {{w.name, {w.incarnation, Mix64(w.incarnation * 1000 + index)}}, w.name + ":1"};
  w.inbox.clear();
  w.wake_pending = false;
  w.timer_at = kNever;
  w.paused_until = {};
  EngineOptions o;
  o.self = w.self;
  o.model = Identity();
  o.layout = SimLayout(options_.block_tokens, options_.layers);
  o.pool = PlanPool(o.layout, uint64_t{options_.pool_blocks} * o.layout.BlockBytes(0) + 4096);
  o.numeric = {3, 4};
  o.vocab_size = kSimVocabulary;
  o.scheduler.max_step_tokens = options_.max_step_tokens;
  o.scheduler.max_prefill_tokens = options_.max_prefill_tokens;
  o.scheduler.max_running = options_.max_running;
  o.scheduler.max_waiting = options_.max_waiting;
  o.scheduler.max_context_tokens = options_.max_context_tokens;
  o.scheduler.prefix_cache = options_.prefix_cache;
  o.roles = w.roles;
  o.submit_credits = options_.max_waiting;
  o.prior = {4e-4, 2e-5, 0, 3e-5, 0};
  o.host = "sim";
  o.pid = index * 1000 + w.incarnation;
  o.seed = Mix64(options_.seed * 31 + index * 7 + w.incarnation);
  o.rules = options_.rules;
  const auto wake = [this, index] { Wake(index); };
  w.transport = std::make_unique<SimTransport>(&fabric_, w.self.process, wake);
  StatusOr<std::span<std::byte>> pool = w.transport->AllocatePool(o.pool.total_bytes);
  w.runner = std::make_unique<SimRunner>(&loop_, o.layout, o.pool, *pool, options_.cost, wake);
  if (index == options_.odd_worker) w.runner->set_dialect(kOddDialect);
  if (!options_.poison_salt.empty()) {
    w.runner->set_poison(options_.poison_salt, [this, index] {
      ++poison_deaths_;
      Kill(index);
      loop_.After(std::chrono::milliseconds(50), [this, index] { Restart(index); });
    });
  }
  w.core = std::make_unique<EngineCore>(o, w.runner.get(), w.transport.get());
  DialFront(index);
}

void SimCluster::Kill(size_t index) {
  Worker& w = *workers_[index];
  if (w.core == nullptr) return;
  const ProcessId process = w.self.process;
  w.core.reset();
  w.runner.reset();
  w.transport.reset();
  w.inbox.clear();
  std::vector<std::shared_ptr<Link>> mine;
  for (auto& [key, link] : links_) {
    if (key.first == index) mine.push_back(link);
  }
  for (const auto& link : mine) Break(link, w.name + " died", /*death=*/true);
  const auto watchers = watched_.find(process);
  if (watchers == watched_.end()) return;
  for (const Watched& watcher : watchers->second) {
    loop_.After(Delay() * 4, [this, watcher, process] {
      if (workers_[watcher.watcher]->incarnation == watcher.watcher_incarnation) {
        Command(watcher.watcher, ProcessDied{process});
      }
    });
  }
  watched_.erase(watchers);
}

void SimCluster::Pause(size_t index, Duration how_long) {
  workers_[index]->paused_until = std::max(workers_[index]->paused_until, now() + how_long);
}

void SimCluster::Supervise() {
  for (const auto& w : workers_) {
    if (w->core == nullptr) continue;
    for (const ReaderTicket* t : w->core->connector().reader().Live()) {
      if (t->state != TicketState::kQuarantined || now() - t->quarantined_at < std::chrono::seconds(10)) continue;
      const size_t writer = IndexOf(t->writer);
      if (writer == workers_.size()) continue;
      ++supervisor_kills_;
      Kill(writer);
      return Restart(writer);
    }
  }
}

void SimCluster::FailStep(size_t index) {
  if (workers_[index]->runner != nullptr) {
    workers_[index]->runner->FailNextStep(InternalError("the device failed (simulated)"));
  }
}

void SimCluster::Command(size_t index, EngineCommand command) {
  if (workers_[index]->core == nullptr) return;
  workers_[index]->inbox.push_back(std::move(command));
  Wake(index);
}

void SimCluster::Wake(size_t index) {
  Worker& w = *workers_[index];
  if (w.wake_pending) return;
  w.wake_pending = true;
  const uint64_t incarnation = w.incarnation;
  loop_.At(std::max(now(), w.paused_until), [this, index, incarnation] {
    if (workers_[index]->incarnation == incarnation && workers_[index]->core != nullptr) Turn(index);
  });
}

void SimCluster::Turn(size_t index) {
  Worker& w = *workers_[index];
  if (now() < w.paused_until) {
    w.wake_pending = false;
    return Wake(index);
  }
  w.wake_pending = false;
  Outbox out;
  std::vector<EngineCommand> commands = std::exchange(w.inbox, {});
  w.core->Step(now(), &commands, &out);
  w.core->Audit();
  if (on_turn) on_turn(index);
  Deliver(index, std::move(out));
  ArmTimer(index);
}

void SimCluster::ArmTimer(size_t index) {
  Worker& w = *workers_[index];
  const TimePoint next = w.core->NextTimer();
  if (next == kNever || (w.timer_at <= next && w.timer_at > now())) return;
  w.timer_at = next;
  const uint64_t incarnation = w.incarnation;
  loop_.At(next, [this, index, incarnation, next] {
    Worker& worker = *workers_[index];
    if (worker.incarnation != incarnation || worker.core == nullptr || worker.timer_at != next) return;
    worker.timer_at = kNever;
    Wake(index);
  });
}

void SimCluster::Deliver(size_t index, Outbox out) {
  for (const Dial& dial : out.dial) DialPeer(index, dial);
  for (auto& [link, message] : out.to_peers) SendPair(index, link, std::move(message));
  for (auto& [link, message] : out.to_fronts) SendToFront(index, link, std::move(message));
  for (const WatchProcess& watch : out.watch) Watch(index, watch);
  for (const LinkId link : out.close) {
    if (const std::shared_ptr<Link> l = FindLink(index, link)) Break(l, "closed by " + workers_[index]->name);
  }
}

size_t SimCluster::IndexOf(const ProcessId& process) const {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i]->core != nullptr && workers_[i]->self.process == process) return i;
  }
  return workers_.size();
}

void SimCluster::Watch(size_t index, const WatchProcess& watch) {
  const uint64_t incarnation = workers_[index]->incarnation;
  loop_.After(Delay(), [this, index, incarnation, watch] {
    if (workers_[index]->incarnation != incarnation) return;
    const bool there = IndexOf(watch.process) < workers_.size();
    if (there) watched_[watch.process].push_back({index, incarnation});
    Command(index, ProcessWatched{watch.process, there});
    if (!there) Command(index, ProcessDied{watch.process});
  });
}

// ---- links ----------------------------------------------------------------------------------------

std::shared_ptr<SimCluster::Link> SimCluster::FindLink(size_t process, LinkId id) const {
  const auto it = links_.find({process, id});
  return it == links_.end() ? nullptr : it->second;
}

void SimCluster::DialFront(size_t index) {
  const uint64_t incarnation = workers_[index]->incarnation;
  loop_.After(Delay(), [this, index, incarnation] {
    Worker& w = *workers_[index];
    if (w.incarnation != incarnation || w.core == nullptr) return;
    auto link = std::make_shared<Link>();
    link->process[0] = index;
    link->process[1] = workers_.size();
    link->incarnation[0] = incarnation;
    link->incarnation[1] = front_incarnation_;
    link->id[0] = LinkId{next_link_++};
    link->id[1] = LinkId{next_link_++};
    links_[{index, link->id[0]}] = link;
    links_[{workers_.size(), link->id[1]}] = link;
    Command(index, LinkUp{link->id[0], LinkKind::kFront});
  });
}

void SimCluster::DialPeer(size_t index, const Dial& dial) {
  const uint64_t incarnation = workers_[index]->incarnation;
  loop_.After(Delay(), [this, index, incarnation, dial] {
    if (workers_[index]->incarnation != incarnation || workers_[index]->core == nullptr) return;
    // An address reaches whoever listens there now, whatever its incarnation.
    size_t peer = 0;
    while (peer < workers_.size() && workers_[peer]->name + ":1" != dial.peer.address) ++peer;
    if (peer == workers_.size() || workers_[peer]->core == nullptr || now() < workers_[peer]->paused_until) {
      return Command(index, LinkDown{dial.link, UnavailableError("nobody listens at " + dial.peer.address)});
    }
    auto link = std::make_shared<Link>();
    link->process[0] = index;
    link->process[1] = peer;
    link->incarnation[0] = incarnation;
    link->incarnation[1] = workers_[peer]->incarnation;
    link->id[0] = dial.link;
    link->id[1] = LinkId{next_link_++};
    links_[{index, link->id[0]}] = link;
    links_[{peer, link->id[1]}] = link;
    Command(peer, LinkUp{link->id[1], LinkKind::kPairReader});
    Command(index, LinkUp{link->id[0], LinkKind::kPairWriter});
  });
}

TimePoint SimCluster::NextDelivery(Link& link, int side, bool ordered) {
  TimePoint when = now() + Delay();
  if (!ordered) return when + Duration(static_cast<int64_t>(rng_.Below(options_.late_by.count() + 1)));
  when = std::max(when, link.last_delivery[side]);
  link.last_delivery[side] = when;
  return when;
}

void SimCluster::SendPair(size_t index, LinkId id, PairMessage message) {
  const std::shared_ptr<Link> link = FindLink(index, id);
  if (link == nullptr || !link->up) return;
  const int to = link->process[0] == index && link->id[0] == id ? 1 : 0;
  const bool greeting = std::holds_alternative<PairHello>(message) || std::holds_alternative<PairHelloAnswer>(message);
  if (!greeting && rng_.Chance(options_.message_drop)) return;
  const int copies = !greeting && rng_.Chance(options_.message_duplicate) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    const bool ordered = greeting || !(i > 0 || rng_.Chance(options_.message_late));
    loop_.At(NextDelivery(*link, to, ordered), [this, link, to, message] {
      if (!link->delivers) return;
      const size_t process = link->process[to];
      if (workers_[process]->incarnation == link->incarnation[to]) Command(process, FromPeer{link->id[to], message});
    });
  }
}

void SimCluster::SendToFront(size_t index, LinkId id, WorkerMessage message) {
  const std::shared_ptr<Link> link = FindLink(index, id);
  if (link == nullptr || !link->up) return;
  loop_.At(NextDelivery(*link, 1, true), [this, link, message = std::move(message)]() mutable {
    if (!link->delivers || link->incarnation[1] != front_incarnation_) return;
    if (auto* hello = std::get_if<WorkerHello>(&message)) {
      FrontInputNow(WorkerUp{link->id[1], std::move(*hello)});
    } else {
      FrontInputNow(FromWorker{link->id[1], std::move(std::get<WorkerBatch>(message))});
    }
  });
}

void SimCluster::Break(const std::shared_ptr<Link>& link, const std::string& why, bool death) {
  if (!link->up) return;
  link->up = false;
  link->delivers = death;
  for (int side = 0; side < 2; ++side) {
    const size_t process = link->process[side];
    loop_.At(std::max(now() + Delay(), link->last_delivery[side]), [this, link, side, process, why] {
      links_.erase({process, link->id[side]});
      if (process == workers_.size()) {
        if (link->incarnation[side] == front_incarnation_) FrontInputNow(WorkerDown{link->id[side], UnavailableError(why)});
        return;
      }
      Worker& w = *workers_[process];
      if (w.incarnation != link->incarnation[side] || w.core == nullptr) return;
      Command(process, LinkDown{link->id[side], UnavailableError(why)});
      if (link->process[1] == workers_.size()) loop_.After(std::chrono::milliseconds(20), [this, process, link] {
        if (workers_[process]->incarnation == link->incarnation[0]) DialFront(process);
      });
    });
  }
}

void SimCluster::BreakFrontLink(size_t index) {
  for (auto& [key, link] : links_) {
    if (key.first == index && link->process[1] == workers_.size() && link->up) return Break(link, "cut");
  }
}

void SimCluster::BreakPairLinks(size_t index) {
  std::vector<std::shared_ptr<Link>> mine;
  for (auto& [key, link] : links_) {
    if (key.first == index && link->process[1] != workers_.size() && link->up) mine.push_back(link);
  }
  for (const auto& link : mine) Break(link, "cut");
}

// ---- front ----------------------------------------------------------------------------------------

void SimCluster::BootFront() {
  ++front_incarnation_;
  FrontOptions o;
  o.self = {"front", {front_incarnation_, Mix64(front_incarnation_)}};
  o.seed = Mix64(options_.seed + 5);
  o.model = Identity();
  o.max_context_tokens = options_.max_context_tokens;
  o.limits = options_.front_limits;
  o.router.seed = options_.seed;
  o.router.cost_prior = {4e-4, 2e-5, 0, 3e-5, 0};
  o.router.local_margin = std::chrono::milliseconds(1);
  o.rules = options_.rules;
  front_ = std::make_unique<Front>(o, tokenizer_.get(), nullptr);
  front_timer_at_ = kNever;
}

void SimCluster::RestartFront() {
  std::vector<std::shared_ptr<Link>> mine;
  for (auto& [key, link] : links_) {
    if (key.first == workers_.size() && link->up) mine.push_back(link);
  }
  BootFront();
  for (const auto& link : mine) Break(link, "the front died", /*death=*/true);
}

ClientHandle SimCluster::Submit(ClientRequest request) {
  const ClientHandle client{next_client_++};
  FrontInputNow(ClientSubmit{client, std::move(request)});
  return client;
}

void SimCluster::Cancel(ClientHandle client) { FrontInputNow(ClientCancel{client, {}}); }

void SimCluster::FrontInputNow(FrontInput input) {
  FrontOutput out;
  front_->Handle(std::move(input), now(), &out);
  for (auto& [id, command] : out.to_workers) {
    const std::shared_ptr<Link> link = FindLink(workers_.size(), id);
    if (link == nullptr || !link->up) continue;
    loop_.At(NextDelivery(*link, 0, true), [this, link, command] {
      if (!link->delivers) return;
      const size_t process = link->process[0];
      if (workers_[process]->incarnation == link->incarnation[0]) Command(process, FromFront{link->id[0], command});
    });
  }
  for (const LinkClose& close : out.close) {
    if (const std::shared_ptr<Link> link = FindLink(workers_.size(), close.link)) Break(link, close.why.ToString());
  }
  if (on_event) {
    for (const auto& [client, event] : out.to_clients) on_event(client, event);
  }
  ArmFrontTimer();
}

void SimCluster::ArmFrontTimer() {
  const TimePoint next = front_->NextTimer();
  if (next == kNever || (front_timer_at_ <= next && front_timer_at_ > now())) return;
  front_timer_at_ = next;
  loop_.At(next, [this, next, incarnation = front_incarnation_] {
    if (front_incarnation_ != incarnation || front_timer_at_ != next) return;
    front_timer_at_ = kNever;
    FrontInputNow(Tick{});
  });
}

// ---- the end --------------------------------------------------------------------------------------

void SimCluster::StopFaults() {
  options_.message_drop = options_.message_duplicate = options_.message_late = 0;
  *faults_ = FaultPolicy(1, FaultRates{});
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& w = *workers_[i];
    if (w.paused_until <= now() || w.paused_until == kNever) continue;
    w.paused_until = {};
    w.wake_pending = false;
    Wake(i);
  }
}

bool SimCluster::Quiet(std::string* why) const {
  for (const auto& w : workers_) {
    if (w->core == nullptr) continue;
    const BlockCounts& c = w->core->pool().counts(0);
    if (!w->core->idle() || c.free + c.cached != c.total) {
      *why = w->name + ": " + std::to_string(c.owned) + " blocks owned, " + std::to_string(c.quarantined) +
             " quarantined" + (w->core->idle() ? "" : ", not idle");
      return false;
    }
  }
  return true;
}

}  // namespace baton

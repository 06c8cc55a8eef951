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

constexpr Duration kConnectTimeout = std::chrono::milliseconds(500);

// The ticket that a message is about, if it names one.
const Ticket* TicketOf(const PairMessage& message) {
  return std::visit(
      [](const auto& m) -> const Ticket* {
        if constexpr (requires { m.ticket; }) return &m.ticket;
        return nullptr;
      },
      message);
}

}  // namespace

TimePoint SimClock::Local(TimePoint global) const {
  return global + offset + Duration(global.time_since_epoch().count() / 1000 * drift_ppm / 1000);
}

TimePoint SimClock::Global(TimePoint local) const {
  if (local == kNever) return kNever;
  const int64_t since = (local - offset).time_since_epoch().count();
  TimePoint global{
      Duration(static_cast<int64_t>(static_cast<double>(since) / (1 + 1e-6 * static_cast<double>(drift_ppm))))};
  while (Local(global) < local) global += std::max<Duration>(Duration(1), local - Local(global));
  return global;
}

void SimFaultCounts::Add(const SimFaultCounts& o) {
  messages_dropped += o.messages_dropped, messages_duplicated += o.messages_duplicated,
      messages_late += o.messages_late;
  posts_delayed += o.posts_delayed, posts_truncated += o.posts_truncated, posts_failed += o.posts_failed;
  posts_stuck += o.posts_stuck, late_puts += o.late_puts;
  notices_delayed += o.notices_delayed, notices_dropped += o.notices_dropped;
  notices_duplicated += o.notices_duplicated;
  kills += o.kills, pauses += o.pauses, cuts += o.cuts, links_broken += o.links_broken;
  front_restarts += o.front_restarts, drains += o.drains;
  handoffs += o.handoffs, faulted_handoffs += o.faulted_handoffs, stale_bytes += o.stale_bytes;
}

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
  fabric_.held_until = [this](const ProcessId& from, const ProcessId& to) {
    const size_t a = IndexOf(from), b = IndexOf(to);
    return IsFront(a) || IsFront(b) ? TimePoint{} : CutUntil(a, b);
  };
  fabric_.on_landed = [this](const ProcessId& reader, const Ticket& ticket, uint64_t bytes) {
    OnLanded(reader, ticket, bytes);
  };
  fabric_.on_fault = [this](FaultPoint point, FaultKind kind, const Ticket& ticket) {
    const bool post = point == FaultPoint::kPost;
    if (kind == FaultKind::kDelay) ++(post ? counts_.posts_delayed : counts_.notices_delayed);
    if (kind == FaultKind::kTruncate) ++counts_.posts_truncated;
    if (kind == FaultKind::kFail) ++counts_.posts_failed;
    if (kind == FaultKind::kNeverComplete) ++counts_.posts_stuck;
    if (kind == FaultKind::kDrop) ++counts_.notices_dropped;
    if (kind == FaultKind::kDuplicate) ++counts_.notices_duplicated;
    MarkFaulted(ticket);
  };
  for (uint32_t i = 0; i < options_.num_fronts; ++i) {
    fronts_.push_back(std::make_unique<FrontProcess>());
    BootFront(i);
  }
  for (size_t i = 0; i < workers_.size(); ++i) Restart(i);
}

SimCluster::~SimCluster() = default;

Duration SimCluster::Delay() {
  const auto span = static_cast<uint64_t>((options_.max_delay - options_.min_delay).count()) + 1;
  return options_.min_delay + Duration(static_cast<int64_t>(rng_.Below(span)));
}

SimClock SimCluster::DrawClock() {
  SimClock clock;
  if (options_.clock_spread > Duration(0)) {
    clock.offset = Duration(static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(options_.clock_spread.count()))));
  }
  if (options_.clock_drift_ppm > 0) {
    clock.drift_ppm = static_cast<int64_t>(rng_.Below(2 * options_.clock_drift_ppm + 1)) - options_.clock_drift_ppm;
  }
  return clock;
}

const SimClock& SimCluster::ClockOf(size_t process) const {
  return IsFront(process) ? fronts_[process - workers_.size()]->clock : workers_[process]->clock;
}

uint64_t SimCluster::IncarnationOf(size_t process) const {
  return IsFront(process) ? fronts_[process - workers_.size()]->incarnation : workers_[process]->incarnation;
}

// ---- faults ---------------------------------------------------------------------------------------

void SimCluster::MarkFaulted(const Ticket& ticket) {
  if (faulted_.insert(ticket).second) ++counts_.faulted_handoffs;
}

void SimCluster::MarkFaulted(size_t worker, size_t peer) {
  for (const size_t w : {worker, peer}) {
    const EngineCore* core = workers_[w]->core.get();
    if (core == nullptr) continue;
    const size_t other = w == worker ? peer : worker;
    const auto concerned = [&](const ProcessId& process) { return worker == peer || IndexOf(process) == other; };
    for (const WriterChild* c : core->connector().writer().Live()) {
      if (c->ticket != Ticket{} && concerned(c->reader)) MarkFaulted(c->ticket);
    }
    for (const ReaderTicket* t : core->connector().reader().Live()) {
      if (concerned(t->writer)) MarkFaulted(t->ticket);
    }
  }
}

void SimCluster::OnLanded(const ProcessId& reader, const Ticket& ticket, uint64_t bytes) {
  const size_t index = IndexOf(reader);
  const ReaderTicket* t = index < workers_.size() ? workers_[index]->core->connector().reader().Find(ticket) : nullptr;
  const bool over = t == nullptr || t->ticket != ticket || t->state == TicketState::kConverting ||
                    t->state == TicketState::kReady || t->state == TicketState::kRunning;
  if (over) counts_.stale_bytes += bytes;
  if (!over && t->state == TicketState::kQuarantined) ++counts_.late_puts;
}

TimePoint SimCluster::CutUntil(size_t from, size_t to) const {
  const auto it = cut_until_.find({from, to});
  return it == cut_until_.end() ? TimePoint{} : it->second;
}

void SimCluster::Cut(size_t from, size_t to, Duration how_long) {
  if (from == to) return;
  ++counts_.cuts;
  if (!IsFront(from) && !IsFront(to)) MarkFaulted(from, to);
  TimePoint& until = cut_until_[{from, to}];
  until = std::max(until, now() + how_long);
  if (how_long < options_.keepalive) return;
  loop_.After(options_.keepalive, [this, from, to] {
    if (CutUntil(from, to) <= now()) return;
    std::vector<std::shared_ptr<Link>> between;
    for (auto& [key, link] : links_) {
      const auto& [a, b] = link->process;
      if (link->up && key.first == from && ((a == from && b == to) || (a == to && b == from))) between.push_back(link);
    }
    for (const auto& link : between) Break(link, "no answer", /*death=*/false, options_.keepalive / 2);
  });
}

void SimCluster::Drain(size_t index) {
  ++counts_.drains;
  Command(index, BeginDrain{});
  RestartWhenIdle(index, workers_[index]->incarnation);
}

void SimCluster::RestartWhenIdle(size_t index, uint64_t incarnation) {
  loop_.After(std::chrono::milliseconds(10), [this, index, incarnation] {
    const Worker& w = *workers_[index];
    if (w.incarnation != incarnation || w.core == nullptr) return;
    if (!w.core->draining() || !w.core->idle()) return RestartWhenIdle(index, incarnation);
    Kill(index);
    --counts_.kills;
    Restart(index);
  });
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
  w.clock = DrawClock();
  EngineOptions o;
  o.self = w.self;
  o.model = Identity();
  const uint64_t pool_bytes =
      options_.pool_blocks * SimLayout(options_.block_tokens, options_.layers).BlockBytes(0) + 4096;
  const bool other = !w.roles.prefill && options_.decode_block_tokens != 0;
  o.layout = SimLayout(other ? options_.decode_block_tokens : options_.block_tokens, options_.layers);
  o.pool = PlanPool(o.layout, pool_bytes);
  o.numeric = {3, 4};
  o.vocab_size = kSimVocabulary;
  o.scheduler.max_step_tokens = options_.max_step_tokens;
  o.scheduler.max_prefill_tokens = options_.max_prefill_tokens;
  o.scheduler.max_running = options_.max_running;
  o.scheduler.max_waiting = options_.max_waiting;
  o.scheduler.max_context_tokens = options_.max_context_tokens;
  o.scheduler.prefix_cache = options_.prefix_cache;
  o.roles = w.roles;
  o.send = options_.send;
  o.submit_credits = options_.max_waiting;
  o.prior = {4e-4, 2e-5, 0, 3e-5, 0};
  o.host = "sim";
  o.pid = index * 1000 + w.incarnation;
  o.seed = Mix64(options_.seed * 31 + index * 7 + w.incarnation);
  o.rules = options_.rules;
  if (options_.upgrades && w.incarnation <= 1) o.protocol = kOldestProtocol;
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
  for (size_t f = 0; f < fronts_.size(); ++f) DialFront(index, f);
}

void SimCluster::Kill(size_t index) {
  Worker& w = *workers_[index];
  if (w.core == nullptr) return;
  const ProcessId process = w.self.process;
  ++counts_.kills;
  MarkFaulted(index, index);
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
  ++counts_.pauses;
  MarkFaulted(index, index);
  workers_[index]->paused_until = std::max(workers_[index]->paused_until, now() + how_long);
}

void SimCluster::Supervise(const Quarantine& stuck) {
  loop_.After(Delay(), [this, writer = stuck.writer] {
    const size_t index = IndexOf(writer);
    if (index == workers_.size()) return;
    ++supervisor_kills_;
    Kill(index);
    Restart(index);
  });
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
  w.core->Step(w.clock.Local(now()), &commands, &out);
  w.core->Audit();
  if (on_turn) on_turn(index);
  Deliver(index, std::move(out));
  ArmTimer(index);
}

void SimCluster::ArmTimer(size_t index) {
  Worker& w = *workers_[index];
  const TimePoint next = w.clock.Global(w.core->NextTimer());
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
  for (const Quarantine& stuck : out.stuck) Supervise(stuck);
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

void SimCluster::DialFront(size_t index, size_t front) {
  const uint64_t incarnation = workers_[index]->incarnation;
  loop_.After(Delay(), [this, index, front, incarnation] {
    Worker& w = *workers_[index];
    if (w.incarnation != incarnation || w.core == nullptr) return;
    const size_t process = workers_.size() + front;
    if (CutUntil(index, process) > now() || CutUntil(process, index) > now()) {
      return loop_.After(kConnectTimeout, [this, index, front, incarnation] {
        if (workers_[index]->incarnation == incarnation) DialFront(index, front);
      });
    }
    auto link = std::make_shared<Link>();
    link->process[0] = index;
    link->process[1] = process;
    link->incarnation[0] = incarnation;
    link->incarnation[1] = fronts_[front]->incarnation;
    link->id[0] = LinkId{next_link_++};
    link->id[1] = LinkId{next_link_++};
    links_[{index, link->id[0]}] = link;
    links_[{process, link->id[1]}] = link;
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
    if (CutUntil(index, peer) > now() || CutUntil(peer, index) > now()) {
      return loop_.After(kConnectTimeout, [this, index, incarnation, dial] {
        if (workers_[index]->incarnation != incarnation) return;
        Command(index, LinkDown{dial.link, UnavailableError("no way to " + dial.peer.address)});
      });
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
  const TimePoint when = std::max(now(), CutUntil(link.process[1 - side], link.process[side])) + Delay();
  if (!ordered) return when + Duration(static_cast<int64_t>(rng_.Below(options_.late_by.count() + 1)));
  return link.last_delivery[side] = std::max(when, link.last_delivery[side]);
}

void SimCluster::SendPair(size_t index, LinkId id, PairMessage message) {
  const std::shared_ptr<Link> link = FindLink(index, id);
  if (link == nullptr || !link->up) return;
  const int to = link->process[0] == index && link->id[0] == id ? 1 : 0;
  const bool greeting = std::holds_alternative<PairHello>(message) || std::holds_alternative<PairHelloAnswer>(message);
  const Ticket* ticket = TicketOf(message);
  const auto met = [&](uint64_t* count) {
    ++*count;
    if (ticket != nullptr) MarkFaulted(*ticket);
  };
  if (std::holds_alternative<Grant>(message) && handoffs_.insert(*ticket).second) ++counts_.handoffs;
  if (!greeting && rng_.Chance(options_.message_drop)) return met(&counts_.messages_dropped);
  const int copies = !greeting && rng_.Chance(options_.message_duplicate) ? 2 : 1;
  if (copies == 2) met(&counts_.messages_duplicated);
  for (int i = 0; i < copies; ++i) {
    const bool ordered = greeting || !(i > 0 || rng_.Chance(options_.message_late));
    if (!ordered && i == 0) met(&counts_.messages_late);
    loop_.At(NextDelivery(*link, to, ordered), [this, link, to, message] {
      if (!link->delivers) return;
      const size_t process = link->process[to];
      if (IncarnationOf(process) == link->incarnation[to]) Command(process, FromPeer{link->id[to], message});
    });
  }
}

void SimCluster::SendToFront(size_t index, LinkId id, WorkerMessage message) {
  const std::shared_ptr<Link> link = FindLink(index, id);
  if (link == nullptr || !link->up) return;
  loop_.At(NextDelivery(*link, 1, true), [this, link, message = std::move(message)]() mutable {
    const size_t process = link->process[1];
    if (!link->delivers || link->incarnation[1] != IncarnationOf(process)) return;
    const size_t front = process - workers_.size();
    if (auto* hello = std::get_if<WorkerHello>(&message)) {
      FrontInputNow(front, WorkerUp{link->id[1], std::move(*hello)});
    } else {
      FrontInputNow(front, FromWorker{link->id[1], std::move(std::get<WorkerBatch>(message))});
    }
  });
}

void SimCluster::Break(const std::shared_ptr<Link>& link, const std::string& why, bool death, Duration learn_within) {
  if (!link->up) return;
  link->up = false;
  link->delivers = death;
  ++counts_.links_broken;
  if (!IsFront(link->process[1])) MarkFaulted(link->process[0], link->process[1]);
  for (int side = 0; side < 2; ++side) {
    const size_t process = link->process[side];
    TimePoint when = now() + Delay();
    if (learn_within > Duration(0)) when += Duration(static_cast<int64_t>(rng_.Below(learn_within.count())));
    // What arrives before the end of the stream is read first.
    if (death) when = std::max(when, link->last_delivery[side]);
    loop_.At(when, [this, link, side, process, why] {
      // A new start of the process may use the name of the link again before the old one's end is read.
      const auto known = links_.find({process, link->id[side]});
      if (known != links_.end() && known->second == link) links_.erase(known);
      if (IsFront(process)) {
        if (link->incarnation[side] == IncarnationOf(process)) {
          FrontInputNow(process - workers_.size(), WorkerDown{link->id[side], UnavailableError(why)});
        }
        return;
      }
      Worker& w = *workers_[process];
      if (w.incarnation != link->incarnation[side] || w.core == nullptr) return;
      Command(process, LinkDown{link->id[side], UnavailableError(why)});
      if (IsFront(link->process[1]))
        loop_.After(std::chrono::milliseconds(20), [this, process, link] {
          if (workers_[process]->incarnation != link->incarnation[0]) return;
          DialFront(process, link->process[1] - workers_.size());
        });
    });
  }
}

void SimCluster::BreakFrontLink(size_t index) {
  for (auto& [key, link] : links_) {
    if (key.first == index && IsFront(link->process[1]) && link->up) return Break(link, "cut");
  }
}

void SimCluster::BreakPairLinks(size_t index) {
  std::vector<std::shared_ptr<Link>> mine;
  for (auto& [key, link] : links_) {
    if (key.first == index && !IsFront(link->process[1]) && link->up) mine.push_back(link);
  }
  for (const auto& link : mine) Break(link, "cut");
}

// ---- front ----------------------------------------------------------------------------------------

void SimCluster::BootFront(size_t index) {
  FrontProcess& f = *fronts_[index];
  ++f.incarnation;
  f.clock = DrawClock();
  FrontOptions o;
  const std::string name = index == 0 ? "front" : "front" + std::to_string(index);
  o.self = {name, {f.incarnation, Mix64(f.incarnation + 1000 * index)}};
  o.seed = Mix64(options_.seed + 5 + 1000 * index);
  o.model = Identity();
  o.max_context_tokens = options_.max_context_tokens;
  o.limits = options_.front_limits;
  o.router.seed = options_.seed + index;
  o.router.cost_prior = {4e-4, 2e-5, 0, 3e-5, 0};
  o.router.local_margin = std::chrono::milliseconds(1);
  o.rules = options_.rules;
  f.front = std::make_unique<Front>(o, tokenizer_.get(), nullptr);
  f.timer_at = kNever;
}

void SimCluster::RestartFront(size_t index) {
  ++counts_.front_restarts;
  std::vector<std::shared_ptr<Link>> mine;
  for (auto& [key, link] : links_) {
    if (key.first == workers_.size() + index && link->up) mine.push_back(link);
  }
  BootFront(index);
  for (const auto& link : mine) Break(link, "the front died", /*death=*/true);
}

ClientHandle SimCluster::Submit(ClientRequest request, size_t front) {
  client_front_.push_back(front);
  const ClientHandle client{client_front_.size()};
  FrontInputNow(front, ClientSubmit{client, std::move(request)});
  return client;
}

void SimCluster::Cancel(ClientHandle client) {
  const size_t index = front_of(client);
  const ChildId child = front(index).ChildOf(client);
  for (const auto& w : workers_) {
    if (w->core == nullptr) continue;
    for (const WriterChild* c : w->core->connector().writer().Live()) {
      if (c->key.child == child && c->ticket != Ticket{}) MarkFaulted(c->ticket);
    }
  }
  FrontInputNow(index, ClientCancel{client, {}});
}

void SimCluster::FrontInputNow(size_t index, FrontInput input) {
  FrontProcess& f = *fronts_[index];
  const size_t self = workers_.size() + index;
  FrontOutput out;
  f.front->Handle(std::move(input), f.clock.Local(now()), &out);
  for (auto& [id, command] : out.to_workers) {
    const std::shared_ptr<Link> link = FindLink(self, id);
    if (link == nullptr || !link->up) continue;
    loop_.At(NextDelivery(*link, 0, true), [this, link, command] {
      if (!link->delivers) return;
      const size_t process = link->process[0];
      if (IncarnationOf(process) == link->incarnation[0]) Command(process, FromFront{link->id[0], command});
    });
  }
  for (const LinkClose& close : out.close) {
    if (const std::shared_ptr<Link> link = FindLink(self, close.link)) Break(link, close.why.ToString());
  }
  if (on_event) {
    for (const auto& [client, event] : out.to_clients) on_event(client, event);
  }
  if (on_order) {
    for (const auto& [handle, update] : out.to_operators) on_order(handle, update);
  }
  ArmFrontTimer(index);
}

void SimCluster::ArmFrontTimer(size_t index) {
  FrontProcess& f = *fronts_[index];
  const TimePoint next = f.clock.Global(f.front->NextTimer());
  if (next == kNever || (f.timer_at <= next && f.timer_at > now())) return;
  f.timer_at = next;
  loop_.At(next, [this, index, next, incarnation = f.incarnation] {
    FrontProcess& front = *fronts_[index];
    if (front.incarnation != incarnation || front.timer_at != next) return;
    front.timer_at = kNever;
    FrontInputNow(index, Tick{});
  });
}

// ---- the end --------------------------------------------------------------------------------------

void SimCluster::StopFaults() {
  options_.message_drop = options_.message_duplicate = options_.message_late = 0;
  *faults_ = FaultPolicy(1, FaultRates{});
  cut_until_.clear();
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

#include "front/front.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <span>

#include "base/hash.h"
#include "base/log.h"
#include "base/rng.h"
#include "baton/check.h"
#include "front/front_request.h"
#include "front/operations.h"
#include "front/prepare.h"
#include "front/sessions.h"

namespace baton {
namespace {

constexpr size_t kMaxTriesAtOnce = 64;  // placements of waiting requests per input
// Migrations that leave one worker at a time: they share its way out, and each stands still for its last step.
constexpr size_t kMostMigrations = 4;
constexpr size_t kMostMigrationTries = 8;  // per input
constexpr Duration kRetrySoon = std::chrono::milliseconds(200);
constexpr Duration kRetryLater = std::chrono::seconds(1);
constexpr const char* kNewerSession = "a newer session of this worker was opened";

// What has started goes first: a client is waiting in the middle of an answer. Then priority, then age.
struct QueueKey {
  bool fresh;
  int64_t negative_priority;
  uint64_t number;
  friend auto operator<=>(const QueueKey&, const QueueKey&) = default;
};

ChildId ChildOfEvent(const ChildEvent& event) {
  return std::visit([](const auto& e) { return e.child; }, event);
}
Epoch EpochOfEvent(const ChildEvent& event) {
  return std::visit([](const auto& e) { return e.epoch; }, event);
}
// Events that say "I hold this"; all others are answers, or tell of an end, and are never answered (S5).
bool Holding(const ChildEvent& event) {
  return std::holds_alternative<TokenEvent>(event) || std::holds_alternative<Running>(event);
}

}  // namespace

uint64_t FrontFingerprint(const ProcessId& self) {
  std::string bytes = self.name;
  bytes.push_back('\0');
  for (const uint64_t v : {self.incarnation.counter, self.incarnation.random}) {
    for (int shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<char>(v >> shift));
  }
  return Hash64(bytes);
}

struct Front::State {
  State(FrontOptions o, const Tokenizer* t, const ChatTemplate* c)
      : options(std::move(o)),
        tokenizer(t),
        chat(c),
        fingerprint(FrontFingerprint(options.self)),
        router(options.router),
        hung_after(options.rules.Holds(Rule::kL4) ? options.limits.hung_after : Duration(std::chrono::hours(10000))),
        budget(options.limits.cluster_retry_fraction, options.limits.cluster_retry_burst) {}

  struct Live {
    std::unique_ptr<FrontRequest> request;
    TimePoint timer = kNever;        // as in `timers`
    std::optional<QueueKey> queued;  // as in `queue`
  };

  const FrontOptions options;
  const Tokenizer* const tokenizer;
  const ChatTemplate* const chat;
  const uint64_t fingerprint;
  Router router;
  Sessions sessions;
  const Duration hung_after;  // L4: silence of a worker's engine thread
  ClusterRetryBudget budget;
  FrontCounters counters;
  Operations operations;
  bool stopping = false;
  TimePoint started = kNever;
  uint64_t next_number = 1;
  std::map<uint64_t, Live> requests;  // by ChildId::number
  std::map<ClientHandle, uint64_t> by_client;
  std::map<std::string, uint64_t, std::less<>> by_id;
  std::set<QueueKey> queue;
  std::set<std::pair<TimePoint, uint64_t>> timers;
  TimePoint now{};

  FrontContext Context(FrontOutput* out) { return {options, router, sessions, counters, budget, now, out}; }
  OperationContext ForOperations(FrontOutput* out) {
    return {router,
            sessions,
            now,
            out,
            [this](WorkerId worker) { return RequestsOn(worker); },
            static_cast<uint32_t>(requests.size())};
  }
  uint32_t RequestsOn(WorkerId worker) const {
    const auto depends = [worker](const auto& entry) { return entry.second.request->DependsOn(worker); };
    return static_cast<uint32_t>(std::count_if(requests.begin(), requests.end(), depends));
  }
  bool draining() const { return stopping || operations.router_drains(); }

  void Submit(ClientSubmit& submit, FrontOutput* out);
  std::optional<Rejection> Refuse(const ClientRequest& request) const;
  void Reject(ClientHandle client, const std::string& id, Rejection why, FrontOutput* out);
  void Cancel(uint64_t number, bool tell_client, FrontOutput* out);
  void AddWorker(const WorkerUp& up, FrontOutput* out);
  void RefuseWorker(LinkId link, const WorkerHello& hello, Status why, FrontOutput* out);
  void EndSession(const WorkerSession& session, FrontOutput* out);
  void LoseWorker(const WorkerSession& session, FrontOutput* out);
  void OnBatch(LinkId link, const WorkerBatch& batch, FrontOutput* out);
  void OnChildEvent(const WorkerSession& session, const ChildEvent& event, FrontOutput* out);
  void OnTick(FrontOutput* out);
  void MoveAway(WorkerId worker, FrontOutput* out);
  void PlaceWaiting(FrontOutput* out);
  void After(uint64_t number, FrontOutput* out);
  void SetTimer(uint64_t number, Live& live, TimePoint timer);
  void SetQueued(Live& live, std::optional<QueueKey> key);
  void Retire(uint64_t number);
};

// ---- clients ------------------------------------------------------------------------------------

std::optional<Rejection> Front::State::Refuse(const ClientRequest& request) const {
  const FrontLimits& limits = options.limits;
  if (draining()) {
    return Rejection{UnavailableError("the router is draining and admits nothing new"), "DRAINING", kRetryLater};
  }
  if (requests.size() >= limits.max_live) {
    return Rejection{
        ResourceExhaustedError(fmt::format("{} requests are live, at most {}", requests.size(), limits.max_live)),
        "TOO_MANY_REQUESTS", kRetryLater};
  }
  if (queue.size() >= limits.max_queued && !router.HasCredit()) {
    return Rejection{
        ResourceExhaustedError(fmt::format("{} requests are waiting, at most {}", queue.size(), limits.max_queued)),
        "QUEUE_FULL", kRetrySoon};
  }
  if (!request.request_id.empty() && by_id.contains(request.request_id)) {
    return Rejection{
        AlreadyExistsError(fmt::format("request_id: \"{}\" is live already", request.request_id)), "DUPLICATE_ID", {}};
  }
  return std::nullopt;
}

void Front::State::Reject(ClientHandle client, const std::string& id, Rejection why, FrontOutput* out) {
  ++counters.rejected;
  out->to_clients.emplace_back(client, Failed{std::move(why.status), std::move(why.reason), id, why.retry_after});
}

void Front::State::Submit(ClientSubmit& submit, FrontOutput* out) {
  ++counters.submitted;
  const ClientHandle client = submit.client;
  BATON_CHECK(!by_client.contains(client), "a client handle is submitted twice");
  if (auto why = Refuse(submit.request)) return Reject(client, submit.request.request_id, std::move(*why), out);
  auto prepared = Prepare(submit.request, options, *tokenizer, chat);
  if (auto* why = std::get_if<Rejection>(&prepared)) {
    return Reject(client, submit.request.request_id, std::move(*why), out);
  }
  const uint64_t number = next_number++;
  const uint64_t draw =
      KeyedDraw(options.seed ^ options.self.incarnation.random, options.self.incarnation.counter, number);
  auto& accepted = std::get<Prepared>(prepared);
  if (accepted.draw_seed) accepted.request.sampling.seed = Mix64(draw);
  std::string id = submit.request.request_id;
  if (id.empty()) id = fmt::format("req-{:016x}", draw);
  if (by_id.contains(id)) id = fmt::format("req-{:016x}-{}", draw, number);  // a client chose just that name

  budget.OnRequest();
  const FrontContext ctx = Context(out);
  Live live;
  live.request =
      std::make_unique<FrontRequest>(ChildId{fingerprint, number, 0}, client, id, std::move(accepted), tokenizer, ctx);
  by_client.emplace(client, number);
  by_id.emplace(std::move(id), number);
  FrontRequest& request = *requests.emplace(number, std::move(live)).first->second.request;
  // What waits goes first; without any worker nothing waits, and this one learns it at once.
  if (queue.empty() || router.num_workers() == 0) request.TryPlace(ctx);
  After(number, out);
}

void Front::State::Cancel(uint64_t number, bool tell_client, FrontOutput* out) {
  requests.at(number).request->Cancel(tell_client, Context(out));
  After(number, out);
}

// ---- workers ------------------------------------------------------------------------------------

void Front::State::RefuseWorker(LinkId link, const WorkerHello& hello, Status why, FrontOutput* out) {
  if (why.code() == Code::kFailedPrecondition) ++counters.superseded;
  spdlog::warn("worker {} ({}) is refused: {}", ToString(hello.self.process), hello.self.address, why.message());
  out->close.push_back({link, std::move(why)});
}

void Front::State::AddWorker(const WorkerUp& up, FrontOutput* out) {
  WorkerHello hello = up.hello;
  if (Status s = sessions.Admit(hello, options); !s.ok()) return RefuseWorker(up.link, hello, std::move(s), out);
  hello.protocol = std::min(hello.protocol, options.protocol);  // of this session
  // A Hello ends its own process's older session before anything on the new one is read.
  std::optional<WorkerSession> ended;
  if (const WorkerSession* old = sessions.OfName(hello.self.process.name)) {
    if (old->self.process != hello.self.process) {
      spdlog::info("worker {} ({}) waits for its name, which {} ({}) has", ToString(hello.self.process),
                   hello.self.address, ToString(old->self.process), old->self.address);
      if (auto other = sessions.Contend({up.link, hello, now})) {
        const bool same = other->hello.self.process == hello.self.process;
        if (same) return out->close.push_back({other->link, UnavailableError(kNewerSession)});
        RefuseWorker(other->link, other->hello,
                     FailedPreconditionError("superseded: a newer start waits for the same name"), out);
      }
      return;
    }
    ended = *old;
    out->close.push_back({old->link, UnavailableError(kNewerSession)});
    router.RemoveWorker(old->worker);
    sessions.Remove(ended->worker);
  }
  const WorkerId worker = router.AddWorker(hello, now);
  sessions.Add(up.link, worker, hello, now, hung_after);
  sessions.Send(worker, FrontHello{options.self, fingerprint}, out);
  if (ended) {
    LoseWorker(*ended, out);
    operations.OnWorkerLost(*ended, ForOperations(out));
  }
  for (auto& [number, live] : requests) live.request->TakeBackHit(hello.self.process);
}

void Front::State::EndSession(const WorkerSession& session, FrontOutput* out) {
  router.RemoveWorker(session.worker);
  sessions.Remove(session.worker);
  LoseWorker(session, out);
  operations.OnWorkerLost(session, ForOperations(out));
  if (auto next = sessions.TakeContender(session.self.process.name)) {
    AddWorker(WorkerUp{next->link, std::move(next->hello)}, out);
  }
}

// The session is no longer in `sessions`, nor the worker in `router`.
void Front::State::LoseWorker(const WorkerSession& session, FrontOutput* out) {
  std::vector<uint64_t> affected;
  for (const auto& [number, live] : requests) {
    if (live.request->DependsOn(session.worker)) affected.push_back(number);
  }
  for (const uint64_t number : affected) {
    requests.at(number).request->OnWorkerLost(session, Context(out));
    After(number, out);
  }
}

void Front::State::OnBatch(LinkId link, const WorkerBatch& batch, FrontOutput* out) {
  WorkerSession* session = sessions.Find(link);
  if (session == nullptr) return;  // closed from here
  sessions.OnHeartbeat(session, batch.heartbeat, now, hung_after);
  if (const auto other = sessions.RefutedBy(*session, now)) {
    RefuseWorker(other->link, other->hello,
                 FailedPreconditionError(fmt::format(
                     "the name {} belongs to a worker that lives: start {} ({}); this is start {} ({}). Stop one of "
                     "them, or give this one another --name",
                     session->self.process.name, session->self.process.incarnation.counter, session->self.address,
                     other->hello.self.process.incarnation.counter, other->hello.self.address)),
                 out);
  }
  router.OnHeartbeat(session->worker, batch.heartbeat, now);
  for (const Quarantine& q : batch.heartbeat.quarantines) {
    if (!q.stuck) continue;
    // Its supervisor kills it, perhaps long after it fell silent: no request's doing (L8, L9).
    sessions.MarkStuck(q.writer);
    for (auto& [number, live] : requests) live.request->TakeBackHit(q.writer);
  }
  if (!router.OnCacheEvents(session->worker, batch.cache)) sessions.Send(session->worker, CacheResyncCommand{}, out);
  for (const WorkerReport& report : batch.report) router.OnReport(session->worker, report, now);
  for (const ChildEvent& event : batch.events) OnChildEvent(*session, event, out);
  MoveAway(session->worker, out);
  if (!operations.idle()) operations.OnHeartbeat(session->worker, ForOperations(out));
}

void Front::State::OnChildEvent(const WorkerSession& session, const ChildEvent& event, FrontOutput* out) {
  const ChildId child = ChildOfEvent(event);
  const Epoch epoch = EpochOfEvent(event);
  if (child.front != fingerprint) return;  // another front's, or of an earlier start: not ours to judge
  const auto it = requests.find(child.number);
  if (it != requests.end() && child == it->second.request->child() &&
      it->second.request->Holds(session.worker, epoch)) {
    it->second.request->OnEvent(session.worker, event, Context(out));
    return After(child.number, out);
  }
  if (!Holding(event) || !options.rules.Holds(Rule::kS5)) return;
  ++counters.stray_events;
  sessions.Send(session.worker, CancelCommand{child, epoch}, out);
}

// What runs on a worker that drains goes on elsewhere, as far as somebody is fit; the rest runs to its end there.
void Front::State::MoveAway(WorkerId worker, FrontOutput* out) {
  if (!router.admission(worker).draining) return;
  size_t moving = 0;
  std::vector<uint64_t> candidates;
  for (const auto& [number, live] : requests) {
    if (!live.request->RunsOn(worker)) continue;
    if (live.request->migrating()) {
      ++moving;
    } else if (candidates.size() < kMostMigrationTries && live.request->MayMigrate(now)) {
      candidates.push_back(number);
    }
  }
  for (const uint64_t number : candidates) {
    if (moving >= kMostMigrations) return;
    moving += requests.at(number).request->TryMigrate(Context(out)) ? 1 : 0;
    After(number, out);
  }
}

// ---- time and queue -----------------------------------------------------------------------------

void Front::State::OnTick(FrontOutput* out) {
  operations.Look(ForOperations(out));
  while (!timers.empty() && timers.begin()->first <= now) {
    const uint64_t number = timers.begin()->second;
    Live& live = requests.at(number);
    SetTimer(number, live, kNever);
    live.request->OnTimer(Context(out));
    After(number, out);
  }
  if (sessions.NextCheck() > now) return;
  for (const WorkerId worker : sessions.Expired(now)) {
    const WorkerSession session = *sessions.Find(worker);
    ++counters.hung_workers;
    spdlog::warn("worker {} was silent for {:.3f} s: its session ends", ToString(session.self.process),
                 Seconds(now - session.heard));
    out->close.push_back({session.link, UnavailableError("no heartbeat in time")});
    EndSession(session, out);
  }
  sessions.Rescan();
}

void Front::State::PlaceWaiting(FrontOutput* out) {
  if (queue.empty() || (router.num_workers() > 0 && !router.HasCredit())) return;
  std::vector<uint64_t> candidates;
  for (const QueueKey& key : queue) {
    if (candidates.size() == kMaxTriesAtOnce) break;
    if (requests.at(key.number).request->may_try(now)) candidates.push_back(key.number);
  }
  for (const uint64_t number : candidates) {
    const bool go_on = requests.at(number).request->TryPlace(Context(out));
    After(number, out);
    if (!go_on) break;
  }
}

// Brings the tables in line after a request changed.
void Front::State::After(uint64_t number, FrontOutput* out) {
  Live& live = requests.at(number);
  FrontRequest& r = *live.request;
  const FrontContext ctx = Context(out);
  // An epoch ended in this input: the next one is placed before the old one is cancelled.
  if (r.phase() == FrontRequest::Phase::kQueued && r.is_retry() && !live.queued && r.may_try(now)) r.TryPlace(ctx);
  r.FlushCancels(ctx);
  if (r.ended()) return Retire(number);
  const bool waits = r.phase() == FrontRequest::Phase::kQueued;
  SetQueued(live, waits ? std::optional(QueueKey{!r.is_retry(), -int64_t{r.priority()}, number}) : std::nullopt);
  // A weakened L1 waits for ever.
  SetTimer(number, live, options.rules.Holds(Rule::kL1) ? r.NextTimer() : kNever);
}

void Front::State::SetTimer(uint64_t number, Live& live, TimePoint timer) {
  if (live.timer == timer) return;
  if (live.timer != kNever) timers.erase({live.timer, number});
  if (timer != kNever) timers.emplace(timer, number);
  live.timer = timer;
}

void Front::State::SetQueued(Live& live, std::optional<QueueKey> key) {
  if (live.queued == key) return;
  if (live.queued) queue.erase(*live.queued);
  if (key) queue.insert(*key);
  live.queued = key;
}

void Front::State::Retire(uint64_t number) {
  const auto it = requests.find(number);
  SetTimer(number, it->second, kNever);
  SetQueued(it->second, std::nullopt);
  by_client.erase(it->second.request->client());
  by_id.erase(it->second.request->request_id());
  requests.erase(it);
}

// ---- the outside --------------------------------------------------------------------------------

Front::Front(FrontOptions options, const Tokenizer* tokenizer, const ChatTemplate* chat)
    : state_(std::make_unique<State>(std::move(options), tokenizer, chat)) {
  BATON_CHECK(tokenizer != nullptr && state_->options.max_context_tokens > 1);
}
Front::~Front() = default;

void Front::Handle(FrontInput input, TimePoint now, FrontOutput* out) {
  State& s = *state_;
  s.now = now;
  s.started = std::min(s.started, now);
  if (auto* submit = std::get_if<ClientSubmit>(&input)) {
    s.Submit(*submit, out);
  } else if (const auto* cancel = std::get_if<ClientCancel>(&input)) {
    if (cancel->client != ClientHandle{}) {
      if (const auto it = s.by_client.find(cancel->client); it != s.by_client.end()) s.Cancel(it->second, true, out);
    } else if (const auto it = s.by_id.find(cancel->request_id); it != s.by_id.end()) {
      s.Cancel(it->second, true, out);
    }
  } else if (const auto* gone = std::get_if<ClientGone>(&input)) {
    if (const auto it = s.by_client.find(gone->client); it != s.by_client.end()) s.Cancel(it->second, false, out);
  } else if (const auto* up = std::get_if<WorkerUp>(&input)) {
    s.AddWorker(*up, out);
  } else if (const auto* down = std::get_if<WorkerDown>(&input)) {
    s.sessions.ForgetContender(down->link);
    if (const WorkerSession* found = s.sessions.Find(down->link)) s.EndSession(WorkerSession(*found), out);
  } else if (const auto* from = std::get_if<FromWorker>(&input)) {
    s.OnBatch(from->link, from->batch, out);
  } else if (std::holds_alternative<Tick>(input)) {
    s.OnTick(out);
  } else if (std::holds_alternative<FrontDrain>(input)) {
    s.stopping = true;
  } else if (const auto* drain = std::get_if<DrainOrder>(&input)) {
    s.operations.Begin(*drain, s.ForOperations(out));
  } else if (const auto* role = std::get_if<RoleOrder>(&input)) {
    s.operations.Begin(*role, s.ForOperations(out));
  } else if (const auto* waiter = std::get_if<OperatorGone>(&input)) {
    s.operations.Forget(waiter->handle);
  } else if (const auto* move = std::get_if<MoveOrder>(&input)) {
    const auto it = s.by_client.find(move->client);
    FrontRequest* request = it == s.by_client.end() ? nullptr : s.requests.at(it->second).request.get();
    if (request != nullptr && request->MayMigrate(now)) {
      request->TryMigrate(s.Context(out));
      s.After(it->second, out);
    }
  }
  s.PlaceWaiting(out);
}

TimePoint Front::NextTimer() const {
  const State& s = *state_;
  const TimePoint request = s.timers.empty() ? kNever : s.timers.begin()->first;
  return std::min({request, s.sessions.NextCheck(), s.operations.NextTimer()});
}

bool Front::Knows(std::string_view request_id) const { return state_->by_id.find(request_id) != state_->by_id.end(); }
const FrontCounters& Front::counters() const { return state_->counters; }
uint32_t Front::live() const { return static_cast<uint32_t>(state_->requests.size()); }
uint32_t Front::queued() const { return static_cast<uint32_t>(state_->queue.size()); }
uint64_t Front::fingerprint() const { return state_->fingerprint; }

ChildId Front::ChildOf(ClientHandle client) const {
  const auto it = state_->by_client.find(client);
  return it == state_->by_client.end() ? ChildId{} : ChildId{state_->fingerprint, it->second, 0};
}

ClusterSnapshot Front::Snapshot(TimePoint now) const {
  const State& s = *state_;
  ClusterSnapshot out;
  out.front = s.options.self;
  out.model = s.options.served_name.empty() ? s.options.model.name : s.options.served_name;
  out.workers = s.router.Snapshot(now);
  out.live = live();
  out.queued = queued();
  out.draining = s.draining();
  out.uptime = s.started == kNever ? Duration(0) : now - s.started;
  out.counters = s.counters;
  return out;
}

bool Front::CouldServe() const { return !state_->draining() && state_->router.SomeDecoder(); }

}  // namespace baton

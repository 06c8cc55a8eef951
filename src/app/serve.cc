// `router`, `prefill`, `decode`, `unified`, and `up` in one process.
#include <signal.h>
#include <unistd.h>

#include <future>
#include <map>

#include "app/commands.h"
#include "app/model_source.h"
#include "app/process.h"
#include "app/supervisor.h"
#include "app/tls.h"
#include "app/worker.h"
#include "base/clock.h"
#include "base/log.h"
#include "rpc/front_thread.h"
#include "rpc/router_server.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kWatchStarting{10};
constexpr std::chrono::milliseconds kWatchRunning{500};

std::chrono::milliseconds Milliseconds(Duration d) { return std::chrono::duration_cast<std::chrono::milliseconds>(d); }

// Says who joins and who leaves a router, and when it has all that it waits for.
class MembershipLines {
 public:
  MembershipLines(RouterServer* server, EventLines* events, size_t expected)
      : server_(server), events_(events), expected_(expected) {}

  // How long until it is worth looking again.
  std::chrono::milliseconds Look() {
    std::map<std::string, Incarnation> now;
    for (const WorkerSnapshot& w : Snapshot().workers) now[w.process.name] = w.process.incarnation;
    // Between two looks a worker may have died and come back.
    const auto stays = [](const auto& all, const auto& worker) {
      const auto it = all.find(worker.first);
      return it != all.end() && it->second == worker.second;
    };
    for (const auto& worker : workers_) {
      if (stays(now, worker)) continue;
      events_->Say(worker.first + " left");
      complete_ = false;
    }
    for (const auto& worker : now) {
      if (!stays(workers_, worker)) events_->Say(worker.first + " joined");
    }
    workers_ = std::move(now);
    const bool complete = expected_ != 0 && workers_.size() >= expected_ && server_->front().serving();
    if (complete && !complete_) events_->Say(std::string(kAllJoinedLine));
    complete_ = complete;
    return expected_ != 0 && !complete_ ? kWatchStarting : kWatchRunning;
  }

 private:
  ClusterSnapshot Snapshot() {
    auto answer = std::make_shared<std::promise<ClusterSnapshot>>();
    auto future = answer->get_future();
    const bool asked =
        server_->front().Query([answer](const Front& front, TimePoint now) { answer->set_value(front.Snapshot(now)); });
    if (!asked || future.wait_for(std::chrono::seconds(1)) != std::future_status::ready) return {};
    return future.get();
  }

  RouterServer* const server_;
  EventLines* const events_;
  const size_t expected_;
  std::map<std::string, Incarnation> workers_;  // by name
  bool complete_ = false;
};

// The refusal of a worker by every router, as the main thread learns it, which waits for signals alone. Another start
// would be refused too.
class RefusedByAll {
 public:
  std::function<void(const Status&)> Teller() {
    return [this](const Status& why) {
      promise_.set_value(why);
      kill(getpid(), SIGTERM);
    };
  }
  // After a signal: not ok where it was this one.
  Status Get() const {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready ? future_.get() : OkStatus();
  }

 private:
  std::promise<Status> promise_;
  std::shared_future<Status> future_{promise_.get_future()};
};

EventLines EventsOf(const Settings& settings) { return EventLines(static_cast<int>(settings.Integer("status-fd"))); }

// Up to the first newline, which is not part of it; what came until then when the other end closes.
std::string ReadLine(int fd) {
  std::string line;
  char c = 0;
  while (read(fd, &c, 1) == 1 && c != '\n') line += c;
  close(fd);
  return line;
}

std::string Joined(const std::vector<std::string>& all) {
  std::string out;
  for (const std::string& one : all) out += (out.empty() ? "" : ",") + one;
  return out;
}

void SayChatProblem(const ModelSource& source) {
  if (!source.chat_problem.empty()) {
    spdlog::warn("chat requests are refused: the model's chat template cannot be used: {}", source.chat_problem);
  }
}

// What a router serves, and to whom.
StatusOr<RouterServerOptions> OpenRouter(const Settings& settings, const ModelSource& source, const ProcessId& front,
                                         const std::string& name) {
  RouterServerOptions out = MakeRouterOptions(settings, source, front);
  BATON_ASSIGN_OR_RETURN(out.tls, OpenTls(settings, name));
  BATON_ASSIGN_OR_RETURN(out.api_keys, OpenApiKeys(settings));
  return out;
}

int RunUpInOneProcess(const Settings& settings) {
  StopSignals signals(false);
  EventLines events = EventsOf(settings);
  if (Status s = UseCores(settings.Cores("cores")); !s.ok()) return Fail(kExitUsage, s);
  auto source = OpenModelSource(settings);
  if (!source.ok()) return Fail(kExitUsage, source.status());
  auto self = ClaimIdentity(settings, "unified");
  if (!self.ok()) return Fail(kExitUsage, self.status());
  ConfigureLogging(settings, self->name);
  SayChatProblem(*source);

  SteadyClock clock;
  ProcessId front = *self;
  front.name += ".router";
  auto options = OpenRouter(settings, *source, front, self->name);
  if (!options.ok()) return Fail(kExitUsage, options.status());
  auto server = RouterServer::Start(*std::move(options), &clock);
  if (!server.ok()) return Fail(kExitUsage, server.status());

  WorkerSetup setup;
  setup.self = *self;
  setup.find_routers = [&] {
    return StatusOr(std::vector<Endpoint>{{.address = {}, .in_process = (*server)->InProcess()}});
  };
  setup.alone = true;
  RefusedByAll refusal;
  setup.on_refused = refusal.Teller();
  auto worker = Worker::Start(settings, *source->file, std::move(setup), &events);
  if (!worker.ok()) return Fail(kExitUsage, worker.status());

  bool stop = false;
  while (!stop && !(*server)->front().serving()) stop = signals.Wait(std::chrono::milliseconds(1));
  if (!stop) {
    events.Say("baton is ready on " + (*server)->address() + ": one unified worker");
    signals.Wait();
  }
  if (Status refused = refusal.Get(); !refused.ok()) {
    (*worker)->Stop();
    return Fail(kExitUsage, refused);
  }
  signals.BeginDrain(settings.Time("drain-timeout"));
  (*server)->Drain(Milliseconds(settings.Time("drain-timeout")));
  (*worker)->Drain(std::chrono::milliseconds(500));
  (*worker)->Stop();  // first: it would call the router's end a loss
  (*server)->Shutdown();
  return kExitDone;
}

}  // namespace

int RunUp(const Settings& settings) {
  return settings.Integer("decode") > 0 ? RunSupervisor(settings) : RunUpInOneProcess(settings);
}

int RunRouter(const Settings& settings) {
  EventLines events = EventsOf(settings);
  StopSignals signals(events.supervised());
  auto source = OpenModelSource(settings);
  if (!source.ok()) return Fail(kExitUsage, source.status());
  auto self = ClaimIdentity(settings, "router");
  if (!self.ok()) return Fail(kExitUsage, self.status());
  ConfigureLogging(settings, self->name);
  SayChatProblem(*source);

  SteadyClock clock;
  auto options = OpenRouter(settings, *source, *self, self->name);
  if (!options.ok()) return Fail(kExitUsage, options.status());
  auto server = RouterServer::Start(*std::move(options), &clock);
  if (!server.ok()) return Fail(kExitUsage, server.status());
  events.Say(std::string(kListeningLine) + (*server)->address());
  MembershipLines members(server->get(), &events, static_cast<size_t>(settings.Integer("expect-workers")));
  while (!signals.Wait(members.Look())) {
  }
  signals.BeginDrain(settings.Time("drain-timeout"));
  (*server)->Drain(Milliseconds(settings.Time("drain-timeout")));
  (*server)->Shutdown();
  return kExitDone;
}

int RunWorker(const Settings& settings) {
  EventLines events = EventsOf(settings);
  StopSignals signals(events.supervised());
  if (Status s = UseCores(settings.Cores("cores")); !s.ok()) return Fail(kExitUsage, s);
  auto file = ModelFile::Open(settings.Text("model"));
  if (!file.ok()) return Fail(kExitUsage, file.status());
  const bool prefill = settings.command() == kPrefill;
  const bool decode = settings.command() == kDecode;
  auto self = ClaimIdentity(settings, prefill ? "prefill" : decode ? "decode" : "unified");
  if (!self.ok()) return Fail(kExitUsage, self.status());
  ConfigureLogging(settings, self->name);

  WorkerSetup setup;
  setup.self = *self;
  auto tls = OpenTls(settings, self->name);
  if (!tls.ok()) return Fail(kExitUsage, tls.status());
  setup.tls = *std::move(tls);
  setup.roles = {.prefill = !decode, .decode = !prefill};
  std::vector<std::string> routers = settings.Addresses("router");
  setup.find_routers = [&]() -> StatusOr<std::vector<Endpoint>> {
    if (const auto fd = static_cast<int>(settings.Integer("router-fd")); fd >= 0) {
      routers = {ReadLine(fd)};
      if (routers.front().empty()) return CancelledError("the supervisor stops before its router listens");
    }
    std::vector<Endpoint> out;
    for (const std::string& address : routers) out.push_back({.address = address, .in_process = nullptr});
    return out;
  };
  RefusedByAll refusal;
  setup.on_refused = refusal.Teller();
  auto worker = Worker::Start(settings, **file, std::move(setup), &events);
  if (worker.status().code() == Code::kCancelled) return kExitDone;
  if (!worker.ok()) return Fail(kExitUsage, worker.status());
  file->reset();
  events.Say("serves other workers on " + (*worker)->pair_address() + ", for " + Joined(routers));
  signals.Wait();
  if (Status refused = refusal.Get(); !refused.ok()) {
    (*worker)->Stop();
    if (events.supervised()) events.Say(std::string(kRefusedLine) + refused.message());
    return Fail(kExitUsage, refused);
  }
  signals.BeginDrain(settings.Time("drain-timeout"));
  if (!(*worker)->Drain(settings.Time("drain-timeout"))) spdlog::warn("stops with requests still running");
  (*worker)->Stop();
  return kExitDone;
}

}  // namespace baton

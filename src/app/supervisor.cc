#include "app/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "app/process.h"
#include "device/cpu/cpu_features.h"
#include "model/model_file.h"

namespace baton {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
constexpr Duration kFirstBackOff = std::chrono::milliseconds(100);
constexpr Duration kMostBackOff = std::chrono::seconds(5);
constexpr Duration kHealthyAfter = std::chrono::seconds(10);  // then the back-off starts over
constexpr Duration kRouterGrace = std::chrono::seconds(1);    // beyond the drain, before it is killed
constexpr Duration kWorkerGrace = std::chrono::seconds(2);
constexpr size_t kMostStatusBytes = 1 << 16;
constexpr std::string_view kStuckLine = "stuck writer ";  // names have no spaces
constexpr std::string_view kPidMark = " pid ";
const SteadyTime kNoTime = SteadyTime::max();

SteadyTime Now() { return std::chrono::steady_clock::now(); }

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// "in 0.1 s"
std::string SecondsText(Duration d) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", Seconds(d));
  return text;
}

struct Child {
  ChildPlan plan;
  pid_t pid = -1;  // -1: not running
  int status_fd = -1;
  int router_fd = -1;    // of a worker that is started and waits for the router's address
  std::string partial;   // of a status line
  bool refused = false;  // every router refused this start
  SteadyTime started{};
  SteadyTime start_at = kNoTime;  // when to start it (again)
  Duration back_off = kFirstBackOff;
};

// Async-signal-safe: runs between fork and exec.
[[noreturn]] void BecomeChild(char* const* arguments, std::array<int, 2> inherited, pid_t supervisor) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != supervisor) _exit(kExitFailed);
  signal(SIGINT, SIG_IGN);  // a terminal's Ctrl-C reaches the whole group; the supervisor decides
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int fd : inherited) {
    if (fd >= 0) fcntl(fd, F_SETFD, 0);
  }
  execv("/proc/self/exe", arguments);
  _exit(kExitFailed);
}

HostPort Dialable(HostPort address) {
  if (IsWildcard(address.host)) address.host = address.host.find(':') == std::string::npos ? "127.0.0.1" : "::1";
  return address;
}

std::string RouterToDial(const std::string& listens_on) { return Dialable(*ParseHostPort(listens_on)).ToString(); }

class Supervisor {
 public:
  explicit Supervisor(const Settings& settings) : settings_(settings), listen_(settings.Text("listen")) {}

  int Run() {
    sigset_t set;
    sigemptyset(&set);
    for (const int s : {SIGCHLD, SIGTERM, SIGINT}) sigaddset(&set, s);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    signal(SIGPIPE, SIG_IGN);  // a child may die before it is told the router's address
    signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signal_fd_ < 0) return Fail(kExitFailed, InternalError(std::string("signalfd: ") + std::strerror(errno)));
    PlanAll("");
    for (Child& child : children_) child.start_at = Now();
    while (!Over()) {
      StartDue();
      EnforceDeadline();
      PollOnce();
    }
    return exit_code_;
  }

 private:
  enum class Phase : uint8_t { kRunning, kDraining, kStopping };

  Child& router() { return children_.front(); }

  void PlanAll(const std::string& router_address) {
    std::vector<int> cores = settings_.Cores("cores");
    if (cores.empty()) cores = AllowedCores();
    const auto plans = PlanChildren(settings_, cores, UsableCpuCores(), listen_, router_address);
    if (children_.empty()) children_.resize(plans.size());
    for (size_t i = 0; i < plans.size(); ++i) children_[i].plan = plans[i];
  }

  bool Over() const {
    return phase_ == Phase::kStopping &&
           std::all_of(children_.begin(), children_.end(), [](const Child& c) { return c.pid < 0; });
  }

  void StartDue() {
    if (phase_ != Phase::kRunning) return;
    for (Child& child : children_) {
      if (child.pid < 0 && child.start_at <= Now()) Start(&child);
    }
  }

  void Start(Child* child) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) {
      Say(child->plan.name + ": no pipe: " + std::strerror(errno));
      return StartLater(child);
    }
    std::vector<std::string> arguments = {"baton"};
    arguments.insert(arguments.end(), child->plan.arguments.begin(), child->plan.arguments.end());
    arguments.insert(arguments.end(), {"--status-fd", std::to_string(fds[1])});
    // A worker loads its model while the router starts, and dials once that has said where it listens: only then is
    // the port known, and known to be this router's.
    int address_fds[2] = {-1, -1};
    if (child != &router() && !router_listens_) {
      if (pipe2(address_fds, O_CLOEXEC) != 0) {
        close(fds[0]), close(fds[1]);
        Say(child->plan.name + ": no pipe: " + std::strerror(errno));
        return StartLater(child);
      }
      arguments.insert(arguments.end(), {"--router-fd", std::to_string(address_fds[0])});
    }
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    const pid_t self = getpid();
    const pid_t pid = fork();
    if (pid == 0) BecomeChild(pointers.data(), {fds[1], address_fds[0]}, self);
    close(fds[1]);
    if (address_fds[0] >= 0) close(address_fds[0]);
    if (pid < 0) {
      close(fds[0]);
      if (address_fds[1] >= 0) close(address_fds[1]);
      Say(child->plan.name + ": cannot start: " + std::strerror(errno));
      return StartLater(child);
    }
    child->pid = pid;
    child->status_fd = fds[0];
    child->router_fd = address_fds[1];
    child->partial.clear();
    child->refused = false;
    child->started = Now();
    child->start_at = kNoTime;
    Say(child->plan.name + ": started, pid " + std::to_string(pid));
  }

  void StartLater(Child* child) {
    child->start_at = Now() + child->back_off;
    child->back_off = std::min(child->back_off * 2, kMostBackOff);
  }

  void EnforceDeadline() {
    if (Now() < deadline_) return;
    if (phase_ == Phase::kDraining) {
      Say("router: still running after the drain; killed");
      Kill(&router(), SIGKILL);
      StopWorkers();
    } else {
      KillAll();
    }
  }

  void PollOnce() {
    std::vector<pollfd> fds = {{signal_fd_, POLLIN, 0}};
    std::vector<Child*> owners = {nullptr};
    SteadyTime wake = deadline_;
    for (Child& child : children_) {
      if (child.status_fd >= 0) {
        fds.push_back({child.status_fd, POLLIN, 0});
        owners.push_back(&child);
      }
      if (phase_ == Phase::kRunning) wake = std::min(wake, child.start_at);
    }
    int wait = -1;
    if (wake != kNoTime) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(wake - Now()).count();
      wait = static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
    }
    if (poll(fds.data(), fds.size(), wait) <= 0) return;
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents != 0) ReadStatus(owners[i]);
    }
    if (fds[0].revents != 0) ReadSignals();
  }

  void ReadStatus(Child* child) {
    char buffer[4096];
    ssize_t length = 0;
    while ((length = read(child->status_fd, buffer, sizeof(buffer))) > 0) {
      child->partial.append(buffer, static_cast<size_t>(length));
      if (child->partial.size() > kMostStatusBytes) child->partial.clear();
      size_t end = 0;
      while ((end = child->partial.find('\n')) != std::string::npos) {
        const std::string line = child->partial.substr(0, end);
        child->partial.erase(0, end + 1);
        OnStatus(child, line);
      }
    }
    if (length == 0) {  // the child closed it
      close(child->status_fd);
      child->status_fd = -1;
    }
  }

  void OnStatus(Child* child, const std::string& line) {
    if (child != &router() || line != kAllJoinedLine) Say(child->plan.name + ": " + line);
    child->refused |= line.starts_with(kRefusedLine);
    if (phase_ != Phase::kRunning) return;
    if (const auto stuck = ParseStuckLine(line)) return OnStuck(*child, *stuck);
    if (child != &router()) return;
    if (line.starts_with(kListeningLine)) {
      listen_ = line.substr(kListeningLine.size());  // a port of 0 is decided now, and kept
      router_listens_ = true;
      PlanAll(listen_);
      for (Child& worker : children_) TellRouter(&worker, RouterToDial(listen_) + "\n");
    } else if (line == kAllJoinedLine) {
      was_ready_ = true;
      Say("baton is ready on " + listen_ + ": " + settings_.Text("prefill") + " prefill, " + settings_.Text("decode") +
          " decode");
    }
  }

  // An empty line: there will be none. The pipe is empty, so its buffer takes the line; a dead child needs none.
  static void TellRouter(Child* child, const std::string& line) {
    if (child->router_fd < 0) return;
    (void)!write(child->router_fd, line.data(), line.size());
    close(child->router_fd);
    child->router_fd = -1;
  }

  // A child is not reaped before Reap, so its pid is nobody else's.
  void OnStuck(const Child& reader, const StuckWriter& stuck) {
    for (Child& child : children_) {
      if (child.pid < 0 || child.plan.name != stuck.name || static_cast<uint64_t>(child.pid) != stuck.pid) continue;
      if (Now() - child.started < settings_.Time("stuck-after")) return;
      Say(stuck.name + ": pid " + std::to_string(stuck.pid) + " is stuck and is killed, so that " + reader.plan.name +
          " gets its KV blocks back");
      return Kill(&child, SIGKILL);
    }
    Say(stuck.name + ": pid " + std::to_string(stuck.pid) +
        " is stuck but was not started here, so it is left alone; " + reader.plan.name +
        " gets its KV blocks back when whoever started it kills it");
  }

  void ReadSignals() {
    signalfd_siginfo info{};
    while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo == SIGCHLD) continue;
      if (phase_ == Phase::kRunning) {
        BeginStop(kExitDone);
      } else {
        KillAll();  // asked twice
      }
    }
    Reap();
  }

  void Reap() {
    int status = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      for (Child& child : children_) {
        if (child.pid != pid) continue;
        if (child.status_fd >= 0) ReadStatus(&child);  // its last words
        if (child.status_fd >= 0) close(child.status_fd);
        child.status_fd = -1;
        child.pid = -1;
        OnExit(&child, pid, status);
      }
    }
  }

  void OnExit(Child* child, pid_t pid, int status) {
    const std::string how = WIFSIGNALED(status) ? "was killed by signal " + std::to_string(WTERMSIG(status))
                                                : "ended with code " + std::to_string(WEXITSTATUS(status));
    TellRouter(child, "");
    const std::string what = child->plan.name + ": pid " + std::to_string(pid) + " " + how;
    if (phase_ == Phase::kDraining && child == &router()) StopWorkers();
    if (phase_ != Phase::kRunning) return Say(what);
    // Its own message is on stderr already. Trying again would give the same.
    if ((!was_ready_ || child->refused) && WIFEXITED(status) && WEXITSTATUS(status) == kExitUsage) {
      Say(what + "; another start would end the same way, so everything stops");
      return BeginStop(kExitUsage);
    }
    if (Now() - child->started >= kHealthyAfter) child->back_off = kFirstBackOff;
    Say(what + "; starting it again in " + SecondsText(child->back_off));
    StartLater(child);
  }

  // The router first, so that running requests end and no new one comes; then nothing holds the workers.
  void BeginStop(int code) {
    exit_code_ = code;
    for (Child& child : children_) {
      child.start_at = kNoTime;
      TellRouter(&child, "");
    }
    if (router().pid < 0) return StopWorkers();
    phase_ = Phase::kDraining;
    deadline_ = Now() + settings_.Time("drain-timeout") + kRouterGrace;
    Say("stopping");
    Kill(&router(), SIGTERM);
  }

  void StopWorkers() {
    phase_ = Phase::kStopping;
    deadline_ = Now() + kWorkerGrace;
    for (Child& child : children_) {
      if (&child != &router()) Kill(&child, SIGTERM);
    }
  }

  void KillAll() {
    phase_ = Phase::kStopping;
    deadline_ = kNoTime;
    for (Child& child : children_) Kill(&child, SIGKILL);
  }

  static void Kill(Child* child, int signal_number) {
    if (child->pid > 0) kill(child->pid, signal_number);
  }

  const Settings& settings_;
  std::string listen_;
  std::vector<Child> children_;  // router first
  int signal_fd_ = -1;
  Phase phase_ = Phase::kRunning;
  SteadyTime deadline_ = kNoTime;  // of the phase
  bool router_listens_ = false;    // and where is known for good
  bool was_ready_ = false;
  int exit_code_ = kExitDone;
};

// What the user set and the child's command knows as well.
void PassOn(const Settings& settings, uint32_t command, std::vector<std::string>* out) {
  for (const OptionSpec& spec : AllOptions()) {
    const bool own = spec.name == "model" || spec.name == "listen" || spec.name == "name" || spec.name == "cores" ||
                     spec.name == "threads" || spec.name == "prefill" || spec.name == "decode" || spec.hidden;
    if (own || (spec.commands & kUp) == 0 || (spec.commands & command) == 0) continue;
    if (settings.OriginOf(spec.name) == Origin::kDefault) continue;
    if (spec.kind != OptionKind::kFlag) {
      out->insert(out->end(), {"--" + std::string(spec.name), settings.Text(spec.name)});
    } else if (settings.Flag(spec.name)) {
      out->push_back("--" + std::string(spec.name));
    }
  }
}

std::string CoreText(const std::vector<int>& cores) {
  std::string out;
  for (const int core : cores) out += (out.empty() ? "" : ",") + std::to_string(core);
  return out;
}

}  // namespace

std::string StuckLine(const Quarantine& stuck) {
  return std::string(kStuckLine) + stuck.writer.name + " pid " + std::to_string(stuck.pid) + ": " +
         std::to_string(stuck.blocks) + " KV blocks have waited for it for " + SecondsText(stuck.age);
}

std::optional<StuckWriter> ParseStuckLine(std::string_view line) {
  if (!line.starts_with(kStuckLine)) return std::nullopt;
  line.remove_prefix(kStuckLine.size());
  const size_t mark = line.find(kPidMark);
  if (mark == 0 || mark == std::string_view::npos) return std::nullopt;
  StuckWriter out;
  out.name = line.substr(0, mark);
  line.remove_prefix(mark + kPidMark.size());
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), out.pid);
  if (error != std::errc() || end == line.data() + line.size() || *end != ':') return std::nullopt;
  return out;
}

std::vector<std::vector<int>> SplitCores(const std::vector<int>& cores, int usable, int workers) {
  std::vector<std::vector<int>> out(static_cast<size_t>(workers));
  const auto num_cores = static_cast<int>(cores.size());
  if (num_cores < workers || usable < num_cores) return out;
  int next = 0;
  for (int i = 0; i < workers; ++i) {
    const int share = num_cores / workers + (i < num_cores % workers ? 1 : 0);
    out[static_cast<size_t>(i)].assign(cores.begin() + next, cores.begin() + next + share);
    next += share;
  }
  return out;
}

std::vector<ChildPlan> PlanChildren(const Settings& settings, const std::vector<int>& cores, int usable,
                                    const std::string& listen, const std::string& router_address) {
  const auto prefill = static_cast<int>(settings.Integer("prefill"));
  const auto decode = static_cast<int>(settings.Integer("decode"));
  const int workers = prefill + decode;
  const std::string prefix = settings.Text("name").empty() ? "" : settings.Text("name") + ".";
  std::vector<ChildPlan> out;

  ChildPlan router{prefix + "router",
                   {"router", settings.Text("model"), "--listen", listen, "--name", prefix + "router"}};
  router.arguments.insert(router.arguments.end(), {"--expect-workers", std::to_string(workers)});
  PassOn(settings, kRouter, &router.arguments);
  out.push_back(std::move(router));

  const auto shares = SplitCores(cores, usable, workers);
  // Workers serve each other on the address family and interface that clients use, each on a port of its own. Nobody
  // can dial a wildcard: all of this is one machine, so there it is loopback.
  HostPort pair_listen = Dialable(*ParseHostPort(listen));
  pair_listen.port = 0;
  for (int i = 0; i < workers; ++i) {
    const bool is_prefill = i < prefill;
    const std::string name =
        prefix + (is_prefill ? "prefill-" + std::to_string(i) : "decode-" + std::to_string(i - prefill));
    ChildPlan child{name, {is_prefill ? "prefill" : "decode", settings.Text("model"), "--name", name}};
    auto& arguments = child.arguments;
    arguments.insert(arguments.end(), {"--listen", pair_listen.ToString()});
    if (!router_address.empty()) arguments.insert(arguments.end(), {"--router", RouterToDial(router_address)});
    arguments.insert(arguments.end(), {"--host-share", std::to_string(workers)});
    const std::vector<int>& share = shares[static_cast<size_t>(i)];
    if (!share.empty()) arguments.insert(arguments.end(), {"--cores", CoreText(share)});
    int threads = static_cast<int>(settings.Integer("threads"));
    if (threads == 0) threads = share.empty() ? std::max(1, usable / workers) : static_cast<int>(share.size());
    arguments.insert(arguments.end(), {"--threads", std::to_string(threads)});
    PassOn(settings, is_prefill ? kPrefill : kDecode, &arguments);
    out.push_back(std::move(child));
  }
  return out;
}

int RunSupervisor(const Settings& settings) {
  // Refuse here what every child would refuse.
  if (auto file = ModelFile::Open(settings.Text("model")); !file.ok()) return Fail(kExitUsage, file.status());
  // Children get everything as flags.
  for (const OptionSpec& spec : AllOptions()) unsetenv(EnvironmentName(spec.name).c_str());
  unsetenv("BATON_CONFIG");
  return Supervisor(settings).Run();
}

}  // namespace baton

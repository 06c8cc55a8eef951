#include "app/process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "base/log.h"

namespace baton {
namespace {

constexpr int kMostDefaultNames = 1024;

Status SystemError(const std::string& what) {
  return FailedPreconditionError(what + ": " + std::strerror(errno));
}

uint64_t RandomWord() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// An open file that is locked, or -1 with errno; `block` false gives EWOULDBLOCK when somebody else has it.
int OpenLocked(const std::string& path, bool block) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return -1;
  while (flock(fd, block ? LOCK_EX : LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

// Reads the counter, writes it back raised, and leaves it on the disk before anybody hears of it.
StatusOr<uint64_t> RaiseCounter(const std::string& path) {
  const int fd = OpenLocked(path, true);
  if (fd < 0) return SystemError("cannot open the start counter " + path);
  char text[32] = {};
  const ssize_t length = pread(fd, text, sizeof(text) - 1, 0);
  char* end = text;
  errno = 0;
  const uint64_t counter = length > 0 ? std::strtoull(text, &end, 10) : 0;
  const bool broken = length < 0 || errno != 0 || (length > 0 && *end != '\n');
  Status status;
  if (broken) {
    status = FailedPreconditionError("the start counter " + path +
                                     " does not hold a number; remove it only if nothing of that name runs");
  } else {
    const std::string next = std::to_string(counter + 1) + "\n";
    if (pwrite(fd, next.data(), next.size(), 0) != static_cast<ssize_t>(next.size()) || fdatasync(fd) != 0) {
      status = SystemError("cannot write the start counter " + path);
    }
  }
  close(fd);
  if (!status.ok()) return status;
  return counter + 1;
}

// The first free default name. Its lock file stays open, and so locked, for the life of the process.
StatusOr<std::string> ClaimDefaultName(const std::string& directory, std::string_view role) {
  for (int i = 0; i < kMostDefaultNames; ++i) {
    const std::string name = std::string(role) + "-" + std::to_string(i);
    if (OpenLocked(directory + "/" + name + ".lock", false) >= 0) return name;
    if (errno != EWOULDBLOCK) return SystemError("cannot lock " + directory + "/" + name + ".lock");
  }
  return ResourceExhaustedError("no free name " + std::string(role) + "-N below " +
                                std::to_string(kMostDefaultNames) + "; give one with --name");
}

// One JSON object a line.
class JsonFormatter : public spdlog::formatter {
 public:
  explicit JsonFormatter(std::string process) : process_(std::move(process)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const auto since_epoch = message.time.time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_epoch);
    const std::time_t time = seconds.count();
    std::tm parts{};
    gmtime_r(&time, &parts);
    const std::string stamp =
        fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                    parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                    std::chrono::duration_cast<std::chrono::microseconds>(since_epoch - seconds).count());
    const auto level = spdlog::level::to_string_view(message.level);
    const nlohmann::ordered_json line = {
        {"time", stamp},
        {"level", std::string(level.data(), level.size())},
        {"process", process_},
        {"message", std::string(message.payload.data(), message.payload.size())}};
    const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>(process_);
  }

 private:
  const std::string process_;
};

sigset_t SetOf(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : signals) sigaddset(&set, s);
  return set;
}

}  // namespace

int Fail(int code, const Status& status) {
  std::string_view rest = status.message();
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    std::fprintf(stderr, "baton: %.*s\n", static_cast<int>(std::min(end, rest.size())), rest.data());
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return code;
}

StatusOr<std::string> ReadAll(std::istream& in, const std::string& name) {
  std::string out;
  char buffer[1 << 14];
  while (in.read(buffer, sizeof(buffer)) || in.gcount() > 0)
    out.append(buffer, static_cast<size_t>(in.gcount()));
  if (in.bad()) return FailedPreconditionError(name + ": cannot be read");
  return out;
}

int FinishOutput(int code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return code;
  const std::string why = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  return Fail(kExitFailed, InternalError("cannot write to standard output" + why));
}

std::string StateDirectory(const Settings& settings) {
  if (!settings.Text("state-dir").empty()) return settings.Text("state-dir");
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state == '/') {
    return std::string(state) + "/baton";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return std::string(home) + "/.local/state/baton";
  }
  return "/tmp/baton-" + std::to_string(getuid());
}

StatusOr<ProcessId> ClaimIdentity(const Settings& settings, std::string_view role) {
  const std::string directory = StateDirectory(settings);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error)
    return FailedPreconditionError("cannot make the state directory " + directory + ": " + error.message());
  ProcessId self;
  self.name = settings.Text("name");
  if (self.name.empty()) {
    BATON_ASSIGN_OR_RETURN(self.name, ClaimDefaultName(directory, role));
  }
  BATON_ASSIGN_OR_RETURN(self.incarnation.counter, RaiseCounter(directory + "/" + self.name + ".starts"));
  self.incarnation.random = RandomWord();
  return self;
}

void ConfigureLogging(const Settings& settings, const std::string& name) {
  auto logger =
      std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  if (settings.Text("log-format") == "json") {
    logger->set_formatter(std::make_unique<JsonFormatter>(name));
  } else {
    logger->set_pattern("%H:%M:%S.%e %^%L%$ %n: %v");
  }
  const std::string& level = settings.Text("log-level");
  logger->set_level(level == "error" ? spdlog::level::err : spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

std::vector<int> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> out;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return out;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) out.push_back(core);
  }
  return out;
}

Status UseCores(const std::vector<int>& cores) {
  if (cores.empty()) return OkStatus();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) {
    if (core >= CPU_SETSIZE)
      return InvalidArgumentError("core " + std::to_string(core) + " is beyond this machine");
    CPU_SET(core, &set);
  }
  const std::vector<int> allowed = AllowedCores();
  if (sched_setaffinity(0, sizeof(set), &set) != 0 || AllowedCores() != cores) {
    std::string have;
    for (const int core : allowed) have += (have.empty() ? "" : ",") + std::to_string(core);
    return FailedPreconditionError("--cores: this process may not use all of them; it may use " + have);
  }
  return OkStatus();
}

StopSignals::StopSignals(bool supervised) : supervised_(supervised), signals_{SIGTERM} {
  if (!supervised) signals_.push_back(SIGINT);
  const sigset_t set = SetOf(signals_);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // A server's connections are descriptors, and a shell's usual limit is 1,024.
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
}

bool StopSignals::Wait(std::chrono::milliseconds limit) {
  const sigset_t set = SetOf(signals_);
  const timespec wait{static_cast<time_t>(limit.count() / 1000),
                      static_cast<long>(limit.count() % 1000) * 1'000'000};
  return sigtimedwait(&set, nullptr, &wait) > 0;
}

void StopSignals::Wait() {
  const sigset_t set = SetOf(signals_);
  while (sigwaitinfo(&set, nullptr) < 0) {
  }
}

void StopSignals::BeginDrain(Duration limit) {
  spdlog::info("draining, at most {:.3g} s{}", Seconds(limit),
               supervised_ ? "" : "; a second signal ends it at once");
  if (supervised_) return;
  const sigset_t set = SetOf(signals_);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);  // both at their default: they end the process
}

void EventLines::Say(const std::string& line) {
  const std::string text = line + "\n";
  if (!supervised()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return;
  }
  // At most PIPE_BUF bytes: whole or not at all.
  (void)!write(status_fd_, text.data(), std::min<size_t>(text.size(), 4096));
}

}  // namespace baton

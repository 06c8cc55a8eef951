// What every serving process of Baton does with its operating system: its name and start counter, its cores,
// its log, its signals, and one line per event for whoever started it. Main thread.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "app/settings.h"
#include "baton/ids.h"
#include "baton/status.h"

namespace baton {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;  // bad flags, configuration, model or address

// "baton: <message>" on stderr, one line per line of the message. Returns `code`.
int Fail(int code, const Status& status);

// This start of the process: its name, and a counter that is higher than at any start of that name before,
// kept in a locked file of the state directory. Without --name: the first of role-0, role-1, ... that no live
// process of this directory has; it stays taken until this process ends.
StatusOr<ProcessId> ClaimIdentity(const Settings& settings, std::string_view role);
std::string StateDirectory(const Settings& settings);

// spdlog's default logger: stderr, level and form from the settings, `name` in every line.
void ConfigureLogging(const Settings& settings, const std::string& name);

// Restricts this process to the cores; every thread started later inherits them. FAILED_PRECONDITION when the
// machine does not have them.
Status UseCores(const std::vector<int>& cores);
std::vector<int> AllowedCores();  // ascending

// SIGTERM and SIGINT as something to wait for. Made before any other thread, so that all of them leave the
// signals alone. In a child of the supervisor SIGINT is the supervisor's business and ignored.
class StopSignals {
 public:
  explicit StopSignals(bool supervised);
  // True: a signal came. False: the time passed.
  bool Wait(std::chrono::milliseconds limit);
  void Wait();

 private:
  std::vector<int> signals_;
};

// Event lines: on stdout for people, or through the pipe of the supervisor, which puts the child's name
// before them. Never blocks: a line that a full pipe does not take is dropped.
class EventLines {
 public:
  explicit EventLines(int status_fd) : status_fd_(status_fd) {}
  bool supervised() const { return status_fd_ >= 0; }
  void Say(const std::string& line);

 private:
  const int status_fd_;
};

}  // namespace baton

// What every serving process of Baton does with its operating system: its name and start counter, its cores,
// its log, its signals, and one line per event for whoever started it. Main thread.
#pragma once

#include <chrono>
#include <istream>
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

// All that is left of a stream. FAILED_PRECONDITION when it cannot be read, as a folder cannot.
StatusOr<std::string> ReadAll(std::istream& in, const std::string& name);

// Flushes stdout. `code`, or kExitFailed with a line on stderr when what was printed could not be written.
int FinishOutput(int code);

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
// signals alone. In a child of the supervisor SIGINT is the supervisor's business and ignored. Also lets this process
// have as many open files as its hard limit allows.
class StopSignals {
 public:
  explicit StopSignals(bool supervised);
  // True: a signal came. False: the time passed.
  bool Wait(std::chrono::milliseconds limit);
  void Wait();
  // After the first signal: says that the drain begins and how long it may take; from here on another signal
  // ends the process at once. In a child of the supervisor it does not: what ends a whole group tells the
  // child twice, and the supervisor kills on its own.
  void BeginDrain(Duration limit);

 private:
  const bool supervised_;
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

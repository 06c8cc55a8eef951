// Many seeds at once: one process per core, each with every n-th seed, until the time is over or enough hand-offs met a
// fault. Stops at the first find, a violation or a failed check, and prints how to replay its seed.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/log.h"
#include "sim/scenario.h"

namespace baton {
namespace {

constexpr int kFound = 42;

struct Options {
  double minutes = 10;
  uint64_t handoffs = 0;  // faulted ones; 0: the time decides
  uint64_t jobs = 1, first_seed = 0;
  const char* seed = nullptr;  // one seed alone
};

// What a process has done so far, where its parent can read it.
struct Tally {
  uint64_t seed = 0, seeds = 0, done = 0, failed = 0, cancelled = 0, lost_with_front = 0, tokens = 0, leaked_blocks = 0;
  uint64_t replacements = 0, repushes = 0, corrupt = 0;
  SimFaultCounts faults;
  void Add(const Tally& o) {
    seeds += o.seeds, done += o.done, failed += o.failed, cancelled += o.cancelled;
    lost_with_front += o.lost_with_front, tokens += o.tokens, leaked_blocks += o.leaked_blocks;
    replacements += o.replacements, repushes += o.repushes, corrupt += o.corrupt;
    faults.Add(o.faults);
  }
};
static_assert(std::is_trivially_copyable_v<Tally>);

// "" or the violation.
std::string RunSeed(uint64_t seed, Tally* tally) {
  tally->seed = seed;
  Scenario scenario(seed, NightScenario(seed));
  std::string violation = scenario.Run();
  const ScenarioCounts& c = scenario.counts();
  Tally mine;
  mine.seeds = 1;
  mine.done = c.done, mine.failed = c.failed, mine.cancelled = c.cancelled, mine.lost_with_front = c.lost_with_front;
  mine.tokens = c.tokens, mine.leaked_blocks = c.leaked_blocks;
  mine.replacements = c.replacements, mine.repushes = c.repushes, mine.corrupt = c.corrupt;
  mine.faults = c.faults;
  tally->Add(mine);
  return violation;
}

void Print(const Tally& t, double seconds) {
  const auto line = [](const char* what, uint64_t n) {
    std::printf("  %-24s %12lu\n", what, static_cast<unsigned long>(n));
  };
  const SimFaultCounts& f = t.faults;
  std::printf("%.0f s\n", seconds);
  line("seeds", t.seeds);
  line("requests done", t.done);
  line("requests cancelled", t.cancelled);
  line("requests failed", t.failed);
  line("lost with their router", t.lost_with_front);
  line("tokens", t.tokens);
  line("placed again", t.replacements);
  line("hand-offs", f.handoffs);
  line("hand-offs with a fault", f.faulted_handoffs);
  line("messages lost", f.messages_dropped);
  line("messages doubled", f.messages_duplicated);
  line("messages late", f.messages_late);
  line("puts late", f.posts_delayed);
  line("puts cut short", f.posts_truncated);
  line("puts failed", f.posts_failed);
  line("puts that never end", f.posts_stuck);
  line("notices late", f.notices_delayed);
  line("notices lost", f.notices_dropped);
  line("notices doubled", f.notices_duplicated);
  line("pushed again", t.repushes);
  line("found corrupt", t.corrupt);
  line("links broken", f.links_broken);
  line("one-way cuts", f.cuts);
  line("workers killed", f.kills);
  line("workers paused", f.pauses);
  line("workers drained", f.drains);
  line("routers restarted", f.front_restarts);
  line("puts into quarantine", f.late_puts);
  line("stale bytes", f.stale_bytes);
  line("leaked blocks", t.leaked_blocks);
}

Tally Sum(const Tally* tallies, uint64_t jobs) {
  Tally sum;
  for (uint64_t i = 0; i < jobs; ++i) sum.Add(tallies[i]);
  return sum;
}

[[noreturn]] void RunJob(const Options& o, uint64_t job, Tally* tally) {
  for (uint64_t seed = o.first_seed + job;; seed += o.jobs) {
    const std::string violation = RunSeed(seed, tally);
    if (violation.empty()) continue;
    std::fprintf(stderr, "seed %lu: %s\n", static_cast<unsigned long>(seed), violation.c_str());
    std::_Exit(kFound);
  }
}

int RunNight(const Options& o, const char* self) {
  void* shared = mmap(nullptr, o.jobs * sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return std::perror("sim_night: mmap"), 1;
  auto* tallies = new (shared) Tally[o.jobs];
  std::vector<pid_t> children;
  for (uint64_t i = 0; i < o.jobs; ++i) {
    const pid_t pid = fork();
    if (pid < 0) return std::perror("sim_night: fork"), 1;
    if (pid == 0) RunJob(o, i, &tallies[i]);
    children.push_back(pid);
  }
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double told = 0;
  int found = -1;
  while (found < 0) {
    usleep(100'000);
    for (uint64_t i = 0; i < o.jobs; ++i) {
      if (waitpid(children[i], nullptr, WNOHANG) == children[i]) found = static_cast<int>(i);
    }
    const Tally sum = Sum(tallies, o.jobs);
    if (o.handoffs > 0 ? sum.faults.faulted_handoffs >= o.handoffs : seconds() >= o.minutes * 60) break;
    if (seconds() < told + 60) continue;
    told = seconds();
    std::printf("%.0f s: %lu seeds, %lu hand-offs with a fault of %lu\n", told, static_cast<unsigned long>(sum.seeds),
                static_cast<unsigned long>(sum.faults.faulted_handoffs),
                static_cast<unsigned long>(sum.faults.handoffs));
    std::fflush(stdout);
  }
  for (uint64_t i = 0; i < o.jobs; ++i) {
    if (static_cast<int>(i) == found) continue;
    kill(children[i], SIGKILL);
    waitpid(children[i], nullptr, 0);
  }
  Print(Sum(tallies, o.jobs), seconds());
  if (found < 0) return 0;
  std::printf("FOUND\nreplay: %s --seed %lu\n", self, static_cast<unsigned long>(tallies[found].seed));
  return 1;
}

int Usage(const char* self) {
  std::fprintf(stderr,
               "%s [--minutes M | --handoffs N] [--jobs J] [--first-seed S]\n%s --seed S\n"
               "  --minutes M     run for so long (10)\n"
               "  --handoffs N    run until so many hand-offs met a fault\n"
               "  --jobs J        processes (1)\n"
               "  --first-seed S  where to begin (0)\n"
               "  --seed S        one seed alone: the replay of a find\n",
               self, self);
  return 2;
}

int Main(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    if (i + 1 == argc) return Usage(argv[0]);
    const std::string name = argv[i];
    const char* value = argv[++i];
    char* end = nullptr;
    const double number = std::strtod(value, &end);
    if (*value == '\0' || *end != '\0' || number < 0) return Usage(argv[0]);
    if (name == "--minutes") {
      o.minutes = number;
    } else if (name == "--handoffs") {
      o.handoffs = static_cast<uint64_t>(number);
    } else if (name == "--jobs" && number >= 1) {
      o.jobs = static_cast<uint64_t>(number);
    } else if (name == "--first-seed") {
      o.first_seed = std::strtoull(value, nullptr, 10);
    } else if (name == "--seed") {
      o.seed = value;
    } else {
      return Usage(argv[0]);
    }
  }
  if (o.seed == nullptr) spdlog::set_level(spdlog::level::off);
  if (o.seed == nullptr) return RunNight(o, argv[0]);
  Tally tally;
  const std::string violation = RunSeed(std::strtoull(o.seed, nullptr, 10), &tally);
  Print(tally, 0);
  if (!violation.empty()) std::printf("seed %s: %s\n", o.seed, violation.c_str());
  return violation.empty() ? 0 : 1;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }

// `baton up MODEL --prefill N --decode M`: one child process per role, each this binary with a subcommand of
// its own. The supervisor only starts, watches and stops them: it never initialises gRPC or UCX, has one
// thread, and so may fork at any time.
//
// Always true: children die with it (PR_SET_PDEATHSIG); a dead child is started again after 0.1 s, doubling
// to 5 s, unless another start would say the same: code 2 before the first "ready", or after a refusal by every
// router, ends everything with code 2; cores are given to workers in disjoint sets or not at all; it ends only when
// every child has ended.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/settings.h"
#include "baton/front_link.h"

namespace baton {

int RunSupervisor(const Settings& settings);

// Lines of a child's status pipe that the supervisor acts on; others it only shows.
inline constexpr std::string_view kListeningLine = "listening on ";  // the router's; its address follows
inline constexpr std::string_view kAllJoinedLine = "all workers joined";
inline constexpr std::string_view kRefusedLine = "refused for good: ";  // a worker's last; the reason follows

// A worker's line about a writer that only its death will make let go of KV blocks (L9). What it names is
// killed only if it is a child that runs now under that very name and pid, and has run for longer than a
// writer needs to become stuck: so an old line never means a new process.
struct StuckWriter {
  std::string name;
  uint64_t pid = 0;
};
std::string StuckLine(const Quarantine& stuck);
std::optional<StuckWriter> ParseStuckLine(std::string_view line);  // nothing: it is another line

// The cores of each worker: contiguous, disjoint, as even as can be; empty sets (nobody is pinned) when there
// are fewer cores than workers or when `usable` says that a quota gives less than the cores.
std::vector<std::vector<int>> SplitCores(const std::vector<int>& cores, int usable, int workers);

struct ChildPlan {
  std::string name;
  std::vector<std::string> arguments;  // without argv[0]; those of the router hold no address yet
};
// The router first, then the workers. `router_address`: where it listens; empty while that is not known.
std::vector<ChildPlan> PlanChildren(const Settings& settings, const std::vector<int>& cores, int usable,
                                    const std::string& listen, const std::string& router_address);

}  // namespace baton

// Versions of what the processes of a cluster say to each other. A Hello names the highest its process speaks; the two
// of a session use the lower one, so that a cluster is upgraded worker by worker. What a version added is used only
// towards processes that know it.
//
//   1  placements, hand-offs, drains, roles
//   2  live migration: Migrate, EXTEND, RESERVE of a running sequence
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "baton/status.h"

namespace baton {

inline constexpr uint32_t kProtocol = 2;
inline constexpr uint32_t kOldestProtocol = 1;
inline constexpr uint32_t kMigrationProtocol = 2;

// What a process that speaks up to `mine` and one up to `theirs` use. FAILED_PRECONDITION where they have none in
// common.
inline StatusOr<uint32_t> CommonProtocol(uint32_t mine, uint32_t theirs) {
  if (theirs >= kOldestProtocol) return std::min(mine, theirs);
  return FailedPreconditionError("protocol " + std::to_string(theirs) + " is not spoken here, only " +
                                 std::to_string(kOldestProtocol) + " to " + std::to_string(mine) +
                                 ": upgrade it to a version in between first");
}

}  // namespace baton

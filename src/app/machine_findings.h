// What the facts of a machine mean for a worker on it: what would keep it from starting, what makes it slower than the
// machine could be, and the report in words and as JSON. Functions of the facts alone.
#pragma once

#include <string>
#include <vector>

#include "app/machine_facts.h"

namespace baton {

inline constexpr uint64_t kGoodDescriptors = 1024;  // beyond it nobody with a hundred peers needs to think of them

enum class Weight : uint8_t {
  kRefuses,  // a worker would not start
  kSlower,   // a faster way is missing
  kNote,
};

struct Finding {
  Weight weight{};
  std::string subject;  // "rdma", "shm", ... : one word, stable, for programs
  std::string text;     // what is missing and what to do
};

// Refusals first, then by the order of the report.
std::vector<Finding> FindingsOf(const MachineFacts& facts);
bool WouldStart(const std::vector<Finding>& findings);

// What proves that a writer which cannot be asked any more writes no longer, on that lane.
std::string_view FenceOf(const UcxLane& lane);
// What a worker with these settings does with the lane; "-": nothing.
std::string_view UseOf(const UcxLane& lane, const MachineFacts& facts);

std::string DoctorReport(const MachineFacts& facts, const std::vector<Finding>& findings);  // for 80 columns
std::string DoctorJson(const MachineFacts& facts, const std::vector<Finding>& findings);    // one line

}  // namespace baton

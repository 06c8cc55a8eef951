// Names of things that travel between processes or threads. Strong types, so that a block is never taken
// for a slot. All are plain values, ordered, printable by their fields.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace baton {

using TokenId = int32_t;

enum class BlockId : uint32_t {};     // index into one worker's pool, per group
enum class StepId : uint64_t {};      // counts launched steps of one worker, from 1
enum class LinkId : uint64_t {};      // one connection as this process names it; see link.h
enum class OpId : uint64_t {};        // one posted transfer of one writer, from 1
enum class SequenceId : uint64_t {};  // slot and generation of a Sequence on one worker; never reused

constexpr uint32_t Index(BlockId b) { return static_cast<uint32_t>(b); }
template <typename E>
constexpr uint64_t Raw(E e) {
  return static_cast<uint64_t>(e);
}

// One start of a process under its name. The counter comes from the registry or from a locked file in the
// state directory, never from a clock; of two processes with one name the higher counter wins.
struct Incarnation {
  uint64_t counter = 0;
  uint64_t random = 0;
  friend auto operator<=>(const Incarnation&, const Incarnation&) = default;
};

struct ProcessId {
  std::string name;
  Incarnation incarnation;
  friend auto operator<=>(const ProcessId&, const ProcessId&) = default;
};

// One choice of one client request. `front` is a 64-bit fingerprint of the front's ProcessId, `number` is
// drawn by that front from 1. Workers key everything by (ChildId, Epoch).
struct ChildId {
  uint64_t front = 0;
  uint64_t number = 0;
  uint32_t choice = 0;
  friend auto operator<=>(const ChildId&, const ChildId&) = default;
};

// Raised by the front at every placement of a child. 0 is "none".
using Epoch = uint32_t;
// Counts RESERVE tries of an epoch, or COMMIT tries of a ticket, from 1.
using Attempt = uint32_t;

// The right to write one hand-off into one reader. Every entry of a slot to FREE raises the generation.
struct Ticket {
  Incarnation reader;
  uint32_t slot = 0;
  uint32_t generation = 0;
  friend auto operator<=>(const Ticket&, const Ticket&) = default;
};

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  friend auto operator<=>(const Hash128&, const Hash128&) = default;
};

}  // namespace baton

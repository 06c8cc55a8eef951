// The inlet of an EngineCore: everything that reaches it from outside, as values. Links are connections as
// this process names them; the network side (rpc, or the simulator) only carries messages.
#pragma once

#include <string>
#include <variant>

#include "baton/front_link.h"
#include "baton/pair_link.h"

namespace baton {

enum class LinkKind : uint8_t {
  kFront,       // this worker dialed a router
  kPairWriter,  // this worker dialed a reader: it writes
  kPairReader,  // a writer dialed this worker: it reads
};

// The connection stands. Dialed links carry the id that Outbox::dial gave; accepted links (kPairReader) and
// front links get ids from the network side, in a range of their own (top bit set).
struct LinkUp {
  LinkId link{};
  LinkKind kind{};
};
// The connection is gone, or could not be made. Nothing more comes from it, nothing sent to it arrives.
struct LinkDown {
  LinkId link{};
  Status why;
};
struct FromFront {
  LinkId link{};
  FrontCommand command;
};
struct FromPeer {
  LinkId link{};
  PairMessage message;
};
// The answer to Outbox::watch: a pidfd is open and was confirmed, or cannot be had (other host, no right).
struct ProcessWatched {
  ProcessId process;
  bool ok = false;
};
// A peer process is known to be dead (pidfd): its shared-memory puts are over.
struct ProcessDied {
  ProcessId process;
};
struct BeginDrain {};  // SIGTERM: finish what runs, admit nothing

using EngineCommand = std::variant<LinkUp, LinkDown, FromFront, FromPeer, ProcessWatched, ProcessDied, BeginDrain>;

}  // namespace baton

// The outlet of an EngineCore: what it wants said to the world after a step, as values, in order per link.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "baton/engine_command.h"

namespace baton {

struct Dial {
  LinkId link{};  // chosen by the engine, top bit clear
  PeerAddress peer;
};
// Open a pidfd for the peer and confirm it by one round trip; ProcessDied when it ends.
struct WatchProcess {
  ProcessId process;
  std::string host;
  uint64_t pid = 0;
};

struct Outbox {
  std::vector<Dial> dial;
  std::vector<std::pair<LinkId, PairMessage>> to_peers;
  std::vector<std::pair<LinkId, WorkerMessage>> to_fronts;
  std::vector<WatchProcess> watch;
  std::vector<LinkId> close;
  std::vector<Quarantine> stuck;  // L9: for whoever started these writers; repeated while it lasts
  bool empty() const {
    return dial.empty() && to_peers.empty() && to_fronts.empty() && watch.empty() && close.empty() && stuck.empty();
  }
};

}  // namespace baton

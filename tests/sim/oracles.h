// What must be true of a worker after every turn, seen from outside: rules of the hand-off that no answer shows.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "sim/sim_cluster.h"

namespace baton {

class TurnOracles {
 public:
  // "" or the violation, a sentence.
  std::string AfterTurn(const SimCluster& cluster, size_t worker);

 private:
  // S2: what a peer may write belongs to its ticket alone.
  static std::string Writable(const EngineCore& core);
  // L9: what one writer ties up, unless it is a single ticket.
  static std::string Caps(const EngineCore& core);
  // L6: a hand-off without a ticket waits for at most a quarter of what its deadline left.
  std::string Holds(const SimCluster& cluster, size_t worker);

  // A BUSY hold as first seen: (worker, incarnation, epoch) -> when it must be over.
  struct HoldKey {
    size_t worker;
    uint64_t incarnation;
    ChildEpoch child;
    friend auto operator<=>(const HoldKey&, const HoldKey&) = default;
  };
  std::map<HoldKey, TimePoint> holds_;
};

}  // namespace baton

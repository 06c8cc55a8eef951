#include "sim/oracles.h"

namespace baton {
namespace {
constexpr Duration kHoldSlack = std::chrono::milliseconds(500);  // to hear the next BUSY, or a grant
constexpr double kMostOfOneWriter = 0.5;
}  // namespace

std::string TurnOracles::AfterTurn(const SimCluster& cluster, size_t worker) {
  const EngineCore& core = *cluster.core(worker);
  for (std::string why : {Writable(core), Caps(core), Holds(cluster, worker)}) {
    if (!why.empty()) return cluster.name(worker) + ": " + why;
  }
  return "";
}

std::string TurnOracles::Writable(const EngineCore& core) {
  for (const ReaderTicket* t : core.connector().reader().Live()) {
    if (t->state != TicketState::kReserved && t->state != TicketState::kReceiving) continue;
    for (uint32_t g = 0; g < t->grant.blocks.size(); ++g) {
      for (const BlockId block : t->grant.blocks[g]) {
        if (core.pool().NumReferences(g, block) != 1) return "a block that a writer may write has another owner";
        if (core.pool().IsIndexed(g, block)) return "a block that a writer may write is in the prefix cache";
      }
    }
  }
  return "";
}

std::string TurnOracles::Caps(const EngineCore& core) {
  struct Tied {
    uint32_t tickets = 0;
    size_t blocks = 0;
  };
  std::map<ProcessId, Tied> by_writer;
  for (const ReaderTicket* t : core.connector().reader().Live()) {
    if (t->state == TicketState::kReady || t->state == TicketState::kRunning) continue;
    Tied& tied = by_writer[t->writer];
    ++tied.tickets;
    for (const auto& group : t->grant.blocks) tied.blocks += group.size();
  }
  for (const auto& [writer, tied] : by_writer) {
    if (tied.tickets > 1 && static_cast<double>(tied.blocks) > kMostOfOneWriter * core.pool().counts(0).total) {
      return "tickets of " + writer.name + " tie up more than half of the pool";
    }
  }
  return "";
}

std::string TurnOracles::Holds(const SimCluster& cluster, size_t worker) {
  for (const WriterChild* c : cluster.core(worker)->connector().writer().Live()) {
    if (c->state != WriterState::kHeld) continue;
    const TimePoint now = cluster.local_now(worker);
    const TimePoint over = now + (c->deadline - now) / 4;
    const TimePoint first = holds_.emplace(HoldKey{worker, cluster.incarnation(worker), c->key}, over).first->second;
    if (now > first + kHoldSlack) return "a hand-off waits for a busy reader beyond a quarter of its deadline";
  }
  return "";
}

}  // namespace baton

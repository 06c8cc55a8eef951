// The data path of a simulated cluster, in virtual time: posts land piece by piece, late if so drawn; notices are
// delayed, dropped or doubled; posts fail, are truncated or never end, by the same FaultPolicy as the fake
// transport. Mode one-sided: a put lands whatever the reader thinks, even after its ticket ended.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "baton/kv_transport.h"
#include "sim/event_loop.h"
#include "transport/fault_policy.h"

namespace baton {

class SimTransport;

struct SimFabric {
  EventLoop* loop = nullptr;
  Rng* rng = nullptr;
  TransferMode mode = TransferMode::kOneSided;
  FaultPolicy* faults = nullptr;
  Duration latency = std::chrono::microseconds(50);
  double bytes_per_second = 2e9;
  std::map<ProcessId, SimTransport*> processes;
  // Until then nothing of the first gets to the second (SimCluster::Cut).
  std::function<TimePoint(const ProcessId& from, const ProcessId& to)> held_until;
  // A put of the ticket landed in the reader's pool; a decision of `faults` went against the ticket.
  std::function<void(const ProcessId& reader, const Ticket& ticket, uint64_t bytes)> on_landed;
  std::function<void(FaultPoint point, FaultKind kind, const Ticket& ticket)> on_fault;
  bool Held(const ProcessId& from, const ProcessId& to) const {
    return held_until && held_until(from, to) > loop->Now();
  }
};

class SimTransport : public KvTransport {
 public:
  SimTransport(SimFabric* fabric, ProcessId self, std::function<void()> wake);
  ~SimTransport() override;  // as a kill: its puts in flight are over

  std::string_view name() const override { return "sim"; }
  StatusOr<std::span<std::byte>> AllocatePool(size_t bytes) override;
  std::vector<std::byte> LocalDescriptor() const override { return {std::byte{1}}; }
  void Open(const ProcessId& reader, std::span<const std::byte> descriptor) override;
  void Close(const ProcessId& peer) override;
  void Admit(const Ticket& ticket, const ProcessId& writer, std::vector<uint64_t> block_base,
             std::vector<uint64_t> block_bytes) override;
  void Retire(const Ticket& ticket) override;
  void Fence(const ProcessId& writer) override;
  void Post(TransferPost post) override;
  void Poll(std::vector<TransportEvent>* events) override;

 private:
  struct Admission {
    ProcessId writer;
    std::vector<uint64_t> base;
    std::vector<uint64_t> bytes;
  };
  void Report(TransportEvent event);
  // `opened`: when the link was that it was posted on.
  void Land(const TransferPost& post, Fault fault, TimePoint opened);
  void PathCut(const ProcessId& reader, TimePoint at);
  void Notice(const TransferPost& post);  // at the reader
  void SendNotice(const TransferPost& post, Duration delay);
  Fault Decide(FaultPoint point, const Ticket& ticket);
  void Complete(OpId op, Status status, uint64_t digest);

  SimFabric* const fabric_;
  const ProcessId self_;
  const std::function<void()> wake_;
  std::vector<std::byte> pool_;
  std::map<Ticket, Admission> admitted_;
  std::map<OpId, ProcessId> open_ops_;
  std::map<ProcessId, TimePoint> open_peers_;  // since when
  std::map<ProcessId, TimePoint> cut_;         // mode kKeyedPut: links of this writer that were opened till then
  std::vector<TransportEvent> events_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace baton

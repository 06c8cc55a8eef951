// KvTransport with faults on demand: wraps another transport and asks a FaultPolicy about every post (as writer)
// and every chunk notice (as reader). Without faults it is transparent. It keeps the port's promises under every
// fault: one Quiesced per op, no ChunkArrived after Quiet, Quiesced before Severed.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "baton/kv_transport.h"
#include "baton/model_runner.h"
#include "transport/fault_policy.h"

namespace baton {

class FakeTransport : public KvTransport {
 public:
  // `waker` is woken when a delayed event falls due (by a timer thread of this object); the inner transport has
  // been given its own waker, usually the same one. It must outlive the transport.
  FakeTransport(std::unique_ptr<KvTransport> inner, FaultPolicy policy, Waker* waker);
  ~FakeTransport() override;

  std::string_view name() const override { return "fake"; }
  StatusOr<std::span<std::byte>> AllocatePool(size_t bytes) override;
  std::vector<std::byte> LocalDescriptor() const override;
  void Open(const ProcessId& reader, std::span<const std::byte> descriptor) override;
  void Close(const ProcessId& peer) override;
  void Admit(const Ticket& ticket, const ProcessId& writer, std::vector<uint64_t> block_base,
             std::vector<uint64_t> block_bytes) override;
  void Retire(const Ticket& ticket) override;
  void Fence(const ProcessId& writer) override;
  void Post(TransferPost post) override;
  void Poll(std::vector<TransportEvent>* events) override;
  void AppendMetrics(std::vector<Metric>* metrics) const override { inner_->AppendMetrics(metrics); }

  KvTransport& inner() { return *inner_; }

 private:
  class Faults;
  std::unique_ptr<KvTransport> inner_;
  std::unique_ptr<Faults> faults_;
};

}  // namespace baton

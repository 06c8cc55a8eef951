// KvTransport between workers of one process. A LocalFabric is the "network": the transports that share one can
// reach each other. Each transport has one progress thread: as a writer it digests and copies, as a reader it
// digests what arrived. Mode: receiver-posted, since every copy asks the reader's admission table first, so the
// reader can stop it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "baton/kv_transport.h"
#include "baton/model_runner.h"
#include "transport/counters.h"

namespace baton {

class LocalFabric {
 public:
  LocalFabric();
  ~LocalFabric();
  LocalFabric(const LocalFabric&) = delete;
  LocalFabric& operator=(const LocalFabric&) = delete;

  struct State;
  const std::shared_ptr<State>& state() const { return state_; }  // of the transports, opaque to others

 private:
  std::shared_ptr<State> state_;
};

struct LocalOptions {
  ProcessId self;                   // what readers see as the writer of a chunk
  uint32_t max_pending_ops = 4096;  // a Post beyond it ends at once with RESOURCE_EXHAUSTED
};

class LocalTransport : public KvTransport {
 public:
  // `waker` is woken after every event; it must outlive the transport, the fabric need not.
  LocalTransport(const LocalFabric& fabric, LocalOptions options, Waker* waker);
  ~LocalTransport() override;  // peers see this process as gone

  std::string_view name() const override { return "local"; }
  StatusOr<std::span<std::byte>> AllocatePool(size_t bytes) override;
  std::vector<std::byte> LocalDescriptor() const override;
  void Open(const ProcessId& reader, std::span<const std::byte> descriptor) override;
  void Close(const ProcessId& peer) override;
  void Admit(const Ticket& ticket, const ProcessId& writer, std::vector<uint64_t> block_base,
             std::vector<uint64_t> block_bytes) override;
  void Retire(const Ticket& ticket) override;
  void Post(TransferPost post) override;
  void Poll(std::vector<TransportEvent>* events) override;
  void AppendMetrics(std::vector<Metric>* metrics) const override { Append(counters(), metrics); }

  TransportCounters counters() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace baton

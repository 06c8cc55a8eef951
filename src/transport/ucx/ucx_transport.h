// KvTransport between processes, over UCX (API level 1.13): same-host shared memory (one-sided stores into
// the reader's pool), RDMA (puts under a key of the writer's own) and TCP (receiver-posted active messages). One
// progress thread per transport makes every UCX call after AllocatePool; it sleeps when nothing happens. Never fork
// after a UcxTransport was made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton/clock.h"
#include "baton/kv_transport.h"
#include "baton/model_runner.h"
#include "transport/counters.h"

namespace baton {

struct UcxOptions {
  ProcessId self;  // what readers see as the writer of a chunk
  // "shm", "tcp", "rdma", or "auto": shm to peers on this host, else RDMA where both have it, else tcp.
  std::string tls = "auto";
  std::string net_devices = "lo";                 // the devices that TCP listens on, comma-separated, or "all"
  Duration op_timeout = std::chrono::seconds(5);  // without progress of an op: the path counts as broken
  Duration open_timeout = std::chrono::seconds(5);
  Duration retire_timeout = std::chrono::seconds(1);  // a placement that outlives Retire by this is cut off
  uint64_t max_in_flight_bytes = 64ull << 20;         // per peer, receiver-posted
  uint32_t max_pending_ops = 4096;                    // a Post beyond it ends at once with RESOURCE_EXHAUSTED
  uint32_t max_inbound_links = 1024;
  // For tests, of both sides: TCP is taken for a transport of one-sided puts. UCX carries them out in the reader's
  // progress thread, so the code is that of RDMA and the speed is not.
  bool puts_over_tcp = false;
};

class UcxEngine;

class UcxTransport : public KvTransport {
 public:
  // Fails with what to do if UCX or the wanted transport is not usable here. `waker` is woken after every event
  // and must outlive the transport.
  static StatusOr<std::unique_ptr<UcxTransport>> Create(UcxOptions options, Waker* waker);
  ~UcxTransport() override;  // closes everything by force; the pool is unmapped

  std::string_view name() const override { return "ucx"; }
  // Shared memory is checked for room in /dev/shm first. Starts the progress thread.
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
  void AppendMetrics(std::vector<Metric>* metrics) const override { Append(counters(), metrics); }

  TransportCounters counters() const;

 private:
  explicit UcxTransport(std::unique_ptr<UcxEngine> engine);
  std::unique_ptr<UcxEngine> engine_;
};

}  // namespace baton

// KvTransport between processes over gRPC streams, for KV that must not cross a network in the clear: mutual TLS with
// the cluster's certificates, or plain text without them. Mode: receiver-posted, since the reader copies from the
// stream into its pool and so can stop. One progress thread does everything, encryption included; idle it sleeps.
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
#include "credentials/certificate.h"
#include "transport/counters.h"

namespace baton {

struct GrpcOptions {
  ProcessId self;                                 // what readers see as the writer of a chunk
  std::string listen = "127.0.0.1:0";             // host:port of the KV streams; port 0 takes a free one
  std::string advertise;                          // what writers dial; empty: `listen`. Port 0 is the real port
  TlsPems tls;                                    // mutual, or empty: plain text
  Duration op_timeout = std::chrono::seconds(5);  // bytes under way without progress: the path counts as broken
  Duration open_timeout = std::chrono::seconds(5);
  uint64_t max_in_flight_bytes = 4ull << 20;  // per peer, not yet placed: what a notice may have to wait for
  uint32_t max_pending_ops = 4096;            // a Post beyond it ends at once with RESOURCE_EXHAUSTED
  uint32_t max_inbound_links = 1024;
};

class GrpcTransport : public KvTransport {
 public:
  // Binds; fails with what to do. `waker` is woken after every event and must outlive the transport.
  static StatusOr<std::unique_ptr<GrpcTransport>> Create(GrpcOptions options, Waker* waker);
  ~GrpcTransport() override;  // closes everything by force; the pool is unmapped

  std::string_view name() const override { return "grpc"; }
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
  class Engine;
  explicit GrpcTransport(std::unique_ptr<Engine> engine);
  std::unique_ptr<Engine> engine_;
};

}  // namespace baton

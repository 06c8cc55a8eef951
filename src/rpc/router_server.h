// A router's gRPC side: baton.v1.Inference and baton.v1.Cluster for clients and operators, the worker sessions,
// grpc.health.v1 and reflection, all on one port, over one FrontThread. Nothing here decides anything.
//
// Always true: a client's stream has a bounded queue, and the front thread never waits for a client or a worker.
// Health says SERVING for "", baton.v1.Inference and baton.v1.Cluster only while a worker could take a request
// and no drain has begun.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "baton/clock.h"
#include "baton/ids.h"
#include "baton/status.h"
#include "baton/tokenizer.h"
#include "credentials/api_keys.h"
#include "credentials/certificate.h"
#include "front/front.h"
#include "rpc/endpoint.h"

namespace baton {

class FrontThread;

// What ListModels and GetModel say.
struct ServedModel {
  uint32_t max_context_tokens = 0;
  uint64_t kv_bytes_per_token = 0;  // 0: not known here
};

struct RouterServerOptions {
  std::string listen = "127.0.0.1:0";  // host:port; port 0 takes a free one
  FrontOptions front;                  // served_name is the name that clients use
  ServedModel model;
  const Tokenizer* tokenizer = nullptr;  // outlives the server
  const ChatTemplate* chat = nullptr;    // may be null

  // Clients and workers share the port. With a certificate it speaks TLS alone. A worker must then show a certificate
  // of the CA that names it, so without a CA no worker comes from another process; clients never need one.
  TlsPems tls;
  ApiKeys api_keys;  // of Inference and Cluster; health and reflection are open

  size_t stream_queue_events = 256;                      // per client stream; a slower reader gets merged deltas
  size_t stream_queue_bytes = size_t{8} << 20;           // waiting for one client; beyond, RESOURCE_EXHAUSTED
  std::chrono::milliseconds slow_client_timeout{30000};  // without a read while the queue is full; then CANCELLED
  size_t max_request_bytes = size_t{16} << 20;           // of a client's message
  size_t max_worker_bytes = size_t{64} << 20;            // of a worker's message
  uint32_t max_concurrent_streams = 8192;                // per connection
  size_t max_workers = 4096;
  size_t worker_queue_messages = 8192;  // commands waiting to be written to one worker; beyond, the link closes
};

class RouterServer {
 public:
  // Binds, starts the front thread and serves. Errors: a bad or used address, in words. `clock` outlives it.
  static StatusOr<std::unique_ptr<RouterServer>> Start(RouterServerOptions options, const Clock* clock);
  virtual ~RouterServer() = default;  // as Shutdown

  virtual std::string address() const = 0;  // host:port with the real port
  virtual int port() const = 0;
  // For WorkerNetwork and InferenceClient in this process: no socket. Valid while the server lives; afterwards
  // calls fail UNAVAILABLE.
  virtual std::shared_ptr<InProcessTarget> InProcess() = 0;
  virtual FrontThread& front() = 0;

  // NOT_SERVING, new requests are refused UNAVAILABLE. Returns when no request is live or after `limit`.
  virtual void Drain(std::chrono::milliseconds limit) = 0;
  // Ends what is left (UNAVAILABLE or CANCELLED), closes the worker sessions, joins. Idempotent.
  virtual void Shutdown() = 0;
};

}  // namespace baton

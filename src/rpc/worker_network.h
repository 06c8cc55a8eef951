// A worker's connections: it carries EngineCommands in and Outbox contents out, and understands neither. Dials
// the routers (and redials them for ever), serves the pair service, dials readers when the engine asks, watches
// peer processes. One network thread owns every link; gRPC's threads parse and push into the engine's mailbox.
// Deliver never blocks, so the engine thread never waits for a peer.
//
// Always true: a link gets LinkUp at most once (dialed or accepted), messages only between LinkUp and LinkDown,
// in the order sent, and LinkDown exactly once, also after the engine closed it. A dial that failed gives
// LinkDown alone. A link whose queue or whose inlet overflows is closed: no message is ever dropped from the
// middle of a stream.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mailbox.h"
#include "baton/engine_command.h"
#include "baton/outbox.h"
#include "baton/status.h"
#include "credentials/certificate.h"
#include "rpc/endpoint.h"

namespace baton {

struct WorkerNetworkOptions {
  // host:port for pair sessions; port 0 takes a free one. Empty: none (a unified worker alone with its router).
  std::string listen = "127.0.0.1:0";
  // What peers dial; empty: the listening host. Port 0 is the real port.
  std::string advertise;
  // Mutual TLS with routers and peers, or (without a certificate) none. A router must show one with that role for the
  // host dialed, a peer one with its name; who dials here must show one that may write.
  TlsPems tls;
  std::chrono::milliseconds redial_first{50};
  std::chrono::milliseconds redial_most{2000};
  // gRPC pings: a peer that is gone without closing is noticed within their sum. The engines' heartbeats find
  // what pings cannot.
  std::chrono::milliseconds keepalive_time{1000};
  std::chrono::milliseconds keepalive_timeout{2000};
  size_t link_queue_messages = 8192;  // waiting to be written on one link
  size_t link_queue_bytes = size_t{64} << 20;
  size_t max_message_bytes = size_t{64} << 20;
  // A router closed the session with FAILED_PRECONDITION: this incarnation is not wanted there (its name is taken,
  // another model) and it is not dialed again. The status names the router and says why; without this, it is logged.
  // Network thread; must not block.
  std::function<void(const Status&)> on_refused;
};

class WorkerNetwork {
 public:
  // Binds. Nothing is accepted or dialed yet, so that the engine can be built with the real address.
  // Errors: a bad or used address, in words.
  static StatusOr<std::unique_ptr<WorkerNetwork>> Listen(WorkerNetworkOptions options);
  virtual ~WorkerNetwork() = default;  // as Shutdown

  virtual std::string pair_address() const = 0;  // for WorkerHello and PeerAddress; "" without a listener
  // Once: accepts peers and dials the routers. `engine` outlives the network.
  virtual void Start(Mailbox<EngineCommand>* engine, const std::vector<Endpoint>& routers) = 0;
  // Engine thread (or any one thread): queues what a step wants said. Never blocks.
  virtual void Deliver(Outbox&& outbox) = 0;
  // Closes every link and joins; LinkDown was pushed for each. Idempotent.
  virtual void Shutdown() = 0;
};

// This host for WatchProcess: boot id and process-id namespace, so that equal strings mean that a pid of one is
// a pid of the other. Empty when it cannot be known: then no pidfd is ever trusted.
std::string HostIdentity();

}  // namespace baton

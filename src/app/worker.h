// A worker: the one place where the concrete runner, device, transport and network meet an EngineCore. Role
// is data: a prefill, a decode and a unified worker differ in their masks alone.
//
// Made and destroyed by the main thread. Threads inside: the engine's, the runner's step thread with the CPU
// pool, the transport's, the network's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/process.h"
#include "app/settings.h"
#include "baton/front_link.h"
#include "baton/ids.h"
#include "baton/status.h"
#include "credentials/certificate.h"
#include "model/model_file.h"
#include "rpc/endpoint.h"

namespace baton {

struct WorkerSetup {
  ProcessId self;
  RoleMask roles;
  // The routers to dial, asked for once everything else stands: a supervised worker loads its model while its router
  // still starts. May block; an error ends the start. Main thread.
  std::function<StatusOr<std::vector<Endpoint>>()> find_routers;
  // Every router has refused this worker for good. Network thread; must not block.
  std::function<void(const Status&)> on_refused;
  TlsPems tls;         // of every connection to other processes
  bool alone = false;  // the only worker of this process's own router: no pair service, no shared memory
};

class Worker {
 public:
  // Binds, plans the memory in words, loads, allocates, and starts serving. Errors are the user's to mend
  // (exit code 2): address, model, memory, transport.
  static StatusOr<std::unique_ptr<Worker>> Start(const Settings& settings, const ModelFile& file, WorkerSetup setup,
                                                 EventLines* events);
  virtual ~Worker() = default;  // as Stop

  virtual std::string pair_address() const = 0;  // "" when alone
  // Admits nothing new and waits until nothing runs any more, at most `limit`. True: nothing runs.
  virtual bool Drain(Duration limit) = 0;
  virtual void Stop() = 0;  // idempotent
};

}  // namespace baton

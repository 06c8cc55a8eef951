// The router's end of a worker's stream: says hello to the front, then carries batches in and commands out.
// Private to rpc.
#pragma once

#include <atomic>
#include <memory>

#include "baton/internal/v1/worker.grpc.pb.h"
#include "rpc/front_thread.h"
#include "rpc/link_stream.h"

namespace baton {

struct WorkerSessionLimits {
  bool tls = false;  // a worker must prove its name and roles
  size_t max_workers = 4096;
  LinkBounds queue;
};

class WorkerLinkService final : public internal::v1::WorkerLink::CallbackService {
 public:
  WorkerLinkService(FrontThread* front, WorkerSessionLimits limits) : front_(front), limits_(limits) {}
  grpc::ServerBidiReactor<internal::v1::WorkerMessage, internal::v1::FrontCommand>* WorkerSession(
      grpc::CallbackServerContext* context) override;

 private:
  FrontThread* const front_;
  const WorkerSessionLimits limits_;
  std::shared_ptr<std::atomic<size_t>> sessions_ = std::make_shared<std::atomic<size_t>>(0);
};

}  // namespace baton

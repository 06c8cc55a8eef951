// baton.v1.Cluster over a FrontThread: snapshots and their stream, orders to workers. Private to rpc.
#pragma once

#include <atomic>
#include <memory>

#include "baton/v1/cluster.grpc.pb.h"
#include "rpc/front_thread.h"

namespace baton {

class ClusterService final : public v1::Cluster::CallbackService {
 public:
  static constexpr size_t kMaxWatchers = 256;

  explicit ClusterService(FrontThread* front) : front_(front), watchers_(std::make_shared<std::atomic<size_t>>(0)) {}
  grpc::ServerUnaryReactor* GetCluster(grpc::CallbackServerContext* context, const v1::GetClusterRequest* request,
                                       v1::ClusterSnapshot* response) override;
  grpc::ServerWriteReactor<v1::ClusterSnapshot>* WatchCluster(grpc::CallbackServerContext* context,
                                                              const v1::WatchClusterRequest* request) override;
  grpc::ServerWriteReactor<v1::DrainProgress>* Drain(grpc::CallbackServerContext* context,
                                                     const v1::DrainRequest* request) override;
  grpc::ServerUnaryReactor* SetRole(grpc::CallbackServerContext* context, const v1::SetRoleRequest* request,
                                    v1::SetRoleResponse* response) override;

 private:
  FrontThread* const front_;
  const std::shared_ptr<std::atomic<size_t>> watchers_;
};

}  // namespace baton

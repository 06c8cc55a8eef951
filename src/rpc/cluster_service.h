// baton.v1.Cluster over a FrontThread: snapshots and their stream, orders to workers. Private to rpc.
#pragma once

#include <atomic>
#include <memory>

#include "baton/v1/cluster.grpc.pb.h"
#include "credentials/api_keys.h"
#include "rpc/front_thread.h"

namespace baton {

class ClusterService final : public v1::Cluster::CallbackService {
 public:
  static constexpr size_t kMaxWatchers = 256;

  // Every call needs a key that may operate, where there are keys.
  ClusterService(const ApiKeys& keys, FrontThread* front) : keys_(keys), front_(front) {}
  grpc::ServerUnaryReactor* GetCluster(grpc::CallbackServerContext* context, const v1::GetClusterRequest* request,
                                       v1::ClusterSnapshot* response) override;
  grpc::ServerWriteReactor<v1::ClusterSnapshot>* WatchCluster(grpc::CallbackServerContext* context,
                                                              const v1::WatchClusterRequest* request) override;
  grpc::ServerWriteReactor<v1::DrainProgress>* Drain(grpc::CallbackServerContext* context,
                                                     const v1::DrainRequest* request) override;
  grpc::ServerUnaryReactor* SetRole(grpc::CallbackServerContext* context, const v1::SetRoleRequest* request,
                                    v1::SetRoleResponse* response) override;

 private:
  Status Admit(const grpc::CallbackServerContext& context) const;

  const ApiKeys keys_;
  FrontThread* const front_;
  const std::shared_ptr<std::atomic<size_t>> watchers_ = std::make_shared<std::atomic<size_t>>(0);
};

}  // namespace baton

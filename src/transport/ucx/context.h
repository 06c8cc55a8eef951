// UCX's objects with their lifetimes and our settings: one context, one worker, the pool's memory, the event fd.
// Create, AllocatePool and Descriptor's parts run before the progress thread starts; afterwards that thread alone
// touches the worker.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "baton/status.h"

namespace baton {

class UcxContext {
 public:
  // tls: "shm", "tcp", "rdma" or "auto". put_transports: on which peers put under keys (PutTransports); with
  // "rdma" there is one at least.
  static StatusOr<std::unique_ptr<UcxContext>> Create(const std::string& tls, const std::string& net_devices,
                                                      std::vector<std::string> put_transports);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  // Zeroed and 4096-aligned. With shm: a segment that peers on this host can map, after a look at /dev/shm's room.
  Status AllocatePool(size_t bytes);

  // A registration of the pool of its own, so that its end is that of this key alone.
  struct PoolKey {
    ucp_mem_h memory = nullptr;
    std::vector<std::byte> packed;
  };
  StatusOr<PoolKey> MakeKey();
  void WithdrawKey(ucp_mem_h memory) { ucp_mem_unmap(context_, memory); }
  // Empty too if the pool could not be registered for puts and another way will do.
  const std::vector<std::string>& put_transports() const { return put_transports_; }
  ucp_mem_h source() const { return source_; }  // this process's own registration, to put from; null: no puts

  ucp_worker_h worker() const { return worker_; }
  int event_fd() const { return event_fd_; }
  std::span<std::byte> pool() const { return pool_; }
  const std::vector<std::byte>& rkey() const { return rkey_; }        // empty without shm
  const std::vector<std::byte>& address() const { return address_; }  // of the worker

 private:
  UcxContext() = default;
  Status Init(const std::string& tls, const std::string& net_devices);
  StatusOr<std::vector<std::byte>> PackKey(ucp_mem_h memory);
  Status MakeWorker();
  Status MapShared(size_t bytes);
  Status MapPrivate(size_t bytes);

  Status PreparePuts();

  bool shared_ = false, must_put_ = false;
  std::vector<std::string> put_transports_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h memory_ = nullptr, source_ = nullptr;
  int event_fd_ = -1;
  std::span<std::byte> pool_;
  std::vector<std::byte> rkey_, address_;
};

std::string UcxText(ucs_status_t status);  // UCX's words for it
Status FromUcx(ucs_status_t status, const std::string& what);

}  // namespace baton

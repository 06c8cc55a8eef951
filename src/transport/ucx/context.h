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
  // tls: "shm", "tcp" or "auto".
  static StatusOr<std::unique_ptr<UcxContext>> Create(const std::string& tls, const std::string& net_devices);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  // Zeroed and 4096-aligned. With shm: a segment that peers on this host can map, after a look at /dev/shm's room.
  Status AllocatePool(size_t bytes);

  ucp_worker_h worker() const { return worker_; }
  int event_fd() const { return event_fd_; }
  std::span<std::byte> pool() const { return pool_; }
  const std::vector<std::byte>& rkey() const { return rkey_; }        // empty without shm
  const std::vector<std::byte>& address() const { return address_; }  // of the worker

 private:
  UcxContext() = default;
  Status Init(const std::string& tls, const std::string& net_devices);
  Status MakeWorker();
  Status MapShared(size_t bytes);
  Status MapPrivate(size_t bytes);

  bool shared_ = false;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h memory_ = nullptr;
  int event_fd_ = -1;
  std::span<std::byte> pool_;
  std::vector<std::byte> rkey_, address_;
};

std::string UcxText(ucs_status_t status);  // UCX's words for it
Status FromUcx(ucs_status_t status, const std::string& what);

}  // namespace baton

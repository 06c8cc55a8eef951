// One UCX endpoint in peer error mode, on the progress thread. Always true: it is destroyed only after Closed(), so
// no UCX callback finds its owner gone, and after Closed() UCX reads no byte that was posted on it.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "baton/status.h"
#include "transport/link_messages.h"

namespace baton {

class UcxEndpoint {
 public:
  // Never waits: a peer that cannot be reached shows as broken() later.
  static StatusOr<std::unique_ptr<UcxEndpoint>> Connect(ucp_worker_h worker, std::span<const std::byte> address);
  ~UcxEndpoint();
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;

  // Queues a control message; the payload lives here until UCX is done with it. Failure breaks the endpoint.
  void Send(LinkMessage id, std::vector<std::byte> payload);
  // Brackets an operation of the owner whose callback has not run yet.
  void Hold() { ++outstanding_; }
  void Release() { --outstanding_; }
  void Break(Status why);

  bool broken() const { return !error_.ok(); }
  const Status& error() const { return error_; }
  ucp_ep_h ep() const { return ep_; }

  // kForce: at once, outstanding operations end with an error. kFlush: after what was sent has arrived.
  enum class CloseMode : uint8_t { kForce, kFlush };
  void Close(CloseMode mode);
  bool closing() const { return closing_; }
  bool Closed();  // the endpoint is gone and no callback is outstanding

 private:
  struct Message;
  UcxEndpoint() = default;
  static void OnError(void* self, ucp_ep_h ep, ucs_status_t status);
  static void OnSent(void* request, ucs_status_t status, void* message);

  ucp_ep_h ep_ = nullptr;
  void* close_request_ = nullptr;
  Status error_;
  uint32_t outstanding_ = 0;
  bool closing_ = false;
};

}  // namespace baton

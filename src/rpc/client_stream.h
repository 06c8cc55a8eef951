// One client call's way back: the events of a front, written to a gRPC stream (ClientStream) or gathered into one
// answer (ClientAnswer). Private to rpc.
//
// Threads: OnEvent on the front thread, reactions on gRPC's. Always true: the queue is bounded in events and in bytes;
// beyond the events a delta joins the last one of its choice, beyond the bytes the answer ends; a client that takes
// nothing for the timeout while its queue is full is told so, and one that takes nothing once its answer is over is
// cut off. The object owns itself until gRPC is done with the call.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "baton/v1/inference.pb.h"
#include "rpc/front_thread.h"
#include "rpc/inference_service.h"

namespace baton {

// The status of a failed call, with its ErrorDetail.
grpc::Status FailureStatus(const Failed& failed);

class ClientStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public ClientSink,
                           public std::enable_shared_from_this<ClientStream> {
 public:
  // The reactor to give to gRPC; it lives by itself.
  static ClientStream* Start(FrontThread* front, grpc::CallbackServerContext* context, StreamLimits limits,
                             StatusOr<ClientRequest> request);
  void OnEvent(ClientEvent event) override;

 private:
  ClientStream(FrontThread* front, grpc::CallbackServerContext* context, StreamLimits limits)
      : front_(front), context_(context), limits_(limits) {}

  struct Waiting {
    v1::GenerateEvent event;
    size_t bytes = 0;
  };
  void Queue(v1::GenerateEvent event);                   // lock held
  void EndEarly(const Status& why, std::string reason);  // lock held: nothing that waits is written any more
  void WriteNext();                                      // lock held
  void WatchForSlowness();                               // lock held
  void OnSlowTimer(uint64_t writes_then);
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  FrontThread* const front_;
  grpc::CallbackServerContext* const context_;  // until OnDone
  const StreamLimits limits_;
  std::shared_ptr<ClientStream> self_;
  bool timings_ = false;

  std::mutex mutex_;
  ClientHandle client_{};
  std::deque<Waiting> queue_;
  size_t queued_bytes_ = 0;
  grpc::ByteBuffer current_;  // being written
  bool writing_ = false;
  bool cancelled_ = false;
  bool finished_ = false;            // Finish was called
  bool done_ = false;                // gRPC is done: context_ is gone
  std::optional<grpc::Status> end_;  // how the call ends once the queue is written
  uint64_t writes_ = 0;              // completed
  bool watched_ = false;
  std::unique_ptr<grpc::Alarm> slow_timer_;
};

class ClientAnswer final : public grpc::ServerUnaryReactor, public ClientSink {
 public:
  static ClientAnswer* Start(FrontThread* front, grpc::ByteBuffer* response, StatusOr<ClientRequest> request);
  void OnEvent(ClientEvent event) override;

 private:
  ClientAnswer(FrontThread* front, grpc::ByteBuffer* response) : front_(front), response_(response) {}
  void End(const grpc::Status& status);  // lock held
  void OnCancel() override;
  void OnDone() override { const std::shared_ptr<ClientAnswer> self = std::move(self_); }

  FrontThread* const front_;
  grpc::ByteBuffer* const response_;  // until finished
  v1::GenerateResult result_;
  std::shared_ptr<ClientAnswer> self_;
  bool timings_ = false;
  std::mutex mutex_;
  ClientHandle client_{};
  bool finished_ = false;
};

}  // namespace baton

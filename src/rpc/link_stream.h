// One bidirectional gRPC stream as a link: an ordered, bounded queue out, one message after the other in. The
// same for both ends. Private to rpc.
//
// Threads: Send and Close from any thread; gRPC's threads call the reactions. Always true: at most one write is
// under way; OnMessage is never concurrent with itself and never comes after OnClosed; OnClosed comes exactly
// once. The object owns itself until then: it is made by Make and gone after OnClosed unless someone else holds
// it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "baton/status.h"

namespace baton {

inline Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  const int code = status.error_code();
  return Status(code >= 0 && code <= 16 ? static_cast<Code>(code) : Code::kUnknown, status.error_message());
}
inline grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), status.message());
}

struct LinkBounds {
  size_t messages = 8192;
  size_t bytes = size_t{64} << 20;
};

// What a link does with what arrives. All calls on gRPC's threads; none may block.
template <typename In>
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  virtual Status OnUp() { return OkStatus(); }      // client side: the server answered
  virtual Status OnMessage(const In& message) = 0;  // not ok: the link closes with it
  virtual void OnClosed(const Status& why) = 0;     // the last call
};

// The outgoing half, shared by both ends. `Start(message)` begins a write; the lock is held.
template <typename Out>
class LinkQueue {
 public:
  explicit LinkQueue(LinkBounds bounds) : bounds_(bounds) {}

  // False: would overflow.
  bool Fits(const Out& message, size_t* bytes) const {
    *bytes = message.ByteSizeLong();
    return queue_.size() < bounds_.messages && bytes_ + *bytes <= bounds_.bytes;
  }
  void Push(std::unique_ptr<Out> message, size_t bytes) {
    bytes_ += bytes;
    queue_.push_back({std::move(message), bytes});
  }
  void Pop() {
    bytes_ -= queue_.front().bytes;
    queue_.pop_front();
  }
  bool empty() const { return queue_.empty(); }
  const Out* front() const { return queue_.front().message.get(); }
  void Clear() {
    queue_.clear();
    bytes_ = 0;
  }

 private:
  struct Waiting {
    std::unique_ptr<Out> message;
    size_t bytes;
  };
  const LinkBounds bounds_;
  std::deque<Waiting> queue_;
  size_t bytes_ = 0;
};

enum class SendResult : uint8_t { kSent, kClosed, kOverflow };

// ---- the server's end -------------------------------------------------------------------------------------
template <typename In, typename Out>
class ServerLink final : public grpc::ServerBidiReactor<In, Out> {
 public:
  static std::shared_ptr<ServerLink> Make(grpc::CallbackServerContext* context, LinkBounds bounds) {
    auto link = std::shared_ptr<ServerLink>(new ServerLink(context, bounds));
    link->self_ = link;
    return link;
  }
  // Once, before the reactor is given to gRPC or right after. Reading begins.
  void Run(std::shared_ptr<LinkOwner<In>> owner) {
    owner_ = std::move(owner);
    this->StartSendInitialMetadata();
    this->StartRead(&in_);
  }
  // Instead of Run: refuses the call.
  void Refuse(const Status& why) { Close(why); }

  SendResult Send(std::unique_ptr<Out> message) {
    std::lock_guard lock(mutex_);
    if (closing_) return SendResult::kClosed;
    size_t bytes = 0;
    if (!queue_.Fits(*message, &bytes)) return SendResult::kOverflow;
    queue_.Push(std::move(message), bytes);
    WriteNext();
    return SendResult::kSent;
  }
  // After everything sent is written.
  void Close(const Status& why) {
    std::lock_guard lock(mutex_);
    if (closing_) return;
    closing_ = true;
    why_ = why;
    WriteNext();
  }
  // At once; what waits is dropped.
  void Abort(const Status& why) {
    std::lock_guard lock(mutex_);
    if (finished_) return;
    if (!closing_) why_ = why;
    closing_ = true;
    if (writing_) {
      context_->TryCancel();  // the write under way ends with an error
    } else {
      queue_.Clear();
      WriteNext();
    }
  }

 private:
  ServerLink(grpc::CallbackServerContext* context, LinkBounds bounds) : context_(context), queue_(bounds) {}

  // With the lock held: writes the next message, or finishes when closing and all is written.
  void WriteNext() {
    if (writing_ || finished_) return;
    if (!queue_.empty() && !broken_) {
      writing_ = true;
      this->StartWrite(queue_.front());
    } else if (closing_) {
      finished_ = true;
      this->Finish(ToGrpc(why_));
    }
  }
  void Break(const Status& why) {
    if (!closing_) why_ = why;
    closing_ = true;
    broken_ = true;
    WriteNext();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Close(OkStatus());  // the peer has said all, or is gone
    const Status status = owner_->OnMessage(in_);
    if (!status.ok()) return Close(status);
    in_.Clear();
    this->StartRead(&in_);
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    queue_.Pop();
    if (!ok) return Break(UnavailableError("the peer is gone"));
    WriteNext();
  }
  void OnCancel() override {
    std::lock_guard lock(mutex_);
    Break(UnavailableError("the connection broke or the peer cancelled"));
  }
  void OnDone() override {
    Status why;
    {
      std::lock_guard lock(mutex_);
      why = why_.ok() ? UnavailableError("the peer closed the session") : why_;
    }
    const std::shared_ptr<ServerLink> self = std::move(self_);
    if (owner_) owner_->OnClosed(why);
    owner_.reset();
  }

  grpc::CallbackServerContext* const context_;
  std::shared_ptr<LinkOwner<In>> owner_;
  std::shared_ptr<ServerLink> self_;
  In in_;
  std::mutex mutex_;
  LinkQueue<Out> queue_;
  bool writing_ = false;
  bool closing_ = false;   // nothing new is taken
  bool broken_ = false;    // nothing more can be written
  bool finished_ = false;  // Finish was called
  Status why_;
};

// ---- the client's end -------------------------------------------------------------------------------------
template <typename Out, typename In>
class ClientLink final : public grpc::ClientBidiReactor<Out, In> {
 public:
  static std::shared_ptr<ClientLink> Make(LinkBounds bounds) {
    auto link = std::shared_ptr<ClientLink>(new ClientLink(bounds));
    link->self_ = link;
    return link;
  }
  grpc::ClientContext* context() { return &context_; }
  // Once, after the stub bound the reactor. `channel` lives as long as the call.
  void Run(std::shared_ptr<LinkOwner<In>> owner, std::shared_ptr<grpc::Channel> channel) {
    owner_ = std::move(owner);
    channel_ = std::move(channel);
    this->AddHold();  // for Send; removed when the link closes
    this->StartRead(&in_);
    this->StartCall();
  }

  SendResult Send(std::unique_ptr<Out> message) {
    std::lock_guard lock(mutex_);
    if (closing_) return SendResult::kClosed;
    size_t bytes = 0;
    if (!queue_.Fits(*message, &bytes)) return SendResult::kOverflow;
    queue_.Push(std::move(message), bytes);
    WriteNext();
    return SendResult::kSent;
  }
  void Close(const Status& why) {
    std::lock_guard lock(mutex_);
    if (closing_) return;
    closing_ = true;
    why_ = why;
    WriteNext();
  }
  void Abort(const Status& why) {
    std::lock_guard lock(mutex_);
    if (!closing_) why_ = why;
    closing_ = true;
    broken_ = true;
    context_.TryCancel();
    WriteNext();
  }

 private:
  explicit ClientLink(LinkBounds bounds) : queue_(bounds) {}

  void WriteNext() {
    if (writing_ || released_) return;
    if (!queue_.empty() && !broken_) {
      writing_ = true;
      this->StartWrite(queue_.front());
    } else if (closing_) {
      released_ = true;
      if (!broken_) this->StartWritesDone();  // the server then finishes the call
      this->RemoveHold();
    }
  }

  void OnReadInitialMetadataDone(bool ok) override {
    if (!ok) return;
    const Status status = owner_->OnUp();
    if (!status.ok()) Abort(status);
  }
  void OnReadDone(bool ok) override {
    if (!ok) {
      std::lock_guard lock(mutex_);
      closing_ = true;
      broken_ = true;
      return WriteNext();
    }
    const Status status = owner_->OnMessage(in_);
    if (!status.ok()) Abort(status);  // the next read fails
    in_.Clear();
    this->StartRead(&in_);
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    queue_.Pop();
    if (!ok) closing_ = broken_ = true;
    WriteNext();
  }
  void OnDone(const grpc::Status& status) override {
    Status why = FromGrpc(status);
    {
      std::lock_guard lock(mutex_);
      if (!why_.ok()) why = why_;
    }
    if (why.ok()) why = UnavailableError("the peer closed the session");
    const std::shared_ptr<ClientLink> self = std::move(self_);
    owner_->OnClosed(why);
    owner_.reset();
  }

  grpc::ClientContext context_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<LinkOwner<In>> owner_;
  std::shared_ptr<ClientLink> self_;
  In in_;
  std::mutex mutex_;
  LinkQueue<Out> queue_;
  bool writing_ = false;
  bool closing_ = false;
  bool broken_ = false;
  bool released_ = false;  // the hold is gone: nothing may be started from outside any more
  Status why_;
};

}  // namespace baton

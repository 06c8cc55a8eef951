#include "rpc/worker_session.h"

#include <utility>

#include "base/log.h"
#include "rpc/link_codec.h"
#include "rpc/peer_identity.h"

namespace baton {

namespace {

using Stream = ServerLink<wire::WorkerMessage, wire::FrontCommand>;

class Session final : public LinkOwner<wire::WorkerMessage>,
                      public WorkerSink,
                      public std::enable_shared_from_this<Session> {
 public:
  Session(FrontThread* front, std::optional<CertifiedProcess> proven, std::shared_ptr<Stream> stream,
          std::shared_ptr<std::atomic<size_t>> sessions)
      : front_(front), proven_(std::move(proven)), stream_(std::move(stream)), sessions_(std::move(sessions)) {}
  ~Session() override { sessions_->fetch_sub(1); }

  // ---- gRPC's threads, one after the other ----
  Status OnMessage(const wire::WorkerMessage& message) override {
    StatusOr<WorkerMessage> decoded = Decode(message);
    if (!decoded.ok()) {
      // Of a Hello it is the last word: the next one would say the same.
      if (link_ == LinkId{0}) return FailedPreconditionError(decoded.status().message());
      return decoded.status();
    }
    WorkerMessage& value = *decoded;
    if (auto* hello = std::get_if<WorkerHello>(&value)) {
      if (link_ != LinkId{0}) return InvalidArgumentError("worker session: a second hello");
      BATON_RETURN_IF_ERROR(CheckProof(*hello));
      if (proven_) hello->may = proven_->may();
      name_ = ToString(hello->self.process);
      spdlog::info("worker {} says hello from {}", name_, hello->self.address);
      link_ = front_->AddWorker(std::move(*hello), shared_from_this());
      if (link_ == LinkId{0}) return UnavailableError("the router takes no workers now");
      return OkStatus();
    }
    if (link_ == LinkId{0}) return InvalidArgumentError("worker session: the first message is no hello");
    auto batch = std::get<WorkerBatch>(std::move(value));
    BATON_RETURN_IF_ERROR(CheckRoles(batch.heartbeat.roles, name_));
    if (front_->FromWorkerLink(link_, std::move(batch))) return OkStatus();
    return UnavailableError("the router's mailbox is full or closed");
  }
  void OnClosed(const Status& why) override {
    if (link_ == LinkId{0}) return;
    spdlog::info("worker {} left: {}", name_, why.ToString());
    front_->RemoveWorker(link_, why);
  }

  // ---- front thread ----
  void Send(const FrontCommand& command) override {
    auto message = std::make_unique<wire::FrontCommand>();
    Encode(command, message.get());
    if (stream_->Send(std::move(message)) == SendResult::kOverflow) {
      stream_->Abort(ResourceExhaustedError("worker session: too many commands wait to be written"));
    }
  }
  void Close(const Status& why) override { stream_->Close(why); }

 private:
  // Its name and its roles are the certificate's to give. The same start would say the same again.
  Status CheckProof(const WorkerHello& hello) const {
    if (!proven_) return OkStatus();
    if (proven_->name != hello.self.process.name) {
      return FailedPreconditionError("hello: a worker says that it is " + hello.self.process.name +
                                     ", but its certificate is that of " + std::string(RoleName(proven_->role)) + " " +
                                     proven_->name);
    }
    return CheckRoles(hello.roles, hello.self.process.name);
  }
  // Also later: a role can change at run time.
  Status CheckRoles(const RoleMask& roles, const std::string& name) const {
    if (!proven_) return OkStatus();
    const RoleMask may = proven_->may();
    if ((!roles.prefill || may.prefill) && (!roles.decode || may.decode)) return OkStatus();
    return FailedPreconditionError((roles.prefill && !may.prefill ? "prefill" : "decode") + std::string(" is not for ") +
                                   name + ": its certificate is that of " + std::string(RoleName(proven_->role)) + " " +
                                   proven_->name);
  }

  FrontThread* const front_;
  const std::optional<CertifiedProcess> proven_;  // nothing: no TLS
  const std::shared_ptr<Stream> stream_;
  const std::shared_ptr<std::atomic<size_t>> sessions_;
  LinkId link_{};
  std::string name_;
};

}  // namespace

grpc::ServerBidiReactor<wire::WorkerMessage, wire::FrontCommand>* WorkerLinkService::WorkerSession(
    grpc::CallbackServerContext* context) {
  const std::shared_ptr<Stream> stream = Stream::Make(context, limits_.queue);
  if (sessions_->fetch_add(1) >= limits_.max_workers) {
    sessions_->fetch_sub(1);
    stream->Refuse(ResourceExhaustedError("the router has its limit of workers"));
    return stream.get();
  }
  StatusOr<std::optional<CertifiedProcess>> proven = ProvenProcess(*context->auth_context(), limits_.tls);
  if (!proven.ok()) {
    sessions_->fetch_sub(1);
    spdlog::warn("a worker session from {} is refused: {}", context->peer(), proven.status().message());
    stream->Refuse(proven.status());
    return stream.get();
  }
  stream->Run(std::make_shared<Session>(front_, *std::move(proven), stream, sessions_));
  return stream.get();
}

}  // namespace baton

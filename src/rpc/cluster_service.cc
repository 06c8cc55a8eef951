#include "rpc/cluster_service.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <grpcpp/alarm.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "rpc/client_stream.h"
#include "rpc/peer_identity.h"
#include "rpc/request_codec.h"

namespace baton {
namespace {

constexpr uint32_t kWatchInterval = 1000, kLeastInterval = 100, kMostInterval = 60'000;  // ms
constexpr uint64_t kDrainWait = 60'000, kRoleWait = 5'000, kMostWait = 3'600'000;        // ms

grpc::Status Failure(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return FailureStatus(Failed{status, std::string(CodeName(status.code())), "", {}});
}
Status NobodyHears() { return UnavailableError("the router is shutting down or overloaded; try again"); }

Status CheckWait(uint64_t wait_ms) {
  if (wait_ms <= kMostWait) return OkStatus();
  return InvalidArgumentError("wait_ms: " + std::to_string(wait_ms) + ", at most " + std::to_string(kMostWait));
}
Status CheckWorker(const std::string& name) {
  if (name.size() <= 128) return OkStatus();  // a longer one is nobody's, and would be repeated in the answer
  return InvalidArgumentError("worker: a name of " + std::to_string(name.size()) + " bytes, at most 128");
}

// ---- GetCluster -------------------------------------------------------------------------------------------

// Finished by the front thread. The call's objects live until then, also when the client went away.
class SnapshotAnswer final : public grpc::ServerUnaryReactor {
  void OnDone() override { delete this; }
};

// ---- WatchCluster -----------------------------------------------------------------------------------------

// One snapshot at a time, asked for when the one before is written and the interval is over: nothing queues for a slow
// reader. The object owns itself until gRPC is done with the call.
class Watch final : public grpc::ServerWriteReactor<v1::ClusterSnapshot>, public std::enable_shared_from_this<Watch> {
 public:
  static Watch* Start(FrontThread* front, StatusOr<std::chrono::milliseconds> interval,
                      std::shared_ptr<std::atomic<size_t>> watchers) {
    auto watch = std::shared_ptr<Watch>(new Watch(front, std::move(watchers)));
    watch->self_ = watch;
    const size_t now = watch->watchers_->fetch_add(1);
    if (!interval.ok()) {
      watch->End(Failure(interval.status()));
    } else if (now >= ClusterService::kMaxWatchers) {
      watch->End(Failure(ResourceExhaustedError(std::to_string(now) + " calls watch the cluster, which is the limit")));
    } else {
      watch->interval_ = *interval;
      watch->Ask();
    }
    return watch.get();
  }

 private:
  Watch(FrontThread* front, std::shared_ptr<std::atomic<size_t>> watchers)
      : front_(front), watchers_(std::move(watchers)) {}

  void Ask() {
    const bool asked = front_->Query([self = shared_from_this()](const Front& front, TimePoint now) {
      auto snapshot = std::make_unique<v1::ClusterSnapshot>();
      ToWire(front.Snapshot(now), front.CouldServe(), snapshot.get());
      self->OnSnapshot(std::move(snapshot));
    });
    if (!asked) End(Failure(NobodyHears()));
  }
  // Front thread.
  void OnSnapshot(std::unique_ptr<v1::ClusterSnapshot> snapshot) {
    std::string content = Lasting(*snapshot);
    std::lock_guard lock(mutex_);
    if (finished_) return;
    if (content == told_) return WaitForInterval();
    told_ = std::move(content);
    current_ = std::move(snapshot);
    StartWrite(current_.get());
  }
  // Equal for snapshots that say the same, whenever they were taken.
  static std::string Lasting(v1::ClusterSnapshot snapshot) {
    ClearAges(&snapshot);
    std::string out;
    google::protobuf::io::StringOutputStream stream(&out);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    snapshot.SerializePartialToCodedStream(&coded);
    coded.Trim();
    return out;
  }
  void WaitForInterval() {  // lock held
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(std::chrono::system_clock::now() + interval_, [weak = weak_from_this()](bool fired) {
      const std::shared_ptr<Watch> watch = weak.lock();
      if (fired && watch != nullptr && !watch->finished()) watch->Ask();
    });
  }
  bool finished() {
    std::lock_guard lock(mutex_);
    return finished_;
  }
  void End(const grpc::Status& status) {
    std::lock_guard lock(mutex_);
    if (!std::exchange(finished_, true)) Finish(status);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return End(grpc::Status::CANCELLED);
    std::lock_guard lock(mutex_);
    if (!finished_) WaitForInterval();
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override {
    const std::shared_ptr<Watch> self = std::move(self_);
    watchers_->fetch_sub(1);
    std::lock_guard lock(mutex_);
    alarm_.reset();
  }

  FrontThread* const front_;
  const std::shared_ptr<std::atomic<size_t>> watchers_;
  std::chrono::milliseconds interval_{};
  std::shared_ptr<Watch> self_;
  std::mutex mutex_;
  std::unique_ptr<v1::ClusterSnapshot> current_;  // being written
  std::string told_;
  std::unique_ptr<grpc::Alarm> alarm_;
  bool finished_ = false;  // Finish was called: nothing is written or awaited any more
};

// ---- Drain ------------------------------------------------------------------------------------------------

class DrainCall final : public grpc::ServerWriteReactor<v1::DrainProgress>, public OperatorSink {
 public:
  static DrainCall* Start(FrontThread* front, StatusOr<DrainOrder> order) {
    auto call = std::shared_ptr<DrainCall>(new DrainCall(front));
    call->self_ = call;
    if (order.ok()) {
      const OperatorHandle handle = front->Order(*std::move(order), call);
      std::lock_guard lock(call->mutex_);
      call->handle_ = handle;
      if (handle == OperatorHandle{0}) call->End(Failure(NobodyHears()));
    } else {
      std::lock_guard lock(call->mutex_);
      call->End(Failure(order.status()));
    }
    return call.get();
  }

  // Front thread.
  void OnUpdate(const OrderUpdate& update) override {
    std::lock_guard lock(mutex_);
    if (finished_) return;
    if (update.last) end_ = Failure(update.status);
    if (update.status.ok()) waiting_ = Words(update);  // one that was not written yet is old by now
    Go();
  }

 private:
  explicit DrainCall(FrontThread* front) : front_(front) {}

  static v1::DrainProgress Words(const OrderUpdate& update) {
    v1::DrainProgress out;
    out.set_last(update.last);
    out.set_empty(update.empty);
    out.set_left(update.left);
    out.set_changed(update.changed);
    out.set_draining(update.draining);
    out.set_waiting(update.waiting);
    out.set_running(update.running);
    out.set_requests(update.requests);
    out.set_elapsed_us(static_cast<uint64_t>(update.elapsed.count() / 1000));
    return out;
  }
  void Go() {  // lock held
    if (writing_ || finished_) return;
    if (waiting_) {
      current_ = *std::exchange(waiting_, std::nullopt);
      writing_ = true;
      StartWrite(&current_);
    } else if (end_) {
      End(*end_);
    }
  }
  void End(const grpc::Status& status) {  // lock held
    if (!std::exchange(finished_, true)) Finish(status);
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) return End(grpc::Status::CANCELLED);
    Go();
  }
  void OnCancel() override {
    OperatorHandle handle;
    {
      std::lock_guard lock(mutex_);
      handle = handle_;
      End(grpc::Status::CANCELLED);
    }
    if (handle != OperatorHandle{0}) front_->Gone(handle);
  }
  void OnDone() override { const std::shared_ptr<DrainCall> self = std::move(self_); }

  FrontThread* const front_;
  std::shared_ptr<DrainCall> self_;
  std::mutex mutex_;
  OperatorHandle handle_{};
  v1::DrainProgress current_;  // being written
  std::optional<v1::DrainProgress> waiting_;
  std::optional<grpc::Status> end_;
  bool writing_ = false, finished_ = false;
};

// ---- SetRole ----------------------------------------------------------------------------------------------

class RoleCall final : public grpc::ServerUnaryReactor, public OperatorSink {
 public:
  static RoleCall* Start(FrontThread* front, v1::SetRoleResponse* response, StatusOr<RoleOrder> order) {
    auto call = std::shared_ptr<RoleCall>(new RoleCall(front, response));
    call->self_ = call;
    if (order.ok()) {
      const OperatorHandle handle = front->Order(*std::move(order), call);
      std::lock_guard lock(call->mutex_);
      call->handle_ = handle;
      if (handle == OperatorHandle{0}) call->End(Failure(NobodyHears()));
    } else {
      std::lock_guard lock(call->mutex_);
      call->End(Failure(order.status()));
    }
    return call.get();
  }
  void OnUpdate(const OrderUpdate& update) override {
    std::lock_guard lock(mutex_);
    if (!update.last || finished_) return;
    response_->set_changed(update.changed);
    response_->set_role(update.roles.prefill && update.roles.decode ? v1::ROLE_UNIFIED
                        : update.roles.decode                       ? v1::ROLE_DECODE
                                                                    : v1::ROLE_PREFILL);
    response_->set_waiting(update.waiting);
    response_->set_running(update.running);
    response_->set_requests(update.requests);
    response_->set_elapsed_us(static_cast<uint64_t>(update.elapsed.count() / 1000));
    End(Failure(update.status));
  }

 private:
  RoleCall(FrontThread* front, v1::SetRoleResponse* response) : front_(front), response_(response) {}
  void End(const grpc::Status& status) {  // lock held
    if (!std::exchange(finished_, true)) Finish(status);
  }
  void OnCancel() override {
    OperatorHandle handle;
    {
      std::lock_guard lock(mutex_);
      handle = handle_;
      End(grpc::Status::CANCELLED);
    }
    if (handle != OperatorHandle{0}) front_->Gone(handle);
  }
  void OnDone() override { const std::shared_ptr<RoleCall> self = std::move(self_); }

  FrontThread* const front_;
  v1::SetRoleResponse* const response_;  // until finished
  std::shared_ptr<RoleCall> self_;
  std::mutex mutex_;
  OperatorHandle handle_{};
  bool finished_ = false;
};

StatusOr<DrainOrder> OrderOf(const v1::DrainRequest& request) {
  DrainOrder order;
  order.worker = request.worker();
  order.router = request.router();
  order.undo = request.undo();
  order.force = request.force();
  if (order.router != order.worker.empty()) {
    return InvalidArgumentError("worker: the name of a worker, or router = true, is needed, and not both");
  }
  BATON_RETURN_IF_ERROR(CheckWorker(order.worker));
  const uint64_t wait_ms = request.has_wait_ms() ? request.wait_ms() : kDrainWait;
  BATON_RETURN_IF_ERROR(CheckWait(wait_ms));
  order.wait = std::chrono::milliseconds(wait_ms);
  return order;
}

StatusOr<RoleOrder> OrderOf(const v1::SetRoleRequest& request) {
  RoleOrder order;
  order.worker = request.worker();
  order.force = request.force();
  if (order.worker.empty()) return InvalidArgumentError("worker: the name of a worker is needed");
  BATON_RETURN_IF_ERROR(CheckWorker(order.worker));
  switch (request.role()) {
    case v1::ROLE_PREFILL:
      order.roles = {.prefill = true, .decode = false};
      break;
    case v1::ROLE_DECODE:
      order.roles = {.prefill = false, .decode = true};
      break;
    case v1::ROLE_UNIFIED:
      order.roles = {.prefill = true, .decode = true};
      break;
    default:
      return InvalidArgumentError("role: one of ROLE_PREFILL, ROLE_DECODE and ROLE_UNIFIED is needed");
  }
  const uint64_t wait_ms = request.has_wait_ms() ? request.wait_ms() : kRoleWait;
  BATON_RETURN_IF_ERROR(CheckWait(wait_ms));
  order.wait = std::chrono::milliseconds(wait_ms);
  return order;
}

StatusOr<std::chrono::milliseconds> IntervalOf(const v1::WatchClusterRequest& request) {
  const uint32_t ms = request.has_interval_ms() ? request.interval_ms() : kWatchInterval;
  if (ms >= kLeastInterval && ms <= kMostInterval) return std::chrono::milliseconds(ms);
  return InvalidArgumentError("interval_ms: " + std::to_string(ms) + ", " + std::to_string(kLeastInterval) + " to " +
                              std::to_string(kMostInterval) + " are possible");
}

}  // namespace

Status ClusterService::Admit(const grpc::CallbackServerContext& context) const {
  return CheckKey(keys_, ApiKeys::Use::kOperate, context);
}

grpc::ServerUnaryReactor* ClusterService::GetCluster(grpc::CallbackServerContext* context,
                                                     const v1::GetClusterRequest* /*request*/,
                                                     v1::ClusterSnapshot* response) {
  auto* reactor = new SnapshotAnswer;
  if (Status status = Admit(*context); !status.ok()) {
    reactor->Finish(Failure(status));
    return reactor;
  }
  const bool asked = front_->Query([reactor, response](const Front& front, TimePoint now) {
    ToWire(front.Snapshot(now), front.CouldServe(), response);
    reactor->Finish(grpc::Status::OK);
  });
  if (!asked) reactor->Finish(Failure(NobodyHears()));
  return reactor;
}

grpc::ServerWriteReactor<v1::ClusterSnapshot>* ClusterService::WatchCluster(grpc::CallbackServerContext* context,
                                                                            const v1::WatchClusterRequest* request) {
  if (Status status = Admit(*context); !status.ok()) return Watch::Start(front_, status, watchers_);
  return Watch::Start(front_, IntervalOf(*request), watchers_);
}

grpc::ServerWriteReactor<v1::DrainProgress>* ClusterService::Drain(grpc::CallbackServerContext* context,
                                                                   const v1::DrainRequest* request) {
  if (Status status = Admit(*context); !status.ok()) return DrainCall::Start(front_, status);
  spdlog::info("operator: {} {}{}", request->undo() ? "end the drain of" : "drain",
               request->router() ? "this router" : CutMessage(request->worker(), kMaxEchoedText),
               request->force() ? ", by force" : "");
  return DrainCall::Start(front_, OrderOf(*request));
}

grpc::ServerUnaryReactor* ClusterService::SetRole(grpc::CallbackServerContext* context,
                                                  const v1::SetRoleRequest* request, v1::SetRoleResponse* response) {
  if (Status status = Admit(*context); !status.ok()) return RoleCall::Start(front_, response, status);
  spdlog::info("operator: {} of {}{}", v1::Role_Name(request->role()), CutMessage(request->worker(), kMaxEchoedText),
               request->force() ? ", by force" : "");
  return RoleCall::Start(front_, response, OrderOf(*request));
}

}  // namespace baton

#include "rpc/router_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "rpc/cluster_service.h"
#include "rpc/grpc_setup.h"
#include "rpc/inference_service.h"
#include "rpc/worker_session.h"

namespace baton {

namespace {

// What health checkers ask for, beside "".
constexpr const char* kPublicServices[] = {"", "baton.v1.Inference", "baton.v1.Cluster"};

FrontThread::Options FrontOptionsOf(const RouterServerOptions& options, std::function<void(bool)> on_serving) {
  FrontThread::Options out;
  out.front = options.front;
  out.on_serving = std::move(on_serving);
  return out;
}

class Server final : public RouterServer {
 public:
  Server(RouterServerOptions options, const Clock* clock)
      : options_(std::move(options)),
        front_(FrontOptionsOf(options_, [this](bool serving) { OnServing(serving); }), options_.tokenizer,
               options_.chat, clock),
        inference_(options_, &front_),
        cluster_(options_.api_keys, &front_),
        workers_(&front_, {options_.tls.serves(),
                           options_.max_workers,
                           {options_.worker_queue_messages, options_.max_worker_bytes}}) {}
  ~Server() override { Shutdown(); }

  Status Bind() {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    ServerSettings settings;
    settings.max_receive_bytes = std::max(options_.max_request_bytes, options_.max_worker_bytes);
    settings.max_concurrent_streams = options_.max_concurrent_streams;
    Configure(settings, &builder);
    builder.RegisterService(&inference_);
    builder.RegisterService(&cluster_);
    builder.RegisterService(&workers_);
    BATON_ASSIGN_OR_RETURN(BoundServer bound,
                           BuildServer(options_.listen, options_.tls, ClientCertificates::kWelcome, &builder));
    acceptor_ = std::move(bound.acceptor);
    in_process_ = std::make_shared<InProcessTarget>(bound.server.get());
    std::lock_guard lock(health_mutex_);
    server_ = std::move(bound.server);
    SetHealth(false);
    return OkStatus();
  }

  std::string address() const override { return acceptor_->address(); }
  int port() const override { return acceptor_->port(); }
  std::shared_ptr<InProcessTarget> InProcess() override { return in_process_; }
  FrontThread& front() override { return front_; }

  void Drain(std::chrono::milliseconds limit) override {
    front_.BeginDrain();
    {
      std::lock_guard lock(health_mutex_);
      draining_ = true;
      SetHealth(false);
    }
    // What the mailbox still holds counts as live too: ask behind it.
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < end) {
      if (LiveBehindMailbox() == 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    spdlog::warn("drain: {} requests still live after {} ms", front_.live(), limit.count());
  }

  void Shutdown() override {
    if (server_ == nullptr) return;
    acceptor_->Stop();
    in_process_->Forget();
    front_.Stop();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
    server_->Wait();
    std::lock_guard lock(health_mutex_);
    server_.reset();
  }

 private:
  uint32_t LiveBehindMailbox() {
    struct Asked {
      std::mutex mutex;
      std::condition_variable ready;
      std::optional<uint32_t> live;
    };
    auto asked = std::make_shared<Asked>();
    const bool sent = front_.Query([asked](const Front& front, TimePoint) {
      std::lock_guard lock(asked->mutex);
      asked->live = front.live();
      asked->ready.notify_one();
    });
    if (!sent) return front_.live();
    std::unique_lock lock(asked->mutex);
    asked->ready.wait_for(lock, std::chrono::seconds(1), [&] { return asked->live.has_value(); });
    return asked->live.value_or(1);
  }

  // Front thread.
  void OnServing(bool serving) {
    std::lock_guard lock(health_mutex_);
    SetHealth(serving && !draining_);
  }
  void SetHealth(bool serving) {  // lock held
    if (server_ == nullptr) return;
    for (const char* service : kPublicServices) server_->GetHealthCheckService()->SetServingStatus(service, serving);
  }

  const RouterServerOptions options_;
  std::mutex health_mutex_;
  bool draining_ = false;
  std::unique_ptr<grpc::Server> server_;  // set once; the lock covers it against the front thread
  std::unique_ptr<Acceptor> acceptor_;
  std::shared_ptr<InProcessTarget> in_process_;
  FrontThread front_;
  InferenceService inference_;
  ClusterService cluster_;
  WorkerLinkService workers_;
};

}  // namespace

StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(RouterServerOptions options, const Clock* clock) {
  KeepCallbackThreads();
  auto server = std::make_unique<Server>(std::move(options), clock);
  BATON_RETURN_IF_ERROR(server->Bind());
  return std::unique_ptr<RouterServer>(std::move(server));
}

}  // namespace baton

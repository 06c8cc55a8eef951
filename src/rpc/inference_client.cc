#include "rpc/inference_client.h"

#include <mutex>
#include <set>
#include <utility>

#include "baton/v1/cluster.grpc.pb.h"
#include "baton/v1/inference.grpc.pb.h"
#include "rpc/grpc_setup.h"
#include "rpc/link_stream.h"
#include "rpc/request_codec.h"

namespace baton {

namespace {

Failed ResultOf(const grpc::Status& status, const TlsPems& tls) {
  Failed out;
  out.status = ExplainConnection(FromGrpc(status), tls);
  DecodeErrorDetail(status.error_details(), &out);
  return out;
}

class Client final : public InferenceClient {
 public:
  Client(std::shared_ptr<grpc::Channel> channel, const InferenceClient::Options& options)
      : channel_(std::move(channel)),
        tls_(options.tls),
        authorization_(options.api_key.empty() ? "" : "Bearer " + options.api_key),
        inference_(v1::Inference::NewStub(channel_)),
        cluster_(v1::Cluster::NewStub(channel_)) {}

  bool WaitReady(std::chrono::milliseconds limit) override {
    return channel_->WaitForConnected(std::chrono::system_clock::now() + limit);
  }

  CallResult Generate(const ClientRequest& request, const std::function<bool(const ClientEvent&)>& on_event) override {
    v1::GenerateRequest wire;
    ToWire(request, &wire);
    Call call(this, request.deadline);
    const auto stream = inference_->Generate(&call.context, wire);
    v1::GenerateEvent event;
    while (stream->Read(&event)) {
      ClientEvent value;
      if (FromWire(event, &value) && !on_event(value)) call.context.TryCancel();
    }
    return ResultOf(stream->Finish(), tls_);
  }

  StatusOr<std::vector<ClientEvent>> Complete(const ClientRequest& request) override {
    v1::GenerateRequest wire;
    ToWire(request, &wire);
    v1::GenerateResult result;
    Call call(this, request.deadline);
    const Status status = StatusOf(inference_->Complete(&call.context, wire, &result));
    if (!status.ok()) return status;
    return FromWire(result);
  }

  void CancelAll() override {
    std::lock_guard lock(mutex_);
    for (Call* call : calls_) call->context.TryCancel();
  }

  StatusOr<std::vector<TokenId>> Tokenize(const ClientRequest& request) override {
    v1::TokenizeRequest wire;
    wire.set_model(request.model);
    if (const auto* text = std::get_if<TextPrompt>(&request.prompt)) {
      wire.set_text(text->text);
      wire.set_add_special(text->add_special);
    }
    if (const auto* chat = std::get_if<ChatPrompt>(&request.prompt)) ToWire(*chat, wire.mutable_chat());
    v1::TokenizeResponse response;
    Call call(this, kUnaryDeadline);
    const Status status = StatusOf(inference_->Tokenize(&call.context, wire, &response));
    if (!status.ok()) return status;
    return std::vector<TokenId>(response.ids().begin(), response.ids().end());
  }

  StatusOr<std::string> Detokenize(const std::vector<TokenId>& ids, bool skip_special) override {
    v1::DetokenizeRequest wire;
    wire.mutable_ids()->Add(ids.begin(), ids.end());
    wire.set_skip_special_tokens(skip_special);
    v1::DetokenizeResponse response;
    Call call(this, kUnaryDeadline);
    const Status status = StatusOf(inference_->Detokenize(&call.context, wire, &response));
    if (!status.ok()) return status;
    return response.text();
  }

  Status Cancel(const std::string& request_id) override {
    v1::CancelRequest wire;
    wire.set_request_id(request_id);
    v1::CancelResponse response;
    Call call(this, kUnaryDeadline);
    return StatusOf(inference_->Cancel(&call.context, wire, &response));
  }

  StatusOr<std::vector<ModelDescription>> ListModels() override {
    v1::ListModelsResponse response;
    Call call(this, kUnaryDeadline);
    const Status status = StatusOf(inference_->ListModels(&call.context, {}, &response));
    if (!status.ok()) return status;
    std::vector<ModelDescription> models;
    for (const v1::Model& model : response.models()) models.push_back(ModelOf(model));
    return models;
  }

  StatusOr<ModelDescription> GetModel(const std::string& name) override {
    v1::GetModelRequest wire;
    wire.set_model(name);
    v1::Model model;
    Call call(this, kUnaryDeadline);
    const Status status = StatusOf(inference_->GetModel(&call.context, wire, &model));
    if (!status.ok()) return status;
    return ModelOf(model);
  }

  StatusOr<ClusterDescription> GetCluster() override {
    v1::ClusterSnapshot response;
    Call call(this, kUnaryDeadline);
    const Status status = StatusOf(cluster_->GetCluster(&call.context, {}, &response));
    if (!status.ok()) return status;
    return FromWire(response);
  }

  Status WatchCluster(Duration interval, const std::function<bool(const ClusterDescription&)>& on_snapshot) override {
    v1::WatchClusterRequest wire;
    wire.set_interval_ms(static_cast<uint32_t>(interval / std::chrono::milliseconds(1)));
    Call call(this, std::nullopt);
    const auto stream = cluster_->WatchCluster(&call.context, wire);
    v1::ClusterSnapshot snapshot;
    bool enough = false;
    while (!enough && stream->Read(&snapshot)) enough = !on_snapshot(FromWire(snapshot));
    if (enough) call.context.TryCancel();
    const Status status = StatusOf(stream->Finish());
    return enough ? OkStatus() : status;
  }

  StatusOr<OrderUpdate> Drain(const DrainOrder& order,
                              const std::function<void(const OrderUpdate&)>& on_progress) override {
    v1::DrainRequest wire;
    wire.set_worker(order.worker);
    wire.set_router(order.router);
    wire.set_undo(order.undo);
    wire.set_force(order.force);
    wire.set_wait_ms(static_cast<uint64_t>(order.wait / std::chrono::milliseconds(1)));
    Call call(this, order.wait + kUnaryDeadline);
    const auto stream = cluster_->Drain(&call.context, wire);
    v1::DrainProgress progress;
    OrderUpdate last;
    while (stream->Read(&progress)) {
      last.last = progress.last();
      last.empty = progress.empty();
      last.left = progress.left();
      last.changed = progress.changed();
      last.draining = progress.draining();
      last.waiting = progress.waiting();
      last.running = progress.running();
      last.requests = progress.requests();
      last.elapsed = std::chrono::microseconds(progress.elapsed_us());
      if (on_progress) on_progress(last);
    }
    const Status status = StatusOf(stream->Finish());
    if (!status.ok()) return status;
    return last;
  }

  StatusOr<OrderUpdate> SetRole(const RoleOrder& order) override {
    v1::SetRoleRequest wire;
    wire.set_worker(order.worker);
    wire.set_role(order.roles.prefill && order.roles.decode ? v1::ROLE_UNIFIED
                  : order.roles.decode                      ? v1::ROLE_DECODE
                  : order.roles.prefill                     ? v1::ROLE_PREFILL
                                                            : v1::ROLE_UNSPECIFIED);
    wire.set_force(order.force);
    wire.set_wait_ms(static_cast<uint64_t>(order.wait / std::chrono::milliseconds(1)));
    v1::SetRoleResponse response;
    Call call(this, order.wait + kUnaryDeadline);
    const Status status = StatusOf(cluster_->SetRole(&call.context, wire, &response));
    if (!status.ok()) return status;
    OrderUpdate out;
    out.last = true;
    out.changed = response.changed();
    out.roles = {response.role() != v1::ROLE_DECODE, response.role() != v1::ROLE_PREFILL};
    out.waiting = response.waiting();
    out.running = response.running();
    out.requests = response.requests();
    out.elapsed = std::chrono::microseconds(response.elapsed_us());
    return out;
  }

 private:
  Status StatusOf(const grpc::Status& status) const { return ExplainConnection(FromGrpc(status), tls_); }

  static constexpr Duration kUnaryDeadline = std::chrono::seconds(30);

  // A call under way, where CancelAll finds it.
  struct Call {
    Call(Client* client, std::optional<Duration> deadline) : owner(client) {
      if (!client->authorization_.empty()) context.AddMetadata("authorization", client->authorization_);
      if (deadline) {
        context.set_deadline(std::chrono::system_clock::now() +
                             std::chrono::duration_cast<std::chrono::system_clock::duration>(*deadline));
      }
      std::lock_guard lock(owner->mutex_);
      owner->calls_.insert(this);
    }
    ~Call() {
      std::lock_guard lock(owner->mutex_);
      owner->calls_.erase(this);
    }
    Client* const owner;
    grpc::ClientContext context;
  };

  static ModelDescription ModelOf(const v1::Model& model) {
    return {model.name(), model.max_context_tokens(), model.vocab_size(), model.kv_bytes_per_token(),
            model.has_chat_template()};
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const TlsPems tls_;
  const std::string authorization_;
  const std::unique_ptr<v1::Inference::Stub> inference_;
  const std::unique_ptr<v1::Cluster::Stub> cluster_;
  std::mutex mutex_;
  std::set<Call*> calls_;
};

// Stands in for a server of this process that is gone already.
class GoneClient final : public InferenceClient {
 public:
  bool WaitReady(std::chrono::milliseconds) override { return false; }
  CallResult Generate(const ClientRequest&, const std::function<bool(const ClientEvent&)>&) override {
    return CallResult{Gone(), "", "", {}};
  }
  StatusOr<std::vector<ClientEvent>> Complete(const ClientRequest&) override { return Gone(); }
  void CancelAll() override {}
  StatusOr<std::vector<TokenId>> Tokenize(const ClientRequest&) override { return Gone(); }
  StatusOr<std::string> Detokenize(const std::vector<TokenId>&, bool) override { return Gone(); }
  Status Cancel(const std::string&) override { return Gone(); }
  StatusOr<std::vector<ModelDescription>> ListModels() override { return Gone(); }
  StatusOr<ModelDescription> GetModel(const std::string&) override { return Gone(); }
  StatusOr<ClusterDescription> GetCluster() override { return Gone(); }
  Status WatchCluster(Duration, const std::function<bool(const ClusterDescription&)>&) override { return Gone(); }
  StatusOr<OrderUpdate> Drain(const DrainOrder&, const std::function<void(const OrderUpdate&)>&) override {
    return Gone();
  }
  StatusOr<OrderUpdate> SetRole(const RoleOrder&) override { return Gone(); }

 private:
  static Status Gone() { return UnavailableError("the server of this process has shut down"); }
};

}  // namespace

std::unique_ptr<InferenceClient> InferenceClient::Create(const Endpoint& endpoint, Options options) {
  ChannelSettings settings;
  settings.max_message_bytes = options.max_message_bytes;
  settings.connect_timeout = std::chrono::seconds(10);
  settings.keepalive_time = std::chrono::seconds(30);
  settings.keepalive_timeout = std::chrono::seconds(10);
  settings.stream_window_bytes = options.stream_window_bytes;
  settings.tls = options.tls;
  std::shared_ptr<grpc::Channel> channel = OpenChannel(endpoint, settings);
  if (channel == nullptr) return std::make_unique<GoneClient>();
  return std::make_unique<Client>(std::move(channel), options);
}

}  // namespace baton

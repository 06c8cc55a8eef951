#include "rpc/inference_service.h"

#include <algorithm>
#include <utility>

#include "rpc/client_stream.h"
#include "rpc/grpc_setup.h"
#include "rpc/link_stream.h"
#include "rpc/peer_identity.h"
#include "rpc/request_codec.h"
#include "text/detokenizer.h"

namespace baton {

namespace {

// Ends a unary call with a status that carries its detail.
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const Status& status, std::string reason = "") {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (reason.empty()) reason = CodeName(status.code());
  reactor->Finish(status.ok() ? grpc::Status::OK : FailureStatus(Failed{status, std::move(reason), "", {}}));
  return reactor;
}

// A unary call that a thread other than gRPC's finishes. The call's objects live until Finish, also when the
// client went away meanwhile.
class LaterAnswer final : public grpc::ServerUnaryReactor {
  void OnDone() override { delete this; }
};

}  // namespace

InferenceService::InferenceService(const RouterServerOptions& options, FrontThread* front)
    : options_(options),
      served_name_(options.front.served_name.empty() ? options.front.model.name : options.front.served_name),
      front_(front) {}

Status InferenceService::Admit(const grpc::CallbackServerContext& context) const {
  return CheckKey(options_.api_keys, ApiKeys::Use::kAsk, context);
}

StatusOr<ClientRequest> InferenceService::Accept(const grpc::CallbackServerContext& context,
                                                 const grpc::ByteBuffer& bytes) const {
  BATON_RETURN_IF_ERROR(Admit(context));
  if (bytes.Length() > options_.max_request_bytes) {
    return InvalidArgumentError("request: " + std::to_string(bytes.Length()) + " bytes are above the limit of " +
                                std::to_string(options_.max_request_bytes));
  }
  v1::GenerateRequest request;
  BATON_RETURN_IF_ERROR(Parse(bytes, &request));
  // Before anything answers with it.
  BATON_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  BATON_ASSIGN_OR_RETURN(ClientRequest out, FromWire(request));
  const auto deadline = context.deadline();
  if (deadline != std::chrono::system_clock::time_point::max()) {
    const Duration left = std::chrono::duration_cast<Duration>(deadline - std::chrono::system_clock::now());
    out.deadline = out.deadline ? std::min(*out.deadline, left) : left;
  }
  return out;
}

Status InferenceService::CheckRequestId(const std::string& id) const {
  const size_t limit = options_.front.limits.max_request_id_bytes;
  if (id.size() <= limit) return OkStatus();
  return InvalidArgumentError("request_id: " + std::to_string(id.size()) + " bytes, at most " + std::to_string(limit));
}

Status InferenceService::CheckModel(const std::string& name) const {
  if (name.empty() || name == served_name_) return OkStatus();
  return NotFoundError("model: \"" + CutMessage(name, kMaxEchoedText) + "\" is not served here; served: \"" +
                       served_name_ + "\"");
}

void InferenceService::Describe(v1::Model* model) const {
  model->set_name(served_name_);
  model->set_max_context_tokens(options_.model.max_context_tokens);
  model->set_vocab_size(options_.tokenizer->vocab_size());
  model->set_kv_bytes_per_token(options_.model.kv_bytes_per_token);
  model->set_has_chat_template(options_.chat != nullptr);
  const std::vector<TokenId>& eos = options_.tokenizer->eos_ids();
  model->mutable_eos_token_ids()->Add(eos.begin(), eos.end());
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                                       const grpc::ByteBuffer* request) {
  const StreamLimits limits{options_.stream_queue_events, options_.stream_queue_bytes, options_.slow_client_timeout};
  return ClientStream::Start(front_, context, limits, Accept(*context, *request));
}

grpc::ServerUnaryReactor* InferenceService::Complete(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* result) {
  return ClientAnswer::Start(front_, result, Accept(*context, *request));
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  if (Status status = Admit(*context); !status.ok()) return Answer(context, status);
  if (Status status = CheckModel(request->model()); !status.ok()) return Answer(context, status);
  ClientRequest prompt;
  const bool add_special = !request->has_add_special() || request->add_special();
  if (request->has_text()) prompt.prompt = TextPrompt{request->text(), add_special};
  if (request->has_chat()) prompt.prompt = FromWire(request->chat(), "chat", &prompt.unsupported);
  if (!prompt.unsupported.empty()) {
    return Answer(context, UnimplementedError(prompt.unsupported.front() + ": not supported yet"));
  }
  const StatusOr<std::vector<TokenId>> ids = TokenizePrompt(prompt, options_.front, *options_.tokenizer, options_.chat);
  if (!ids.ok()) return Answer(context, ids.status());
  response->mutable_ids()->Add(ids->begin(), ids->end());
  return Answer(context, OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  if (Status status = Admit(*context); !status.ok()) return Answer(context, status);
  if (Status status = CheckModel(request->model()); !status.ok()) return Answer(context, status);
  const int64_t vocabulary = options_.tokenizer->vocab_size();
  for (int32_t id : request->ids()) {
    if (id >= 0 && id < vocabulary) continue;
    return Answer(context, InvalidArgumentError("ids: " + std::to_string(id) + " is outside the vocabulary of " +
                                                std::to_string(vocabulary) + " tokens"));
  }
  const std::vector<TokenId> ids(request->ids().begin(), request->ids().end());
  response->set_text(Decode(*options_.tokenizer, ids, request->skip_special_tokens()));
  return Answer(context, OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::Cancel(grpc::CallbackServerContext* context,
                                                   const v1::CancelRequest* request, v1::CancelResponse* /*response*/) {
  if (Status status = Admit(*context); !status.ok()) return Answer(context, status);
  const std::string id = request->request_id();
  if (id.empty()) return Answer(context, InvalidArgumentError("request_id: empty"));
  if (Status status = CheckRequestId(id); !status.ok()) return Answer(context, status);
  auto* reactor = new LaterAnswer;
  front_->Cancel(id, [reactor, id](bool found) {
    if (found) return reactor->Finish(grpc::Status::OK);
    const Status status = NotFoundError("request_id: no live request \"" + id + "\"");
    reactor->Finish(FailureStatus(Failed{status, "NOT_FOUND", id, {}}));
  });
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const v1::ListModelsRequest* /*request*/,
                                                       v1::ListModelsResponse* response) {
  if (Status status = Admit(*context); !status.ok()) return Answer(context, status);
  Describe(response->add_models());
  return Answer(context, OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const v1::GetModelRequest* request, v1::Model* response) {
  Status status = Admit(*context);
  if (status.ok()) status = CheckModel(request->model());
  if (status.ok()) Describe(response);
  return Answer(context, status);
}

}  // namespace baton

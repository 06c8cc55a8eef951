// baton.v1.Inference over a FrontThread: decode, submit, carry events back. Private to rpc.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "baton/tokenizer.h"
#include "baton/v1/inference.grpc.pb.h"
#include "rpc/front_thread.h"
#include "rpc/router_server.h"

namespace baton {

// What a client's stream holds at most, and for how long.
struct StreamLimits {
  size_t queue_events = 256;
  size_t queue_bytes = size_t{8} << 20;
  std::chrono::milliseconds slow_timeout{30000};
};

// gRPC itself answers bytes that protobuf cannot read, with UNIMPLEMENTED and no text. So the two calls that carry
// prompts come as bytes and are parsed here.
using InferenceCallbacks = v1::Inference::WithRawCallbackMethod_Generate<v1::Inference::WithRawCallbackMethod_Complete<
    v1::Inference::WithCallbackMethod_Tokenize<v1::Inference::WithCallbackMethod_Detokenize<
        v1::Inference::WithCallbackMethod_Cancel<v1::Inference::WithCallbackMethod_ListModels<
            v1::Inference::WithCallbackMethod_GetModel<v1::Inference::Service>>>>>>>;

class InferenceService final : public InferenceCallbacks {
 public:
  InferenceService(const RouterServerOptions& options, FrontThread* front);

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Complete(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* result) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context, const v1::CancelRequest* request,
                                   v1::CancelResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::Model* response) override;

 private:
  Status Admit(const grpc::CallbackServerContext& context) const;
  // The request with the call's deadline in it.
  StatusOr<ClientRequest> Accept(const grpc::CallbackServerContext& context, const grpc::ByteBuffer& bytes) const;
  Status CheckRequestId(const std::string& id) const;
  Status CheckModel(const std::string& name) const;
  void Describe(v1::Model* model) const;

  const RouterServerOptions options_;
  const std::string served_name_;
  FrontThread* const front_;
};

}  // namespace baton

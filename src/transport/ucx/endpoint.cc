#include "transport/ucx/endpoint.h"

#include "transport/ucx/context.h"

namespace baton {

struct UcxEndpoint::Message {
  UcxEndpoint* endpoint;
  std::vector<std::byte> payload;
};

StatusOr<std::unique_ptr<UcxEndpoint>> UcxEndpoint::Connect(ucp_worker_h worker, std::span<const std::byte> address) {
  std::unique_ptr<UcxEndpoint> endpoint(new UcxEndpoint);
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxEndpoint::OnError;
  params.err_handler.arg = endpoint.get();
  if (ucs_status_t s = ucp_ep_create(worker, &params, &endpoint->ep_); s != UCS_OK) {
    endpoint->ep_ = nullptr;
    return FromUcx(s, "ucx: endpoint");
  }
  return endpoint;
}

UcxEndpoint::~UcxEndpoint() = default;

void UcxEndpoint::OnError(void* self, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxEndpoint*>(self)->Break(FromUcx(status, "path broke"));
}

void UcxEndpoint::Break(Status why) {
  if (error_.ok()) error_ = std::move(why);
}

void UcxEndpoint::Send(LinkMessage id, std::vector<std::byte> payload) {
  if (broken() || closing_) return;
  auto message = std::make_unique<Message>(Message{this, std::move(payload)});
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &UcxEndpoint::OnSent;
  param.user_data = message.get();
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  Hold();
  const std::vector<std::byte>& bytes = message->payload;
  void* request = ucp_am_send_nbx(ep_, static_cast<unsigned>(id), nullptr, 0, bytes.data(), bytes.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    message.release();  // OnSent deletes it
    return;
  }
  Release();
  if (UCS_PTR_IS_ERR(request)) Break(FromUcx(UCS_PTR_STATUS(request), "send"));
}

void UcxEndpoint::OnSent(void* request, ucs_status_t status, void* user) {
  std::unique_ptr<Message> message(static_cast<Message*>(user));
  message->endpoint->Release();
  if (status != UCS_OK) message->endpoint->Break(FromUcx(status, "send"));
  ucp_request_free(request);
}

void UcxEndpoint::Close(CloseMode mode) {
  if (closing_) return;
  closing_ = true;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = mode == CloseMode::kForce ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  void* request = ucp_ep_close_nbx(ep_, &param);
  ep_ = nullptr;
  if (UCS_PTR_IS_PTR(request)) close_request_ = request;
}

bool UcxEndpoint::Closed() {
  if (!closing_) return false;
  if (close_request_ != nullptr) {
    if (ucp_request_check_status(close_request_) == UCS_INPROGRESS) return false;
    ucp_request_free(close_request_);
    close_request_ = nullptr;
  }
  return outstanding_ == 0;
}

}  // namespace baton

#include "rpc/peer_identity.h"

#include <string>
#include <vector>

namespace baton {

StatusOr<std::optional<CertifiedProcess>> ProvenProcess(const grpc::AuthContext& context, bool tls) {
  if (!tls) return std::optional<CertifiedProcess>();
  const auto values = [&](const char* property) {
    std::vector<std::string> out;
    for (const grpc::string_ref& value : context.FindPropertyValues(property)) {
      out.emplace_back(value.data(), value.size());
    }
    return out;
  };
  const std::vector<std::string> kinds = values(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  // Every connection through a socket has a kind; one within this process has none.
  if (kinds.empty()) return std::optional<CertifiedProcess>();
  if (kinds.front() != GRPC_SSL_TRANSPORT_SECURITY_TYPE || !context.IsPeerAuthenticated()) {
    return Status(Code::kUnauthenticated, "a certificate of the cluster's CA is needed here, and none was shown");
  }
  BATON_ASSIGN_OR_RETURN(CertifiedProcess process, IdentityOf(values(GRPC_PEER_URI_PROPERTY_NAME)));
  return std::optional<CertifiedProcess>(std::move(process));
}

Status CheckKey(const ApiKeys& keys, ApiKeys::Use use, const grpc::CallbackServerContext& context) {
  if (!keys.required()) return OkStatus();
  const auto& metadata = context.client_metadata();
  const auto shown = metadata.find("authorization");
  if (shown == metadata.end()) return keys.Check(std::nullopt, use);
  return keys.Check(std::string_view(shown->second.data(), shown->second.size()), use);
}

}  // namespace baton

// Who is at the other end of a connection: a process of the cluster, or a client with a key. Private to rpc.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>

#include "credentials/api_keys.h"
#include "credentials/certificate.h"

namespace baton {

// From the certificate that the handshake verified. `tls`: this end has credentials. Nothing without them, or within
// this process. UNAUTHENTICATED for a client without a certificate.
StatusOr<std::optional<CertifiedProcess>> ProvenProcess(const grpc::AuthContext& context, bool tls);

// Before anything of a client's request is looked at.
Status CheckKey(const ApiKeys& keys, ApiKeys::Use use, const grpc::CallbackServerContext& context);

}  // namespace baton

#include "app/connect.h"

#include <cstdio>
#include <utility>

#include "app/tls.h"

namespace baton {

StatusOr<std::unique_ptr<InferenceClient>> Connect(const Settings& settings) {
  InferenceClient::Options options;
  BATON_ASSIGN_OR_RETURN(options.tls, OpenClientTls(settings));
  options.api_key = settings.Text("api-key");
  if (!options.api_key.empty() && options.tls.ca.empty() && !IsLoopback(settings.Address("server").host)) {
    std::fputs("baton: warning: the API key goes to another machine unencrypted; --tls-ca FILE asks for TLS\n", stderr);
  }
  return InferenceClient::Create({.address = settings.Text("server"), .in_process = nullptr}, std::move(options));
}

std::string WhatToTry(const Settings& settings, const Status& status) {
  // Somebody is there: it was the handshake that failed.
  if (status.message().find("the server") != std::string::npos) {
    return settings.Text("tls-ca").empty() ? " --tls-ca FILE asks for it" : "";
  }
  return "; is a server there? `baton up MODEL` starts one, --server HOST:PORT names another";
}

}  // namespace baton

// The TLS and key options of a process, as texts that were read and judged: what cannot work ends here, with the
// file's name, before a port is opened.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/settings.h"
#include "baton/status.h"
#include "credentials/api_keys.h"
#include "credentials/certificate.h"

namespace baton {

// Of a serving process. Its certificate must be of the CA, name `name` and allow the command's role. Of `up` in one
// process: the server's part alone, since no other process joins it. All empty without the options.
StatusOr<TlsPems> OpenTls(const Settings& settings, const std::string& name);
// Of a client: the CA alone.
StatusOr<TlsPems> OpenClientTls(const Settings& settings);
StatusOr<ApiKeys> OpenApiKeys(const Settings& settings);

// "certs/{name}.crt" -> "certs/decode-0.crt": one setting serves every process of a cluster.
std::string WithName(std::string_view path, std::string_view name);

// `baton certs`: an authority in `folder` (the one that is there, or a new one) and a certificate for each of `names`,
// NAME or NAME=ROLE. Nothing is overwritten; refused, nothing is written. The exit code.
struct CertsArguments {
  std::string folder;
  std::vector<std::string> hosts, names;
  int64_t days = 365;
};
int RunCerts(const CertsArguments& arguments);

}  // namespace baton

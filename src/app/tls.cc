#include "app/tls.h"

#include <sys/stat.h>

#include <ctime>
#include <fstream>

#include "app/process.h"
#include "base/log.h"

namespace baton {
namespace {

StatusOr<std::string> ReadFile(const std::string& option, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFoundError(option + " " + path + ": cannot be read");
  return ReadAll(in, option + " " + path);
}

// Advice, no refusal: the file may be mounted by somebody else's rules.
void AdvisePrivate(const std::string& option, const std::string& path) {
  struct stat s {};
  if (stat(path.c_str(), &s) != 0 || (s.st_mode & 077) == 0) return;
  spdlog::warn("{} {} can be read by other users (mode {:03o}): chmod 600 {}", option, path, s.st_mode & 0777, path);
}

bool MayRun(const CertifiedProcess& process, CommandBit command) {
  switch (command) {
    case kPrefill:
      return process.may().prefill;
    case kDecode:
      return process.may().decode;
    case kUnified:
      return process.may().prefill && process.may().decode;
    default:
      return process.role == CertifiedRole::kRouter;
  }
}

std::string_view CommandName(CommandBit command) {
  switch (command) {
    case kPrefill:
      return "prefill";
    case kDecode:
      return "decode";
    case kUnified:
      return "unified";
    default:
      return "router";
  }
}

}  // namespace

std::string WithName(std::string_view path, std::string_view name) {
  constexpr std::string_view kPlace = "{name}";
  std::string out(path);
  for (size_t at = out.find(kPlace); at != std::string::npos; at = out.find(kPlace, at + name.size())) {
    out.replace(at, kPlace.size(), name);
  }
  return out;
}

StatusOr<TlsPems> OpenTls(const Settings& settings, const std::string& name) {
  TlsPems out;
  if (settings.Text("tls-cert").empty()) return out;
  const std::string certificate = WithName(settings.Text("tls-cert"), name);
  const std::string key = WithName(settings.Text("tls-key"), name);
  const std::string in_certificate = "tls-cert " + certificate;
  const std::time_t now = std::time(nullptr);
  BATON_ASSIGN_OR_RETURN(out.certificate, ReadFile("tls-cert", certificate));
  BATON_ASSIGN_OR_RETURN(out.key, ReadFile("tls-key", key));
  BATON_RETURN_IF_ERROR(CheckCertificate(out.certificate, now).Annotate(in_certificate));
  BATON_RETURN_IF_ERROR(CheckKey(out.key, out.certificate).Annotate("tls-key " + key));
  AdvisePrivate("tls-key", key);
  if (settings.command() == kUp) return out;

  const std::string ca = WithName(settings.Text("tls-ca"), name);
  BATON_ASSIGN_OR_RETURN(out.ca, ReadFile("tls-ca", ca));
  BATON_RETURN_IF_ERROR(CheckAuthority(out.ca).Annotate("tls-ca " + ca));
  BATON_RETURN_IF_ERROR(CheckIssuer(out.certificate, out.ca, now).Annotate(in_certificate + ", tls-ca " + ca));
  auto proven = IdentityOf(out.certificate);
  if (!proven.ok()) return proven.status().Annotate(in_certificate);
  const std::string whose = "the certificate is that of " + std::string(RoleName(proven->role)) + " " + proven->name;
  if (proven->name != name) {
    return FailedPreconditionError(in_certificate + ": " + whose + ", but this process is " + name +
                                   "; --name gives it another name");
  }
  if (!MayRun(*proven, settings.command())) {
    return FailedPreconditionError(in_certificate + ": " + whose + ", which may not run as " +
                                   std::string(CommandName(settings.command())));
  }
  return out;
}

StatusOr<TlsPems> OpenClientTls(const Settings& settings) {
  TlsPems out;
  const std::string& ca = settings.Text("tls-ca");
  if (ca.empty()) return out;
  BATON_ASSIGN_OR_RETURN(out.ca, ReadFile("tls-ca", ca));
  BATON_RETURN_IF_ERROR(CheckAuthority(out.ca).Annotate("tls-ca " + ca));
  return out;
}

StatusOr<ApiKeys> OpenApiKeys(const Settings& settings) {
  const std::string& path = settings.Text("api-keys");
  if (path.empty()) return ApiKeys();
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadFile("api-keys", path));
  auto keys = ApiKeys::Parse(text);
  if (!keys.ok()) return keys.status().Annotate("api-keys " + path);
  AdvisePrivate("api-keys", path);
  spdlog::info("clients need an API key: {} has {}", path, keys->size());
  return keys;
}

}  // namespace baton

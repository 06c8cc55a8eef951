// What a certificate of a cluster says, and whether a process can use the one that it was given. Pure: texts in,
// words out; time is an argument. No OpenSSL header here.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/front_link.h"
#include "baton/status.h"

namespace baton {

// PEM texts, as they travel from the settings to channels and servers.
struct TlsPems {
  std::string ca;           // what a peer's certificate must chain to; a server without it asks clients for none
  std::string certificate;  // this process's, then its intermediates
  std::string key;
  bool serves() const { return !certificate.empty(); }
  bool mutual() const { return serves() && !ca.empty(); }
};

enum class CertifiedRole : uint8_t { kRouter, kPrefill, kDecode, kUnified };
std::string_view RoleName(CertifiedRole role);
std::optional<CertifiedRole> ParseRole(std::string_view text);

// The process that a certificate names, in a URI of its subject alternative names: baton://decode/decode-0.
struct CertifiedProcess {
  CertifiedRole role{};
  std::string name;
  // What it may do at most: prefill is to write KV to others, decode is to take it.
  RoleMask may() const;
  friend bool operator==(const CertifiedProcess&, const CertifiedProcess&) = default;
};
std::string IdentityUri(const CertifiedProcess& process);
// The one baton:// URI among them. PERMISSION_DENIED if there is none, more than one, or one without sense.
StatusOr<CertifiedProcess> IdentityOf(const std::vector<std::string>& uris);
// Of the first certificate of a PEM text; nobody vouches for it.
StatusOr<CertifiedProcess> IdentityOf(const std::string& certificate_pem);

// Why a PEM text cannot be used, in words that a file's name can be put before.
Status CheckAuthority(const std::string& ca_pem);                                 // certificates, at least one
Status CheckCertificate(const std::string& certificate_pem, std::time_t now);     // can be read, and is of this time
Status CheckKey(const std::string& key_pem, const std::string& certificate_pem);  // can be read, and belongs to it
// The certificate chains to the authority at `now`, as both ends of a connection will judge it.
Status CheckIssuer(const std::string& certificate_pem, const std::string& ca_pem, std::time_t now);

}  // namespace baton

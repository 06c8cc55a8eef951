#include "credentials/certificate.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <array>
#include <utility>

#include "credentials/openssl_handles.h"

namespace baton {

namespace {

constexpr std::string_view kScheme = "baton://";
constexpr std::array<std::string_view, 4> kRoleNames = {"router", "prefill", "decode", "unified"};

// "2026-12-01 02:28:00 UTC"
std::string TimeText(const ASN1_TIME* time) {
  std::tm parts{};
  char text[40] = "an unreadable time";
  if (ASN1_TIME_to_tm(time, &parts) == 1) std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

// A PEM reader must never ask a terminal for a passphrase.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* asked) {
  if (asked != nullptr) *static_cast<bool*>(asked) = true;
  return -1;
}

BioPtr Reading(const std::string& text) { return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

StatusOr<CertificatePtr> FirstCertificate(const std::string& pem) {
  std::vector<CertificatePtr> all = ReadCertificates(pem);
  if (all.empty()) return InvalidArgumentError("holds no PEM certificate");
  return std::move(all.front());
}

}  // namespace

std::vector<CertificatePtr> ReadCertificates(const std::string& pem) {
  std::vector<CertificatePtr> out;
  const BioPtr bio = Reading(pem);
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr))
    out.emplace_back(certificate);
  ERR_clear_error();  // the end of the text is one
  return out;
}

KeyPtr ReadKey(const std::string& pem, bool* encrypted) {
  *encrypted = false;
  const BioPtr bio = Reading(pem);
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, encrypted));
  ERR_clear_error();
  return key;
}

std::string_view RoleName(CertifiedRole role) { return kRoleNames[static_cast<size_t>(role)]; }

std::optional<CertifiedRole> ParseRole(std::string_view text) {
  for (size_t i = 0; i < kRoleNames.size(); ++i) {
    if (text == kRoleNames[i]) return static_cast<CertifiedRole>(i);
  }
  return std::nullopt;
}

RoleMask CertifiedProcess::may() const {
  return {.prefill = role == CertifiedRole::kPrefill || role == CertifiedRole::kUnified,
          .decode = role == CertifiedRole::kDecode || role == CertifiedRole::kUnified};
}

std::string IdentityUri(const CertifiedProcess& process) {
  return std::string(kScheme) + std::string(RoleName(process.role)) + "/" + process.name;
}

StatusOr<CertifiedProcess> IdentityOf(const std::vector<std::string>& uris) {
  std::optional<CertifiedProcess> found;
  for (const std::string& uri : uris) {
    if (uri.rfind(kScheme, 0) != 0) continue;
    const std::string_view rest = std::string_view(uri).substr(kScheme.size());
    const size_t slash = rest.find('/');
    const auto role = ParseRole(rest.substr(0, slash));
    const std::string_view name = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
    if (!role || name.empty() || name.find('/') != std::string_view::npos) {
      return Status(Code::kPermissionDenied, "the certificate's name " + uri + " is not baton://ROLE/NAME");
    }
    if (found) return Status(Code::kPermissionDenied, "the certificate names more than one process: " + uri + " too");
    found = CertifiedProcess{*role, std::string(name)};
  }
  if (!found)
    return Status(Code::kPermissionDenied, "the certificate names no process: it has no URI baton://ROLE/NAME");
  return *std::move(found);
}

StatusOr<CertifiedProcess> IdentityOf(const std::string& certificate_pem) {
  BATON_ASSIGN_OR_RETURN(const CertificatePtr certificate, FirstCertificate(certificate_pem));
  const NamesPtr names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> uris;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return IdentityOf(uris);
}

Status CheckAuthority(const std::string& ca_pem) {
  return ReadCertificates(ca_pem).empty() ? InvalidArgumentError("holds no PEM certificate") : OkStatus();
}

Status CheckCertificate(const std::string& certificate_pem, std::time_t now) {
  BATON_ASSIGN_OR_RETURN(const CertificatePtr certificate, FirstCertificate(certificate_pem));
  const ASN1_TIME* begin = X509_get0_notBefore(certificate.get());
  const ASN1_TIME* end = X509_get0_notAfter(certificate.get());
  if (ASN1_TIME_cmp_time_t(end, now) < 0) {
    return FailedPreconditionError("the certificate has expired on " + TimeText(end) + "; a new one is needed");
  }
  if (ASN1_TIME_cmp_time_t(begin, now) > 0) {
    return FailedPreconditionError("the certificate is valid only from " + TimeText(begin) +
                                   "; is this machine's clock right?");
  }
  return OkStatus();
}

Status CheckKey(const std::string& key_pem, const std::string& certificate_pem) {
  bool encrypted = false;
  const KeyPtr key = ReadKey(key_pem, &encrypted);
  if (encrypted) return InvalidArgumentError("the key has a passphrase; one without is needed");
  if (key == nullptr) return InvalidArgumentError("holds no PEM private key");
  BATON_ASSIGN_OR_RETURN(const CertificatePtr certificate, FirstCertificate(certificate_pem));
  const bool fits = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  return fits ? OkStatus() : InvalidArgumentError("the key is not that of the certificate");
}

Status CheckIssuer(const std::string& certificate_pem, const std::string& ca_pem, std::time_t now) {
  const std::vector<CertificatePtr> chain = ReadCertificates(certificate_pem);
  if (chain.empty()) return InvalidArgumentError("holds no PEM certificate");
  const StorePtr store(X509_STORE_new());
  for (const CertificatePtr& ca : ReadCertificates(ca_pem)) X509_STORE_add_cert(store.get(), ca.get());
  STACK_OF(X509)* between = sk_X509_new_null();
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between, chain[i].get());
  const StoreContextPtr context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), chain.front().get(), between);
  X509_STORE_CTX_set_time(context.get(), 0, now);
  const bool good = X509_verify_cert(context.get()) == 1;
  const int why = X509_STORE_CTX_get_error(context.get());
  sk_X509_free(between);
  ERR_clear_error();
  if (good) return OkStatus();
  return FailedPreconditionError(std::string("the certificate is not one of this CA's: ") +
                                 X509_verify_cert_error_string(why));
}

}  // namespace baton

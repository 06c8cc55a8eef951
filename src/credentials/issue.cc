#include "credentials/issue.h"

#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <algorithm>
#include <cstring>

#include "credentials/openssl_handles.h"

namespace baton {

namespace {

constexpr size_t kLongestName = 253;       // of a DNS name
constexpr size_t kLongestCommonName = 64;  // X.520's bound; the whole name is among the alternative names

Status OpenSslFailed(const std::string& what) {
  char text[256] = "no reason given";
  if (const unsigned long error = ERR_get_error(); error != 0) ERR_error_string_n(error, text, sizeof(text));
  ERR_clear_error();
  return InternalError(what + ": " + text);
}

bool IsDnsName(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_';
  };
  return !text.empty() && text.size() <= kLongestName && std::all_of(text.begin(), text.end(), plain);
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(length));
}

StatusOr<KeyedCertificate> ToPem(X509* certificate, EVP_PKEY* key) {
  const BioPtr text(BIO_new(BIO_s_mem())), secret(BIO_new(BIO_s_secmem()));
  if (PEM_write_bio_X509(text.get(), certificate) != 1 ||
      PEM_write_bio_PKCS8PrivateKey(secret.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return OpenSslFailed("writing a certificate");
  }
  return KeyedCertificate{TextOf(text.get()), TextOf(secret.get())};
}

void AddName(GENERAL_NAMES* names, int type, const std::string& text) {
  GENERAL_NAME* name = GENERAL_NAME_new();
  ASN1_IA5STRING* value = ASN1_IA5STRING_new();
  ASN1_STRING_set(value, text.data(), static_cast<int>(text.size()));
  GENERAL_NAME_set0_value(name, type, value);
  sk_GENERAL_NAME_push(names, name);
}

// An address, or a DNS name.
Status AddHost(GENERAL_NAMES* names, const std::string& host) {
  if (ASN1_OCTET_STRING* address = a2i_IPADDRESS(host.c_str()); address != nullptr) {
    GENERAL_NAME* name = GENERAL_NAME_new();
    GENERAL_NAME_set0_value(name, GEN_IPADD, address);
    sk_GENERAL_NAME_push(names, name);
    return OkStatus();
  }
  ERR_clear_error();
  if (!IsDnsName(host)) return InvalidArgumentError("'" + host + "' is neither an address nor a host's name");
  AddName(names, GEN_DNS, host);
  return OkStatus();
}

// A certificate without extensions and without a signature.
CertificatePtr Begin(const std::string& common_name, std::string_view unit, const Validity& validity, EVP_PKEY* key) {
  CertificatePtr out(X509_new());
  X509_set_version(out.get(), X509_VERSION_3);
  BIGNUM* number = BN_new();
  BN_rand(number, 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(out.get()));
  BN_free(number);
  ASN1_TIME_set(X509_getm_notBefore(out.get()), validity.not_before);
  ASN1_TIME_set(X509_getm_notAfter(out.get()), validity.not_after);
  const auto add = [&](const char* field, std::string_view text) {
    X509_NAME_add_entry_by_txt(X509_get_subject_name(out.get()), field, MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()), -1,
                               0);
  };
  add("O", "Baton");
  if (!unit.empty()) add("OU", unit);
  add("CN", common_name.substr(0, kLongestCommonName));
  X509_set_pubkey(out.get(), key);
  return out;
}

bool Extend(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value);
  if (extension == nullptr) return false;
  const bool added = X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

}  // namespace

StatusOr<KeyedCertificate> MakeAuthority(const std::string& name, const Validity& validity) {
  const KeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslFailed("making a key");
  const CertificatePtr out = Begin(name, "", validity, key.get());
  X509_set_issuer_name(out.get(), X509_get_subject_name(out.get()));
  const bool good = Extend(out.get(), out.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                    Extend(out.get(), out.get(), NID_key_usage, "critical,keyCertSign,cRLSign") &&
                    Extend(out.get(), out.get(), NID_subject_key_identifier, "hash") &&
                    X509_sign(out.get(), key.get(), EVP_sha256()) != 0;
  if (!good) return OpenSslFailed("making an authority");
  return ToPem(out.get(), key.get());
}

StatusOr<KeyedCertificate> IssueCertificate(const KeyedCertificate& authority, const CertifiedProcess& process,
                                            const std::vector<std::string>& hosts, const Validity& validity) {
  if (!IsDnsName(process.name)) {
    return InvalidArgumentError("the name '" + process.name +
                                "' has characters other than letters, digits, '.', '-', '_'");
  }
  const std::vector<CertificatePtr> issuers = ReadCertificates(authority.certificate);
  bool encrypted = false;
  const KeyPtr issuer_key = ReadKey(authority.key, &encrypted);
  if (issuers.empty() || issuer_key == nullptr) return InvalidArgumentError("the CA has no certificate or no key");
  X509* const issuer = issuers.front().get();

  const KeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslFailed("making a key");
  const CertificatePtr out = Begin(process.name, RoleName(process.role), validity, key.get());
  X509_set_issuer_name(out.get(), X509_get_subject_name(issuer));

  const NamesPtr names(GENERAL_NAMES_new());
  AddName(names.get(), GEN_URI, IdentityUri(process));
  AddName(names.get(), GEN_DNS, process.name);
  for (const char* host : {"localhost", "127.0.0.1", "::1"}) BATON_RETURN_IF_ERROR(AddHost(names.get(), host));
  for (const std::string& host : hosts) BATON_RETURN_IF_ERROR(AddHost(names.get(), host));

  const bool good = Extend(out.get(), issuer, NID_basic_constraints, "critical,CA:FALSE") &&
                    Extend(out.get(), issuer, NID_key_usage, "critical,digitalSignature") &&
                    Extend(out.get(), issuer, NID_ext_key_usage, "serverAuth,clientAuth") &&
                    Extend(out.get(), issuer, NID_subject_key_identifier, "hash") &&
                    Extend(out.get(), issuer, NID_authority_key_identifier, "keyid:always") &&
                    X509_add1_ext_i2d(out.get(), NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) == 1 &&
                    X509_sign(out.get(), issuer_key.get(), EVP_sha256()) != 0;
  if (!good) return OpenSslFailed("issuing a certificate");
  return ToPem(out.get(), key.get());
}

StatusOr<std::time_t> NotAfter(const std::string& certificate_pem) {
  const std::vector<CertificatePtr> all = ReadCertificates(certificate_pem);
  std::tm parts{};
  if (all.empty() || ASN1_TIME_to_tm(X509_get0_notAfter(all.front().get()), &parts) != 1) {
    return InvalidArgumentError("holds no PEM certificate");
  }
  return timegm(&parts);
}

}  // namespace baton

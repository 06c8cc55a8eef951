// Makes a development authority and the certificates of a cluster's processes: ECDSA over P-256, SHA-256.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "baton/status.h"
#include "credentials/certificate.h"

namespace baton {

struct Validity {
  std::time_t not_before = 0;
  std::time_t not_after = 0;
};
struct KeyedCertificate {
  std::string certificate, key;  // PEM
};

StatusOr<KeyedCertificate> MakeAuthority(const std::string& name, const Validity& validity);
// For both ends of a connection. Its names: the process's URI and, as a DNS name, the process; localhost, 127.0.0.1,
// ::1; and `hosts`, addresses or DNS names. INVALID_ARGUMENT for names that a certificate cannot hold.
StatusOr<KeyedCertificate> IssueCertificate(const KeyedCertificate& authority, const CertifiedProcess& process,
                                            const std::vector<std::string>& hosts, const Validity& validity);
// The end of the first certificate's time.
StatusOr<std::time_t> NotAfter(const std::string& certificate_pem);

}  // namespace baton

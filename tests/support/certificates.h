// A CA of a test and what it issues.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "baton/check.h"
#include "credentials/certificate.h"
#include "credentials/issue.h"

namespace baton::test {

// From an hour ago; valid for an hour more, or over since a minute.
inline Validity ValidNow() { return {std::time(nullptr) - 3600, std::time(nullptr) + 3600}; }
inline Validity Expired() { return {std::time(nullptr) - 3600, std::time(nullptr) - 60}; }

class TestAuthority {
 public:
  TestAuthority() {
    auto made = MakeAuthority("a CA of the tests", ValidNow());
    BATON_CHECK(made.ok(), made.status().message());
    authority_ = *std::move(made);
  }
  // What a process of this CA's cluster has: CA, certificate, key.
  TlsPems Issue(CertifiedRole role, const std::string& name, const Validity& validity = ValidNow()) const {
    auto made = IssueCertificate(authority_, {role, name}, {}, validity);
    BATON_CHECK(made.ok(), made.status().message());
    return {authority_.certificate, made->certificate, made->key};
  }
  TlsPems client() const { return {authority_.certificate, "", ""}; }

 private:
  KeyedCertificate authority_;
};

}  // namespace baton::test

// Certificates made, read and judged, at times of the test's own.
#include "credentials/certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "credentials/issue.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr std::time_t kDay = 24 * 3600;
constexpr std::time_t kNow = 1'800'000'000;  // 2027-01-15 08:00:00 UTC
constexpr Validity kAYear = {kNow - kDay, kNow + 365 * kDay};

KeyedCertificate Authority() {
  static const KeyedCertificate authority = *MakeAuthority("a CA of the tests", {kNow - kDay, kNow + 3650 * kDay});
  return authority;
}
KeyedCertificate Issue(CertifiedRole role, const std::string& name, const Validity& validity = kAYear) {
  auto made = IssueCertificate(Authority(), {role, name}, {"gpu7.example", "10.0.0.7", "fd00::7"}, validity);
  BATON_CHECK(made.ok(), made.status().message());
  return *std::move(made);
}

TEST(CertificateTest, AnIssuedCertificateNamesItsProcessAndPassesEveryCheck) {
  const KeyedCertificate made = Issue(CertifiedRole::kPrefill, "prefill-0");
  const auto identity = IdentityOf(made.certificate);
  ASSERT_TRUE(identity.ok()) << identity.status().message();
  EXPECT_EQ(*identity, (CertifiedProcess{CertifiedRole::kPrefill, "prefill-0"}));
  EXPECT_EQ(CheckAuthority(Authority().certificate), OkStatus());
  EXPECT_EQ(CheckCertificate(made.certificate, kNow), OkStatus());
  EXPECT_EQ(CheckKey(made.key, made.certificate), OkStatus());
  EXPECT_EQ(CheckIssuer(made.certificate, Authority().certificate, kNow), OkStatus());
  EXPECT_EQ(*NotAfter(made.certificate), kAYear.not_after);
}

TEST(CertificateTest, ARoleSaysWhatItsHolderMayDoAtMost) {
  EXPECT_EQ((CertifiedProcess{CertifiedRole::kRouter, "r"}.may()), (RoleMask{false, false}));
  EXPECT_EQ((CertifiedProcess{CertifiedRole::kPrefill, "p"}.may()), (RoleMask{true, false}));
  EXPECT_EQ((CertifiedProcess{CertifiedRole::kDecode, "d"}.may()), (RoleMask{false, true}));
  EXPECT_EQ((CertifiedProcess{CertifiedRole::kUnified, "u"}.may()), (RoleMask{true, true}));
}

TEST(CertificateTest, AnotherAuthorityAnotherKeyAndAnotherTimeAreRefusedInWords) {
  const KeyedCertificate made = Issue(CertifiedRole::kDecode, "decode-0");
  const KeyedCertificate stranger = *MakeAuthority("a CA of the tests", kAYear);  // of the same name
  EXPECT_THAT(CheckIssuer(made.certificate, stranger.certificate, kNow).message(), HasSubstr("not one of this CA's"));
  EXPECT_THAT(CheckKey(stranger.key, made.certificate).message(), HasSubstr("not that of the certificate"));
  EXPECT_THAT(CheckCertificate(made.certificate, kAYear.not_after + 1).message(),
              HasSubstr("has expired on 2028-01-15 08:00:00 UTC"));
  EXPECT_THAT(CheckCertificate(made.certificate, kAYear.not_before - 1).message(),
              HasSubstr("valid only from 2027-01-14 08:00:00 UTC"));
  EXPECT_EQ(CheckCertificate(made.certificate, kAYear.not_after), OkStatus());
  EXPECT_FALSE(CheckIssuer(made.certificate, Authority().certificate, kAYear.not_after + 1).ok());
}

TEST(CertificateTest, ACertificateIsNoAuthority) {
  const KeyedCertificate made = Issue(CertifiedRole::kUnified, "unified-0");
  const auto forged = IssueCertificate(made, {CertifiedRole::kRouter, "router"}, {}, kAYear);
  ASSERT_TRUE(forged.ok()) << "signing is possible";
  EXPECT_FALSE(CheckIssuer(forged->certificate + made.certificate, Authority().certificate, kNow).ok())
      << "being believed is not";
}

TEST(CertificateTest, TextsThatAreNoPemAreRefused) {
  const KeyedCertificate made = Issue(CertifiedRole::kRouter, "router");
  const std::string cut = made.certificate.substr(0, made.certificate.size() / 2);
  for (const std::string& text : {std::string(), std::string("nothing"), cut, made.key}) {
    EXPECT_THAT(CheckAuthority(text).message(), HasSubstr("no PEM certificate"));
    EXPECT_THAT(CheckCertificate(text, kNow).message(), HasSubstr("no PEM certificate"));
    EXPECT_THAT(IdentityOf(text).status().message(), HasSubstr("no PEM certificate"));
    EXPECT_FALSE(CheckIssuer(text, Authority().certificate, kNow).ok());
  }
  EXPECT_THAT(CheckKey(made.certificate, made.certificate).message(), HasSubstr("no PEM private key"));
}

TEST(CertificateTest, AKeyWithAPassphraseIsRefusedAndNobodyIsAskedForIt) {
  const std::string key =
      "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
      "MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAj3AJ6XTDJ4GAICCAAw\n"
      "DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEFJkb7/brS8/mIK9VLTn+0cEgZAQ\n"
      "/LQs7yEU7oQRkoga2PmhJ2GVo3G6XoVaaS5V4IiEQ37JbD1kCRB/oPl4ZNJzDNBC\n"
      "XnHzKSBERpfyg8U8csZq7hLc0G37OZaKEHOEAaauU8asvxV6z49Searp/r90UXpW\n"
      "ikEIxV6zwF4CZWGm00Klw4Alwp3LW/c1NRH1oIl2QwzusC1iXOsDzPXLeiJHVB4=\n"
      "-----END ENCRYPTED PRIVATE KEY-----\n";
  const KeyedCertificate made = Issue(CertifiedRole::kRouter, "router");
  EXPECT_THAT(CheckKey(key, made.certificate).message(), HasSubstr("has a passphrase"));
}

TEST(CertificateTest, AnIdentityIsExactlyOneUriWithARoleAndAName) {
  EXPECT_EQ(IdentityOf(std::vector<std::string>{"https://x/y", "baton://decode/d-1"})->name, "d-1");
  for (const std::vector<std::string>& uris : std::vector<std::vector<std::string>>{
           {},
           {"https://x/y"},
           {"baton://"},
           {"baton://decode"},
           {"baton://decode/"},
           {"baton://decode/a/b"},
           {"baton://king/a"},
           {"Baton://decode/a"},
           {"baton://decode/a", "baton://prefill/a"},
       }) {
    EXPECT_EQ(IdentityOf(uris).status().code(), Code::kPermissionDenied) << ::testing::PrintToString(uris);
  }
}

TEST(CertificateTest, NamesThatACertificateCannotHoldAreRefused) {
  for (const std::string& name : {std::string(), std::string("a b"), std::string("a/b"), std::string("a\n"),
                                  std::string("d\xc3\xa9"), std::string(254, 'a')}) {
    EXPECT_EQ(IssueCertificate(Authority(), {CertifiedRole::kDecode, name}, {}, kAYear).status().code(),
              Code::kInvalidArgument)
        << name;
  }
  for (const char* host : {"", "a b", "*.example", "10.0.0.7:80"}) {
    EXPECT_FALSE(IssueCertificate(Authority(), {CertifiedRole::kDecode, "d"}, {host}, kAYear).ok()) << host;
  }
  const std::string longest(128, 'a');  // beyond what a common name holds
  const auto made = IssueCertificate(Authority(), {CertifiedRole::kDecode, longest}, {}, kAYear);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(IdentityOf(made->certificate)->name, longest);
}

}  // namespace
}  // namespace baton

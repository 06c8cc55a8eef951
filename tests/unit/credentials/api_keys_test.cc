// A front door's keys: which are taken, which are refused, and what the words never hold.
#include "credentials/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kFirst = "0123456789abcdef0123456789abcdef";
const std::string kSecond = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

constexpr auto kAsk = ApiKeys::Use::kAsk;
constexpr auto kOperate = ApiKeys::Use::kOperate;

TEST(ApiKeysTest, WithoutKeysEverybodyIsAdmitted) {
  const ApiKeys none;
  EXPECT_FALSE(none.required());
  EXPECT_EQ(none.Check(std::nullopt, kAsk), OkStatus());
  EXPECT_EQ(none.Check("Bearer whatever", kOperate), OkStatus());
}

TEST(ApiKeysTest, EveryKeyOfTheFileAndNoOtherIsAdmitted) {
  const auto keys = ApiKeys::Parse("# of the team\n\n" + kFirst + "\r\n  " + kSecond + "  ");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ(keys->size(), 2u);
  for (const std::string& key : {kFirst, kSecond}) {
    EXPECT_EQ(keys->Check("Bearer " + key, kAsk), OkStatus());
    EXPECT_EQ(keys->Check("bearer " + key, kOperate), OkStatus());
  }
  for (const std::string& wrong : {std::string(), kFirst.substr(1), kFirst + "0", std::string("# of the team")}) {
    const Status status = keys->Check("Bearer " + wrong, kAsk);
    EXPECT_EQ(status.code(), Code::kUnauthenticated) << wrong;
    EXPECT_THAT(status.message(), HasSubstr("not known here"));
  }
}

TEST(ApiKeysTest, OnceAKeyIsAnOperatorsNoOtherOperates) {
  const auto keys = ApiKeys::Parse(kFirst + "\noperator  " + kSecond + "\n");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  for (const std::string& key : {kFirst, kSecond}) EXPECT_EQ(keys->Check("Bearer " + key, kAsk), OkStatus());
  EXPECT_EQ(keys->Check("Bearer " + kSecond, kOperate), OkStatus());
  const Status status = keys->Check("Bearer " + kFirst, kOperate);
  EXPECT_EQ(status.code(), Code::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr("may ask the model, not operate the cluster"));
  EXPECT_EQ(keys->Check("Bearer operator " + kSecond, kAsk).code(), Code::kUnauthenticated);
  EXPECT_EQ(ApiKeys::Parse("operator short").status().message().find("short;"), std::string::npos);
}

TEST(ApiKeysTest, ACallWithoutAKeyIsToldHowToGiveOne) {
  const auto keys = ApiKeys::Parse(kFirst);
  for (const std::optional<std::string_view>& shown :
       {std::optional<std::string_view>(), std::optional<std::string_view>("Basic abc"),
        std::optional<std::string_view>(kFirst), std::optional<std::string_view>("Bear")}) {
    const Status status = keys->Check(shown, kAsk);
    EXPECT_EQ(status.code(), Code::kUnauthenticated);
    EXPECT_THAT(status.message(), HasSubstr("authorization: Bearer KEY"));
  }
}

TEST(ApiKeysTest, ABadFileIsRefusedWithTheLineAndWithoutTheKey) {
  const auto bad = [](const std::string& text) { return ApiKeys::Parse(text).status().message(); };
  EXPECT_THAT(bad(""), HasSubstr("no key"));
  EXPECT_THAT(bad("# nothing\n\n"), HasSubstr("no key"));
  EXPECT_THAT(bad(kFirst + "\nsecretsecret\n"), HasSubstr("line 2: a key of 12 characters; 16 to 512 are possible"));
  EXPECT_THAT(bad(kFirst + "\nsecretsecret\n"), Not(HasSubstr("secret")));
  EXPECT_THAT(bad(std::string(513, 'x')), HasSubstr("line 1"));
  EXPECT_THAT(bad("two words of a secret"), HasSubstr("without spaces"));
  EXPECT_THAT(bad("two words of a secret"), Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace baton

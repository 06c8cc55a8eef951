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

TEST(ApiKeysTest, WithoutKeysEverybodyIsAdmitted) {
  const ApiKeys none;
  EXPECT_FALSE(none.required());
  EXPECT_EQ(none.Check(std::nullopt), OkStatus());
  EXPECT_EQ(none.Check("Bearer whatever"), OkStatus());
}

TEST(ApiKeysTest, EveryKeyOfTheFileAndNoOtherIsAdmitted) {
  const auto keys = ApiKeys::Parse("# of the team\n\n" + kFirst + "\r\n  " + kSecond + "  ");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ(keys->size(), 2u);
  for (const std::string& key : {kFirst, kSecond}) {
    EXPECT_EQ(keys->Check("Bearer " + key), OkStatus());
    EXPECT_EQ(keys->Check("bearer " + key), OkStatus());
  }
  for (const std::string& wrong : {std::string(), kFirst.substr(1), kFirst + "0", std::string("# of the team")}) {
    const Status status = keys->Check("Bearer " + wrong);
    EXPECT_EQ(status.code(), Code::kUnauthenticated) << wrong;
    EXPECT_THAT(status.message(), HasSubstr("not known here"));
  }
}

TEST(ApiKeysTest, ACallWithoutAKeyIsToldHowToGiveOne) {
  const auto keys = ApiKeys::Parse(kFirst);
  for (const std::optional<std::string_view>& shown :
       {std::optional<std::string_view>(), std::optional<std::string_view>("Basic abc"),
        std::optional<std::string_view>(kFirst), std::optional<std::string_view>("Bear")}) {
    const Status status = keys->Check(shown);
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

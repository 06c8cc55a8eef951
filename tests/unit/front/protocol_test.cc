// Which version two processes of a cluster speak with each other.
#include "baton/protocol.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(Protocol, TwoProcessesUseTheLowerOfTheirVersions) {
  EXPECT_EQ(*CommonProtocol(2, 2), 2u);
  EXPECT_EQ(*CommonProtocol(2, 1), 1u);
  EXPECT_EQ(*CommonProtocol(1, 2), 1u);
  EXPECT_EQ(*CommonProtocol(2, 77), 2u) << "what comes after is its business";
}

TEST(Protocol, OneThatIsTooOldIsToldWhatIsSpokenHere) {
  const Status why = CommonProtocol(kProtocol, 0).status();
  EXPECT_EQ(why.code(), Code::kFailedPrecondition);
  EXPECT_NE(why.message().find("protocol 0 is not spoken here, only 1 to 2"), std::string::npos) << why.message();
}

}  // namespace
}  // namespace baton

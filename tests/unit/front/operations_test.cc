// What operators order, from the front's side.
#include "front/operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/front/front_bench.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr RoleMask kPrefillOnly{true, false}, kDecodeOnly{false, true};
const std::string kLong(100, 'p');

TEST(Operations, AnOrderedDrainHoldsAtOnceAndEndsWhenNothingLivesThere) {
  FrontBench b;
  const LinkId u = b.Up("u", true, true);
  const ClientHandle first = b.Submit("hello", 1);
  const LinkId v = b.Up("v", true, true);
  const WorkerBatch before = b.BatchOf(u, {});
  const OperatorHandle drain = b.Drain("u");
  ASSERT_EQ(b.Sent<DrainCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<DrainCommand>()[0].first, u);
  b.Obey();
  b.Do(FromWorker{u, before});  // said before the order came: it counts for nothing
  for (int i = 0; i < 3; ++i) {
    b.Submit("again", 4);
    ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
    EXPECT_EQ(b.Sent<DecodeCommand>()[0].first, v);
  }
  b.Beat(u, /*idle=*/false, 1);
  EXPECT_EQ(b.Ended(drain), nullptr);
  b.Pass(milliseconds(250));
  ASSERT_FALSE(b.orders[drain].empty());
  EXPECT_EQ(b.orders[drain].back().running, 1u);
  EXPECT_EQ(b.orders[drain].back().requests, 1u);
  b.Token(u, b.front.ChildOf(first), 1, 0, 'a', FinishReason::kLength);
  EXPECT_EQ(b.Told<Done>(first).size(), 1u);
  b.Beat(u, /*idle=*/true, 0);
  ASSERT_NE(b.Ended(drain), nullptr);
  EXPECT_TRUE(b.Ended(drain)->status.ok());
  EXPECT_TRUE(b.Ended(drain)->empty && b.Ended(drain)->changed && b.Ended(drain)->draining);
}

TEST(Operations, ADrainIsIdempotentAndUndoneByAnother) {
  FrontBench b;
  const LinkId u = b.Up("u", true, true);
  b.Up("v", true, true);
  const OperatorHandle first = b.Drain("u");
  b.Obey();
  b.Beat(u, false, 1);
  const OperatorHandle second = b.Drain("u");
  b.Obey();
  const OperatorHandle undo = b.Drain("u", /*undo=*/true);
  b.Obey();
  b.Beat(u, false, 1);
  ASSERT_TRUE(b.Ended(first) != nullptr && b.Ended(second) != nullptr && b.Ended(undo) != nullptr);
  EXPECT_EQ(b.Ended(first)->status.code(), Code::kAborted);
  EXPECT_THAT(b.Ended(second)->status.message(), HasSubstr("undone"));
  EXPECT_FALSE(b.Ended(second)->changed) << "it drained already";
  EXPECT_TRUE(b.Ended(undo)->status.ok() && b.Ended(undo)->changed);
  EXPECT_FALSE(b.front.Snapshot(b.now).workers[0].draining);
}

TEST(Operations, ADrainThatLastsAnswersWithItsCountsAndStands) {
  FrontBench b;
  const LinkId u = b.Up("u", true, true);
  b.Up("v", true, true);
  const OperatorHandle drain = b.Drain("u", false, false, seconds(2));
  b.Obey();
  for (int i = 0; i < 5; ++i) {
    b.Beat(u, false, 3);
    b.Pass(milliseconds(500));
  }
  ASSERT_NE(b.Ended(drain), nullptr);
  EXPECT_TRUE(b.Ended(drain)->status.ok());
  EXPECT_FALSE(b.Ended(drain)->empty);
  EXPECT_EQ(b.Ended(drain)->running, 3u);
  EXPECT_EQ(b.Ended(drain)->elapsed, seconds(2));
  EXPECT_LE(b.orders[drain].size(), 3u) << "progress is told when something changed";
  EXPECT_TRUE(b.front.Snapshot(b.now).workers[0].draining);
}

TEST(Operations, AWorkerThatLeavesWhileItDrainsHasDrainedAndAnUnconfirmedOrderSaysSo) {
  FrontBench b;
  const LinkId u = b.Up("u", true, true);
  const LinkId v = b.Up("v", true, true);
  const OperatorHandle drain = b.Drain("u");
  b.Down(u);
  ASSERT_NE(b.Ended(drain), nullptr);
  EXPECT_TRUE(b.Ended(drain)->status.ok() && b.Ended(drain)->left);
  b.Up("w", true, true);
  const OperatorHandle role = b.SetRole("v", kPrefillOnly);
  for (int i = 0; i < 12; ++i) {
    b.Beat(v);
    b.Pass(milliseconds(500));
  }
  ASSERT_NE(b.Ended(role), nullptr);
  EXPECT_EQ(b.Ended(role)->status.code(), Code::kDeadlineExceeded);
  const OperatorHandle lost = b.SetRole("v", kDecodeOnly);
  b.Down(v);
  ASSERT_NE(b.Ended(lost), nullptr);
  EXPECT_EQ(b.Ended(lost)->status.code(), Code::kUnavailable);
}

TEST(Operations, ANewRoleHoldsForPlacementsAtOnceAndAPresentOneIsDone) {
  FrontBench b;
  const LinkId p = b.Up("p", true, false), d = b.Up("d", false, true);
  const OperatorHandle to_decode = b.SetRole("p", kDecodeOnly);
  b.Obey();
  b.Submit(kLong, 4);
  EXPECT_EQ(b.Sent<PrefillCommand>().size(), 0u) << "nobody prefills for others any more";
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  b.Beat(p);
  ASSERT_NE(b.Ended(to_decode), nullptr);
  EXPECT_TRUE(b.Ended(to_decode)->status.ok() && b.Ended(to_decode)->changed);
  const OperatorHandle again = b.SetRole("p", kDecodeOnly);
  b.Obey();
  b.Beat(p);
  ASSERT_NE(b.Ended(again), nullptr);
  EXPECT_TRUE(b.Ended(again)->status.ok());
  EXPECT_FALSE(b.Ended(again)->changed);
  const OperatorHandle turned = b.SetRole("d", kPrefillOnly);
  b.Obey();
  b.Beat(d);
  ASSERT_NE(b.Ended(turned), nullptr);
  b.Submit(kLong, 4);
  ASSERT_EQ(b.Sent<PrefillCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<PrefillCommand>()[0].first, d) << "the pair stands the other way round";
}

TEST(Operations, TheLastThatDecodesStaysUnlessForced) {
  FrontBench b;
  b.Up("p", true, false);
  const LinkId d = b.Up("d", false, true);
  for (const OperatorHandle refused : {b.SetRole("d", kPrefillOnly), b.Drain("d")}) {
    ASSERT_NE(b.Ended(refused), nullptr);
    EXPECT_EQ(b.Ended(refused)->status.code(), Code::kFailedPrecondition);
    EXPECT_THAT(b.Ended(refused)->status.message(), HasSubstr("d is the last worker that can decode"));
  }
  EXPECT_TRUE(b.front.CouldServe());
  EXPECT_TRUE(b.Sent<DrainCommand>().empty());
  const OperatorHandle forced = b.SetRole("d", kPrefillOnly, /*force=*/true);
  b.Obey();
  b.Beat(d);
  ASSERT_NE(b.Ended(forced), nullptr);
  EXPECT_TRUE(b.Ended(forced)->status.ok());
  EXPECT_FALSE(b.front.CouldServe());
}

TEST(Operations, AnUnknownNameIsToldWhichNamesThereAre) {
  FrontBench b;
  const OperatorHandle none = b.Drain("x");
  ASSERT_NE(b.Ended(none), nullptr);
  EXPECT_EQ(b.Ended(none)->status.code(), Code::kNotFound);
  EXPECT_THAT(b.Ended(none)->status.message(), HasSubstr("none is"));
  b.Up("blue", true, true);
  b.Up("green", true, true);
  const OperatorHandle typo = b.SetRole("gren", kDecodeOnly);
  ASSERT_NE(b.Ended(typo), nullptr);
  EXPECT_THAT(b.Ended(typo)->status.message(), HasSubstr("connected: blue, green"));
  WorkerHello alone = HelloOf("alone", true, true);
  alone.self.address.clear();
  b.Up(alone);
  const OperatorHandle role = b.SetRole("alone", kDecodeOnly);
  ASSERT_NE(b.Ended(role), nullptr);
  EXPECT_THAT(b.Ended(role)->status.message(), HasSubstr("must do everything itself"));
}

TEST(Operations, TheWholeRouterDrainsAndAdmitsAgain) {
  FrontBench b;
  const LinkId u = b.Up("u", true, true);
  const ClientHandle running = b.Submit("hello", 1);
  const OperatorHandle drain = b.Drain("");
  const ClientHandle refused = b.Submit("hello", 1);
  ASSERT_EQ(b.Told<Failed>(refused).size(), 1u);
  EXPECT_EQ(b.Told<Failed>(refused)[0].reason, "DRAINING");
  EXPECT_EQ(b.Ended(drain), nullptr);
  b.Token(u, b.front.ChildOf(running), 1, 0, 'a', FinishReason::kLength);
  b.Pass(milliseconds(300));
  ASSERT_NE(b.Ended(drain), nullptr);
  EXPECT_TRUE(b.Ended(drain)->empty);
  EXPECT_NE(b.Ended(b.Drain("", /*undo=*/true)), nullptr);
  b.Submit("hello", 1);
  EXPECT_EQ(b.Sent<DecodeCommand>().size(), 1u);
}

// They went by their own accord (SIGTERM), and the router hears of it last.
TEST(Operations, RefusalsForADrainOrARoleOnTheWayCostARequestNothingButNotForEver) {
  FrontBench b;
  const LinkId p = b.Up("p", true, false), d = b.Up("d", false, true);
  const ClientHandle client = b.Submit(kLong, 4);
  const ChildId child = b.front.ChildOf(client);
  const auto refuse = [&](Epoch epoch) {
    const FrontOutput placed = b.out;
    for (const auto& [link, command] : placed.to_workers) {
      if (std::holds_alternative<PrefillCommand>(command)) {
        b.Say(p, HandoffFailed{child, epoch, HandoffFailure::kNotAdmitted, "d is draining"});
      } else if (std::holds_alternative<DecodeCommand>(command)) {
        b.Say(d, ChildFailed{child, epoch, UnavailableError("d is draining")});
      }
    }
    b.Pass(seconds(1));
  };
  for (Epoch epoch = 1; epoch <= 6; ++epoch) {
    refuse(epoch);
    ASSERT_TRUE(b.Told<Failed>(client).empty()) << "three times its budget of retries, and none of them taken";
    ASSERT_EQ(b.front.counters().replacements, epoch);
  }
  for (Epoch epoch = 7; epoch <= 12; ++epoch) refuse(epoch);
  ASSERT_EQ(b.Told<Failed>(client).size(), 1u);
  EXPECT_EQ(b.Told<Failed>(client)[0].status.code(), Code::kUnavailable);
}

TEST(Operations, AWorkerThatDialsWhileItDrainsIsNotPlacedOn) {
  FrontBench b;
  WorkerHello hello = HelloOf("u", true, true);
  hello.draining = true;
  b.Up(hello);
  EXPECT_FALSE(b.front.CouldServe());
}

}  // namespace
}  // namespace baton

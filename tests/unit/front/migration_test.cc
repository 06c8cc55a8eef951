// A running answer that goes on at another worker, from the front's side (S11).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "unit/front/front_bench.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

WorkerHello Unified(const std::string& name, uint64_t incarnation = 1) {
  WorkerHello h = HelloOf(name, true, true, incarnation);
  return h;
}

// An answer runs on u, in epoch 1, with two tokens delivered; v is there and idle.
struct Moving : FrontBench {
  Moving() {
    u = Up(Unified("u"));
    client = Submit("hello", 20);
    child = front.ChildOf(client);
    Token(u, child, 1, 0, 'a');
    Token(u, child, 1, 1, 'b');
    v = Up(Unified("v"));
  }
  // The worker drains, and says so.
  void DrainU() {
    Drain("u");
    Obey();
    Beat(u, false, 1);
  }
  void Move() {
    DrainU();
    ASSERT_EQ(Sent<MigrateCommand>().size(), 1u);
  }
  void Finish(LinkId link, Epoch epoch, uint32_t from) {
    for (uint32_t i = from; i < 20; ++i) {
      Token(link, child, epoch, i, static_cast<TokenId>('a' + i),
            i == 19 ? FinishReason::kLength : FinishReason::kNone);
    }
    EXPECT_EQ(TextOf(client), "abcdefghijklmnopqrst");
    ASSERT_EQ(Told<Done>(client).size(), 1u);
    EXPECT_EQ(front.Snapshot(now).workers[0].credits_used, 0u);
  }
  LinkId u{}, v{};
  ClientHandle client{};
  ChildId child;
};

TEST(Migration, AnAnswerOnAWorkerThatDrainsGoesOnElsewhereAndItsPresentEpochCountsUntilTheNextOneSpeaks) {
  Moving b;
  b.Move();
  const auto [link, migrate] = b.Sent<MigrateCommand>()[0];
  EXPECT_EQ(link, b.u);
  EXPECT_EQ(migrate.child, b.child);
  EXPECT_EQ(migrate.epoch, 1u);
  EXPECT_EQ(migrate.next, 2u);
  EXPECT_EQ(migrate.delivered, 2u);
  EXPECT_EQ(migrate.to, Unified("v").self);
  EXPECT_TRUE(b.Sent<CancelCommand>().empty()) << "it does not end the present epoch";
  b.Token(b.u, b.child, 1, 2, 'c');
  EXPECT_EQ(b.TextOf(b.client), "abc");
  b.Say(b.u, HandedOff{b.child, 2});
  EXPECT_TRUE(b.out.to_workers.empty());
  b.Token(b.v, b.child, 2, 2, 'c');  // from the delivered count of Migrate on
  EXPECT_EQ(b.TextOf(b.client), "abc");
  b.Finish(b.v, 2, 3);
  const Timings t = b.Told<Done>(b.client)[0].timings;
  EXPECT_EQ(t.decode_worker, "v");
  EXPECT_EQ(t.migrations, 1u);
  EXPECT_EQ(t.retries, 0u);
  EXPECT_EQ(b.front.counters().migrated, 1u);
  EXPECT_EQ(b.front.counters().replacements, 0u);
  EXPECT_EQ(b.front.counters().handoff_failures, 0u);
}

TEST(Migration, TheFirstTokenOfTheNextEpochEndsThePresentOne) {
  Moving b;
  b.Move();
  b.Token(b.v, b.child, 2, 2, 'c');
  ASSERT_EQ(b.Sent<CancelCommand>().size(), 1u) << "the source may not know yet that it has handed over";
  EXPECT_EQ(b.Sent<CancelCommand>()[0].first, b.u);
  EXPECT_EQ(b.Sent<CancelCommand>()[0].second.epoch, 1u);
  b.Token(b.u, b.child, 1, 2, 'c');
  EXPECT_EQ(b.Sent<CancelCommand>().size(), 1u) << "S5: late";
  b.Say(b.u, HandedOff{b.child, 2});
  b.Finish(b.v, 2, 3);
}

TEST(Migration, RefusedItGoesOnWhereItIsAndTheNextOneHasAHigherEpoch) {
  Moving b;
  b.Move();
  b.Say(b.u, HandoffFailed{b.child, 2, HandoffFailure::kNotAdmitted, "it drains, too"});
  EXPECT_TRUE(b.Sent<MigrateCommand>().empty()) << "not at once";
  b.Token(b.u, b.child, 1, 2, 'c');
  EXPECT_EQ(b.TextOf(b.client), "abc");
  b.Pass(milliseconds(60));
  b.Beat(b.u, false, 1);
  ASSERT_EQ(b.Sent<MigrateCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<MigrateCommand>()[0].second.epoch, 1u);
  EXPECT_EQ(b.Sent<MigrateCommand>()[0].second.next, 3u) << "e + 2";
  b.Say(b.u, HandedOff{b.child, 3});
  b.Finish(b.v, 3, 3);
  EXPECT_EQ(b.front.counters().migrations, 2u);
  EXPECT_EQ(b.front.counters().migrations_failed, 1u);
}

// Who is asked when the source does not know whether the target has it.
struct Undecided : Moving {
  Undecided() {
    Move();
    Say(u, HandoffFailed{child, 2, HandoffFailure::kUndecided, "no answer"});
    const auto adopts = Sent<AdoptCommand>();
    EXPECT_EQ(adopts.size(), 1u);
    EXPECT_EQ(adopts.at(0).first, v);
    EXPECT_EQ(adopts.at(0).second.epoch, 2u);
  }
};

TEST(Migration, UndecidedTheTargetIsAskedAndHasIt) {
  Undecided b;
  b.Say(b.v, Running{b.child, 2});
  ASSERT_EQ(b.Sent<CancelCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<CancelCommand>()[0].first, b.u);
  b.Finish(b.v, 2, 2);
}

TEST(Migration, UndecidedAndNotAtTheTargetItGoesOnAtTheSource) {
  Undecided b;
  b.Say(b.v, NotHeld{b.child, 2});
  ASSERT_EQ(b.Sent<AdoptCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<AdoptCommand>()[0].first, b.u);
  EXPECT_EQ(b.Sent<AdoptCommand>()[0].second.epoch, 1u);
  b.Say(b.u, Running{b.child, 1});
  b.Token(b.u, b.child, 1, 2, 'c');
  for (int i = 0; i < 10; ++i) {
    b.Pass(milliseconds(500));
    b.Beat(b.u);
    b.Beat(b.v);
  }
  EXPECT_TRUE(b.Told<Failed>(b.client).empty()) << "nobody is waited for any more";
  EXPECT_EQ(b.front.counters().replacements, 0u);
  b.Finish(b.u, 1, 3);
}

TEST(Migration, WhenNobodyHasItItIsPlacedAnewFromWhatTheClientHas) {
  Undecided b;
  b.Say(b.v, NotHeld{b.child, 2});
  b.Say(b.u, NotHeld{b.child, 1});
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].first, b.v);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].second.epoch, 3u);
  EXPECT_EQ(b.Sent<DecodeCommand>()[0].second.progress.tokens.size(), 2u);
  b.Finish(b.v, 3, 2);
}

TEST(Migration, WhenNobodyAnswersItIsPlacedAnew) {
  Undecided b;
  for (int i = 0; i < 8; ++i) {
    b.Pass(milliseconds(500));
    b.Beat(b.u);
    b.Beat(b.v);
  }
  EXPECT_EQ(b.front.counters().replacements, 1u);
}

TEST(Migration, TheSourceDiesAndTheTargetHasItOrNot) {
  for (const bool has : {true, false}) {
    Moving b;
    b.Move();
    b.Down(b.u);
    ASSERT_EQ(b.Sent<AdoptCommand>().size(), 1u);
    EXPECT_EQ(b.Sent<AdoptCommand>()[0].first, b.v);
    if (has) {
      b.Say(b.v, Running{b.child, 2});
      b.Finish(b.v, 2, 2);
      EXPECT_EQ(b.front.counters().replacements, 0u);
      continue;
    }
    b.Say(b.v, NotHeld{b.child, 2});
    ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
    EXPECT_EQ(b.Sent<DecodeCommand>()[0].second.epoch, 3u);
    b.Finish(b.v, 3, 2);
  }
}

TEST(Migration, TheTargetDiesAndTheSourceIsToldToGoOn) {
  Moving b;
  b.Move();
  b.Down(b.v);
  ASSERT_EQ(b.Sent<AdoptCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<AdoptCommand>()[0].first, b.u);
  EXPECT_EQ(b.Sent<AdoptCommand>()[0].second.epoch, 1u);
  b.Token(b.u, b.child, 1, 2, 'c');
  b.Say(b.u, HandoffFailed{b.child, 2, HandoffFailure::kPeerLost, "it saw that, too"});
  b.Say(b.u, Running{b.child, 1});
  EXPECT_EQ(b.front.counters().replacements, 0u);
  b.Finish(b.u, 1, 3);
}

TEST(Migration, ATargetThatDiesAfterTheHandOverIsALossLikeAnyOther) {
  Moving b;
  b.Move();
  b.Down(b.v);
  b.Say(b.u, HandedOff{b.child, 2});  // was on its way
  b.Say(b.u, NotHeld{b.child, 1});
  EXPECT_EQ(b.front.counters().replacements, 0u) << "the other one drains; it waits for a worker";
  const LinkId again = b.Up(Unified("v", 2));
  ASSERT_EQ(b.Sent<DecodeCommand>().size(), 1u);
  b.Finish(again, 3, 2);
}

TEST(Migration, ACancelReachesBothWorkers) {
  Moving b;
  b.Move();
  b.Do(ClientCancel{b.client, ""});
  const auto cancels = b.Sent<CancelCommand>();
  ASSERT_EQ(cancels.size(), 2u);
  EXPECT_EQ(cancels[0].first, b.u);
  EXPECT_EQ(cancels[0].second.epoch, 1u);
  EXPECT_EQ(cancels[1].first, b.v);
  EXPECT_EQ(cancels[1].second.epoch, 2u);
}

TEST(Migration, AnAnswerThatEndsOnTheWayEndsTheMigration) {
  Moving b;
  b.Move();
  b.Token(b.u, b.child, 1, 2, ByteTokenizer::kEnd, FinishReason::kStop);
  EXPECT_EQ(b.Told<Done>(b.client).size(), 1u);
  ASSERT_EQ(b.Sent<CancelCommand>().size(), 1u);
  EXPECT_EQ(b.Sent<CancelCommand>()[0].first, b.v);
  EXPECT_EQ(b.Sent<CancelCommand>()[0].second.epoch, 2u);
}

TEST(Migration, NobodyIsFitAndTheAnswerRunsToItsEndWhereItIs) {
  std::vector<std::function<void(WorkerHello*)>> unfit = {
      [](WorkerHello* h) { h->numeric.low ^= 1; },     [](WorkerHello* h) { h->layout.block_tokens *= 2; },
      [](WorkerHello* h) { h->roles.decode = false; }, [](WorkerHello* h) { h->protocol = 1; },  // an older version
      [](WorkerHello* h) { h->self.address.clear(); }, [](WorkerHello* h) { h->num_blocks = {2}; },
      [](WorkerHello* h) { h->draining = true; },
  };
  for (size_t i = 0; i < unfit.size(); ++i) {
    FrontBench b;
    const LinkId u = b.Up(Unified("u"));
    const ClientHandle client = b.Submit("hello", 20);
    b.Token(u, b.front.ChildOf(client), 1, 0, 'a');
    WorkerHello other = Unified("v");
    unfit[i](&other);
    b.Up(other);
    b.Drain("u", false, /*force=*/true);
    b.Obey();
    b.Beat(u, false, 1);
    EXPECT_TRUE(b.Sent<MigrateCommand>().empty()) << i;
  }
}

TEST(Migration, AtMostFourLeaveAWorkerAtATime) {
  FrontBench b;
  const LinkId u = b.Up(Unified("u"));
  std::vector<ChildId> children;
  for (int i = 0; i < 6; ++i) children.push_back(b.front.ChildOf(b.Submit("hello", 20)));
  for (const ChildId& child : children) b.Token(u, child, 1, 0, 'a');
  b.Up(Unified("v"));
  b.Drain("u");
  b.Obey();
  b.Beat(u, false, 6);
  EXPECT_EQ(b.Sent<MigrateCommand>().size(), 4u);
  b.Say(u, HandedOff{children[0], 2});
  EXPECT_EQ(b.Sent<MigrateCommand>().size(), 1u);
}

}  // namespace
}  // namespace baton

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "engine_bench.h"
#include "support/metric_names.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::vector<uint32_t> Indices(const EngineBench& b) {
  std::vector<uint32_t> out;
  for (const TokenEvent& e : b.Told<TokenEvent>()) out.push_back(e.index);
  return out;
}

TEST(EngineCore, EmitsFromTheDeliveredCountOn) {
  EngineBench b;
  Progress progress{{{11, 0, {}}, {12, 0, {}}, {13, 0, {}}}, 1, seconds(60)};
  b.Front(DecodeCommand{b.Make(1, 20, 8), progress, 1});
  b.Finish(14);
  EXPECT_EQ(Indices(b), (std::vector<uint32_t>{1, 2, 3}));
  const auto told = b.Told<TokenEvent>();
  EXPECT_EQ(told[0].token.id, 12);
  EXPECT_EQ(told[2].token.id, 14);
}

TEST(EngineCore, RunsAnAnswerToItsLengthAndGivesEverythingBack) {
  EngineBench b;
  b.Front(DecodeCommand{b.Make(1, 40, 3), EngineBench::Fresh(), 1});
  while (!b.runner.launched.empty()) b.Finish(20);
  EXPECT_EQ(Indices(b), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(b.Told<TokenEvent>().back().finish, FinishReason::kLength);
  EXPECT_EQ(b.Told<ReceiptEvent>().size(), 2u);
  EXPECT_TRUE(b.core->idle());
  EXPECT_EQ(b.free_blocks(), 16u);
}

TEST(EngineCore, ACancelThatOvertakesItsPrefillRefusesIt) {
  EngineBench b;
  const RequestPtr request = b.Make(1, 20, 8);
  b.Front(CancelCommand{request->id, 1});
  b.Front(PrefillCommand{request, EngineBench::Fresh(), 1, b.reader});
  EXPECT_TRUE(b.runner.launched.empty());
  EXPECT_TRUE(b.core->idle());
  b.Front(DecodeCommand{request, EngineBench::Fresh(), 2});
  EXPECT_EQ(b.runner.launched.size(), 2u) << "the next epoch is another matter: its prompt, and the step behind it";
}

TEST(EngineCore, ACommandOfAnotherFrontsChildOrOfALowerEpochChangesNothing) {
  EngineBench b;
  Request foreign = *b.Make(1, 20, 8);
  foreign.id.front = EngineBench::kFront + 1;
  b.Front(DecodeCommand{std::make_shared<const Request>(foreign), EngineBench::Fresh(), 1});
  const RequestPtr request = b.Make(2, 20, 8);
  b.Front(DecodeCommand{request, EngineBench::Fresh(), 3});
  b.Front(DecodeCommand{request, EngineBench::Fresh(), 2});
  b.Front(DecodeCommand{request, EngineBench::Fresh(), 3});
  EXPECT_EQ(b.core->counters().stale_commands, 3u);
}

// FF-046
TEST(EngineCore, WithOneTokenToGiveItSendsNoReserve) {
  EngineBench b;
  b.Front(PrefillCommand{b.Make(1, 40, 1), EngineBench::Fresh(), 1, b.reader});
  b.Finish(9);
  EXPECT_TRUE(b.dials.empty());
  ASSERT_EQ(b.Told<TokenEvent>().size(), 1u);
  EXPECT_EQ(b.Told<TokenEvent>()[0].finish, FinishReason::kLength);
  EXPECT_TRUE(b.core->idle());
}

TEST(EngineCore, TellsItsFrontOfAChildsFirstStepAtOnce) {
  EngineBench b;
  const size_t before = b.heartbeats.size();
  b.Front(DecodeCommand{b.Make(1, 40, 8), EngineBench::Fresh(), 1});
  ASSERT_EQ(b.heartbeats.size(), before + 1)
      << "L8: should the step kill the worker, the front knows that it was in it";
  EXPECT_GE(b.heartbeats.back().steps, 1u);
  EXPECT_GT(b.heartbeats.back().step_overdue_in, Duration(0));
}

TEST(EngineCore, TellsItsFrontAtOnceWhichOnceHitChildIsInAStep) {
  EngineBench b;
  Progress hit = EngineBench::Fresh();
  hit.once_hit = true;
  const RequestPtr first = b.Make(1, 20, 2), second = b.Make(2, 20, 2);
  b.Front(DecodeCommand{first, hit, 1});
  EXPECT_EQ(b.heartbeats.back().once_hit_in_step, std::vector{first->id});
  b.Front(DecodeCommand{second, hit, 1});
  EXPECT_EQ(b.heartbeats.back().once_hit_in_step, std::vector{first->id}) << "L8: it waits for its turn";
  b.Finish(9);
  b.Finish(9);
  EXPECT_EQ(b.heartbeats.back().once_hit_in_step, std::vector{second->id});
  b.Finish(9);
  b.Finish(9);
  EXPECT_TRUE(b.heartbeats.back().once_hit_in_step.empty());
  EXPECT_TRUE(b.core->idle());
}

TEST(EngineCore, AHandOffAndAnAdoptedChildKeepTheMarkOfAHit) {
  EngineBench writer;
  Progress hit = EngineBench::Fresh();
  hit.once_hit = true;
  writer.Front(PrefillCommand{writer.Make(1, 40, 8), hit, 1, writer.reader});
  writer.AnswerDial();
  EXPECT_TRUE(writer.Last<Reserve>().progress.once_hit);

  EngineBench b({false, true});
  b.Greet();
  const RequestPtr request = b.Make(2, 48, 8);
  b.FromWriter(b.ReserveFor(request, 1));
  b.Fill(b.Last<Grant>(), 9);
  ASSERT_FALSE(b.runner.launched.empty());
  EXPECT_TRUE(b.heartbeats.back().once_hit_in_step.empty());
  b.Front(AdoptCommand{request->id, 1, true});
  EXPECT_EQ(b.heartbeats.back().once_hit_in_step, std::vector{request->id}) << "it was in a step already";
}

// ---- writer ---------------------------------------------------------------------------------------

TEST(EngineCore, PostsExactlyTheBlocksThatTheReaderLacksAndEndsWithItsAck) {
  for (const uint32_t hit_blocks : {0u, 1u, 2u}) {
    EngineBench b({true, false});
    b.Front(PrefillCommand{b.Make(1, 48, 8), EngineBench::Fresh(), 1, b.reader});
    b.AnswerDial();
    b.FromReader(b.GrantFor(b.Last<Reserve>(), hit_blocks));
    EXPECT_TRUE(b.transport.posts.empty()) << "nothing is computed yet (S3)";
    b.Finish(9);
    EXPECT_EQ(b.transport.bytes_posted(), (3 - hit_blocks) * b.layout.BlockBytes(0));
    EXPECT_TRUE(b.Sent<Commit>().empty()) << "not before every op is quiesced";
    b.transport.QuiesceAll();
    b.Turn();
    ASSERT_EQ(b.Sent<Commit>().size(), 1u);
    const Commit commit = b.Last<Commit>();
    EXPECT_EQ(commit.token_count, 48u);
    EXPECT_EQ(commit.digests.size(), b.transport.posts.size());
    ASSERT_EQ(commit.progress.tokens.size(), 1u);
    EXPECT_EQ(commit.progress.tokens[0].id, 9);
    EXPECT_FALSE(b.core->idle()) << "blocks stay until D has said yes";
    b.FromReader(CommitAnswer{commit.child, commit.epoch, commit.ticket, commit.attempt, CommitVerdict::kAck, {}});
    EXPECT_EQ(b.Told<HandedOff>().size(), 1u);
    ASSERT_EQ(b.Told<ReceiptEvent>().size(), 1u);
    EXPECT_EQ(b.Told<ReceiptEvent>()[0].receipt.transfer_blocks, 3 - hit_blocks);
    EXPECT_TRUE(b.core->idle());
    EXPECT_EQ(b.free_blocks(), 16u);
  }
}

TEST(EngineCore, LayersOfAStepThatStillRunsArePostedWhenTheyAreReady) {
  EngineBench b({true, false});
  b.Front(PrefillCommand{b.Make(1, 48, 8), EngineBench::Fresh(), 1, b.reader});
  b.AnswerDial();
  b.FromReader(b.GrantFor(b.Last<Reserve>(), 0));
  const StepId step = b.runner.launched.front().id;
  b.runner.events.push_back(LayersReady{step, 3});
  b.Turn();
  EXPECT_TRUE(b.transport.posts.empty()) << "the one chunk is all four layers";
  b.runner.events.push_back(LayersReady{step, 4});
  b.Turn();
  EXPECT_EQ(b.transport.bytes_posted(), 3 * b.layout.BlockBytes(0));
}

// FF-016
TEST(EngineCore, ACancelWhileBytesAreInFlightKeepsTheBlocksUntilTheyAreQuiesced) {
  EngineBench b({true, false});
  b.Front(PrefillCommand{b.Make(1, 48, 8), EngineBench::Fresh(), 1, b.reader});
  b.AnswerDial();
  b.FromReader(b.GrantFor(b.Last<Reserve>(), 0));
  b.Finish(9);
  b.Front(CancelCommand{b.Last<Reserve>().child, 1});
  EXPECT_EQ(b.core->pool().counts(0).owned, 3u) << "L3: unpinned at quiesced, not before";
  EXPECT_TRUE(b.Sent<Drained>().empty());
  b.transport.QuiesceAll();
  b.Turn();
  EXPECT_EQ(b.core->pool().counts(0).owned, 0u);
  EXPECT_EQ(b.Sent<Drained>().size(), 1u);
  EXPECT_TRUE(b.core->idle());
}

TEST(EngineCore, AStepThatFailsWhileBytesAreInFlightKeepsTheBlocksUntilTheyAreQuiesced) {
  EngineBench b({true, false});
  b.Front(PrefillCommand{b.Make(1, 48, 8), EngineBench::Fresh(), 1, b.reader});
  b.AnswerDial();
  b.FromReader(b.GrantFor(b.Last<Reserve>(), 0));
  const StepId step = b.runner.launched.front().id;
  b.runner.events.push_back(LayersReady{step, 4});
  b.Turn();
  ASSERT_EQ(b.transport.posts.size(), 1u);
  b.runner.launched.pop_front();
  b.runner.events.push_back(StepResult{step, InternalError("no more memory"), {}, {}, {}, {}});
  b.Turn();
  EXPECT_EQ(b.Told<ChildFailed>().size(), 1u);
  EXPECT_EQ(b.core->pool().counts(0).owned, 3u) << "S1: a transfer still reads them";
  b.transport.QuiesceAll();
  b.Turn();
  EXPECT_EQ(b.core->pool().counts(0).owned, 0u);
  EXPECT_TRUE(b.core->idle());
}

TEST(EngineCore, AHeldHandOffGivesWayToOthersAndIsThenDecodedWhereItIsUnderAnyRole) {
  EngineBench b({true, false}, /*pool_blocks=*/6);
  const RequestPtr held = b.Make(1, 48, 8);
  b.Front(PrefillCommand{held, EngineBench::Fresh(), 1, b.reader});
  b.AnswerDial();
  const Reserve reserve = b.Last<Reserve>();
  b.FromReader(Busy{reserve.child, reserve.epoch, reserve.attempt, seconds(1)});
  b.Finish(9);
  EXPECT_TRUE(b.Told<HandoffFailed>().empty());
  // Four blocks of six are wanted by somebody more important.
  b.Front(PrefillCommand{b.Make(2, 64, 1, /*priority=*/5), EngineBench::Fresh(), 1, b.reader});
  ASSERT_EQ(b.Told<HandoffFailed>().size(), 1u);
  EXPECT_EQ(b.Told<HandoffFailed>()[0].why, HandoffFailure::kBusyTooLong);
  b.Finish(5);  // the important one is over
  // The front places it here now; this worker does not take decode work otherwise.
  b.Front(DecodeCommand{held, Progress{{{9, 0, {}}}, 1, seconds(60)}, 2});
  b.Front(DecodeCommand{b.Make(3, 16, 8), EngineBench::Fresh(), 1});
  while (!b.runner.launched.empty()) b.Finish(10);
  EXPECT_EQ(b.Told<TokenEvent>().back().finish, FinishReason::kLength);
  ASSERT_EQ(b.Told<ChildFailed>().size(), 1u);
  EXPECT_EQ(b.Told<ChildFailed>()[0].child.number, 3u);
  EXPECT_TRUE(b.core->idle());
}

// The repeat of a BUSY that was answered long ago: what reads the blocks now would read somebody else's bytes.
TEST(EngineCore, ABusyThatComesAfterTheGrantDoesNotLetGoOfTheBlocks) {
  EngineBench b({true, false}, /*pool_blocks=*/6);
  b.Front(PrefillCommand{b.Make(1, 48, 8), EngineBench::Fresh(), 1, b.reader});
  b.AnswerDial();
  const Reserve first = b.Last<Reserve>();
  const Busy busy{first.child, first.epoch, first.attempt, milliseconds(20)};
  b.FromReader(busy);
  b.now += milliseconds(20);
  b.Turn();
  ASSERT_EQ(b.Last<Reserve>().attempt, 2u);
  b.FromReader(b.GrantFor(b.Last<Reserve>(), 0));
  b.Finish(9);
  ASSERT_FALSE(b.transport.posts.empty());
  b.FromReader(busy);
  // Four blocks of six are wanted by somebody more important, who waits.
  b.Front(PrefillCommand{b.Make(2, 64, 1, /*priority=*/5), EngineBench::Fresh(), 1, b.reader});
  EXPECT_EQ(b.core->pool().counts(0).owned, 3u);
  b.transport.QuiesceAll();
  b.Turn();
  ASSERT_EQ(b.Sent<Commit>().size(), 1u);
  const Commit commit = b.Last<Commit>();
  b.FromReader(CommitAnswer{commit.child, commit.epoch, commit.ticket, commit.attempt, CommitVerdict::kAck, {}});
  EXPECT_EQ(b.Told<HandedOff>().size(), 1u);
}

TEST(EngineCore, WithoutAReaderTheHandOffFailsAndItsKvWaitsForTheNextEpoch) {
  EngineBench b;
  const RequestPtr request = b.Make(1, 48, 8);
  b.Front(PrefillCommand{request, EngineBench::Fresh(), 1, b.reader});
  for (int i = 0; i < 3; ++i) {
    b.Do(LinkDown{b.dials.back().link, UnavailableError("nobody listens")});
    b.now += seconds(2);
    b.Turn();
  }
  ASSERT_EQ(b.Told<HandoffFailed>().size(), 1u);
  EXPECT_EQ(b.Told<HandoffFailed>()[0].why, HandoffFailure::kPeerLost);
  b.Finish(9);
  EXPECT_GT(b.core->pool().counts(0).owned, 0u);
  b.Front(DecodeCommand{request, Progress{{{9, 0, {}}}, 1, seconds(60)}, 2});
  while (!b.runner.launched.empty()) b.Finish(10);
  EXPECT_EQ(b.core->counters().cached_tokens, 48u) << "nothing of the prompt was computed again";
}

// A writer with blocks of 64 tokens.
struct UnlikeLayoutBench : EngineBench {
  UnlikeLayoutBench() : EngineBench({false, true}) {
    KvLayout theirs = layout;
    theirs.block_tokens = 64;
    Greet(theirs);
  }
};

// ---- migration: this worker decodes and hands over -----------------------------------------------

// An answer runs here with 40 tokens of prompt (blocks of 16) and its first token said; the test is the target "d".
struct MigratingBench : EngineBench {
  explicit MigratingBench(uint32_t prompt = 40) : request(Make(1, prompt, 60)) {
    Front(DecodeCommand{request, Fresh(), 1});
    Finish(9);
    Front(MigrateCommand{request->id, 1, 2, 1, reader});
    AnswerDial();
  }
  void Granted(uint32_t hit_blocks = 0) { FromReader(GrantFor(Last<Reserve>(), hit_blocks)); }
  // What was posted since the last time arrives.
  void Arrive() {
    for (; arrived < transport.posts.size(); ++arrived) {
      const TransferPost& post = transport.posts[arrived];
      transport.events.push_back(Quiesced{post.op, OkStatus(), ScriptedTransport::DigestOf(post)});
    }
    Turn();
  }
  // Steps end until none is launched: the cut-over.
  void StandStill() {
    for (int i = 0; i < 4 && !runner.launched.empty(); ++i) Finish(10);
  }
  Grant Extension(uint32_t number, uint32_t blocks) {
    Grant grant = GrantFor(Last<Reserve>(), 0);
    grant.extension = number;
    grant.blocks = {{}};
    grant.base = {{}};
    for (uint32_t i = 0; i < blocks; ++i) {
      grant.blocks[0].push_back(BlockId{20 + i});
      grant.base[0].push_back((20 + i) * layout.BlockBytes(0));
    }
    return grant;
  }
  CommitAnswer AnswerWith(CommitVerdict verdict) const {
    const Commit c = Last<Commit>();
    return {c.child, c.epoch, c.ticket, c.attempt, verdict, {}};
  }
  RequestPtr request;
  size_t arrived = 0;
};

TEST(EngineMigration, FullBlocksGoWhileItDecodesAndTheLastOneAfterItsLastStep) {
  MigratingBench b;
  const Reserve reserve = b.Last<Reserve>();
  EXPECT_TRUE(reserve.migration);
  EXPECT_EQ(reserve.epoch, 2u);
  EXPECT_EQ(reserve.num_tokens, 40u) << "that have KV";
  EXPECT_TRUE(reserve.progress.tokens.empty()) << "the last token comes with COMMIT";
  const size_t said = b.Told<TokenEvent>().size();
  b.Granted();
  EXPECT_EQ(b.transport.bytes_posted(), 2 * b.layout.BlockBytes(0)) << "S3: the third block is still written";
  b.Finish(10);
  EXPECT_EQ(b.Told<TokenEvent>().size(), said + 1) << "it goes on meanwhile, in its epoch";
  EXPECT_EQ(b.Told<TokenEvent>().back().epoch, 1u);
  b.Arrive();
  EXPECT_EQ(b.transport.posts.size(), b.arrived) << "steps are in flight";
  b.StandStill();
  EXPECT_TRUE(b.runner.launched.empty());
  EXPECT_EQ(b.transport.bytes_posted(), 3 * b.layout.BlockBytes(0));
  EXPECT_TRUE(b.Sent<Commit>().empty());
  b.Arrive();
  ASSERT_EQ(b.Sent<Commit>().size(), 1u);
  const Commit commit = b.Last<Commit>();
  const size_t tokens = b.Told<TokenEvent>().size();
  EXPECT_EQ(commit.epoch, 2u);
  EXPECT_EQ(commit.progress.tokens.size(), tokens) << "all of them were said before COMMIT";
  EXPECT_EQ(commit.progress.delivered, 1u) << "the front's count, unchanged";
  EXPECT_EQ(commit.token_count, 40 + tokens - 1);
  b.FromReader(b.AnswerWith(CommitVerdict::kAck));
  ASSERT_EQ(b.Told<HandedOff>().size(), 1u);
  EXPECT_EQ(b.Told<HandedOff>()[0].epoch, 2u);
  EXPECT_TRUE(b.core->idle());
  EXPECT_EQ(b.free_blocks(), 16u);
  EXPECT_EQ(b.Told<TokenEvent>().size(), tokens) << "nothing is said after COMMIT";
}

TEST(EngineMigration, ASequenceThatGrewBeyondItsGrantAsksForMoreAndAgain) {
  MigratingBench b(45);
  b.Granted();  // for 45 tokens: three blocks
  b.Finish(10);
  EXPECT_TRUE(b.Sent<Extend>().empty());
  b.Finish(10);
  b.Turn();  // 47 are computed, the steps in flight begin the next block
  ASSERT_EQ(b.Sent<Extend>().size(), 1u);
  EXPECT_EQ(b.Last<Extend>().extension, 1u);
  EXPECT_GT(b.Last<Extend>().num_tokens, 48u);
  b.now += milliseconds(25);
  b.Turn();
  EXPECT_EQ(b.Sent<Extend>().size(), 2u) << "until it is answered";
  b.Arrive();
  b.Finish(10);
  EXPECT_FALSE(b.runner.launched.empty()) << "it does not stand still for that";
  b.FromReader(b.Extension(1, 1));
  b.FromReader(b.Extension(1, 1));  // twice
  b.Arrive();
  b.StandStill();
  b.Arrive();
  ASSERT_EQ(b.Sent<Commit>().size(), 1u);
  EXPECT_EQ(b.transport.bytes_posted(), 4 * b.layout.BlockBytes(0));
  EXPECT_EQ(b.transport.posts.back().pieces[0].target_block, 3u) << "behind those granted before";
  EXPECT_EQ(b.transport.posts.back().target_base.size(), 4u);
  b.FromReader(b.AnswerWith(CommitVerdict::kAck));
  EXPECT_TRUE(b.core->idle());
}

TEST(EngineMigration, WhenItFailsAfterTheCutOverTheSequenceGoesOnHere) {
  for (const bool corrupt : {true, false}) {
    MigratingBench b;
    b.Granted();
    b.Arrive();
    b.StandStill();
    b.Arrive();
    ASSERT_EQ(b.Sent<Commit>().size(), 1u);
    const size_t said = b.Told<TokenEvent>().size();
    if (corrupt) {
      b.FromReader(b.AnswerWith(CommitVerdict::kCorrupt));
      ASSERT_EQ(b.Told<HandoffFailed>().size(), 1u);
      EXPECT_EQ(b.Told<HandoffFailed>()[0].epoch, 2u);
      EXPECT_EQ(b.Told<HandoffFailed>()[0].why, HandoffFailure::kTransfer);
    } else {
      b.now += seconds(3);
      b.Turn();
      ASSERT_EQ(b.Told<HandoffFailed>().size(), 1u);
      EXPECT_EQ(b.Told<HandoffFailed>()[0].why, HandoffFailure::kUndecided);
      EXPECT_TRUE(b.runner.launched.empty()) << "the reader may have it";
      b.Front(AdoptCommand{b.request->id, 1, false});
      ASSERT_EQ(b.Told<Running>().size(), 1u);
    }
    EXPECT_FALSE(b.runner.launched.empty());
    while (!b.runner.launched.empty()) b.Finish(10);
    EXPECT_EQ(b.Told<TokenEvent>().size(), 60u) << said;
    EXPECT_TRUE(b.core->idle() || !corrupt);
    EXPECT_EQ(b.free_blocks(), 16u);
  }
}

TEST(EngineMigration, TheFrontCallsItBackAtAnyTime) {
  for (int stage = 0; stage < 4; ++stage) {
    MigratingBench b;
    if (stage > 0) b.Granted();
    if (stage > 1) b.Arrive(), b.StandStill();
    if (stage > 2) b.Arrive();
    b.Front(AdoptCommand{b.request->id, 1, false});
    ASSERT_EQ(b.Told<Running>().size(), 1u) << stage;
    b.Arrive();
    while (!b.runner.launched.empty()) b.Finish(10);
    EXPECT_EQ(b.Told<TokenEvent>().size(), 60u) << stage;
    EXPECT_TRUE(b.Told<HandedOff>().empty());
    EXPECT_EQ(b.free_blocks(), 16u) << stage;
  }
}

TEST(EngineMigration, ItsBlocksStayWhileTheyAreReadWhateverBecomesOfTheSequence) {
  MigratingBench b;
  b.Granted();
  b.Front(CancelCommand{b.request->id, 1});
  while (!b.runner.launched.empty()) b.Finish(10);
  EXPECT_EQ(b.core->pool().counts(0).owned, 3u);
  b.Arrive();
  EXPECT_EQ(b.core->pool().counts(0).owned, 0u);
  EXPECT_EQ(b.Sent<Drained>().size(), 1u);
}

TEST(EngineMigration, WhatDoesNotDecodeHereIsRefusedAndNothingElseChanges) {
  EngineBench b;
  const RequestPtr request = b.Make(1, 40, 60);
  b.Front(MigrateCommand{request->id, 1, 2, 0, b.reader});
  b.Front(DecodeCommand{request, EngineBench::Fresh(), 1});
  b.Front(MigrateCommand{request->id, 1, 2, 0, b.reader});  // no token yet
  b.Finish(9);
  b.Front(MigrateCommand{request->id, 1, 1, 1, b.reader});
  b.Front(MigrateCommand{request->id, 1, 2, 1, b.options.self});
  EXPECT_EQ(b.Told<HandoffFailed>().size(), 4u);
  EXPECT_TRUE(b.dials.empty());
  EXPECT_FALSE(b.runner.launched.empty());
}

TEST(EngineMigration, WhatWasConvertedFromAnotherElementTypeStaysHere) {
  EngineBench b;
  KvLayout theirs = b.layout;
  theirs.groups[0].dtype = DType::kF32;
  b.Greet(theirs, {7, 7});
  const RequestPtr request = b.Make(1, 48, 30);
  b.FromWriter(b.ReserveFor(request, 1));
  b.Fill(b.Last<Grant>(), 48, 9);
  b.Convert();
  b.Finish(10);
  b.Front(MigrateCommand{request->id, 1, 2, 1, b.reader});
  ASSERT_EQ(b.Told<HandoffFailed>().size(), 1u);
  EXPECT_THAT(b.Told<HandoffFailed>()[0].detail, testing::HasSubstr("another element type"));
  EXPECT_TRUE(b.dials.empty());
}

// ---- migration: this worker takes over -------------------------------------------------------------

TEST(EngineMigration, AReaderGoesOnFromTheLastTokenWithWhatWasSaidMeanwhileAndComputesNothingAgain) {
  EngineBench b({false, true});
  b.Greet();
  Reserve reserve = b.ReserveFor(b.Make(1, 46, 10), 2);
  reserve.migration = true;
  b.FromWriter(reserve);
  const Grant grant = b.Last<Grant>();
  ASSERT_EQ(grant.blocks[0].size(), 3u);
  const Extend extend{grant.child, 2, grant.ticket, 1, 49};
  b.FromWriter(extend);
  b.FromWriter(extend);
  ASSERT_EQ(b.Sent<Grant>().size(), 3u) << "a repeat gets its answer again";
  EXPECT_EQ(b.Last<Grant>().extension, 1u);
  EXPECT_EQ(b.Last<Grant>().blocks[0].size(), 1u);
  ChunkGrid grid;
  grid.AppendLastApart(b.layout, 3);
  grid.AppendLastApart(b.layout, 1);
  Commit commit;
  commit.child = grant.child;
  commit.epoch = 2;
  commit.ticket = grant.ticket;
  commit.progress = EngineBench::Fresh();
  commit.progress.tokens = {{1, 0, {}}, {2, 0, {}}, {3, 0, {}}, {4, 0, {}}, {5, 0, {}}};
  commit.progress.delivered = 3;
  commit.token_count = 50;
  for (ChunkIndex i = 0; i < grid.size(); ++i) {
    b.transport.events.push_back(ChunkArrived{b.writer, grant.ticket, i, 1, 50 + i});
    commit.digests.push_back({i, 50 + i});
  }
  b.Turn();
  b.FromWriter(commit);
  ASSERT_EQ(b.Last<CommitAnswer>().verdict, CommitVerdict::kAck);
  EXPECT_EQ(Indices(b), (std::vector<uint32_t>{3, 4})) << "from the delivered count on";
  ASSERT_FALSE(b.runner.launched.empty());
  EXPECT_EQ(b.runner.launched.front().sequences[0].first_position, 50u);
  while (!b.runner.launched.empty()) b.Finish(10);
  EXPECT_EQ(b.core->counters().computed_tokens, 5u) << "one for each token that was still to come";
  EXPECT_EQ(b.Told<TokenEvent>().back().finish, FinishReason::kLength);
  EXPECT_TRUE(b.core->idle());
  EXPECT_EQ(b.free_blocks(), 16u);
}

TEST(EngineMigration, AReaderTakesNoCountThatTheTokensOrTheBlocksDoNotGive) {
  for (const uint32_t count : {45u, 47u, 48u, 49u}) {
    EngineBench b({false, true});
    b.Greet();
    Reserve reserve = b.ReserveFor(b.Make(1, 46, 10), 2);
    reserve.migration = true;
    b.FromWriter(reserve);
    const Grant grant = b.Last<Grant>();
    Commit commit;
    commit.child = grant.child;
    commit.epoch = 2;
    commit.ticket = grant.ticket;
    commit.progress = EngineBench::Fresh();
    commit.progress.tokens = {{1, 0, {}}, {2, 0, {}}};  // 47 is right
    commit.token_count = count;
    ChunkGrid grid;
    grid.AppendLastApart(b.layout, 3);
    for (ChunkIndex i = 0; i < grid.size(); ++i) {
      b.transport.events.push_back(ChunkArrived{b.writer, grant.ticket, i, 1, 50 + i});
      commit.digests.push_back({i, 50 + i});
    }
    b.Turn();
    b.FromWriter(commit);
    EXPECT_EQ(b.runner.launched.empty(), count != 47u) << count;
  }
}

TEST(EngineMigration, ARunningSequenceOfAnotherLayoutIsRefusedInWords) {
  UnlikeLayoutBench b;
  Reserve reserve = b.ReserveFor(b.Make(1, 48, 10), 2);
  reserve.migration = true;
  b.FromWriter(reserve);
  ASSERT_EQ(b.Sent<Refused>().size(), 1u);
  EXPECT_THAT(b.Last<Refused>().detail, testing::HasSubstr("equal KV layouts"));
}

// ---- reader ---------------------------------------------------------------------------------------

TEST(EngineCore, AReaderRunsWhatIsCompleteAndRightAndEmitsTheFirstTokenAgain) {
  EngineBench b({false, true});
  b.Greet();
  b.FromWriter(b.ReserveFor(b.Make(1, 48, 4), 1));
  ASSERT_EQ(b.Sent<Grant>().size(), 1u);
  EXPECT_TRUE(b.runner.launched.empty());
  b.Fill(b.Last<Grant>(), 9);
  EXPECT_EQ(b.Last<CommitAnswer>().verdict, CommitVerdict::kAck);
  while (!b.runner.launched.empty()) b.Finish(10);
  EXPECT_EQ(Indices(b), (std::vector<uint32_t>{0, 1, 2, 3})) << "from the delivered count on: P's token too";
  EXPECT_TRUE(b.core->idle());
  EXPECT_EQ(b.free_blocks(), 16u);
}

// A writer with blocks of 64 tokens hands 48 tokens to a reader of 16: one block, which needs four for its bytes.
struct UnlikeBench : UnlikeLayoutBench {
  UnlikeBench() {
    FromWriter(ReserveFor(request, 1));
    grant = Last<Grant>();
  }
  RequestPtr request = Make(1, 48, 4);
  Grant grant;
};

TEST(EngineCore, AnUnlikeHandOffIsAcknowledgedWhenItIsConvertedAndNotBefore) {
  UnlikeBench b;
  ASSERT_EQ(b.grant.blocks[0].size(), 4u);
  ASSERT_EQ(b.grant.staging_block_bytes, std::vector<uint64_t>{b.layout.BlockBytes(0)});
  EXPECT_EQ(b.core->pool().counts(0).owned, 8u) << "staging, three for 48 tokens, one to grow";
  b.Fill(b.grant, 48, 9);
  EXPECT_TRUE(b.Sent<CommitAnswer>().empty());
  EXPECT_TRUE(b.runner.launched.empty());
  b.reports.clear();
  b.now += milliseconds(1100);
  b.Turn();
  ASSERT_EQ(b.reports.size(), 1u);
  EXPECT_EQ(b.reports[0].tickets, (std::vector<uint32_t>{0, 1, 0, 0, 0})) << "shown as received";
  ASSERT_EQ(b.runner.conversions.size(), 1u);
  const KvConversion& conversion = b.runner.conversions[0];
  EXPECT_EQ(conversion.groups[0].staging, b.grant.blocks[0]);
  EXPECT_EQ(conversion.groups[0].target.size(), 3u);
  EXPECT_EQ(conversion.num_tokens, 48u);
  b.Convert();
  EXPECT_EQ(b.Last<CommitAnswer>().verdict, CommitVerdict::kAck);
  EXPECT_EQ(b.core->pool().counts(0).owned, 4u) << "staging went back";
  while (!b.runner.launched.empty()) b.Finish(10);
  EXPECT_EQ(Indices(b), (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_TRUE(b.core->idle());
  EXPECT_EQ(b.free_blocks(), 16u);
}

TEST(EngineCore, OfAnAbortedUnlikeHandOffTheStagingIsQuarantinedAndNothingElse) {
  UnlikeBench b;
  b.Front(CancelCommand{b.request->id, 1});
  EXPECT_EQ(b.core->pool().counts(0).quarantined, 4u);
  EXPECT_EQ(b.core->pool().counts(0).owned, 0u) << "no writer knows the reader's own blocks";
  b.FromWriter(Drained{b.grant.ticket, false});
  EXPECT_EQ(b.free_blocks(), 16u);
  EXPECT_TRUE(b.core->idle());
}

TEST(EngineCore, AWriterWhoseSessionEndsLeavesItsStagingInQuarantine) {
  UnlikeBench b;
  b.Do(LinkDown{EngineBench::kWriterLink, UnavailableError("cut")});
  EXPECT_EQ(b.core->pool().counts(0).quarantined, 4u);
  b.now += seconds(2);  // receiver-posted: the reader's own fence
  b.Turn();
  b.Turn();
  EXPECT_EQ(b.free_blocks(), 16u);
}

TEST(EngineCore, CorruptStagingIsQuarantinedAndNeverConverted) {
  UnlikeBench b;
  b.Fill(b.grant, 48, 9, /*damage=*/1);
  EXPECT_EQ(b.Last<CommitAnswer>().verdict, CommitVerdict::kCorrupt);
  EXPECT_TRUE(b.runner.conversions.empty());
  EXPECT_EQ(b.core->pool().counts(0).quarantined, 4u);
}

TEST(EngineCore, ACancelInTheMiddleOfAConversionKeepsAllItsBlocksUntilThatIsOver) {
  UnlikeBench b;
  b.Fill(b.grant, 48, 9);
  b.Front(CancelCommand{b.request->id, 1});
  EXPECT_EQ(b.core->pool().counts(0).owned, 8u);
  EXPECT_FALSE(b.core->idle());
  b.Convert();
  EXPECT_EQ(b.free_blocks(), 16u);
  EXPECT_TRUE(b.core->idle());
  EXPECT_TRUE(b.Sent<CommitAnswer>().empty()) << "it was never acknowledged";
  Commit again;
  again.child = b.request->id;
  again.epoch = 1;
  again.ticket = b.grant.ticket;
  b.FromWriter(again);
  EXPECT_EQ(b.Last<CommitAnswer>().verdict, CommitVerdict::kStaleTicket);
}

TEST(EngineCore, WhileItConvertsACommitIsNotAnsweredAndALostSessionEndsNothing) {
  UnlikeBench b;
  b.Fill(b.grant, 48, 9);
  b.Fill(b.grant, 48, 9);
  EXPECT_TRUE(b.Sent<CommitAnswer>().empty());
  EXPECT_EQ(b.runner.conversions.size(), 1u);
  b.Do(LinkDown{EngineBench::kWriterLink, UnavailableError("cut")});
  b.Convert();
  EXPECT_EQ(b.core->pool().counts(0).quarantined, 0u);
  EXPECT_FALSE(b.runner.launched.empty()) << "all of it came and is right";
}

TEST(EngineCore, AConversionThatFailsIsCorruptAndGivesEverythingBack) {
  UnlikeBench b;
  b.Fill(b.grant, 48, 9);
  b.Convert(InternalError("the device failed"));
  EXPECT_EQ(b.Last<CommitAnswer>().verdict, CommitVerdict::kCorrupt);
  EXPECT_EQ(b.free_blocks(), 16u);
  EXPECT_TRUE(b.core->idle());
}

TEST(EngineCore, AnUnlikeHandOffThatCannotFitBesideItsStagingIsRefused) {
  UnlikeBench b;  // a pool of 16 blocks: 8 + 1 and 8 more for staging
  b.Front(CancelCommand{b.request->id, 1});
  b.FromWriter(Drained{b.grant.ticket, false});
  b.FromWriter(b.ReserveFor(b.Make(2, 128, 4), 1));
  ASSERT_EQ(b.Sent<Refused>().size(), 1u);
  EXPECT_EQ(b.Last<Refused>().why, RefuseReason::kTooLarge);
  EXPECT_THAT(b.Last<Refused>().detail, testing::HasSubstr("the prompt and its staging needs 17 KV blocks"));
}

// S9. A unified reader of bf16 takes 48 tokens from a writer of fp32; then it gets the prompt again, from the writer
// and from a front.
TEST(EngineCore, WhatWasConvertedFromAnotherElementTypeNeverPassesForTheReadersOwn) {
  EngineBench b;
  KvLayout theirs = b.layout;
  theirs.groups[0].dtype = DType::kF32;
  b.Greet(theirs, {7, 7});
  ASSERT_TRUE(b.Last<PairHelloAnswer>().status.ok());
  const RequestPtr first = b.Make(1, 48, 3);
  const auto again = [&](uint64_t number) {
    Request r = *first;
    r.id.number = number;
    return std::make_shared<const Request>(r);
  };
  b.FromWriter(b.ReserveFor(first, 1));
  EXPECT_EQ(b.Last<Grant>().blocks[0].size(), 6u) << "three blocks of twice the bytes";
  b.Fill(b.Last<Grant>(), 48, 9);
  b.Convert();
  while (!b.runner.launched.empty()) b.Finish(10);

  b.FromWriter(b.ReserveFor(again(2), 1));
  EXPECT_EQ(b.Last<Grant>().hit_tokens, 48u) << "the same conversion";
  b.Front(CancelCommand{{EngineBench::kFront, 2, 0}, 1});
  b.FromWriter(Drained{b.Last<Grant>().ticket, false});

  b.Front(DecodeCommand{again(3), EngineBench::Fresh(), 1});
  while (!b.runner.launched.empty()) b.Finish(10);
  EXPECT_EQ(b.core->counters().cached_tokens, 0u) << "its own prompt finds nothing of it";
  EXPECT_EQ(b.free_blocks(), 16u);
}

TEST(EngineCore, NumericIdentitiesOfOneElementTypeMustBeEqual) {
  EngineBench b({false, true});
  KvLayout theirs = b.layout;
  theirs.block_tokens = 32;
  b.Greet(theirs, {7, 7});
  EXPECT_THAT(b.Last<PairHelloAnswer>().status.message(), testing::HasSubstr("numeric identities differ"));
}

// FF-042
TEST(EngineCore, LayoutsWithoutAConverterAreRefusedByName) {
  EngineBench b({false, true});
  KvLayout theirs = b.layout;
  theirs.tile = TileForm::kTokenMajor;
  b.Greet(theirs);
  const Status why = b.Last<PairHelloAnswer>().status;
  EXPECT_EQ(why.code(), Code::kFailedPrecondition);
  EXPECT_THAT(why.message(), testing::HasSubstr("no converter between tile forms"));
  EXPECT_THAT(why.message(), testing::HasSubstr(theirs.Describe()));
  EXPECT_THAT(why.message(), testing::HasSubstr(b.layout.Describe()));
}

TEST(EngineCore, ReserveIsRefusedWithoutTheFrontAfterACancelAndWhileDraining) {
  EngineBench b({false, true});
  b.Greet();
  Request foreign = *b.Make(1, 20, 8);
  foreign.id.front = 4711;
  b.FromWriter(b.ReserveFor(std::make_shared<const Request>(foreign), 1));
  ASSERT_EQ(b.Sent<Refused>().size(), 1u);
  EXPECT_EQ(b.Last<Refused>().why, RefuseReason::kNoFrontSession);
  const RequestPtr request = b.Make(2, 20, 8);
  b.Front(CancelCommand{request->id, 1});
  b.FromWriter(b.ReserveFor(request, 1));
  EXPECT_EQ(b.Last<Refused>().why, RefuseReason::kOldEpoch);
  b.Front(DrainCommand{});
  b.FromWriter(b.ReserveFor(request, 2));
  EXPECT_EQ(b.Last<Refused>().why, RefuseReason::kDraining);
  EXPECT_TRUE(b.core->idle());
}

// A front that raised the epoch has forgotten the lower one; a front that did not, because some worker made it up,
// places the request anew.
TEST(EngineCore, AReserveOfAHigherEpochTellsTheFrontThatTheLowerOneEndedHere) {
  EngineBench b({false, true});
  b.Greet();
  const RequestPtr request = b.Make(1, 48, 8);
  b.FromWriter(b.ReserveFor(request, 1));
  b.Fill(b.Last<Grant>(), 9);
  ASSERT_FALSE(b.runner.launched.empty());
  b.FromWriter(b.ReserveFor(request, 2));
  ASSERT_EQ(b.Told<ChildFailed>().size(), 1u);
  EXPECT_EQ(b.Told<ChildFailed>()[0].epoch, 1u);
  EXPECT_EQ(b.Told<ChildFailed>()[0].why.code(), Code::kAborted) << "not the request's fault";
  b.FromWriter(b.ReserveFor(request, 2));
  EXPECT_EQ(b.Told<ChildFailed>().size(), 1u);
}

TEST(EngineCore, AdoptIsAnsweredRunningWhenReadyAndNotHeldOtherwise) {
  EngineBench b({false, true});
  b.Greet();
  const RequestPtr half = b.Make(1, 48, 8), ready = b.Make(2, 48, 8), unknown = b.Make(3, 48, 8);
  b.FromWriter(b.ReserveFor(half, 1));
  const Ticket half_ticket = b.Last<Grant>().ticket;
  b.FromWriter(b.ReserveFor(ready, 1));
  b.Fill(b.Last<Grant>(), 9);
  b.Front(AdoptCommand{ready->id, 1});
  b.Front(AdoptCommand{half->id, 1});
  b.Front(AdoptCommand{unknown->id, 1});
  ASSERT_EQ(b.Told<Running>().size(), 1u);
  EXPECT_EQ(b.Told<Running>()[0].child, ready->id);
  ASSERT_EQ(b.Told<NotHeld>().size(), 2u);
  EXPECT_EQ(b.Last<AbortTicket>().ticket, half_ticket);
  EXPECT_EQ(b.core->pool().counts(0).quarantined, 3u) << "until its writer is quiet";
  b.FromWriter(b.ReserveFor(half, 1));
  EXPECT_NE(b.Sent<CommitAnswer>().back().verdict, CommitVerdict::kAck) << "that epoch is over";
  b.FromWriter(Drained{half_ticket, false});
  EXPECT_EQ(b.core->pool().counts(0).quarantined, 0u);
}

TEST(EngineCoreL9, AWriterInSharedMemoryThatKeepsAQuarantineIsReportedUntilItDies) {
  EngineBench b({false, true});
  b.Greet("this.host", 4711);
  b.Do(ProcessWatched{b.writer, true});
  const RequestPtr request = b.Make(1, 48, 8);
  Reserve reserve = b.ReserveFor(request, 1);
  reserve.mode = TransferMode::kOneSided;
  b.FromWriter(reserve);  // BUSY: the round trip that confirms the pidfd
  b.FromWriter(reserve);
  ASSERT_EQ(b.Sent<Grant>().size(), 1u);
  b.Front(CancelCommand{request->id, 1});
  EXPECT_EQ(b.core->pool().counts(0).quarantined, 3u);

  b.now += seconds(10) - milliseconds(1);
  b.Turn();
  EXPECT_TRUE(b.stuck.empty());
  EXPECT_FALSE(b.heartbeats.back().quarantines.at(0).stuck);
  ASSERT_LE(b.core->NextTimer(), b.now + milliseconds(1));
  b.now += milliseconds(1);
  b.Turn();
  ASSERT_EQ(b.stuck.size(), 1u);
  EXPECT_EQ(b.stuck[0].writer, b.writer);
  EXPECT_EQ(b.stuck[0].pid, 4711u);
  EXPECT_EQ(b.stuck[0].blocks, 3u);
  EXPECT_TRUE(b.heartbeats.back().quarantines.at(0).stuck) << "its front hears it at once";
  b.Turn();
  EXPECT_EQ(b.stuck.size(), 1u);
  b.now += seconds(10);
  b.Turn();
  EXPECT_EQ(b.stuck.size(), 2u) << "a report may be lost";

  b.Do(ProcessDied{b.writer});
  EXPECT_EQ(b.core->pool().counts(0).quarantined, 0u);
  b.now += seconds(20);
  b.Turn();
  EXPECT_EQ(b.stuck.size(), 2u);
  EXPECT_TRUE(b.heartbeats.back().quarantines.empty());
}

TEST(EngineCore, WhenTheFrontsLinkEndsItsChildrenEnd) {
  EngineBench b;
  b.Greet();
  b.FromWriter(b.ReserveFor(b.Make(1, 48, 8), 1));
  b.Front(DecodeCommand{b.Make(2, 20, 8), EngineBench::Fresh(), 1});
  b.Do(LinkDown{EngineBench::kFrontLink, UnavailableError("gone")});
  EXPECT_EQ(b.Sent<AbortTicket>().size(), 1u);
  b.FromWriter(Drained{b.Last<Grant>().ticket, false});
  while (!b.runner.launched.empty()) b.Finish(10);
  EXPECT_TRUE(b.core->idle());
  EXPECT_EQ(b.free_blocks(), 16u);
}

TEST(EngineCore, DrainingItRefusesNewWorkAndEndsWhatRuns) {
  EngineBench b;
  b.Front(DecodeCommand{b.Make(1, 20, 3), EngineBench::Fresh(), 1});
  b.Do(BeginDrain{});
  b.Front(DecodeCommand{b.Make(2, 20, 3), EngineBench::Fresh(), 1});
  ASSERT_EQ(b.Told<ChildFailed>().size(), 1u);
  EXPECT_EQ(b.Told<ChildFailed>()[0].why.code(), Code::kUnavailable);
  while (!b.runner.launched.empty()) b.Finish(10);
  EXPECT_EQ(b.Told<TokenEvent>().back().finish, FinishReason::kLength);
  EXPECT_TRUE(b.core->draining() && b.core->idle());
  EXPECT_TRUE(b.heartbeats.back().draining);
}

TEST(EngineCore, ADrainThatIsUndoneAdmitsAgainAndEveryOrderIsConfirmedAtOnce) {
  EngineBench b;
  b.Front(DrainCommand{.order = 7});
  EXPECT_EQ(b.heartbeats.back().order, 7u);
  EXPECT_TRUE(b.heartbeats.back().draining && b.heartbeats.back().idle);
  b.Front(DrainCommand{.order = 8, .undo = true});
  EXPECT_EQ(b.heartbeats.back().order, 8u);
  EXPECT_FALSE(b.heartbeats.back().draining);
  b.Front(DecodeCommand{b.Make(1, 20, 2), EngineBench::Fresh(), 1});
  EXPECT_TRUE(b.Told<ChildFailed>().empty());
  b.Do(BeginDrain{});
  b.Front(DrainCommand{.order = 9, .undo = true});
  EXPECT_EQ(b.heartbeats.back().order, 9u);
  EXPECT_TRUE(b.heartbeats.back().draining) << "a process that stops is not held up";
  EXPECT_FALSE(b.heartbeats.back().idle);
  while (!b.runner.launched.empty()) b.Finish(10);
  EXPECT_TRUE(b.heartbeats.back().idle) << "told with the end of the last request, not half a second later";
}

TEST(EngineCore, ANewRoleGatesNewWorkAloneAndWhatHoldsBlocksRunsToItsEnd) {
  EngineBench b({false, true});
  b.Greet();
  b.FromWriter(b.ReserveFor(b.Make(1, 48, 3), 1));
  const Grant grant = b.Last<Grant>();
  b.Front(SetRoleCommand{.order = 1, .roles = {true, false}});
  EXPECT_EQ(b.heartbeats.back().roles, (RoleMask{true, false}));
  b.FromWriter(b.ReserveFor(b.Make(2, 48, 3), 1));
  EXPECT_EQ(b.Last<Refused>().why, RefuseReason::kRole);
  b.Front(DecodeCommand{b.Make(3, 20, 3), EngineBench::Fresh(), 1});
  ASSERT_EQ(b.Told<ChildFailed>().size(), 1u);
  EXPECT_EQ(b.Told<ChildFailed>()[0].why.code(), Code::kUnavailable) << "others admit it: not the request's end";
  b.Fill(grant, 9);
  while (!b.runner.launched.empty()) b.Finish(10);
  EXPECT_EQ(b.Told<TokenEvent>().back().finish, FinishReason::kLength) << "the half-received one decodes here";
  b.Front(PrefillCommand{b.Make(4, 48, 8), EngineBench::Fresh(), 1, b.reader});
  EXPECT_EQ(b.Told<ChildFailed>().size(), 1u);
  EXPECT_FALSE(b.runner.launched.empty()) << "it prefills now";
}

// FF-113
TEST(EngineCore, AReportTellsBlocksTicketsPeersAndCountsOncePerSecond) {
  EngineBench b({false, true});
  b.Greet();
  b.FromWriter(b.ReserveFor(b.Make(1, 48, 3), 1));
  b.FromWriter(b.ReserveFor(b.Make(2, 32, 3), 1));
  b.now += milliseconds(500);
  b.Front(CancelCommand{b.Make(2, 32, 3)->id, 1});  // its two blocks wait for the writer
  b.reports.clear();
  b.now += milliseconds(600);
  b.Turn();
  ASSERT_EQ(b.reports.size(), 1u);
  const WorkerReport& r = b.reports[0];
  EXPECT_GE(r.uptime, milliseconds(1100));
  ASSERT_EQ(r.blocks.size(), 1u);
  EXPECT_EQ(r.blocks[0].quarantined, 2u);
  EXPECT_EQ(r.blocks[0].free + r.blocks[0].owned + r.blocks[0].cached + r.blocks[0].quarantined, 16u);
  EXPECT_EQ(r.tickets, (std::vector<uint32_t>{1, 0, 0, 0, 1})) << "one reserved, one quarantined";
  ASSERT_EQ(r.peers.size(), 1u);
  EXPECT_EQ(r.peers[0].name, "p");
  EXPECT_TRUE(r.peers[0].up && r.peers[0].writes_here);
  EXPECT_EQ(r.peers[0].quarantined_blocks, 2u);
  EXPECT_EQ(r.peers[0].oldest_quarantine, milliseconds(600));
  EXPECT_EQ(r.peers[0].states, r.tickets);
  EXPECT_EQ(r.peers[0].credit_tickets, 62u);
  EXPECT_EQ(r.peers[0].in_flight_bytes, 3 * b.layout.BlockBytes(0)) << "granted and not arrived";
  // L9: half of 16 blocks for one writer, of which three are reserved and two quarantined.
  EXPECT_NEAR(static_cast<double>(r.peers[0].credit_bytes), 3.0 * b.layout.BlockBytes(0), b.layout.BlockBytes(0) / 8.0);
  std::map<std::string, double> metrics;
  for (const Metric& m : r.metrics) EXPECT_TRUE(metrics.emplace(m.name, m.value).second) << m.name << " twice";
  EXPECT_EQ(metrics.at("kv_reserves_total{answer=\"granted\"}"), 2);
  EXPECT_EQ(metrics.at("kv_aborts_total{code=\"cancelled\"}"), 1);
  EXPECT_EQ(metrics.at("kv_aborts_total{code=\"lease\"}"), 0);
  b.now += milliseconds(500);
  b.Turn();
  EXPECT_EQ(b.reports.size(), 1u);
}

TEST(EngineCore, EveryMetricOfHandOffsIsThereFromTheStartAtZero) {
  EngineBench b;
  b.reports.clear();
  b.now += seconds(2);
  b.Turn();
  ASSERT_EQ(b.reports.size(), 1u);
  std::map<std::string_view, double> metrics;
  for (const Metric& m : b.reports[0].metrics) metrics.emplace(m.name, m.value);
  for (const std::string_view name : test::kHandOffMetrics) {
    const auto it = metrics.find(name);
    EXPECT_TRUE(it != metrics.end() && it->second == 0) << name;
  }
}

TEST(EngineCore, WhatAPairMayHaveUnderWayIsBoundedAndTheRestFollowsByTheDeadlineOfItsDecode) {
  const uint64_t block = EngineBench().layout.BlockBytes(0);
  EngineBench b({true, false}, 16, {3 * block, 100 * block});
  b.Front(PrefillCommand{b.Make(1, 48, 8), EngineBench::Fresh(), 1, b.reader});
  b.AnswerDial();
  b.FromReader(b.GrantFor(b.Last<Reserve>(), 0));
  b.Finish(9);
  ASSERT_EQ(b.transport.bytes_posted(), 3 * block);
  const auto hand_off = [&](uint64_t number, uint32_t tokens) {
    b.now += milliseconds(10);
    b.Front(PrefillCommand{b.Make(number, tokens, 8), EngineBench::Fresh(), 1, b.reader});
    Grant grant = b.GrantFor(b.Last<Reserve>(), 0);
    grant.ticket.slot = static_cast<uint32_t>(number);
    b.FromReader(grant);
    b.Finish(9);
  };
  hand_off(2, 64);
  hand_off(3, 16);
  EXPECT_EQ(b.transport.posts.size(), 1u) << "the window is full";
  b.now += seconds(2);
  b.Turn();
  const PeerReport& path = b.reports.back().peers.at(0);
  EXPECT_EQ(path.in_flight_bytes, 3 * block);
  EXPECT_EQ(path.queued_bytes, 5 * block);
  EXPECT_EQ(path.credit_bytes, 0u);
  EXPECT_EQ(path.states, (std::vector<uint32_t>{0, 0, 3, 0, 0})) << "three are pushing";
  b.Front(CancelCommand{b.Make(2, 64, 8)->id, 1});
  EXPECT_EQ(b.Sent<Drained>().size(), 1u) << "nothing of it is under way: quiet at once";
  hand_off(4, 64);
  b.transport.QuiesceAll();
  b.Turn();
  ASSERT_EQ(b.transport.posts.size(), 2u);
  EXPECT_EQ(b.transport.posts[1].ticket.slot, 3u) << "both are due; the shorter goes first";
  b.transport.events.push_back(Quiesced{b.transport.posts[1].op, OkStatus(), 0});
  b.Turn();
  ASSERT_EQ(b.transport.posts.size(), 3u) << "larger than the window: alone";
  EXPECT_EQ(b.transport.posts[2].ticket.slot, 4u);
  EXPECT_EQ(b.core->connector().counters().chunks_waited, 3u);
}

TEST(EngineCore, AWriterHoldsAtMostItsTicketsAndHearsBusyBeyond) {
  EngineBench b({false, true}, 400);
  b.Greet();
  for (uint64_t n = 1; n <= 65; ++n) b.FromWriter(b.ReserveFor(b.Make(n, 16, 3), 1));
  EXPECT_EQ(b.Sent<Grant>().size(), 64u);
  EXPECT_EQ(b.Sent<Busy>().size(), 1u);
}

TEST(EngineCore, ARequestEndsByItsDeadlineAndTheTimerSaysWhen) {
  EngineBench b;
  b.Front(DecodeCommand{b.Make(1, 20, 100), EngineBench::Fresh(milliseconds(300)), 1});
  EXPECT_LE(b.core->NextTimer(), b.now + milliseconds(300));
  b.now += milliseconds(299);
  b.Turn();
  EXPECT_TRUE(b.Told<ChildFailed>().empty());
  b.now += milliseconds(1);
  b.Turn();
  ASSERT_EQ(b.Told<ChildFailed>().size(), 1u);
  EXPECT_EQ(b.Told<ChildFailed>()[0].why.code(), Code::kDeadlineExceeded);
  while (!b.runner.launched.empty()) b.Finish(10);
  EXPECT_TRUE(b.core->idle());
}

TEST(EngineCore, WhatAClientOrAPeerSendsIsCheckedAgainstTheVocabulary) {
  EngineBench b;
  Request bad = *b.Make(1, 20, 8);
  bad.prompt[3] = 100;
  b.Front(DecodeCommand{std::make_shared<const Request>(bad), EngineBench::Fresh(), 1});
  ASSERT_EQ(b.Told<ChildFailed>().size(), 1u);
  EXPECT_EQ(b.Told<ChildFailed>()[0].why.code(), Code::kInvalidArgument);
  b.Greet();
  b.FromWriter(b.ReserveFor(b.Make(2, 48, 8), 1));
  b.Fill(b.Last<Grant>(), -1);
  ASSERT_EQ(b.Told<ChildFailed>().size(), 2u);
  EXPECT_TRUE(b.runner.launched.empty());
  EXPECT_TRUE(b.core->idle());
  EXPECT_EQ(b.free_blocks(), 16u);
}

// ---- what users of other servers saw (tests/field_failures.md) ---------------------------------------

// FF-007: an answer, a notice or a completion of something that is over, late or doubled, is nobody's fault and
// nobody's trouble: it is ignored, and the neighbour's answer goes on.
TEST(EngineCore, FF007_LateAndDoubledEventsOfWhatIsOverAreIgnoredOnTheReader) {
  for (const bool commit_first : {false, true}) {
    EngineBench b({false, true});
    b.Greet();
    b.FromWriter(b.ReserveFor(b.Make(1, 48, 20), 1));
    const Grant grant = b.Last<Grant>();
    b.FromWriter(b.ReserveFor(b.Make(2, 48, 20), 1));
    const Grant other = b.Last<Grant>();
    b.Fill(other, 9);
    const ChunkGrid grid(b.layout, {3});
    Commit commit;
    commit.child = grant.child;
    commit.epoch = 1;
    commit.ticket = grant.ticket;
    commit.progress = EngineBench::Fresh();
    commit.progress.tokens = {{9, 0, {}}};
    commit.token_count = 48;
    const auto chunks = [&](uint64_t shift) {
      for (ChunkIndex i = 0; i < grid.size(); ++i) {
        b.transport.events.push_back(ChunkArrived{b.writer, grant.ticket, i, 1, 50 + i + shift});
      }
    };
    for (ChunkIndex i = 0; i < grid.size(); ++i) commit.digests.push_back({i, 50 + i});
    if (commit_first) b.FromWriter(commit);
    chunks(0);
    b.Turn();
    if (!commit_first) b.FromWriter(commit);
    EXPECT_EQ(b.Last<CommitAnswer>().verdict, CommitVerdict::kAck);
    const auto twice = [&] {
      chunks(0);
      chunks(7);  // of bytes that are not there any more
      b.transport.events.push_back(Quiet{grant.ticket});
      b.transport.events.push_back(Quiet{{grant.ticket.reader, 17, 99}});
      b.transport.events.push_back(ChunkArrived{b.writer, {grant.ticket.reader, 17, 99}, 5, 1, 1});
      b.Turn();
      b.FromWriter(commit);
      EXPECT_EQ(b.Last<CommitAnswer>().verdict, CommitVerdict::kAck) << "the recorded answer";
      b.FromWriter(Drained{grant.ticket, false});
    };
    twice();
    b.Finish(10);
    twice();
    b.Front(CancelCommand{grant.child, 1});
    while (!b.runner.launched.empty()) b.Finish(10);
    twice();
    EXPECT_EQ(b.Told<TokenEvent>().back().child, other.child);
    EXPECT_EQ(b.Told<TokenEvent>().back().finish, FinishReason::kLength);
    EXPECT_TRUE(b.core->idle());
    EXPECT_EQ(b.free_blocks(), 16u);
  }
}

TEST(EngineCore, FF007_LateAndDoubledEventsOfWhatIsOverAreIgnoredOnTheWriter) {
  for (const bool cancelled : {false, true}) {
    EngineBench b({true, false});
    b.Front(PrefillCommand{b.Make(1, 48, 8), EngineBench::Fresh(), 1, b.reader});
    b.AnswerDial();
    const Grant grant = b.GrantFor(b.Last<Reserve>(), 0);
    b.FromReader(grant);
    b.Finish(9);
    if (cancelled) b.Front(CancelCommand{grant.child, 1});
    const CommitAnswer ack{grant.child, 1, grant.ticket, 1, CommitVerdict::kAck, {}};
    const auto all = [&] {
      b.transport.QuiesceAll();
      b.transport.events.push_back(Quiesced{OpId{4711}, OkStatus(), 1});
      b.Turn();
      b.FromReader(ack);
      b.FromReader(grant);
      b.FromReader(AbortTicket{grant.ticket});
    };
    for (int i = 0; i < 3; ++i) all();
    EXPECT_EQ(b.Told<HandedOff>().size(), cancelled ? 0u : 1u);
    EXPECT_TRUE(b.core->idle());
    EXPECT_EQ(b.free_blocks(), 16u);
    b.Front(PrefillCommand{b.Make(2, 20, 1), EngineBench::Fresh(), 1, b.reader});
    b.Finish(9);
    EXPECT_EQ(b.Told<TokenEvent>().back().finish, FinishReason::kLength);
  }
}

// FF-026: a reader whose clock is an hour, or a century, ahead of its writer's gives a request the time that is left,
// and no lease ends early: only durations travel.
TEST(EngineCore, FF026_AnotherMachinesClockDoesNotMatter) {
  for (const Duration ahead :
       {Duration(0), Duration(std::chrono::hours(1)), Duration(std::chrono::hours(24 * 36525))}) {
    EngineBench b({false, true});
    b.now += ahead;
    b.Turn();
    b.Greet();
    Reserve reserve = b.ReserveFor(b.Make(1, 48, 100), 1);
    reserve.progress.deadline_remaining = milliseconds(900);
    b.FromWriter(reserve);
    ASSERT_EQ(b.Sent<Grant>().size(), 1u);
    b.now += milliseconds(400);
    b.Turn();
    EXPECT_TRUE(b.Sent<AbortTicket>().empty());
    const ChunkGrid grid(b.layout, {3});
    Commit commit;
    commit.child = b.Last<Grant>().child;
    commit.epoch = 1;
    commit.ticket = b.Last<Grant>().ticket;
    commit.progress = EngineBench::Fresh(milliseconds(500));
    commit.progress.tokens = {{9, 0, {}}};
    commit.token_count = 48;
    for (ChunkIndex i = 0; i < grid.size(); ++i) {
      b.transport.events.push_back(ChunkArrived{b.writer, commit.ticket, i, 1, 50 + i});
      commit.digests.push_back({i, 50 + i});
    }
    b.Turn();
    b.FromWriter(commit);
    EXPECT_EQ(b.Last<CommitAnswer>().verdict, CommitVerdict::kAck);
    b.now += milliseconds(499);
    b.Turn();
    EXPECT_TRUE(b.Told<ChildFailed>().empty());
    b.now += milliseconds(1);
    b.Turn();
    ASSERT_EQ(b.Told<ChildFailed>().size(), 1u);
    EXPECT_EQ(b.Told<ChildFailed>()[0].why.code(), Code::kDeadlineExceeded);
  }
}

// FF-041: what would make every answer wrong is refused before a byte moves, in words that name both sides.
TEST(EngineCore, FF041_AWriterThatDoesNotFitIsRefusedAtHello) {
  const std::vector<std::pair<std::string, std::function<void(PairHello*)>>> cases = {
      {"weights differ",
       [](PairHello* h) {
         h->model.weights = {9, 9};
       }},
      {"numeric identities differ",
       [](PairHello* h) {
         h->numeric = {9, 9};
       }},
      {"protocol 0 is not spoken here", [](PairHello* h) { h->protocol = 0; }},
      {"another incarnation", [](PairHello* h) { h->reader.incarnation.counter += 1; }},
  };
  for (const auto& [words, change] : cases) {
    EngineBench b({false, true});
    b.Do(LinkUp{EngineBench::kWriterLink, LinkKind::kPairReader});
    PairHello hello;
    hello.writer = b.writer;
    hello.reader = b.options.self.process;
    hello.session = 1;
    hello.model = b.options.model;
    hello.layout = b.layout;
    change(&hello);
    b.FromWriter(hello);
    ASSERT_EQ(b.Sent<PairHelloAnswer>().size(), 1u) << words;
    const Status status = b.Sent<PairHelloAnswer>()[0].status;
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    b.FromWriter(b.ReserveFor(b.Make(1, 48, 8), 1));
    EXPECT_TRUE(b.Sent<Grant>().empty()) << words;
    EXPECT_TRUE(b.core->idle());
  }
}

// FF-048: an end token as the first token ends nothing when it is ignored, on P as on D.
TEST(EngineCore, FF048_AnIgnoredEndTokenAsTheFirstTokenIsHandedOff) {
  for (const bool ignored : {false, true}) {
    EngineBench b({true, false});
    Request r = *b.Make(1, 48, 8);
    r.stop.eos_token_ids = {9};
    r.stop.ignore_eos = ignored;
    b.Front(PrefillCommand{std::make_shared<const Request>(r), EngineBench::Fresh(), 1, b.reader});
    b.AnswerDial();
    b.FromReader(b.GrantFor(b.Last<Reserve>(), 0));
    b.Finish(9);
    b.transport.QuiesceAll();
    b.Turn();
    ASSERT_EQ(b.Told<TokenEvent>().size(), 1u);
    EXPECT_EQ(b.Told<TokenEvent>()[0].finish, ignored ? FinishReason::kNone : FinishReason::kStop);
    EXPECT_EQ(b.Sent<Commit>().size(), ignored ? 1u : 0u);
  }
}

// FF-050: a prompt that is too long for P alone is refused by P before D hears of it.
TEST(EngineCore, FF050_APromptBeyondPrefillsLimitNeverReachesDecode) {
  EngineBench b({true, false}, /*pool_blocks=*/16);
  for (const uint32_t tokens : {401u, 300u}) {  // the context; the pool of 256 tokens
    b.Front(PrefillCommand{b.Make(tokens, tokens, 8), EngineBench::Fresh(), 1, b.reader});
    EXPECT_EQ(b.Told<ChildFailed>().back().why.code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(b.Told<ChildFailed>().size(), 2u);
  EXPECT_TRUE(b.dials.empty());
  EXPECT_TRUE(b.runner.launched.empty());
}

// FF-027: the reader has no room, ever. P asks again for a quarter of what is left of the deadline, then the front may
// place anew; and at the deadline P's side is free whether somebody did or not.
TEST(EngineCore, FF027_TheWaitForABusyReaderIsAPartOfTheDeadlineAndNoMore) {
  EngineBench b({true, false});
  b.Front(PrefillCommand{b.Make(1, 48, 8), EngineBench::Fresh(seconds(2)), 1, b.reader});
  b.AnswerDial();
  const TimePoint start = b.now;
  b.Finish(9);
  size_t answered = 0;
  while (b.Told<HandoffFailed>().empty() && b.now < start + seconds(3)) {
    for (const auto reserves = b.Sent<Reserve>(); answered < reserves.size(); ++answered) {
      b.FromReader(Busy{reserves[answered].child, 1, reserves[answered].attempt, milliseconds(20)});
    }
    b.now += milliseconds(5);
    b.Turn();
  }
  EXPECT_GE(b.now - start, milliseconds(490));
  EXPECT_LE(b.now - start, milliseconds(540));
  ASSERT_EQ(b.Told<HandoffFailed>().size(), 1u);
  EXPECT_EQ(b.Told<HandoffFailed>()[0].why, HandoffFailure::kBusyTooLong);
  b.now = start + seconds(2);
  b.Turn();
  EXPECT_TRUE(b.core->idle());
  EXPECT_EQ(b.free_blocks(), 16u);
}

// FF-040, FF-042: KV of other heads, as a rank of two would have, of other layers, or laid out in another form.
TEST(EngineCore, FF040_FF042_ALayoutOfOtherHeadsOrFormIsRefusedByBothNames) {
  const std::vector<std::function<void(KvLayout*)>> cases = {
      [](KvLayout* l) { l->groups[0].num_kv_heads /= 2; },  [](KvLayout* l) { l->groups[0].num_layers /= 2; },
      [](KvLayout* l) { l->groups[0].head_dim *= 2; },      [](KvLayout* l) { l->groups.push_back(l->groups[0]); },
      [](KvLayout* l) { l->tile = TileForm::kTokenMajor; },
  };
  for (const auto& change : cases) {
    EngineBench b({false, true});
    KvLayout theirs = b.layout;
    change(&theirs);
    b.Greet(theirs);
    ASSERT_EQ(b.Sent<PairHelloAnswer>().size(), 1u);
    const Status why = b.Last<PairHelloAnswer>().status;
    EXPECT_EQ(why.code(), Code::kFailedPrecondition);
    EXPECT_THAT(why.message(), testing::HasSubstr(theirs.Describe()));
    EXPECT_THAT(why.message(), testing::HasSubstr(b.layout.Describe()));
    b.FromWriter(b.ReserveFor(b.Make(1, 48, 8), 1));
    EXPECT_TRUE(b.Sent<Grant>().empty());
  }
}

// A pair's older session is over before anything on the new one is read: its tickets are aborted, its connection is
// closed, and the answer to the new Hello lists what is not free.
TEST(EngineCore, AHelloClosesThePairsOlderSessionBeforeAnythingOnTheNewOneIsRead) {
  constexpr LinkId kNewer{(uint64_t{1} << 63) + 2};
  EngineBench b({false, true});
  b.Greet();
  b.FromWriter(b.ReserveFor(b.Make(1, 48, 8), 1));
  const Grant old = b.Last<Grant>();
  PairHello hello;
  hello.writer = b.writer;
  hello.reader = b.options.self.process;
  hello.session = 2;
  hello.model = b.options.model;
  hello.layout = b.layout;
  Commit commit;  // of the ticket of the session before, all of it right
  commit.child = old.child;
  commit.epoch = 1;
  commit.ticket = old.ticket;
  commit.progress = EngineBench::Fresh();
  commit.progress.tokens = {{9, 0, {}}};
  commit.token_count = 48;
  const ChunkGrid grid(b.layout, {3});
  for (ChunkIndex i = 0; i < grid.size(); ++i) {
    b.transport.events.push_back(ChunkArrived{b.writer, old.ticket, i, 1, 50 + i});
    commit.digests.push_back({i, 50 + i});
  }
  b.Turn();
  // One turn finds the new connection, its Hello and what was sent behind it; the old one's end was not noticed yet.
  b.to_peers.clear();
  std::vector<EngineCommand> commands;
  commands.emplace_back(LinkUp{kNewer, LinkKind::kPairReader});
  commands.emplace_back(FromPeer{kNewer, hello});
  commands.emplace_back(FromPeer{kNewer, commit});
  commands.emplace_back(FromPeer{kNewer, b.ReserveFor(b.Make(2, 48, 8), 1)});
  commands.emplace_back(FromPeer{EngineBench::kWriterLink, commit});  // still in the mailbox
  b.Turn(&commands);
  EXPECT_EQ(b.closed, std::vector<LinkId>{EngineBench::kWriterLink});
  ASSERT_EQ(b.Sent<PairHelloAnswer>().size(), 1u);
  EXPECT_EQ(b.Last<PairHelloAnswer>().open_tickets, std::vector<Ticket>{old.ticket});
  ASSERT_EQ(b.Sent<CommitAnswer>().size(), 1u) << "what comes on the old connection is not read any more";
  EXPECT_EQ(b.Last<CommitAnswer>().verdict, CommitVerdict::kStaleTicket);
  ASSERT_EQ(b.Sent<Grant>().size(), 1u);
  EXPECT_NE(b.Last<Grant>().ticket, old.ticket);
  EXPECT_TRUE(b.runner.launched.empty());
  EXPECT_EQ(b.core->pool().counts(0).quarantined, 3u);
  // The old connection's end, when it is noticed, is not the new session's.
  b.Do(LinkDown{EngineBench::kWriterLink, UnavailableError("closed")});
  commit.child = b.Last<Grant>().child;
  commit.ticket = b.Last<Grant>().ticket;
  for (ChunkIndex i = 0; i < grid.size(); ++i) {
    b.transport.events.push_back(ChunkArrived{b.writer, commit.ticket, i, 1, 50 + i});
  }
  b.Turn();
  b.Do(FromPeer{kNewer, commit});
  EXPECT_EQ(b.Last<CommitAnswer>().verdict, CommitVerdict::kAck);
  EXPECT_FALSE(b.runner.launched.empty());
}

// The same when it is an older incarnation of the writer that is still connected, and not when it is a newer one.
TEST(EngineCore, AHelloClosesSessionsOfOlderIncarnationsAndIsRefusedBesideANewerOne) {
  constexpr LinkId kOther{(uint64_t{1} << 63) + 2};
  for (const bool newer : {true, false}) {
    EngineBench b({false, true});
    b.Greet();
    b.FromWriter(b.ReserveFor(b.Make(1, 48, 8), 1));
    PairHello hello;
    hello.writer = b.writer;
    hello.writer.incarnation.counter += newer ? 1 : -1;
    hello.reader = b.options.self.process;
    hello.model = b.options.model;
    hello.layout = b.layout;
    b.Do(LinkUp{kOther, LinkKind::kPairReader});
    b.Do(FromPeer{kOther, hello});
    EXPECT_EQ(b.Last<PairHelloAnswer>().status.ok(), newer);
    EXPECT_EQ(b.closed, std::vector<LinkId>{newer ? EngineBench::kWriterLink : kOther});
    EXPECT_EQ(b.core->pool().counts(0).quarantined, newer ? 3u : 0u);
    EXPECT_TRUE(b.Last<PairHelloAnswer>().open_tickets.empty()) << "the other's tickets are not its own";
  }
}

}  // namespace
}  // namespace baton

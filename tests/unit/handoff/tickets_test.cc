// What the model check found once, as short stories of one machine.
#include <gtest/gtest.h>

#include "handoff/reader_tickets.h"
#include "handoff/writer_tickets.h"

namespace baton {
namespace {

constexpr TimePoint kNow{};
constexpr uint32_t kTokens = 16;
const ProcessId kReader{"d", {1, 11}}, kWriter{"p", {1, 22}};
const ChildId kChild{1, 1, 0};
const Ticket kTicket{kReader.incarnation, 0, 1};

KvLayout Layout() {
  KvLayout layout;
  layout.block_tokens = kTokens;
  layout.groups.push_back({KvKind::kFull, 8, 1, 2, DType::kBF16});  // two chunks of four layers
  return layout;
}
Reserve TheReserve() {
  Reserve reserve;
  reserve.child = kChild;
  reserve.epoch = 1;
  reserve.num_tokens = kTokens;
  return reserve;
}
Grant TheGrant() {
  Grant grant;
  grant.child = kChild;
  grant.epoch = 1;
  grant.ticket = kTicket;
  grant.blocks = {{BlockId{0}}};
  grant.base = {{0}};
  return grant;
}
const Drained& LastDrained(const WriterActions& actions) { return std::get<Drained>(actions.send.back().second); }

// A push ended with an error: nobody knows whether its bytes still land, and saying otherwise later frees the block
// under them.
TEST(WriterTicketsTest, ATicketWhoseTargetIsInDoubtIsNeverCalledQuiescedLater) {
  WriterTickets writer(Layout(), {}, {});
  WriterActions out;
  writer.Begin(kReader, TheReserve(), true, kNow + std::chrono::hours(1), kNow, &out);
  writer.OnGrant(kReader, TheGrant(), kNow, &out);
  writer.Advance({kChild, 1}, 0, kTokens, 4, kNow, &out);
  ASSERT_EQ(out.post.size(), 1u);
  writer.Posted(out.post[0], OpId{1}, kNow);
  writer.OnQuiesced({OpId{1}, UnavailableError("broken"), 0}, kNow, &out);
  ASSERT_TRUE(LastDrained(out).severed);
  writer.OnDrainedAck(kReader, DrainedAck{kTicket});

  const auto asked = [&](const auto& ask) {
    out = {};
    ask();
    ASSERT_EQ(out.send.size(), 1u);
    EXPECT_TRUE(LastDrained(out).severed);
    writer.OnDrainedAck(kReader, DrainedAck{kTicket});
  };
  asked([&] { writer.OnAbort(kReader, AbortTicket{kTicket}, kNow, &out); });
  asked([&] { writer.OnGrant(kReader, TheGrant(), kNow, &out); });
  asked([&] { writer.SessionUp(kReader, TransferMode::kOneSided, {kTicket}, kNow, &out); });
  writer.GiveUp(kReader, kNow, &out);
  asked([&] { writer.SessionUp(kReader, TransferMode::kOneSided, {kTicket}, kNow, &out); });
}

// The re-push writes the chunk again: the bytes that the first push's notice vouches for are gone.
TEST(ReaderTicketsTest, ANoticeOfAPushBeforeMissingDoesNotCountForThePushAfterIt) {
  ReaderTickets reader(kReader.incarnation, {}, {});
  ReaderActions out;
  reader.Open(kWriter, TheReserve(), TheGrant(), 2, kNow, &out);
  Commit commit;
  commit.child = kChild;
  commit.epoch = 1;
  commit.ticket = kTicket;
  commit.token_count = kTokens;
  commit.digests = {{0, 100}, {1, 101}};
  reader.OnChunk({kWriter, kTicket, 0, 1, 100}, kNow, &out);
  reader.OnCommit(kWriter, commit, kNow, &out);
  reader.Tick(kNow + std::chrono::seconds(1), &out);
  const auto& missing = std::get<CommitAnswer>(out.send.back().second);
  ASSERT_EQ(missing.verdict, CommitVerdict::kMissing);
  ASSERT_EQ(missing.missing, std::vector<ChunkIndex>{1});

  reader.OnChunk({kWriter, kTicket, 1, 1, 101}, kNow, &out);  // of the first push, late
  commit.attempt = 2;
  reader.OnCommit(kWriter, commit, kNow, &out);
  EXPECT_TRUE(out.ready.empty());
  reader.OnChunk({kWriter, kTicket, 1, 2, 999}, kNow, &out);  // the second push went wrong
  EXPECT_TRUE(out.ready.empty());
  EXPECT_EQ(std::get<CommitAnswer>(out.send[out.send.size() - 2].second).verdict, CommitVerdict::kCorrupt);
}

// FF-025: D's slots are full for a minute, P is alive: no lease ends. P is silent: all of it ends a lease after its
// last word, however much it has sent.
TEST(ReaderTicketsTest, FF025_HeartbeatsKeepATicketHoweverLongAndSilenceEndsItWithinItsLease) {
  using std::chrono::seconds;
  for (const bool receiving : {false, true}) {
    ReaderTickets reader(kReader.incarnation, {}, {});
    ReaderActions out;
    reader.Open(kWriter, TheReserve(), TheGrant(), 2, kNow, &out);
    if (receiving) reader.OnChunk({kWriter, kTicket, 0, 1, 100}, kNow, &out);
    TimePoint now = kNow;
    for (int i = 0; i < 60; ++i) {
      now += seconds(1);
      reader.OnHeartbeat({"another", {7, 7}}, PairHeartbeat{{kTicket}}, now);
      reader.OnHeartbeat(kWriter, PairHeartbeat{{kTicket, {kReader.incarnation, 0, 2}}}, now);
      reader.Tick(now, &out);
    }
    EXPECT_TRUE(out.quarantined.empty());
    const Duration lease = receiving ? ReaderOptions{}.receiving_lease : ReaderOptions{}.reserved_lease;
    EXPECT_LE(reader.NextTimer(), now + ReaderOptions{}.reserved_lease);
    // A lease that was long when nothing had come yet is not cut short by the first chunk.
    const TimePoint end = std::max(now + lease, kNow + ReaderOptions{}.reserved_lease);
    reader.OnHeartbeat({"another", {7, 7}}, PairHeartbeat{{kTicket}}, now + seconds(1));
    reader.Tick(end - Duration(1), &out);
    EXPECT_TRUE(out.quarantined.empty());
    reader.Tick(end, &out);
    EXPECT_EQ(out.quarantined, std::vector<Ticket>{kTicket});
    EXPECT_EQ(reader.counters().lease_ends, 1u);
  }
}

}  // namespace
}  // namespace baton

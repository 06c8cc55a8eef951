// Every fault of FakeTransport does what the policy says and no more, and the port's promises hold under all of them.
#include <set>

#include "rig.h"

namespace baton {
namespace {

constexpr uint64_t kPool = 1 << 20;

class FakeFaults : public testing::Test {
 protected:
  void Start(FaultRates writer_rates, FaultRates reader_rates, uint64_t seed = 1) {
    Make(writer_, "p", writer_rates, seed);
    Make(reader_, "d", reader_rates, seed + 1);
    writer_.transport->Open(reader_.id, reader_.transport->LocalDescriptor());
    ASSERT_TRUE(writer_.WaitFor<PeerOpened>(1));
    Fill(writer_.pool, 3);
    reader_.transport->Admit(ticket(), writer_.id, {0}, {kPool});
  }
  void Make(Side& side, const std::string& name, FaultRates rates, uint64_t seed) {
    side.id = {name, {1, 2}};
    side.transport = std::make_unique<FakeTransport>(
        std::make_unique<LocalTransport>(fabric_, LocalOptions{side.id, 4096}, &side.waker), FaultPolicy(seed, rates),
        &side.waker);
    side.pool = *side.transport->AllocatePool(kPool);
  }
  Ticket ticket() const { return TicketNumber(reader_.id, 1); }
  void Post(uint64_t op, uint64_t bytes = kPool) {
    writer_.transport->Post(
        {static_cast<OpId>(op), reader_.id, ticket(), static_cast<ChunkIndex>(op), 1, {{0, 0, 0, bytes}}, {0}});
  }
  // Ops of one writer arrive in order, so when this one (op 1000) has, everything before it was decided.
  void PostMarker() {
    Post(1000, 4096);
    ASSERT_TRUE(reader_.WaitUntil([&] { return ArrivalsOf(1000) > 0; }));
  }
  size_t ArrivalsOf(ChunkIndex chunk) const {
    size_t n = 0;
    for (const ChunkArrived& a : reader_.All<ChunkArrived>()) n += a.chunk == chunk;
    return n;
  }

  LocalFabric fabric_;
  Side writer_, reader_;
};

TEST_F(FakeFaults, ADroppedNoticeLeavesTheBytesInPlaceAndTheWriterQuiesced) {
  Start({}, {.nth_notice = 1, .nth_notice_fault = FaultKind::kDrop});
  Post(1);
  PostMarker();
  ASSERT_TRUE(writer_.WaitFor<Quiesced>(2));
  EXPECT_EQ(ArrivalsOf(1), 0u);
  EXPECT_TRUE(std::equal(writer_.pool.begin(), writer_.pool.end(), reader_.pool.begin()));
}

TEST_F(FakeFaults, ADuplicatedNoticeComesTwiceWithTheSameDigest) {
  Start({}, {.nth_notice = 1, .nth_notice_fault = FaultKind::kDuplicate});
  Post(1);
  ASSERT_TRUE(reader_.WaitFor<ChunkArrived>(2));
  const auto arrived = reader_.All<ChunkArrived>();
  EXPECT_EQ(arrived[0].chunk, 1u);
  EXPECT_EQ(arrived[1].chunk, 1u);
  EXPECT_EQ(arrived[0].digest, arrived[1].digest);
}

TEST_F(FakeFaults, ADelayedNoticeIsOvertakenAndWakesItsReaderWhenItIsDue) {
  const auto delay = std::chrono::milliseconds(200);
  Start({}, {.min_delay = delay, .max_delay = delay, .nth_notice = 1, .nth_notice_fault = FaultKind::kDelay});
  Post(1);
  PostMarker();
  ASSERT_TRUE(reader_.WaitFor<ChunkArrived>(2));
  EXPECT_EQ(reader_.All<ChunkArrived>()[0].chunk, 1000u);
  EXPECT_EQ(reader_.All<ChunkArrived>()[1].chunk, 1u);
}

TEST_F(FakeFaults, ADelayedNoticeOfARetiredTicketNeverComes) {
  const auto delay = std::chrono::milliseconds(50);
  Start({}, {.min_delay = delay, .max_delay = delay, .nth_notice = 1, .nth_notice_fault = FaultKind::kDelay});
  Post(1);
  PostMarker();
  reader_.transport->Retire(ticket());
  ASSERT_TRUE(reader_.WaitFor<Quiet>(1));
  reader_.waker.Wait(2 * delay);
  reader_.waker.Wait(2 * delay);
  reader_.PollOnce();
  EXPECT_EQ(ArrivalsOf(1), 0u);
}

TEST_F(FakeFaults, ATruncatedPostIsAnnouncedButItsDigestsDiffer) {
  Start({.nth_post = 1, .nth_post_fault = FaultKind::kTruncate}, {});
  Post(1);
  ASSERT_TRUE(reader_.WaitFor<ChunkArrived>(1));
  ASSERT_TRUE(writer_.WaitFor<Quiesced>(1));
  const Quiesced quiesced = writer_.All<Quiesced>()[0];
  EXPECT_TRUE(quiesced.status.ok());
  EXPECT_EQ(quiesced.digest, Hash64(std::span<const std::byte>(writer_.pool)));
  EXPECT_NE(quiesced.digest, reader_.All<ChunkArrived>()[0].digest);
  EXPECT_TRUE(std::equal(writer_.pool.begin(), writer_.pool.begin() + kPool / 4 * 3, reader_.pool.begin()));
  ASSERT_TRUE(AllAre(reader_.pool.subspan(kPool / 4 * 3), std::byte{0}));
}

TEST_F(FakeFaults, AFailedPostIsReportedOnceAndWritesNothing) {
  Start({.nth_post = 2, .nth_post_fault = FaultKind::kFail}, {});
  Post(1, 4096);
  Post(2);
  PostMarker();
  ASSERT_TRUE(writer_.WaitFor<Quiesced>(3));
  for (const Quiesced& q : writer_.All<Quiesced>()) EXPECT_EQ(q.status.ok(), Raw(q.op) != 2);
  EXPECT_EQ(ArrivalsOf(2), 0u);
  ASSERT_TRUE(AllAre(reader_.pool.subspan(4096), std::byte{0}));
}

TEST_F(FakeFaults, APostThatNeverCompletesEndsWithCloseBeforeSevered) {
  Start({.nth_post = 1, .nth_post_fault = FaultKind::kNeverComplete}, {});
  Post(1);
  PostMarker();
  ASSERT_TRUE(writer_.WaitFor<Quiesced>(1));
  EXPECT_EQ(writer_.All<Quiesced>()[0].op, OpId{1000});
  writer_.transport->Close(reader_.id);
  ASSERT_TRUE(writer_.WaitFor<Severed>(1));
  ASSERT_EQ(writer_.All<Quiesced>().size(), 2u);
  EXPECT_EQ(writer_.All<Quiesced>()[1].op, OpId{1});
  EXPECT_FALSE(writer_.All<Quiesced>()[1].status.ok());
  EXPECT_TRUE(std::holds_alternative<Severed>(writer_.events.back()));
}

TEST_F(FakeFaults, ADelayedQuiescedStillComesBeforeSevered) {
  Start({.min_delay = std::chrono::hours(1),
         .max_delay = std::chrono::hours(1),
         .nth_post = 1,
         .nth_post_fault = FaultKind::kDelay},
        {});
  Post(1);
  PostMarker();
  ASSERT_TRUE(writer_.WaitFor<Quiesced>(1));
  EXPECT_EQ(writer_.All<Quiesced>()[0].op, OpId{1000});
  writer_.transport->Close(reader_.id);
  ASSERT_TRUE(writer_.WaitFor<Severed>(1));
  ASSERT_EQ(writer_.All<Quiesced>().size(), 2u);
  EXPECT_TRUE(std::holds_alternative<Severed>(writer_.events.back()));
}

TEST_F(FakeFaults, UnderAMixOfFaultsEveryOpEndsOnceAndEqualDigestsMeanEqualBytes) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    writer_.transport.reset();
    reader_.transport.reset();
    writer_.events.clear();
    reader_.events.clear();
    const FaultRates p = {.post_delay = 0.2,
                          .post_truncate = 0.2,
                          .post_fail = 0.1,
                          .post_never = 0.1,
                          .max_delay = std::chrono::milliseconds(2)};
    const FaultRates d = {
        .notice_delay = 0.2, .notice_drop = 0.2, .notice_duplicate = 0.2, .max_delay = std::chrono::milliseconds(2)};
    Start(p, d, 10 * seed);
    constexpr uint32_t kOps = 32;
    constexpr uint64_t kEach = kPool / kOps;
    for (uint32_t i = 0; i < kOps; ++i) {
      writer_.transport->Post(
          {static_cast<OpId>(i + 1), reader_.id, ticket(), i, 1, {{i * kEach, 0, i * kEach, kEach}}, {0}});
    }
    writer_.transport->Close(reader_.id);
    ASSERT_TRUE(writer_.WaitFor<Severed>(1));
    reader_.transport->Retire(ticket());
    ASSERT_TRUE(reader_.WaitFor<Quiet>(1));
    std::map<uint64_t, Quiesced> quiesced;
    for (const Quiesced& q : writer_.All<Quiesced>()) EXPECT_TRUE(quiesced.emplace(Raw(q.op), q).second);
    EXPECT_EQ(quiesced.size(), kOps) << "seed " << seed;
    for (const ChunkArrived& a : reader_.All<ChunkArrived>()) {
      const Quiesced& q = quiesced.at(a.chunk + 1);
      if (!q.status.ok()) continue;
      const bool equal =
          std::memcmp(writer_.pool.data() + a.chunk * kEach, reader_.pool.data() + a.chunk * kEach, kEach) == 0;
      EXPECT_EQ(equal, q.digest == a.digest) << "seed " << seed << " chunk " << a.chunk;
    }
  }
}

}  // namespace
}  // namespace baton

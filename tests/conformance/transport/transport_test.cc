// What every KvTransport must do, whatever carries the bytes.
#include <ctime>
#include <set>
#include <thread>

#include "rig.h"
#include "transport/ucx/lanes.h"
#include "transport/wire.h"

namespace baton {
namespace {

constexpr uint64_t kPool = 8 << 20;

class TransportTest : public testing::TestWithParam<Kind> {
 protected:
  Side& Start(const std::string& name, uint64_t pool_bytes = kPool, uint64_t counter = 1) {
    auto side = std::make_unique<Side>();
    side->id = {name, {counter, 77 + counter}};
    side->transport = MakeKind(GetParam(), fabric_, side->id, &side->waker, options_);
    auto pool = side->transport->AllocatePool(pool_bytes);
    EXPECT_TRUE(pool.ok()) << pool.status().ToString();
    side->pool = *pool;
    sides_.push_back(std::move(side));
    return *sides_.back();
  }
  void Open(Side& writer, Side& reader) {
    const size_t before = writer.All<PeerOpened>().size();
    writer.transport->Open(reader.id, reader.transport->LocalDescriptor());
    ASSERT_TRUE(writer.WaitFor<PeerOpened>(before + 1));
    const PeerOpened opened = writer.All<PeerOpened>().back();
    ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
    ASSERT_EQ(opened.peer, reader.id);
    mode_ = opened.mode;
  }
  // A whole-pool ticket of one block, and a post of `bytes` from 0 to 0.
  TransferPost SimplePost(Side& reader, const Ticket& ticket, uint64_t op, uint64_t bytes) {
    return {static_cast<OpId>(op), reader.id, ticket, static_cast<ChunkIndex>(op), 1, {{0, 0, 0, bytes}}, {0}};
  }
  bool one_sided() const { return mode_ != TransferMode::kReceiverPosted; }  // the writer puts

  UcxOptions options_;
  LocalFabric fabric_;
  std::vector<std::unique_ptr<Side>> sides_;
  TransferMode mode_{};
};

std::set<uint64_t> OpsOf(const Side& side) {
  std::set<uint64_t> ops;
  for (const Quiesced& q : side.All<Quiesced>()) EXPECT_TRUE(ops.insert(Raw(q.op)).second) << "op reported twice";
  return ops;
}

TEST_P(TransportTest, ThePoolIsZeroedPageAlignedAndOfTheWantedSize) {
  Side& side = Start("a", 3'000'001);
  ASSERT_EQ(side.pool.size(), 3'000'001u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(side.pool.data()) % 4096, 0u);
  ASSERT_TRUE(AllAre(side.pool, std::byte{0}));
}

TEST_P(TransportTest, APoolThatDoesNotFitIsRefusedWithItsSize) {
  Side side;
  side.id = {"a", {1, 1}};
  side.transport = MakeKind(GetParam(), fabric_, side.id, &side.waker, options_);
  const auto pool = side.transport->AllocatePool(size_t{1} << 50);
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.status().code(), Code::kResourceExhausted) << pool.status().ToString();
  if (GetParam() == Kind::kUcxShm) EXPECT_NE(pool.status().message().find("/dev/shm"), std::string::npos);
}

TEST_P(TransportTest, BytesArriveExactlyWherePlannedAndNowhereElse) {
  Side& writer = Start("p");
  Side& reader = Start("d");
  Open(writer, reader);
  uint64_t total = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Rng rng(1000 + seed);
    Fill(writer.pool, seed);
    Fill(reader.pool, 500 + seed);
    std::vector<std::byte> expected(reader.pool.begin(), reader.pool.end());
    const Blocks blocks = ScatteredBlocks(rng, kPool, 1 + rng.Below(60), 1 << (6 + rng.Below(17)));
    const Ticket ticket = TicketNumber(reader.id, 3, seed + 1);
    reader.transport->Admit(ticket, writer.id, blocks.base, blocks.bytes);

    TransferPost post{static_cast<OpId>(seed + 1), reader.id, ticket, seed, 1, {}, blocks.base};
    StreamHash64 hash;
    for (uint32_t b = 0; b < blocks.base.size(); ++b) {
      uint64_t at = rng.Below(blocks.bytes[b] + 1);
      while (at < blocks.bytes[b]) {  // some neighbours touch, some leave a gap, the last may be empty
        const uint64_t bytes = rng.Below(blocks.bytes[b] - at + 1);
        const uint64_t source = rng.Below(kPool - bytes + 1);
        post.pieces.push_back({source, b, at, bytes});
        std::memcpy(expected.data() + blocks.base[b] + at, writer.pool.data() + source, bytes);
        hash.Add(writer.pool.subspan(source, bytes));
        total += bytes;
        at += bytes + (rng.Chance(0.5) ? 0 : 1 + rng.Below(64));
        if (bytes == 0) break;
      }
    }
    writer.transport->Post(post);
    ASSERT_TRUE(reader.WaitFor<ChunkArrived>(seed + 1)) << "seed " << seed;
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), reader.pool.begin())) << "seed " << seed;
    ASSERT_TRUE(writer.WaitFor<Quiesced>(seed + 1));
    const ChunkArrived arrived = reader.All<ChunkArrived>().back();
    const Quiesced quiesced = writer.All<Quiesced>().back();
    ASSERT_TRUE(quiesced.status.ok()) << quiesced.status.ToString();
    EXPECT_EQ(quiesced.digest, hash.Digest());
    EXPECT_EQ(arrived.digest, hash.Digest());
    EXPECT_EQ(arrived.writer, writer.id);
    EXPECT_EQ(arrived.ticket, ticket);
    EXPECT_EQ(arrived.chunk, seed);
    reader.transport->Retire(ticket);
  }
  ASSERT_TRUE(reader.WaitFor<Quiet>(40));
  EXPECT_EQ(CountersOf(*writer.transport).bytes_quiesced, total);
  EXPECT_GT(total, kPool) << "the plans moved next to nothing";
}

TEST_P(TransportTest, ATicketGrowsWhileItIsWritten) {
  Side& writer = Start("p");
  Side& reader = Start("d");
  Open(writer, reader);
  Fill(writer.pool, 21);
  const Ticket ticket = TicketNumber(reader.id, 1);
  constexpr uint64_t kBlock = 8192;
  std::vector<uint64_t> base;
  for (uint32_t n = 0; n < 5; ++n) {
    base.push_back((9 - 2 * n) * kBlock);
    reader.transport->Admit(ticket, writer.id, {base.back()}, {kBlock});
    writer.transport->Post({static_cast<OpId>(n + 1), reader.id, ticket, n, 1, {{n * kBlock, n, 0, kBlock}}, base});
  }
  ASSERT_TRUE(reader.WaitFor<ChunkArrived>(5));
  for (uint32_t n = 0; n < 5; ++n) {
    EXPECT_EQ(std::memcmp(writer.pool.data() + n * kBlock, reader.pool.data() + base[n], kBlock), 0) << n;
  }
  reader.transport->Retire(ticket);
  ASSERT_TRUE(reader.WaitFor<Quiet>(1));
}

TEST_P(TransportTest, APieceListOfAnySizeBetween4KiBAnd1MiBArrives) {
  Side& writer = Start("p");
  Side& reader = Start("d");
  Open(writer, reader);
  Fill(writer.pool, 9);
  uint32_t op = 0;
  for (uint64_t piece = 4 << 10; piece <= 1 << 20; piece *= 2) {
    const auto n = static_cast<uint32_t>(kPool / piece);
    std::memset(reader.pool.data(), 0, reader.pool.size());
    std::vector<uint64_t> base, bytes;
    TransferPost post{static_cast<OpId>(++op), reader.id, TicketNumber(reader.id, op), op, 1, {}, {}};
    for (uint32_t i = 0; i < n; ++i) {  // reversed at the target, so that nothing merges
      base.push_back((n - 1 - i) * piece);
      bytes.push_back(piece);
      post.pieces.push_back({i * piece, i, 0, piece});
    }
    post.target_base = base;
    reader.transport->Admit(post.ticket, writer.id, base, bytes);
    writer.transport->Post(post);
    ASSERT_TRUE(reader.WaitFor<ChunkArrived>(op)) << "pieces of " << piece;
    for (uint32_t i = 0; i < n; ++i) {
      ASSERT_EQ(std::memcmp(writer.pool.data() + i * piece, reader.pool.data() + base[i], piece), 0);
    }
  }
}

TEST_P(TransportTest, ManyOpsInFlightAreEachReportedOnceAndEachNoticeComesAfterItsBytes) {
  constexpr uint32_t kOps = 300;
  Side& writer = Start("p");
  Side& reader = Start("d");
  Open(writer, reader);
  Fill(writer.pool, 4);
  const uint64_t stride = kPool / kOps;
  const Ticket ticket = TicketNumber(reader.id, 0);
  std::vector<uint64_t> base, bytes;
  for (uint32_t i = 0; i < kOps; ++i) {
    base.push_back(i * stride);
    bytes.push_back(stride);
  }
  reader.transport->Admit(ticket, writer.id, base, bytes);
  for (uint32_t i = 0; i < kOps; ++i) {
    writer.transport->Post(
        {static_cast<OpId>(i + 1), reader.id, ticket, i, 1, {{i * stride, kOps - 1 - i, 0, stride}}, base});
  }
  std::set<ChunkIndex> chunks;
  size_t seen = 0;
  ASSERT_TRUE(reader.WaitUntil([&] {
    for (; seen < reader.events.size(); ++seen) {
      const auto* arrived = std::get_if<ChunkArrived>(&reader.events[seen]);
      if (arrived == nullptr) continue;
      chunks.insert(arrived->chunk);
      const uint64_t at = base[kOps - 1 - arrived->chunk];
      EXPECT_EQ(std::memcmp(reader.pool.data() + at, writer.pool.data() + arrived->chunk * stride, stride), 0);
    }
    return chunks.size() == kOps;
  }));
  ASSERT_TRUE(writer.WaitFor<Quiesced>(kOps));
  EXPECT_EQ(OpsOf(writer).size(), kOps);
  for (const Quiesced& q : writer.All<Quiesced>()) EXPECT_TRUE(q.status.ok()) << q.status.ToString();
}

// FF-031
TEST_P(TransportTest, AnEmptyChunkIsAnnounced) {
  Side& writer = Start("p");
  Side& reader = Start("d");
  Open(writer, reader);
  const Ticket ticket = TicketNumber(reader.id, 1);
  reader.transport->Admit(ticket, writer.id, {0}, {4096});
  writer.transport->Post({OpId{1}, reader.id, ticket, 5, 1, {}, {0}});
  ASSERT_TRUE(reader.WaitFor<ChunkArrived>(1));
  EXPECT_EQ(reader.All<ChunkArrived>()[0].digest, StreamHash64().Digest());
}

TEST_P(TransportTest, MoreThanTheInFlightWindowFlowsThrough) {
  options_.max_in_flight_bytes = 1 << 20;
  Side& writer = Start("p", 40 << 20);
  Side& reader = Start("d", 40 << 20);
  Open(writer, reader);
  Fill(writer.pool, 3);
  const Ticket ticket = TicketNumber(reader.id, 1);
  reader.transport->Admit(ticket, writer.id, {0}, {reader.pool.size()});
  writer.transport->Post(SimplePost(reader, ticket, 1, writer.pool.size()));
  ASSERT_TRUE(reader.WaitFor<ChunkArrived>(1));
  EXPECT_TRUE(std::equal(writer.pool.begin(), writer.pool.end(), reader.pool.begin()));
}

TEST_P(TransportTest, TwoWritersAndTwoReadersDoNotMixTheirBytes) {
  Side& p1 = Start("p1");
  Side& p2 = Start("p2");
  Side& d1 = Start("d1");
  Side& d2 = Start("d2");
  uint64_t seed = 0;
  for (Side* p : {&p1, &p2}) {
    Fill(p->pool, ++seed);
    for (Side* d : {&d1, &d2}) Open(*p, *d);
  }
  const uint64_t half = kPool / 2;
  for (Side* d : {&d1, &d2}) {
    d->transport->Admit(TicketNumber(d->id, 1), p1.id, {0}, {half});
    d->transport->Admit(TicketNumber(d->id, 2), p2.id, {half}, {half});
    p1.transport->Post({OpId(d == &d1 ? 1u : 2u), d->id, TicketNumber(d->id, 1), 0, 1, {{0, 0, 0, half}}, {0}});
    p2.transport->Post({OpId(d == &d1 ? 1u : 2u), d->id, TicketNumber(d->id, 2), 0, 1, {{0, 0, 0, half}}, {half}});
  }
  for (Side* d : {&d1, &d2}) {
    ASSERT_TRUE(d->WaitFor<ChunkArrived>(2));
    EXPECT_EQ(std::memcmp(d->pool.data(), p1.pool.data(), half), 0);
    EXPECT_EQ(std::memcmp(d->pool.data() + half, p2.pool.data(), half), 0);
  }
}

TEST_P(TransportTest, BothDirectionsBetweenTwoWorkersWork) {
  Side& a = Start("a");
  Side& b = Start("b");
  Open(a, b);
  Open(b, a);
  Fill(a.pool.first(kPool / 2), 1);
  Fill(b.pool.first(kPool / 2), 2);
  for (auto [from, to] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    const Ticket ticket = TicketNumber(to->id, 1);
    to->transport->Admit(ticket, from->id, {kPool / 2}, {kPool / 2});
    from->transport->Post({OpId{1}, to->id, ticket, 0, 1, {{0, 0, 0, kPool / 2}}, {kPool / 2}});
  }
  for (auto [from, to] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
    ASSERT_TRUE(to->WaitFor<ChunkArrived>(1));
    EXPECT_EQ(std::memcmp(to->pool.data() + kPool / 2, from->pool.data(), kPool / 2), 0);
  }
}

// FF-021
TEST_P(TransportTest, CloseInTheMiddleReportsEveryOpThenSeveredAndTheSourceIsNoLongerRead) {
  if (GetParam() == Kind::kUcxKeyed) GTEST_SKIP() << kOnlyEmulated;
  constexpr uint64_t kBig = 32 << 20;
  constexpr uint32_t kOps = 24;
  Side& writer = Start("p", kBig);
  Side& reader = Start("d", kBig);
  Open(writer, reader);
  std::memset(writer.pool.data(), 0xA5, kBig);
  const Ticket ticket = TicketNumber(reader.id, 1);
  reader.transport->Admit(ticket, writer.id, {0}, {kBig});
  for (uint32_t i = 1; i <= kOps; ++i) writer.transport->Post(SimplePost(reader, ticket, i, kBig));
  // Somewhere in the middle: after the first op, far before the last.
  ASSERT_TRUE(writer.WaitFor<Quiesced>(1));
  writer.transport->Close(reader.id);
  ASSERT_TRUE(writer.WaitFor<Severed>(1));
  const auto* last = std::get_if<Severed>(&writer.events.back());
  ASSERT_NE(last, nullptr) << "an event of the peer came after Severed";
  EXPECT_EQ(OpsOf(writer).size(), kOps);
  uint32_t failed = 0;
  for (const Quiesced& q : writer.All<Quiesced>()) failed += !q.status.ok();
  EXPECT_GT(failed, 0u) << "everything was over before Close: the test shows nothing";
  EXPECT_TRUE(writer.All<PeerLost>().empty());

  std::memset(writer.pool.data(), 0x5A, kBig);
  reader.transport->Retire(ticket);
  ASSERT_TRUE(reader.WaitFor<Quiet>(1));
  ASSERT_EQ(std::memchr(reader.pool.data(), std::to_integer<int>(std::byte{0x5A}), reader.pool.size()), nullptr)
      << "a byte of after Severed arrived";
  writer.transport->Post(SimplePost(reader, ticket, 99, 4096));
  ASSERT_TRUE(writer.WaitFor<Quiesced>(kOps + 1));
  EXPECT_FALSE(writer.All<Quiesced>().back().status.ok());
}

TEST_P(TransportTest, AfterCloseTheSamePeerOpensAgain) {
  Side& writer = Start("p");
  Side& reader = Start("d");
  Fill(writer.pool, 8);
  for (uint32_t round = 1; round <= 5; ++round) {
    Open(writer, reader);
    const Ticket ticket = TicketNumber(reader.id, round);
    reader.transport->Admit(ticket, writer.id, {0}, {kPool});
    std::memset(reader.pool.data(), 0, kPool);
    writer.transport->Post(SimplePost(reader, ticket, round, kPool));
    ASSERT_TRUE(reader.WaitFor<ChunkArrived>(round));
    EXPECT_TRUE(std::equal(writer.pool.begin(), writer.pool.end(), reader.pool.begin()));
    ASSERT_TRUE(writer.WaitFor<Quiesced>(round));
    writer.transport->Close(reader.id);
    ASSERT_TRUE(writer.WaitFor<Severed>(round));
  }
}

TEST_P(TransportTest, CloseOfAnUnknownPeerIsSeveredAtOnceAndOpenTwiceIsAnsweredTwice) {
  Side& writer = Start("p");
  Side& reader = Start("d");
  writer.transport->Close({"nobody", {}});
  ASSERT_TRUE(writer.WaitFor<Severed>(1));
  Open(writer, reader);
  Open(writer, reader);
}

TEST_P(TransportTest, AfterQuietNoNoticeComesAndNoByteIsPlaced) {
  constexpr uint64_t kBig = 16 << 20;
  constexpr uint32_t kOps = 20;
  Side& writer = Start("p", kBig);
  Side& reader = Start("d", kBig);
  Open(writer, reader);
  Fill(writer.pool, 6);
  for (uint32_t round = 0; round < 6; ++round) {
    const Ticket ticket = TicketNumber(reader.id, 1, round + 1);
    std::memset(reader.pool.data(), 0, kBig);
    reader.transport->Admit(ticket, writer.id, {0}, {kBig});
    for (uint32_t i = 1; i <= kOps; ++i) {
      writer.transport->Post(SimplePost(reader, ticket, round * kOps + i, kBig / (1 + i % 4)));
    }
    if (round > 0) {
      const size_t before = reader.All<ChunkArrived>().size();
      ASSERT_TRUE(reader.WaitFor<ChunkArrived>(before + round));
    }
    reader.transport->Retire(ticket);
    ASSERT_TRUE(reader.WaitFor<Quiet>(round + 1));
    if (!one_sided()) std::memset(reader.pool.data(), 0x11, kBig);
    ASSERT_TRUE(writer.WaitFor<Quiesced>((round + 1) * kOps));  // refused or complete, but each ends
    if (!one_sided()) {
      ASSERT_TRUE(AllAre(reader.pool, std::byte{0x11})) << "a byte was placed after Quiet";
    }
    reader.PollOnce();
    size_t quiet_at = 0, last_arrival = 0;
    for (size_t i = 0; i < reader.events.size(); ++i) {
      if (const auto* q = std::get_if<Quiet>(&reader.events[i]); q && q->ticket == ticket) quiet_at = i;
      if (const auto* a = std::get_if<ChunkArrived>(&reader.events[i]); a && a->ticket == ticket) last_arrival = i;
    }
    EXPECT_LT(last_arrival, quiet_at + (last_arrival == 0)) << "a notice came after Quiet";
  }
  EXPECT_EQ(OpsOf(writer).size(), 6 * kOps);
}

TEST_P(TransportTest, RetireOfAnUnknownTicketIsQuietAtOnce) {
  Side& reader = Start("d");
  reader.transport->Retire(TicketNumber(reader.id, 9));
  ASSERT_TRUE(reader.WaitFor<Quiet>(1));
}

// FF-149
TEST_P(TransportTest, TicketsThatAreUnknownRetiredOrAnotherWritersAreDroppedAndCounted) {
  Side& writer = Start("p");
  Side& reader = Start("d");
  Open(writer, reader);
  std::memset(writer.pool.data(), 0x77, kPool);
  const Ticket unknown = TicketNumber(reader.id, 1), retired = TicketNumber(reader.id, 2),
               others = TicketNumber(reader.id, 3), good = TicketNumber(reader.id, 4);
  reader.transport->Admit(retired, writer.id, {0}, {65536});
  reader.transport->Retire(retired);
  reader.transport->Admit(others, {"someone else", {1, 2}}, {0}, {65536});
  reader.transport->Admit(good, writer.id, {131072}, {65536});
  uint64_t op = 0;
  for (const Ticket& t : {unknown, retired, others}) {
    for (uint64_t bytes : {100, 65536}) writer.transport->Post(SimplePost(reader, t, ++op, bytes));
  }
  auto last = SimplePost(reader, good, ++op, 65536);
  last.target_base = {131072};
  writer.transport->Post(last);
  ASSERT_TRUE(reader.WaitFor<ChunkArrived>(1));  // ops of one writer keep their order: the others are decided
  ASSERT_TRUE(writer.WaitFor<Quiesced>(op));
  EXPECT_EQ(reader.All<ChunkArrived>().size(), 1u);
  EXPECT_EQ(reader.All<ChunkArrived>()[0].ticket, good);
  const TransportCounters c = CountersOf(*reader.transport);
  if (one_sided()) {
    EXPECT_EQ(c.notices_dropped, 6u);
    return;
  }
  EXPECT_EQ(c.placements_refused, 6u);
  for (const Quiesced& q : writer.All<Quiesced>()) EXPECT_EQ(q.status.ok(), Raw(q.op) == op);
  ASSERT_TRUE(AllAre(reader.pool.first(131072), std::byte{0}));
}

// FF-149
TEST_P(TransportTest, PiecesOutsideTheGrantedBlocksAreRefusedWithoutHarm) {
  Side& writer = Start("p");
  Side& reader = Start("d");
  Open(writer, reader);
  std::memset(writer.pool.data(), 0x77, kPool);
  const Ticket ticket = TicketNumber(reader.id, 1);
  reader.transport->Admit(ticket, writer.id, {4096, 20480}, {4096, 4096});
  const uint64_t huge = UINT64_MAX;
  const std::vector<CopyPiece> bad = {{0, 2, 0, 64},         {0, 0, 4096, 1},        {0, 0, 4095, 2}, {0, 1, huge, 1},
                                      {0, 1, huge - 63, 64}, {0, 0xffffffff, 0, 64}, {0, 0, 0, 4097}};
  uint64_t op = 0;
  for (const CopyPiece& piece : bad) {
    // target_base names only the pool, so that in one-sided mode the writer itself refuses what leaves it.
    writer.transport->Post({static_cast<OpId>(++op), reader.id, ticket, 0, 1, {piece}, {4096, 20480}});
  }
  for (const CopyPiece& piece : {CopyPiece{kPool, 0, 0, 1}, CopyPiece{huge, 0, 0, 2}, CopyPiece{0, 0, 0, kPool + 1}}) {
    writer.transport->Post({static_cast<OpId>(++op), reader.id, ticket, 0, 1, {piece}, {4096, 20480}});
  }
  writer.transport->Post({static_cast<OpId>(++op), reader.id, ticket, 1, 1, {{0, 1, 0, 4096}}, {4096, 20480}});
  ASSERT_TRUE(writer.WaitFor<Quiesced>(op));
  ASSERT_TRUE(reader.WaitFor<ChunkArrived>(1));
  EXPECT_EQ(reader.All<ChunkArrived>().size(), 1u);
  EXPECT_EQ(reader.All<ChunkArrived>()[0].chunk, 1u);
  EXPECT_TRUE(writer.All<PeerLost>().empty());
  if (one_sided()) return;
  for (uint64_t i = 0; i < kPool; ++i) {
    ASSERT_EQ(reader.pool[i], i >= 20480 && i < 24576 ? std::byte{0x77} : std::byte{0}) << "at " << i;
  }
}

TEST_P(TransportTest, APostToAPeerThatIsNotOpenEndsWithAnError) {
  Side& writer = Start("p");
  writer.transport->Post({OpId{1}, {"d", {1, 1}}, {}, 0, 1, {{0, 0, 0, 4096}}, {0}});
  ASSERT_TRUE(writer.WaitFor<Quiesced>(1));
  EXPECT_EQ(writer.All<Quiesced>()[0].status.code(), Code::kFailedPrecondition);
}

TEST_P(TransportTest, DamagedDescriptorsAreRefusedInWords) {
  Side& writer = Start("p");
  Side& reader = Start("d");
  const std::vector<std::byte> good = reader.transport->LocalDescriptor();
  size_t tried = 0;
  const auto refuse = [&](std::span<const std::byte> bytes) {
    writer.transport->Open(reader.id, bytes);
    ASSERT_TRUE(writer.WaitFor<PeerOpened>(++tried));
    const Status status = writer.All<PeerOpened>().back().status;
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(status.message().empty());
  };
  for (size_t n = 0; n < good.size(); ++n) refuse(std::span(good).first(n));
  for (size_t i = 0; i < good.size(); ++i) {
    auto bad = good;
    bad[i] ^= std::byte{static_cast<uint8_t>(1 << (i % 8))};
    refuse(bad);
  }
  auto longer = good;
  longer.push_back({});
  refuse(longer);
  Open(writer, reader);  // and the right one still works
}

// FF-022
TEST_P(TransportTest, ADescriptorOfAWorkerThatIsGoneIsAnsweredWithAnError) {
  options_.open_timeout = std::chrono::seconds(1);
  Side& writer = Start("p");
  Side& reader = Start("d");
  const std::vector<std::byte> descriptor = reader.transport->LocalDescriptor();
  reader.transport.reset();
  writer.transport->Open(reader.id, descriptor);
  ASSERT_TRUE(writer.WaitFor<PeerOpened>(1));
  EXPECT_FALSE(writer.All<PeerOpened>()[0].status.ok());
}

// FF-022
TEST_P(TransportTest, ANewIncarnationIsReachedAfterTheOldOneWasClosed) {
  Side& writer = Start("p");
  Fill(writer.pool, 2);
  for (uint32_t round = 1; round <= 3; ++round) {
    Side& reader = Start("d", kPool, round);
    Open(writer, reader);
    const Ticket ticket = TicketNumber(reader.id, 1);
    reader.transport->Admit(ticket, writer.id, {0}, {kPool});
    writer.transport->Post(SimplePost(reader, ticket, 2 * round, kPool));
    ASSERT_TRUE(reader.WaitFor<ChunkArrived>(1));
    EXPECT_TRUE(std::equal(writer.pool.begin(), writer.pool.end(), reader.pool.begin()));
    ASSERT_TRUE(writer.WaitFor<Quiesced>(2 * round - 1));
    reader.transport.reset();
    // Whatever the writer noticed by itself, Close ends it.
    writer.transport->Post(SimplePost(reader, ticket, 2 * round + 1, 4096));
    writer.transport->Close(reader.id);
    ASSERT_TRUE(writer.WaitFor<Severed>(round));
    EXPECT_EQ(OpsOf(writer).size(), 2 * round);
  }
}

// FF-021
TEST_P(TransportTest, AReaderThatGoesAwayEndsEveryOpOfItsWriters) {
  options_.op_timeout = std::chrono::seconds(1);
  Side& writer = Start("p", 32 << 20);
  Side& reader = Start("d", 32 << 20);
  Open(writer, reader);
  const Ticket ticket = TicketNumber(reader.id, 1);
  reader.transport->Admit(ticket, writer.id, {0}, {32 << 20});
  for (uint32_t i = 1; i <= 20; ++i) writer.transport->Post(SimplePost(reader, ticket, i, 32 << 20));
  ASSERT_TRUE(writer.WaitFor<Quiesced>(1));
  reader.transport.reset();
  ASSERT_TRUE(writer.WaitFor<Quiesced>(20));
  EXPECT_EQ(OpsOf(writer).size(), 20u);
}

TEST_P(TransportTest, AWriterThatGoesAwayLeavesTheReaderAbleToRetire) {
  if (GetParam() == Kind::kUcxKeyed) GTEST_SKIP() << kOnlyEmulated;
  Side& reader = Start("d", 32 << 20);
  for (uint32_t round = 1; round <= 3; ++round) {
    Side& writer = Start("p", 32 << 20, round);
    Open(writer, reader);
    const Ticket ticket = TicketNumber(reader.id, round);
    reader.transport->Admit(ticket, writer.id, {0}, {32 << 20});
    for (uint32_t i = 1; i <= 20; ++i) writer.transport->Post(SimplePost(reader, ticket, i, 32 << 20));
    ASSERT_TRUE(writer.WaitFor<Quiesced>(1));
    writer.transport.reset();
    reader.transport->Retire(ticket);
    ASSERT_TRUE(reader.WaitFor<Quiet>(round));
  }
}

// FF-112
TEST_P(TransportTest, AnIdleTransportCostsNoCpu) {
  Side& writer = Start("p");
  Side& reader = Start("d");
  Open(writer, reader);
  const auto cpu = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const double before = cpu();
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  EXPECT_LT(cpu() - before, 0.02) << "CPU seconds of two idle transports over 1 s";
}

TEST(UcxOptionsTest, UnknownTransportsAndDevicesAreRefusedByName) {
  TestWaker waker;
  UcxOptions options;
  for (const char* tls : {"roce", "", "SHM"}) {
    options.tls = tls;
    EXPECT_EQ(UcxTransport::Create(options, &waker).status().code(), Code::kInvalidArgument) << tls;
  }
  options.tls = "tcp";
  options.net_devices = "nosuchdevice0";
  const auto made = UcxTransport::Create(options, &waker);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("nosuchdevice0"), std::string::npos) << made.status().ToString();
}

TEST(UcxOptionsTest, TransportsWithNothingInCommonSaySo) {
  LocalFabric fabric;
  Side shm, tcp;
  shm.id = {"s", {1, 1}};
  tcp.id = {"t", {1, 1}};
  shm.transport = MakeKind(Kind::kUcxShm, fabric, shm.id, &shm.waker);
  tcp.transport = MakeKind(Kind::kUcxTcp, fabric, tcp.id, &tcp.waker);
  for (Side* s : {&shm, &tcp}) ASSERT_TRUE(s->transport->AllocatePool(1 << 20).ok());
  shm.transport->Open(tcp.id, tcp.transport->LocalDescriptor());
  tcp.transport->Open(shm.id, shm.transport->LocalDescriptor());
  for (Side* s : {&shm, &tcp}) {
    ASSERT_TRUE(s->WaitFor<PeerOpened>(1));
    EXPECT_EQ(s->All<PeerOpened>()[0].status.code(), Code::kFailedPrecondition);
  }
}

// ---- puts under a key of the writer's own -------------------------------------------------------

class KeyedPutTest : public TransportTest {};

// HANDOFF 3: the fence of puts.
TEST_P(KeyedPutTest, AfterTheFenceNoPutLandsAndTheWriterMayOpenAnew) {
  constexpr uint64_t kBig = 16 << 20;
  constexpr uint32_t kOps = 12, kRounds = 5;
  Side& writer = Start("p", kBig);
  Side& reader = Start("d", kBig);
  Fill(writer.pool, 6);
  uint64_t op = 0;
  for (uint32_t round = 1; round <= kRounds; ++round) {
    Open(writer, reader);
    EXPECT_EQ(mode_, TransferMode::kKeyedPut);
    EXPECT_EQ(writer.All<PeerOpened>().back().lane, "tcp");
    const Ticket ticket = TicketNumber(reader.id, 1, round);
    reader.transport->Admit(ticket, writer.id, {0}, {kBig});
    for (uint32_t i = 0; i < kOps; ++i) writer.transport->Post(SimplePost(reader, ticket, ++op, kBig));
    ASSERT_TRUE(reader.WaitFor<ChunkArrived>(reader.All<ChunkArrived>().size() + 1));
    reader.transport->Retire(ticket);
    reader.transport->Fence(writer.id);
    ASSERT_TRUE(reader.WaitFor<Fenced>(round));
    std::memset(reader.pool.data(), 0x11, kBig);
    ASSERT_TRUE(writer.WaitFor<Quiesced>(op));
    ASSERT_TRUE(writer.WaitFor<PeerLost>(round));
    EXPECT_FALSE(writer.All<Quiesced>().back().status.ok()) << "they were cut in the middle";
    writer.transport->Close(reader.id);
    ASSERT_TRUE(writer.WaitFor<Severed>(round));
    ASSERT_TRUE(AllAre(reader.pool, std::byte{0x11})) << "a put landed after the fence";
  }
  EXPECT_EQ(OpsOf(writer).size(), op);
}

TEST_P(KeyedPutTest, AFenceAgainstOneWriterLeavesTheOthersAlone) {
  Side& first = Start("p");
  Side& second = Start("q");
  Side& reader = Start("d");
  Open(first, reader);
  Open(second, reader);
  Fill(second.pool, 9);
  reader.transport->Fence(first.id);
  ASSERT_TRUE(reader.WaitFor<Fenced>(1));
  const Ticket ticket = TicketNumber(reader.id, 1);
  reader.transport->Admit(ticket, second.id, {0}, {kPool});
  second.transport->Post(SimplePost(reader, ticket, 1, kPool));
  ASSERT_TRUE(second.WaitFor<Quiesced>(1));
  EXPECT_TRUE(second.All<Quiesced>()[0].status.ok());
  ASSERT_TRUE(reader.WaitFor<ChunkArrived>(1));
  EXPECT_TRUE(std::equal(second.pool.begin(), second.pool.end(), reader.pool.begin()));
}

TEST_P(KeyedPutTest, AFenceAgainstAWriterThatIsNotThereIsOverAtOnce) {
  Side& reader = Start("d");
  reader.transport->Fence({"nobody", {1, 1}});
  ASSERT_TRUE(reader.WaitFor<Fenced>(1));
}

INSTANTIATE_TEST_SUITE_P(Every, KeyedPutTest, testing::Values(Kind::kUcxKeyed),
                         [](const auto& info) { return KindName(info.param); });

TEST(UcxLanesTest, WhatUcxOffersHereIsToldByTransportAndTcpIsNotTakenForOneSided) {
  const auto offer = QueryUcx();
  ASSERT_TRUE(offer.ok()) << offer.status().ToString();
  EXPECT_FALSE(offer->version.empty());
  size_t tcp = 0, mapped = 0;
  for (const UcxLane& lane : offer->lanes) {
    tcp += lane.transport == "tcp";
    mapped += lane.maps;
    if (lane.transport == "tcp" || lane.kind != UcxLaneKind::kNetwork) EXPECT_FALSE(lane.rdma()) << lane.transport;
  }
  EXPECT_GT(tcp, 0u);
  EXPECT_GT(mapped, 0u);
}

TEST(UcxLanesTest, RdmaThatIsDemandedAndNotThereIsRefusedInWords) {
  const auto offer = QueryUcx();
  ASSERT_TRUE(offer.ok());
  if (!PutTransports(offer->lanes, "all").empty()) GTEST_SKIP() << "this host has it";
  TestWaker waker;
  UcxOptions options;
  options.self = {"p", {1, 1}};
  options.tls = "rdma";
  options.net_devices = "all";
  const auto made = UcxTransport::Create(options, &waker);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("baton doctor"), std::string::npos) << made.status().ToString();
}

INSTANTIATE_TEST_SUITE_P(Every, TransportTest,
                         testing::Values(Kind::kLocal, Kind::kFake, Kind::kUcxShm, Kind::kUcxTcp, Kind::kUcxKeyed,
                                         Kind::kUcxAuto, Kind::kGrpc, Kind::kGrpcTls),
                         [](const auto& info) { return KindName(info.param); });

}  // namespace
}  // namespace baton

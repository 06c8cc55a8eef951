// The pure parts under every transport: pieces, wire forms, admissions, the fault policy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/rng.h"
#include "support/metric_names.h"
#include "transport/admission_table.h"
#include "transport/digest_copy.h"
#include "transport/fault_policy.h"
#include "transport/link_messages.h"
#include "transport/pieces.h"
#include "transport/ucx/descriptor.h"
#include "transport/ucx/lanes.h"

namespace baton {
namespace {

// ---- pieces -------------------------------------------------------------------------------------

TEST(NormalizePieces, KeepsEveryByteInPlanOrderAndNeverExceedsThePieceLimit) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed);
    const uint64_t pool = 16 << 20;
    std::vector<CopyPiece> plan;
    for (uint64_t n = rng.Below(20); n > 0; --n) {
      CopyPiece p{rng.Below(pool), static_cast<uint32_t>(rng.Below(3)), rng.Below(pool), 0};
      p.bytes = rng.Below(std::min<uint64_t>(pool - p.source, 3 << 20) + 1);
      if (!plan.empty() && rng.Chance(0.6)) {  // continue the last one on both sides, or only on one
        const CopyPiece& last = plan.back();
        if (last.source + last.bytes + p.bytes <= pool) p.source = last.source + last.bytes;
        if (rng.Chance(0.7)) {
          p.target_block = last.target_block;
          p.target_offset = last.target_offset + last.bytes;
        }
      }
      plan.push_back(p);
    }
    const auto out = NormalizePieces(plan, pool);
    ASSERT_TRUE(out.ok()) << out.status().ToString();
    // Walk both lists byte range by byte range.
    size_t i = 0;
    uint64_t at = 0;
    for (const CopyPiece& part : *out) {
      ASSERT_GT(part.bytes, 0u);
      ASSERT_LE(part.bytes, kMaxPieceBytes);
      for (uint64_t done = 0; done < part.bytes;) {
        while (at == plan[i].bytes) ++i, at = 0;
        ASSERT_EQ(part.source + done, plan[i].source + at);
        ASSERT_EQ(part.target_block, plan[i].target_block);
        ASSERT_EQ(part.target_offset + done, plan[i].target_offset + at);
        const uint64_t step = std::min(part.bytes - done, plan[i].bytes - at);
        done += step;
        at += step;
      }
    }
    ASSERT_EQ(TotalBytes(*out), TotalBytes(plan));
  }
}

TEST(NormalizePieces, MergesNeighboursOnBothSidesOnly) {
  const std::vector<CopyPiece> plan = {{0, 0, 0, 100}, {100, 0, 100, 50}, {150, 0, 200, 50}, {200, 1, 250, 50}};
  const auto out = NormalizePieces(plan, 4096);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(*out, (std::vector<CopyPiece>{{0, 0, 0, 150}, {150, 0, 200, 50}, {200, 1, 250, 50}}));
}

TEST(NormalizePieces, RefusesSourcesOutsideThePoolAndTooManyPieces) {
  for (const CopyPiece& bad : {CopyPiece{4096, 0, 0, 1}, CopyPiece{UINT64_MAX, 0, 0, 2}, CopyPiece{0, 0, 0, UINT64_MAX},
                               CopyPiece{4097, 0, 0, 0}, CopyPiece{0, 0, UINT64_MAX, 2}}) {
    EXPECT_EQ(NormalizePieces(std::span(&bad, 1), 4096).status().code(), Code::kInvalidArgument);
  }
  const std::vector<CopyPiece> many(kMaxPiecesPerPost + 1, {0, 0, 0, 1});
  EXPECT_FALSE(NormalizePieces(many, 4096).ok());
  EXPECT_TRUE(NormalizePieces(std::span(many).first(kMaxPiecesPerPost), 4096).ok());
}

// ---- digest and copy ----------------------------------------------------------------------------

TEST(DigestAndCopyTest, CopiesAndDigestsEveryByteAtAnyAlignmentAndNothingElse) {
  constexpr size_t kSize = 40000;
  std::vector<std::byte> from(kSize + 64), to(kSize + 64);
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    for (size_t i = 0; i + 8 <= from.size(); i += 8) {
      const uint64_t x = rng.Next();
      std::memcpy(from.data() + i, &x, 8);
    }
    std::fill(to.begin(), to.end(), std::byte{0xEE});
    std::vector<std::byte> expected = to;
    StreamHash64 hash, plain;
    size_t at = rng.Below(80);
    while (true) {  // pieces back to back and apart, aligned and not
      const size_t bytes = rng.Chance(0.3) ? rng.Below(100) : rng.Below(9000);
      const size_t source = rng.Below(from.size() - std::min(bytes, from.size()) + 1);
      if (at + bytes > to.size()) break;
      const auto piece = std::span<const std::byte>(from).subspan(source, bytes);
      DigestAndCopy(to.data() + at, piece, &hash, std::span<const std::byte>(from).first(rng.Below(6000)));
      plain.Add(piece);
      std::copy(piece.begin(), piece.end(), expected.begin() + static_cast<long>(at));
      at += bytes + (rng.Chance(0.5) ? 0 : rng.Below(70));
    }
    FenceCopies();
    ASSERT_EQ(to, expected) << "seed " << seed;
    ASSERT_EQ(hash.Digest(), plain.Digest()) << "seed " << seed;
  }
}

// ---- wire forms ---------------------------------------------------------------------------------

UcxDescriptor SomeDescriptor() {
  UcxDescriptor d{"boot/pid:[1]", 42, "auto", {}, {}, 0x7f0000000000, 1 << 30};
  d.address.resize(130, std::byte{7});
  d.rkey.resize(30, std::byte{9});
  return d;
}

TEST(Descriptor, ReadsBackWhatItWrote) {
  const UcxDescriptor d = SomeDescriptor();
  const auto parsed = UcxDescriptor::Parse(d.Encode());
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(*parsed, d);
}

TEST(Descriptor, RefusesEveryTruncationEveryFlippedBitAndRandomBytes) {
  const auto good = SomeDescriptor().Encode();
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(UcxDescriptor::Parse(std::span(good).first(n)).ok());
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto bad = good;
    bad[bit / 8] ^= std::byte{static_cast<uint8_t>(1 << (bit % 8))};
    EXPECT_FALSE(UcxDescriptor::Parse(bad).ok()) << "bit " << bit;
  }
  Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> noise(rng.Below(300));
    for (std::byte& b : noise) b = static_cast<std::byte>(rng.Next());
    EXPECT_FALSE(UcxDescriptor::Parse(noise).ok());
  }
}

TEST(Messages, ReadBackWhatTheyWroteAndNeverReadPastATruncation) {
  const Ticket ticket{{1, 2}, 3, 4};
  const std::vector<TargetPiece> pieces = {{1, 2, 3}, {4, 5, 6}};
  const LinkHello hello{5, 6, {"p", {7, 8}}, TransferMode::kReceiverPosted, {std::byte{1}}};
  const LinkAnswer answer{5, UnavailableError("no")};
  const LinkData data{5, ticket, OpId{9}, 2, pieces};
  const LinkPlaced placed{5, OpId{9}, 2, OkStatus()};
  const LinkNotice notice{5, ticket, 10, 11, pieces};

  const auto h = LinkHello::Parse(hello.Encode());
  ASSERT_TRUE(h);
  EXPECT_EQ(h->writer, hello.writer);
  EXPECT_EQ(h->instance, 6u);
  EXPECT_EQ(LinkAnswer::Parse(answer.Encode())->status, answer.status);
  const auto d = LinkData::Parse(data.Encode());
  ASSERT_TRUE(d);
  EXPECT_EQ(d->ticket, ticket);
  EXPECT_EQ(d->part, 2u);
  EXPECT_EQ(d->pieces[1].offset, 6u);
  EXPECT_EQ(LinkPlaced::Parse(placed.Encode())->op, OpId{9});
  const auto n = LinkNotice::Parse(notice.Encode());
  ASSERT_TRUE(n);
  EXPECT_EQ(n->chunk, 10u);
  EXPECT_EQ(n->attempt, 11u);
  EXPECT_EQ(n->pieces.size(), 2u);

  const auto each_prefix_fails = [](const std::vector<std::byte>& bytes, auto parse) {
    for (size_t i = 0; i < bytes.size(); ++i) EXPECT_FALSE(parse(std::span(bytes).first(i))) << i;
    auto longer = bytes;
    longer.push_back({});
    EXPECT_FALSE(parse(longer));
  };
  each_prefix_fails(hello.Encode(), LinkHello::Parse);
  each_prefix_fails(answer.Encode(), LinkAnswer::Parse);
  each_prefix_fails(data.Encode(), LinkData::Parse);
  each_prefix_fails(placed.Encode(), LinkPlaced::Parse);
  each_prefix_fails(notice.Encode(), LinkNotice::Parse);
}

TEST(Messages, RefuseMorePiecesThanTheirLimit) {
  LinkData data{1, {}, OpId{1}, 0, std::vector<TargetPiece>(kMaxDataPieces)};
  EXPECT_TRUE(LinkData::Parse(data.Encode()));
  data.pieces.emplace_back();
  EXPECT_FALSE(LinkData::Parse(data.Encode()));
  data.pieces.clear();
  EXPECT_FALSE(LinkData::Parse(data.Encode())) << "a data message without pieces";
  LinkNotice notice{1, {}, 0, 1, std::vector<TargetPiece>(kMaxPiecesPerPost + 1)};
  EXPECT_FALSE(LinkNotice::Parse(notice.Encode()));
}

// ---- admissions ---------------------------------------------------------------------------------

class AdmissionTest : public testing::Test {
 protected:
  AdmissionTest() { table_.SetPool(memory_); }
  std::vector<TransportEvent> Events() {
    std::vector<TransportEvent> out;
    events_.Take(&out);
    return out;
  }
  std::vector<std::byte> memory_ = std::vector<std::byte>(1000);
  EventQueue events_{nullptr};
  AtomicTransportCounters counters_;
  AdmissionTable table_{&events_, &counters_};
  const ProcessId writer_{"p", {1, 1}};
  const Ticket ticket_{{1, 1}, 0, 1};
  std::vector<std::span<std::byte>> places_;
};

// FF-149
TEST_F(AdmissionTest, ResolvesPiecesInsideTheBlocksOfTheRightWriterOnly) {
  table_.Admit(ticket_, writer_, {100, 500}, {100, 50});
  const TargetPiece inside[] = {{0, 100, 0}, {1, 1, 49}};
  ASSERT_TRUE(table_.Begin(ticket_, writer_, inside, &places_).ok());
  EXPECT_EQ(places_[0].data(), memory_.data() + 100);
  EXPECT_EQ(places_[1].data(), memory_.data() + 549);
  table_.End(ticket_);
  EXPECT_EQ(table_.Begin(ticket_, {"q", {1, 1}}, inside, &places_).code(), Code::kNotFound);
  EXPECT_EQ(table_.Begin(ticket_, {"p", {2, 1}}, inside, &places_).code(), Code::kNotFound);
  EXPECT_EQ(table_.Begin({{1, 1}, 0, 2}, writer_, inside, &places_).code(), Code::kNotFound);
  for (const TargetPiece& bad : {TargetPiece{0, 101, 0}, TargetPiece{1, 1, 50}, TargetPiece{2, 0, 0},
                                 TargetPiece{0, 2, UINT64_MAX}, TargetPiece{0, UINT32_MAX, 1}}) {
    EXPECT_EQ(table_.Begin(ticket_, writer_, std::span(&bad, 1), &places_).code(), Code::kOutOfRange);
  }
}

TEST_F(AdmissionTest, ATicketThatIsAdmittedAgainHasItsFurtherBlocksBehindThoseBefore) {
  table_.Admit(ticket_, writer_, {100, 500}, {100, 50});
  ASSERT_TRUE(table_.Begin(ticket_, writer_, {}, &places_).ok());  // something is on its way
  const TargetPiece third{2, 30, 0};
  EXPECT_EQ(table_.Begin(ticket_, writer_, std::span(&third, 1), &places_).code(), Code::kOutOfRange);
  table_.Admit(ticket_, writer_, {700}, {30});
  ASSERT_TRUE(table_.Begin(ticket_, writer_, std::span(&third, 1), &places_).ok());
  EXPECT_EQ(places_[0].data(), memory_.data() + 700);
  const TargetPiece second{1, 50, 0};
  ASSERT_TRUE(table_.Begin(ticket_, writer_, std::span(&second, 1), &places_).ok());
  EXPECT_EQ(places_[0].data(), memory_.data() + 500);
}

TEST_F(AdmissionTest, IsQuietOnlyWhenTheLastWorkEndedAndThenDeliversNothing) {
  table_.Admit(ticket_, writer_, {0}, {10});
  ASSERT_TRUE(table_.Begin(ticket_, writer_, {}, &places_).ok());
  ASSERT_TRUE(table_.Begin(ticket_, writer_, {}, &places_).ok());
  EXPECT_FALSE(table_.Retire(ticket_));
  EXPECT_FALSE(table_.Begin(ticket_, writer_, {}, &places_).ok());
  table_.EndWithArrival({writer_, ticket_, 0, 1, 0});
  EXPECT_TRUE(Events().empty());
  table_.End(ticket_);
  const auto events = Events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Quiet>(events[0]));
  EXPECT_EQ(counters_.notices_dropped.load(), 1u);
}

TEST_F(AdmissionTest, HoldsNoMoreThanTheAgreedNumberOfArrivals) {
  table_.Admit(ticket_, writer_, {0}, {10});
  for (size_t i = 0; i < EventQueue::kMaxArrivals + 5; ++i) {
    ASSERT_TRUE(table_.Begin(ticket_, writer_, {}, &places_).ok());
    table_.EndWithArrival({writer_, ticket_, 0, 1, 0});
  }
  EXPECT_TRUE(table_.Retire(ticket_));  // an event of our own asking is never refused
  EXPECT_EQ(Events().size(), EventQueue::kMaxArrivals + 1);
  EXPECT_EQ(counters_.notices_dropped.load(), 5u);
}

// ---- fault policy -------------------------------------------------------------------------------

TEST(FaultPolicyTest, IsAFunctionOfSeedAndQuestions) {
  const FaultRates rates = {.post_delay = 0.3,
                            .post_truncate = 0.2,
                            .notice_delay = 0.2,
                            .notice_drop = 0.3,
                            .min_delay = Duration(5),
                            .max_delay = Duration(900)};
  FaultPolicy a(7, rates), b(7, rates), c(8, rates);
  bool differs = false;
  for (int i = 0; i < 1000; ++i) {
    const auto point = i % 3 == 0 ? FaultPoint::kPost : FaultPoint::kNotice;
    const Fault fault = a.Decide(point);
    EXPECT_EQ(fault, b.Decide(point));
    differs |= !(fault == c.Decide(point));
    if (fault.kind == FaultKind::kDelay) {
      EXPECT_GE(fault.delay, Duration(5));
      EXPECT_LE(fault.delay, Duration(900));
    }
  }
  EXPECT_TRUE(differs);
}

TEST(FaultPolicyTest, ChangingOneRateDoesNotShiftTheOtherDecisions) {
  FaultPolicy with(3, {.post_fail = 0.1, .notice_drop = 0.5}), without(3, {.notice_drop = 0.5});
  for (int i = 0; i < 500; ++i) {
    with.Decide(FaultPoint::kPost);
    without.Decide(FaultPoint::kPost);
    EXPECT_EQ(with.Decide(FaultPoint::kNotice), without.Decide(FaultPoint::kNotice));
  }
}

TEST(FaultPolicyTest, HitsTheNthAndKeepsItsRates) {
  FaultPolicy nth(1, {.nth_post = 3, .nth_post_fault = FaultKind::kNeverComplete});
  EXPECT_EQ(nth.Decide(FaultPoint::kPost).kind, FaultKind::kDeliver);
  nth.Decide(FaultPoint::kNotice);
  EXPECT_EQ(nth.Decide(FaultPoint::kPost).kind, FaultKind::kDeliver);
  EXPECT_EQ(nth.Decide(FaultPoint::kPost).kind, FaultKind::kNeverComplete);
  EXPECT_EQ(nth.Decide(FaultPoint::kPost).kind, FaultKind::kDeliver);

  FaultPolicy rates(2, {.notice_delay = 0.1, .notice_drop = 0.2, .notice_duplicate = 0.3});
  std::map<FaultKind, int> count;
  for (int i = 0; i < 20000; ++i) ++count[rates.Decide(FaultPoint::kNotice).kind];
  EXPECT_NEAR(count[FaultKind::kDelay], 2000, 200);
  EXPECT_NEAR(count[FaultKind::kDrop], 4000, 300);
  EXPECT_NEAR(count[FaultKind::kDuplicate], 6000, 350);
  EXPECT_NEAR(count[FaultKind::kDeliver], 8000, 350);
}

// ---- which way the bytes go -----------------------------------------------------------------------

UcxLane Lane(std::string transport, std::string device, UcxLaneKind kind, bool put, bool get, bool key) {
  UcxLane lane;
  lane.transport = std::move(transport);
  lane.device = std::move(device);
  lane.kind = kind;
  lane.put = put;
  lane.get = get;
  lane.remote_key = key;
  return lane;
}

TEST(UcxPutTransports, AreThoseThatWriteAPeersMemoryWithoutItsHelpWhateverTheirNames) {
  const auto net = UcxLaneKind::kNetwork;
  const std::vector<UcxLane> lanes = {Lane("rc_mlx5", "mlx5_0:1", net, true, true, true),
                                      Lane("rc_mlx5", "mlx5_1:1", net, true, true, true),
                                      Lane("rc_but_poor", "mlx5_0:1", net, true, false, true),
                                      Lane("ud_mlx5", "mlx5_0:1", net, false, false, true),
                                      Lane("tcp", "eth0", net, true, false, false),
                                      Lane("posix", "memory", UcxLaneKind::kSharedMemory, true, true, true),
                                      Lane("novel", "fabric7", net, true, true, true)};
  using Names = std::vector<std::string>;
  EXPECT_EQ(PutTransports(lanes, "all"), (Names{"rc_mlx5", "novel"}));
  EXPECT_EQ(PutTransports(lanes, "lo"), Names{});
  EXPECT_EQ(PutTransports(lanes, "eth0,fabric7"), Names{"novel"});
  EXPECT_EQ(PutTransports(lanes, "mlx5_0"), Names{}) << "a device is named with its port";
  EXPECT_EQ(CommonTransport({"rc_mlx5", "novel"}, {"novel", "rc_mlx5"}), "rc_mlx5");
  EXPECT_EQ(CommonTransport({"rc_mlx5"}, {"rc_verbs"}), "");
  EXPECT_EQ(CommonTransport({}, {}), "");
}

TEST(UcxDescriptorTest, LanesForPutsTravelAndWithoutThemTheBytesAreThoseOfBefore) {
  UcxDescriptor d;
  d.host = "boot/pid:[1]";
  d.instance = 5;
  d.tls = "auto";
  d.address = {std::byte{1}, std::byte{2}};
  d.pool_base = 4096;
  d.pool_bytes = 8192;
  const std::vector<std::byte> plain = d.Encode();
  EXPECT_EQ(plain[4], std::byte{1}) << "version 1, which earlier releases read";
  d.put_lanes = {"rc_mlx5", "dc_mlx5"};
  std::vector<std::byte> bytes = d.Encode();
  EXPECT_EQ(bytes[4], std::byte{2});
  const auto parsed = UcxDescriptor::Parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(*parsed, d);
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(UcxDescriptor::Parse(std::span(bytes).first(i)).ok()) << i;
    bytes[i] ^= std::byte{1};
    EXPECT_FALSE(UcxDescriptor::Parse(bytes).ok()) << i;
    bytes[i] ^= std::byte{1};
  }
}

TEST(LinkAnswerTest, AKeyTravelsWithTheAnswerAndAnAnswerWithoutOneIsThatOfBefore) {
  const LinkAnswer plain{7, OkStatus(), {}}, keyed{7, OkStatus(), {std::byte{9}, std::byte{8}}};
  EXPECT_EQ(LinkAnswer::Parse(plain.Encode())->key.size(), 0u);
  EXPECT_EQ(LinkAnswer::Parse(keyed.Encode())->key, keyed.key);
  EXPECT_EQ(keyed.Encode().size(), plain.Encode().size() + 4 + 2);
  std::vector<std::byte> cut = keyed.Encode();
  cut.pop_back();
  EXPECT_FALSE(LinkAnswer::Parse(cut));
}

TEST(TransportCountersTest, EveryMetricIsThereFromTheStartAtZero) {
  std::vector<Metric> metrics;
  Append(AtomicTransportCounters{}.Snapshot(), &metrics);
  for (const std::string_view name : test::kTransportMetrics) {
    const auto it = std::find_if(metrics.begin(), metrics.end(), [&](const Metric& m) { return m.name == name; });
    EXPECT_TRUE(it != metrics.end() && it->value == 0) << name;
  }
}

TEST(TransportCountersTest, TheLagOfTheTransportsThreadIsASumACountAndAWorst) {
  AtomicTransportCounters counters;
  CountTurn(counters, 2'000'000);
  CountTurn(counters, 5'000'000);
  CountTurn(counters, 1'000'000);
  std::map<std::string, double> values;
  std::vector<Metric> metrics;
  Append(counters.Snapshot(), &metrics);
  for (const Metric& m : metrics) values[m.name] = m.value;
  EXPECT_DOUBLE_EQ(values.at("kv_progress_lag_seconds_sum"), 0.008);
  EXPECT_EQ(values.at("kv_progress_lag_seconds_count"), 3);
  EXPECT_DOUBLE_EQ(values.at("kv_progress_lag_seconds_max"), 0.005);
}

}  // namespace
}  // namespace baton

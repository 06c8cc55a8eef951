// Placement against brute force, and the mistakes that a router must not make.
#include "route/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/hash.h"
#include "base/rng.h"
#include "route/holder_index.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

const TimePoint kNow{seconds(100)};
const Hash128 kNumeric{3, 4};

WorkerHello HelloOf(const std::string& name, bool prefill, bool decode) {
  WorkerHello h;
  h.self = {{name, {1, 1}}, name + ":1"};
  h.roles = {prefill, decode};
  h.model = {"m", {1, 2}};
  h.layout.groups = {KvGroup{KvKind::kFull, 4, 2, 32, DType::kBF16}};
  h.num_blocks = {1000};
  h.numeric = kNumeric;
  h.max_context_tokens = 8192;
  h.submit_credits = 16;
  return h;
}
Heartbeat Idle(const WorkerHello& h) {
  Heartbeat b;
  b.roles = h.roles;
  b.free_blocks = h.num_blocks;
  return b;
}
std::vector<Hash128> Chain(uint64_t who, size_t pages) {
  std::vector<Hash128> chain;
  Hash128 parent{who, 0};
  for (size_t p = 0; p < pages; ++p) {
    const std::vector<TokenId> tokens(kPageTokens, static_cast<TokenId>(p));
    parent = ChainHash(parent, tokens);
    chain.push_back(parent);
  }
  return chain;
}

struct Cluster {
  explicit Cluster(RouterOptions o = {}) : router(o) {}
  WorkerId Add(const WorkerHello& h, const Heartbeat& b) {
    const WorkerId id = router.AddWorker(h, kNow);
    router.OnHeartbeat(id, b, kNow);
    return id;
  }
  WorkerId Add(const std::string& name, bool prefill, bool decode, Duration queued = {}) {
    const WorkerHello h = HelloOf(name, prefill, decode);
    Heartbeat b = Idle(h);
    b.queued_work = queued;
    return Add(h, b);
  }
  std::optional<Placement> Place(PlaceQuery q, TimePoint now = kNow) {
    auto answer = router.Place(q, now);
    if (auto* p = std::get_if<Placement>(&answer)) return *p;
    refusal = std::get<Refusal>(answer);
    return std::nullopt;
  }
  Router router;
  Refusal refusal;
};
PlaceQuery QueryOf(uint32_t prompt, uint32_t answer = 64) {
  PlaceQuery q;
  q.prompt_tokens = prompt;
  q.answer_tokens = answer;
  return q;
}

TEST(Router, APromptGoesToThePrefillWorkerThatIsFreeFirst) {
  Cluster c;
  c.Add("p0", true, false, seconds(3));
  const WorkerId p1 = c.Add("p1", true, false, milliseconds(10));
  const WorkerId d = c.Add("d", false, true);
  const auto placed = c.Place(QueryOf(1000));
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->mode, Placement::Mode::kDisaggregated);
  EXPECT_EQ(placed->prefill, p1);
  EXPECT_EQ(placed->decode, d);
}

TEST(Router, AReportGrowsOldAndItsWorkIsTakenAsDoneInTheMeantime) {
  Cluster c;
  const WorkerId p0 = c.Add("p0", true, false, seconds(3));
  c.Add("d", false, true);
  c.router.OnHeartbeat(
      p0,
      [] {
        Heartbeat b;
        b.roles = {true, false};
        b.queued_work = seconds(3);
        return b;
      }(),
      kNow);
  const WorkerHello h = HelloOf("p1", true, false);
  const WorkerId p1 = c.router.AddWorker(h, kNow + milliseconds(2900));
  Heartbeat b = Idle(h);
  b.queued_work = seconds(2);
  c.router.OnHeartbeat(p1, b, kNow + milliseconds(2900));
  EXPECT_EQ(c.Place(QueryOf(1000), kNow + milliseconds(2900))->prefill, p0);
}

TEST(Router, ABurstBetweenTwoHeartbeatsIsSpread) {
  Cluster c;
  std::map<WorkerId, int> load;
  for (int i = 0; i < 4; ++i) c.Add("p" + std::to_string(i), true, false);
  c.Add("d", false, true);
  for (uint64_t i = 1; i <= 40; ++i) {
    PlaceQuery q = QueryOf(1000);
    q.hint = PlacementHint::kDisaggregated;
    const auto placed = c.Place(q);
    ASSERT_TRUE(placed && placed->mode == Placement::Mode::kDisaggregated);
    c.router.Dispatched({1, i, 0}, 1, *placed, q, kNow);
    ++load[placed->prefill];
  }
  ASSERT_EQ(load.size(), 4u);
  for (const auto& [id, n] : load) EXPECT_EQ(n, 10);
}

TEST(Router, TheLedgerIsEmptyAgainAfterEveryEnd) {
  Rng rng(5);
  Cluster c;
  std::vector<WorkerId> ids = {c.Add("p0", true, false), c.Add("p1", true, true), c.Add("d0", false, true),
                               c.Add("d1", false, true)};
  std::vector<uint64_t> open;
  TimePoint now = kNow;
  for (uint64_t i = 1; i < 4000; ++i) {
    now += milliseconds(rng.Below(10));
    const PlaceQuery q = QueryOf(1 + static_cast<uint32_t>(rng.Below(3000)));
    if (const auto placed = c.Place(q, now); placed && rng.Chance(0.6)) {
      c.router.Dispatched({1, i, 0}, 1, *placed, q, now);
      open.push_back(i);
    }
    if (!open.empty() && rng.Chance(0.5)) {
      std::swap(open[rng.Below(open.size())], open.back());
      if (rng.Chance(0.5)) c.router.PrefillEnded({1, open.back(), 0}, 1);
      if (rng.Chance(0.8)) {
        c.router.Ended({1, open.back(), 0}, 1);
        open.pop_back();
      }
    }
    if (rng.Chance(0.3)) {
      const size_t w = rng.Below(ids.size());
      c.router.OnHeartbeat(ids[w], Idle(*c.router.hello(ids[w])), now);
    }
  }
  for (const uint64_t i : open) c.router.Ended({1, i, 0}, 1);
  for (const WorkerSnapshot& w : c.router.Snapshot(now)) EXPECT_EQ(w.credits_used, 0u);
  // Like a cluster that never saw a request: the same prediction.
  now += seconds(1);
  for (const WorkerId id : ids) c.router.OnHeartbeat(id, Idle(*c.router.hello(id)), now);
  Cluster fresh;
  fresh.Add("p0", true, false), fresh.Add("p1", true, true), fresh.Add("d0", false, true), fresh.Add("d1", false, true);
  EXPECT_DOUBLE_EQ(c.Place(QueryOf(500), now)->ttft_seconds, fresh.Place(QueryOf(500))->ttft_seconds);
  EXPECT_DOUBLE_EQ(c.Place(QueryOf(500), now)->step_seconds, fresh.Place(QueryOf(500))->step_seconds);
}

// FF-098
TEST(Router, CreditsBoundWhatIsOutstandingAndReturnWhenPrefillEnds) {
  Cluster c;
  WorkerHello h = HelloOf("p", true, false);
  h.submit_credits = 2;
  c.Add(h, Idle(h));
  WorkerHello d = HelloOf("d", false, true);
  d.submit_credits = 0;
  c.Add(d, Idle(d));
  const PlaceQuery q = QueryOf(1000);
  for (uint64_t i = 1; i <= 2; ++i) c.router.Dispatched({1, i, 0}, 1, *c.Place(q), q, kNow);
  EXPECT_FALSE(c.Place(q));
  EXPECT_EQ(c.refusal.why, Refusal::Why::kNoCredit);
  EXPECT_EQ(c.refusal.status.code(), Code::kResourceExhausted);
  EXPECT_GT(c.refusal.retry_after, Duration::zero());
  EXPECT_FALSE(c.router.HasCredit());
  c.router.PrefillEnded({1, 1, 0}, 1);
  EXPECT_TRUE(c.router.HasCredit());
  EXPECT_TRUE(c.Place(q));
  c.router.Ended({1, 1, 0}, 1);  // not a second credit
  c.router.Dispatched({1, 3, 0}, 1, *c.Place(q), q, kNow);
  EXPECT_FALSE(c.Place(q));
}

TEST(Router, WorkersOfOtherBlockSizesArePairedWhenThatPaysForTheConversion) {
  Cluster c;
  WorkerHello p = HelloOf("p", true, false), like = HelloOf("like", false, true),
              unlike = HelloOf("unlike", false, true);
  unlike.layout.block_tokens = 64;
  c.Add(p, Idle(p));
  c.Add(unlike, Idle(unlike));
  ASSERT_TRUE(c.Place(QueryOf(1000)));
  EXPECT_EQ(c.Place(QueryOf(1000))->mode, Placement::Mode::kDisaggregated);
  const auto id = c.Add(like, Idle(like));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(c.Place(QueryOf(1000))->decode, id) << "else equal: no conversion is less";
}

TEST(Router, WorkersOfOtherElementTypesArePairedAlthoughTheirNumericIdentitiesDiffer) {
  Cluster c;
  WorkerHello p = HelloOf("p", true, false), d = HelloOf("d", false, true);
  d.layout.groups[0].dtype = DType::kF32;
  d.numeric = {9, 9};
  c.Add(p, Idle(p));
  c.Add(d, Idle(d));
  ASSERT_TRUE(c.Place(QueryOf(1000)));
  EXPECT_EQ(c.Place(QueryOf(1000))->mode, Placement::Mode::kDisaggregated);
}

// FF-041
TEST(Router, OnlyModelsLayoutsAndNumericIdentitiesThatGoTogetherArePaired) {
  for (const int differs : {0, 1, 2}) {
    Cluster c;
    c.Add("p", true, false);
    WorkerHello h = HelloOf("d", false, true);
    if (differs == 0) h.model.weights = {9, 9};
    if (differs == 1) h.layout.tile = TileForm::kTokenMajor;
    if (differs == 2) h.numeric = {9, 9};
    c.Add(h, Idle(h));
    const auto placed = c.Place(QueryOf(1000));
    ASSERT_TRUE(placed);
    EXPECT_EQ(placed->mode, Placement::Mode::kLocal);
    EXPECT_EQ(placed->why, Placement::Why::kNoPrefill);
    PlaceQuery pair = QueryOf(1000);
    pair.hint = PlacementHint::kDisaggregated;
    EXPECT_FALSE(c.Place(pair));
    EXPECT_EQ(c.refusal.why, Refusal::Why::kNotAllowed);
    EXPECT_EQ(c.refusal.status.code(), Code::kUnavailable) << "a partner may come";
    EXPECT_THAT(c.refusal.status.message(), HasSubstr("1 prefill, 1 decode and 0 unified connected"));
  }
}

TEST(Router, AWorkerIsNeverPairedWithItself) {
  Cluster c;
  c.Add("w", true, true);
  PlaceQuery q = QueryOf(1000);
  q.hint = PlacementHint::kDisaggregated;
  EXPECT_FALSE(c.Place(q));
  q.hint = PlacementHint::kAuto;
  EXPECT_EQ(c.Place(q)->mode, Placement::Mode::kLocal);
}

TEST(Router, APairAskedOfASingleUnifiedWorkerIsRefusedForGoodWithWhatIsMissing) {
  Cluster c;
  c.Add("w", true, true);
  PlaceQuery q = QueryOf(1000);
  q.hint = PlacementHint::kDisaggregated;
  EXPECT_FALSE(c.Place(q));
  EXPECT_EQ(c.refusal.why, Refusal::Why::kNotAllowed);
  EXPECT_EQ(c.refusal.status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(c.refusal.retry_after, Duration::zero());
  EXPECT_THAT(c.refusal.status.message(), HasSubstr("needs two workers"));
  EXPECT_THAT(c.refusal.status.message(), HasSubstr("0 prefill, 0 decode and 1 unified connected"));
  c.Add("d", false, true);
  EXPECT_TRUE(c.Place(q));
}

TEST(Router, AWorkerWithoutAnAddressHandsNothingOffAndTakesNoHandOff) {
  for (const char* alone : {"p", "d"}) {
    Cluster c;
    for (const char* name : {"p", "d"}) {
      WorkerHello h = HelloOf(name, name[0] == 'p', true);
      if (name == std::string_view(alone)) h.self.address = "";
      c.Add(h, Idle(h));
    }
    PlaceQuery q = QueryOf(1000);
    EXPECT_EQ(c.Place(q)->mode, Placement::Mode::kLocal);
    q.hint = PlacementHint::kDisaggregated;
    EXPECT_FALSE(c.Place(q));
  }
}

TEST(Router, ANamedWorkerThatIsNotThereMayComeBack) {
  Cluster c;
  c.Add("w", true, true);
  PlaceQuery q = QueryOf(1000);
  q.decode_worker = "gone";
  EXPECT_FALSE(c.Place(q));
  EXPECT_EQ(c.refusal.status.code(), Code::kUnavailable);
  EXPECT_GT(c.refusal.retry_after, Duration::zero());
  EXPECT_THAT(c.refusal.status.message(), HasSubstr("decode_worker \"gone\""));
}

TEST(Router, WhatNoPoolCouldHoldNeverFitsAndWhatOneCouldGoesThere) {
  Cluster c;
  WorkerHello small = HelloOf("small", true, true);
  small.num_blocks = {4};
  c.Add(small, Idle(small));
  EXPECT_EQ(c.router.LargestRequest(), 129u);
  EXPECT_TRUE(c.Place(QueryOf(100, 29)));
  EXPECT_FALSE(c.Place(QueryOf(100, 30)));
  EXPECT_EQ(c.refusal.why, Refusal::Why::kNeverFits);
  EXPECT_EQ(c.refusal.status.code(), Code::kInvalidArgument);
  const WorkerId big = c.Add("big", true, true, seconds(5));
  EXPECT_EQ(c.Place(QueryOf(100, 30))->decode, big);
}

TEST(Router, DrainingExcludedAndMaskedWorkersGetNothing) {
  Cluster c;
  const WorkerId a = c.Add("a", true, true);
  const WorkerId b = c.Add("b", true, true);
  Heartbeat draining = Idle(HelloOf("a", true, true));
  draining.draining = true;
  c.router.OnHeartbeat(a, draining, kNow);
  EXPECT_EQ(c.Place(QueryOf(10))->decode, b);
  std::set<WorkerId> excluded = {b};
  PlaceQuery q = QueryOf(10);
  q.excluded = &excluded;
  EXPECT_FALSE(c.Place(q));
  EXPECT_EQ(c.refusal.why, Refusal::Why::kNoWorker);
  EXPECT_EQ(c.refusal.status.code(), Code::kUnavailable);
  Heartbeat masked = Idle(HelloOf("b", true, true));
  masked.roles = {true, false};  // a role can change at run time
  c.router.OnHeartbeat(b, masked, kNow);
  EXPECT_FALSE(c.Place(QueryOf(10)));
}

TEST(Router, AShortPromptOrACachedOneIsPrefilledWhereItIsDecoded) {
  Cluster c;
  c.Add("p", true, false);
  const WorkerId d = c.Add("d", false, true);
  EXPECT_EQ(c.Place(QueryOf(10))->why, Placement::Why::kShortPrompt);
  EXPECT_EQ(c.Place(QueryOf(500))->mode, Placement::Mode::kDisaggregated);
  std::map<Hash128, std::vector<Hash128>> pages = {{kNumeric, Chain(7, 31)}};
  PlaceQuery q = QueryOf(500);
  q.pages = &pages;
  ASSERT_TRUE(c.router.OnCacheEvents(d, {.sequence = 1, .snapshot = true, .stored = pages[kNumeric], .removed = {}}));
  const auto placed = c.Place(q);
  EXPECT_EQ(placed->mode, Placement::Mode::kLocal);
  EXPECT_EQ(placed->decode, d);
  EXPECT_EQ(placed->cached_tokens, 496u);
}

TEST(Router, ADedicatedDecodeWorkerPrefillsWhenThePrefillPoolIsFarBehind) {
  Cluster c;
  c.Add("p", true, false, seconds(20));
  const WorkerId d = c.Add("d", false, true);
  const auto placed = c.Place(QueryOf(500));
  EXPECT_EQ(placed->mode, Placement::Mode::kLocal);
  EXPECT_EQ(placed->decode, d);
  EXPECT_EQ(placed->why, Placement::Why::kPredicted);
}

TEST(Router, CacheEventsWithAGapAreNotBelievedUntilASnapshot) {
  Cluster c;
  const WorkerId w = c.Add("w", true, true);
  const auto chain = Chain(1, 4);
  EXPECT_FALSE(c.router.OnCacheEvents(w, {.sequence = 1, .snapshot = false, .stored = chain, .removed = {}}))
      << "no snapshot yet";
  EXPECT_TRUE(c.router.OnCacheEvents(w, {.sequence = 2, .snapshot = true, .stored = chain, .removed = {}}));
  EXPECT_EQ(c.router.Snapshot(kNow)[0].cached_pages, 4u);
  EXPECT_TRUE(c.router.OnCacheEvents(w, {.sequence = 0, .snapshot = false, .stored = {}, .removed = {}}))
      << "nothing changed";
  EXPECT_TRUE(c.router.OnCacheEvents(w, {.sequence = 3, .snapshot = false, .stored = {}, .removed = {chain[3]}}));
  EXPECT_EQ(c.router.Snapshot(kNow)[0].cached_pages, 3u);
  EXPECT_FALSE(c.router.OnCacheEvents(w, {.sequence = 5, .snapshot = false, .stored = chain, .removed = {}}));
  EXPECT_EQ(c.router.Snapshot(kNow)[0].cached_pages, 0u);
}

// A P's cached prefix is only worth its seconds: a router that follows the longest match sends everything that shares
// a first block to one worker, whose queue then never ends.
// FF-107
TEST(Router, SharedPrefixesDoNotPullEveryRequestToOneWorker) {
  Cluster c;
  std::vector<WorkerId> prefill;
  for (int i = 0; i < 8; ++i) {
    WorkerHello h = HelloOf("p" + std::to_string(i), true, false);
    h.submit_credits = 100000;
    prefill.push_back(c.Add(h, Idle(h)));
  }
  WorkerHello dh = HelloOf("d", false, true);
  dh.num_blocks = {1000000};
  c.Add(dh, Idle(dh));
  // Only p0 ever held the first page, which every request shares.
  const auto shared = Chain(9, 1);
  ASSERT_TRUE(c.router.OnCacheEvents(prefill[0], {.sequence = 1, .snapshot = true, .stored = shared, .removed = {}}));
  std::map<WorkerId, double> busy_until;
  Rng rng(3);
  double total_wait = 0, prefix_first_until = 0, prefix_first_wait = 0, now_s = 100;
  constexpr int kRequests = 4000;
  for (uint64_t i = 1; i <= kRequests; ++i) {
    now_s += 0.075;  // 1000 tokens take 0.5 s, so eight workers are 85 % busy
    const TimePoint now{FromSeconds(now_s)};
    for (const WorkerId id : prefill) {
      Heartbeat b;
      b.roles = {true, false};
      b.free_blocks = {1000};
      b.queued_work = FromSeconds(std::max(0.0, busy_until[id] - now_s));
      c.router.OnHeartbeat(id, b, now);
    }
    std::vector<Hash128> chain = shared;
    for (const Hash128& own : Chain(1000 + i, 61)) chain.push_back(own);
    std::map<Hash128, std::vector<Hash128>> pages = {{kNumeric, chain}};
    PlaceQuery q = QueryOf(1000, 1);
    q.pages = &pages;
    q.hint = PlacementHint::kDisaggregated;
    const auto placed = c.Place(q, now);
    ASSERT_TRUE(placed);
    double& until = busy_until[placed->prefill];
    until = std::max(until, now_s) + 0.5;
    total_wait += until - now_s;
    prefix_first_until = std::max(prefix_first_until, now_s) + 0.5;  // p0 again: it alone has the first page
    prefix_first_wait += prefix_first_until - now_s;
  }
  EXPECT_LT(total_wait / kRequests, 1.0) << "mean seconds to the first token";
  EXPECT_GT(prefix_first_wait / kRequests, 800) << "what the longest match would have given";
}

// ---- against brute force ------------------------------------------------------------------------

// The formula written down again, over all pairs.
struct Facts {
  WorkerHello hello;
  Heartbeat beat;
  std::vector<Hash128> held;
};
struct Oracle {
  const RouterOptions& o;
  const PlaceQuery& q;
  const std::vector<Hash128>& chain;
  double Prefill(const Facts& f, uint32_t cached) const {
    const double n = q.prompt_tokens - cached;
    const auto& c = o.cost_prior;
    (void)f;
    return c[0] * std::ceil(n / 512) + c[1] * n + c[2] * n * (cached + n / 2);
  }
  uint32_t Cached(const Facts& f) const {
    uint32_t pages = 0;
    while (pages < chain.size() && std::find(f.held.begin(), f.held.end(), chain[pages]) != f.held.end()) ++pages;
    return std::min(pages * kPageTokens, q.prompt_tokens - 1);
  }
  double Decode(const Facts& f) const {
    const uint32_t expected = std::min(q.answer_tokens, o.expected_answer_tokens);
    const double step = o.cost_prior[0] + o.cost_prior[3] * (f.beat.running + 1) +
                        o.cost_prior[4] * static_cast<double>(f.beat.context_tokens + q.prompt_tokens + expected / 2);
    double s = expected * step + Seconds(f.beat.queued_work);
    const uint32_t need = f.hello.layout.BlocksFor(q.prompt_tokens + expected);
    const uint32_t free = f.beat.free_blocks[0];
    if (free < need) {
      s += (need - free) / std::max(1.0, double(f.hello.num_blocks[0]) - free) * o.expected_answer_tokens * step *
           std::max<uint32_t>(1, f.beat.running);
    }
    return s;
  }
  double Pair(const Facts& p, const Facts& d) const {
    const double prefill = Prefill(p, Cached(p));
    const double wire =
        (q.prompt_tokens - Cached(d)) * double(d.hello.layout.BytesPerToken()) / o.link_bytes_per_second;
    return Seconds(p.beat.queued_work) + prefill + o.link_latency_seconds + std::max(wire - prefill * 3 / 4, wire / 4) +
           Decode(d);
  }
};

TEST(Router, NoOtherPairOfARandomClusterIsPredictedFaster) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    Rng rng(seed);
    RouterOptions o;
    o.seed = seed;
    o.cost_prior = {1e-3 * rng.Unit(), 1e-3 * rng.Unit(), 1e-7 * rng.Unit(), 1e-2 * rng.Unit(), 1e-5 * rng.Unit()};
    Cluster c(o);
    const auto chain = Chain(seed, 40);
    std::map<WorkerId, Facts> facts;
    const uint64_t workers = 2 + rng.Below(14);
    for (uint64_t i = 0; i < workers; ++i) {
      Facts f;
      f.hello = HelloOf("w" + std::to_string(i), rng.Chance(0.6), rng.Chance(0.6));
      f.beat = Idle(f.hello);
      f.beat.queued_work = milliseconds(rng.Below(500));
      f.beat.running = static_cast<uint32_t>(rng.Below(20));
      f.beat.context_tokens = rng.Below(20000);
      f.beat.free_blocks = {static_cast<uint32_t>(rng.Below(200))};
      f.held.assign(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(rng.Below(chain.size() + 1)));
      const WorkerId id = c.Add(f.hello, f.beat);
      c.router.OnCacheEvents(id, {.sequence = 1, .snapshot = true, .stored = f.held, .removed = {}});
      facts.emplace(id, f);
    }
    std::map<Hash128, std::vector<Hash128>> pages = {{kNumeric, chain}};
    PlaceQuery q = QueryOf(640 + static_cast<uint32_t>(rng.Below(1000)), 1 + static_cast<uint32_t>(rng.Below(300)));
    q.pages = &pages;
    q.hint = PlacementHint::kDisaggregated;
    const Oracle oracle{o, q, chain};
    double best = 1e30;
    for (const auto& [pi, p] : facts) {
      for (const auto& [di, d] : facts) {
        if (pi != di && p.hello.roles.prefill && d.hello.roles.decode) best = std::min(best, oracle.Pair(p, d));
      }
    }
    const auto placed = c.Place(q);
    ASSERT_EQ(placed.has_value(), best < 1e30) << seed;
    if (!placed) continue;
    EXPECT_NEAR(oracle.Pair(facts.at(placed->prefill), facts.at(placed->decode)), best, 1e-9 * best) << seed;
  }
}

TEST(Router, EqualInputsGiveEqualPlacements) {
  const auto run = [] {
    Cluster c;
    for (int i = 0; i < 20; ++i) c.Add("w" + std::to_string(i), i % 2 == 0, i % 2 == 1);
    std::vector<uint64_t> out;
    for (uint64_t i = 1; i < 200; ++i) {
      const PlaceQuery q = QueryOf(200);
      const auto placed = c.Place(q);
      if (!placed) break;
      out.push_back(Raw(placed->prefill));
      out.push_back(Raw(placed->decode));
      c.router.Dispatched({1, i, 0}, 1, *placed, q, kNow);
    }
    return out;
  };
  EXPECT_EQ(run(), run());
}

// ---- the index ----------------------------------------------------------------------------------

TEST(HolderIndex, DepthsOfNestedHoldersEqualAWalkOverEveryPage) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Rng rng(seed);
    HolderIndex index;
    const auto chain = Chain(seed, 1 + rng.Below(300));
    const uint32_t workers = 1 + static_cast<uint32_t>(rng.Below(40));
    std::vector<uint32_t> want(workers);
    for (uint32_t w = 0; w < workers; ++w) {
      want[w] = static_cast<uint32_t>(rng.Below(chain.size() + 1));
      for (uint32_t p = 0; p < want[w]; ++p) index.Add(chain[p], w);
    }
    // Leaves go first, as workers evict them.
    for (uint32_t w = 0; w < workers; ++w) {
      while (want[w] > 0 && rng.Chance(0.5)) index.Remove(chain[--want[w]], w);
    }
    if (rng.Chance(0.5)) {
      const auto w = static_cast<uint32_t>(rng.Below(workers));
      index.DropHolder(w);
      want[w] = 0;
    }
    std::vector<uint32_t> depth;
    std::vector<HolderIndex::Slot> touched;
    index.Match(chain, &depth, &touched);
    depth.resize(workers);
    EXPECT_EQ(depth, want) << seed;
    for (const HolderIndex::Slot slot : touched) depth[slot] = 0;
    EXPECT_EQ(std::count(depth.begin(), depth.end(), 0u), workers) << "every depth is of a touched slot";
    uint64_t pages = 0;
    for (uint32_t w = 0; w < workers; ++w) {
      EXPECT_EQ(index.pages_of(w), want[w]);
      pages = std::max<uint64_t>(pages, want[w]);
    }
    EXPECT_EQ(index.num_pages(), pages);
  }
}

TEST(HolderIndex, RepeatedStoresAndRemovesKeepOnlyWhatIsHeld) {
  HolderIndex index;
  Rng rng(1);
  const auto chain = Chain(1, 100);
  std::set<size_t> held;
  for (int i = 0; i < 100000; ++i) {
    const size_t p = rng.Below(chain.size());
    if (rng.Chance(0.5)) {
      index.Add(chain[p], 3);
      held.insert(p);
    } else {
      index.Remove(chain[p], 3);
      held.erase(p);
    }
    ASSERT_EQ(index.pages_of(3), held.size());
  }
  index.DropHolder(3);
  EXPECT_EQ(index.num_pages(), 0u);
}

// ---- what users of other servers saw (tests/field_failures.md) ---------------------------------------

// FF-105: three P, prompts of very unlike length in one burst: what each has to compute differs by no more than the
// longest prompt.
TEST(Router, FF105_ABurstOfUnlikePromptsIsSpreadByItsWork) {
  Cluster c;
  std::map<WorkerId, uint64_t> work;
  for (int i = 0; i < 3; ++i) {
    WorkerHello h = HelloOf("p" + std::to_string(i), true, false);
    h.submit_credits = 1000;
    work[c.Add(h, Idle(h))] = 0;
  }
  WorkerHello d = HelloOf("d", false, true);
  d.num_blocks = {1000000};
  c.Add(d, Idle(d));
  Rng rng(4);
  for (uint64_t i = 1; i <= 200; ++i) {
    PlaceQuery q = QueryOf(rng.Chance(0.2) ? 4000 : 100 + static_cast<uint32_t>(rng.Below(100)));
    q.hint = PlacementHint::kDisaggregated;
    const auto placed = c.Place(q);
    ASSERT_TRUE(placed);
    c.router.Dispatched({1, i, 0}, 1, *placed, q, kNow);
    work[placed->prefill] += q.prompt_tokens;
    const auto [least, most] =
        std::minmax_element(work.begin(), work.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    ASSERT_LE(most->second - least->second, 4100u) << "after " << i;
  }
}

// FF-106: answers of one token, whose load no reply reports in time: half and half.
TEST(Router, FF106_PromptsWithoutAnAnswerToSpeakOfAreSpreadAsWell) {
  Cluster c;
  std::map<WorkerId, int> load;
  for (const char* name : {"p0", "p1"}) {
    WorkerHello h = HelloOf(name, true, false);
    h.submit_credits = 1000;
    c.Add(h, Idle(h));
  }
  c.Add("d", false, true);
  for (uint64_t i = 1; i <= 100; ++i) {
    PlaceQuery q = QueryOf(2000, 1);
    q.hint = PlacementHint::kDisaggregated;
    const auto placed = c.Place(q);
    ASSERT_TRUE(placed);
    c.router.Dispatched({1, i, 0}, 1, *placed, q, kNow);
    ++load[placed->prefill];
  }
  for (const auto& [id, n] : load) EXPECT_EQ(n, 50);
}

// FF-107: the worker with the emptiest cache drowns; a prompt that nobody has cached goes elsewhere.
TEST(Router, FF107_AnEmptyCacheIsNoReasonToQueueBehindADrowningWorker) {
  Cluster c;
  c.Add("p0", true, false, seconds(8));
  const WorkerId full = c.Add("p1", true, false, milliseconds(100));
  c.Add("d", false, true);
  ASSERT_TRUE(c.router.OnCacheEvents(full, {.sequence = 1, .snapshot = true, .stored = Chain(5, 500), .removed = {}}));
  const std::map<Hash128, std::vector<Hash128>> pages = {{kNumeric, Chain(6, 60)}};
  PlaceQuery q = QueryOf(1000);
  q.pages = &pages;
  q.hint = PlacementHint::kDisaggregated;
  EXPECT_EQ(c.Place(q)->prefill, full);
}

// FF-108: a hot prefix whose holder is busy does not take the affinity of another prefix with it, and what a worker
// holds is matched in pages, whatever the size of its blocks.
TEST(Router, FF108_OneHotPrefixDoesNotSwitchAffinityOffForOthers) {
  for (const uint32_t block_tokens : {16u, 32u, 64u}) {
    Cluster c;
    std::vector<WorkerId> p;
    for (const Duration queued : {Duration(seconds(5)), Duration(milliseconds(20)), Duration(0)}) {
      WorkerHello h = HelloOf("p" + std::to_string(p.size()), true, false);
      h.layout.block_tokens = block_tokens;
      Heartbeat b = Idle(h);
      b.queued_work = queued;
      p.push_back(c.Add(h, b));
    }
    WorkerHello d = HelloOf("d", false, true);
    d.layout.block_tokens = block_tokens;
    c.Add(d, Idle(d));
    for (const size_t w : {0, 1}) {
      const CacheEvents held{.sequence = 1, .snapshot = true, .stored = Chain(w, 60), .removed = {}};
      ASSERT_TRUE(c.router.OnCacheEvents(p[w], held));
    }
    const auto place = [&](uint64_t prefix) {
      const std::map<Hash128, std::vector<Hash128>> pages = {{kNumeric, Chain(prefix, 62)}};
      PlaceQuery q = QueryOf(1000);
      q.pages = &pages;
      q.hint = PlacementHint::kDisaggregated;
      return *c.Place(q);
    };
    EXPECT_EQ(place(0).prefill, p[2]) << "the hot one's holder is busy";
    EXPECT_EQ(place(1).prefill, p[1]);
    EXPECT_EQ(place(1).cached_tokens, 960u);
  }
}

// FF-111: fifty thousand distinct prefixes, evicted in turn or not: the index holds what the pools can, not what was
// ever said.
TEST(Router, FF111_TheIndexHoldsNoMoreThanItsWorkersCan) {
  for (const bool evicts : {true, false}) {
    Cluster c;
    std::vector<WorkerId> workers = {c.Add("p0", true, false), c.Add("p1", true, false)};
    std::map<WorkerId, std::vector<Hash128>> held;
    for (uint64_t i = 1; i <= 50000; ++i) {
      const WorkerId w = workers[i % 2];
      CacheEvents events{.sequence = (i + 1) / 2, .snapshot = i <= 2, .stored = {{i, i}}, .removed = {}};
      held[w].push_back({i, i});
      if (evicts && held[w].size() > 1000) {
        events.removed = {held[w][held[w].size() - 1001]};
      }
      ASSERT_TRUE(c.router.OnCacheEvents(w, events));
    }
    for (const auto& w : c.router.Snapshot(kNow)) EXPECT_EQ(w.cached_pages, evicts ? 1000u : 2000u);
  }
}

}  // namespace
}  // namespace baton

#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "base/hash.h"
#include "base/rng.h"

namespace baton {
namespace {

constexpr uint32_t kBlock = 16;
const Hash128 kRootHash = ChainRoot({1, 2}, {3, 4}, "");

// A prefix written as letters, one block each.
std::vector<TokenId> TokensOf(const std::string& letters) {
  std::vector<TokenId> tokens;
  for (const char c : letters) tokens.insert(tokens.end(), kBlock, c);
  return tokens;
}

// Takes blocks for `letters` and makes all of them findable.
BlockTable Fill(BlockPool* pool, const std::string& letters) {
  const std::vector<TokenId> tokens = TokensOf(letters);
  const std::vector<Hash128> hashes = PageHashes(kRootHash, tokens);
  const uint32_t count[] = {static_cast<uint32_t>(letters.size())};
  BlockTable table = std::move((*pool->Allocate(count))[0]);
  PrefixCursor cursor;
  for (uint32_t i = 0; i < count[0]; ++i) {
    EXPECT_TRUE(pool->IndexBlock(table, i, kRootHash, hashes, tokens, &cursor));
  }
  return table;
}
uint32_t Held(const BlockPool& pool, const std::string& letters) {
  const std::vector<TokenId> tokens = TokensOf(letters);
  return pool.MatchLength(kRootHash, PageHashes(kRootHash, tokens), tokens, 1000);
}

TEST(BlockPool, AllocationIsAllOrNothingOverAllGroups) {
  BlockPool pool(kBlock, {4, 2});
  const uint32_t too_many[] = {1, 3};
  EXPECT_FALSE(pool.Allocate(too_many).has_value());
  EXPECT_EQ(pool.counts(0).free, 4u);
  const uint32_t fits[] = {4, 2};
  auto tables = pool.Allocate(fits);
  ASSERT_TRUE(tables.has_value());
  EXPECT_EQ(pool.counts(0).owned, 4u);
  EXPECT_EQ(pool.counts(1).owned, 2u);
  pool.Audit();
  tables.reset();
  EXPECT_EQ(pool.counts(0).free, 4u);
  pool.Audit();
}

TEST(BlockPool, ARefusedAllocationEvictsNothing) {
  BlockPool pool(kBlock, {4});
  Fill(&pool, "ab");
  const uint32_t five[] = {5};
  EXPECT_FALSE(pool.Allocate(five).has_value());
  EXPECT_EQ(pool.counts(0).cached, 2u);
  EXPECT_EQ(Held(pool, "ab"), 2u);
}

TEST(BlockPool, LeavesGoBeforeTheirParentsAndOldBeforeNew) {
  BlockPool pool(kBlock, {6});
  Fill(&pool, "abc");
  Fill(&pool, "xyz");
  const auto take_one = [&pool] {
    const uint32_t one[] = {1};
    return std::move((*pool.Allocate(one))[0]);
  };
  std::vector<BlockTable> taken;
  taken.push_back(take_one());
  EXPECT_EQ(Held(pool, "abc"), 2u) << "the leaf of the older chain goes first";
  { BlockTable used = std::move(pool.Match(kRootHash, PageHashes(kRootHash, TokensOf("ab")), TokensOf("ab"), 9)[0]); }
  taken.push_back(take_one());
  EXPECT_EQ(Held(pool, "ab"), 2u) << "used since, so younger than the other chain";
  EXPECT_EQ(Held(pool, "xyz"), 2u);
  pool.Audit();
}

TEST(BlockPool, AHashCollisionServesNobodyAnothersBlock) {
  BlockPool pool(kBlock, {8});
  BlockTable mine = Fill(&pool, "ab");
  // A stranger's tokens under the same hashes.
  const std::vector<TokenId> other = TokensOf("xb");
  const std::vector<Hash128> forged = PageHashes(kRootHash, TokensOf("ab"));
  EXPECT_EQ(pool.MatchLength(kRootHash, forged, other, 9), 0u);
  const uint32_t two[] = {2};
  BlockTable theirs = std::move((*pool.Allocate(two))[0]);
  PrefixCursor cursor;
  EXPECT_FALSE(pool.IndexBlock(theirs, 0, kRootHash, forged, other, &cursor));
  EXPECT_EQ(cursor, PrefixCursor{});
  // The same tokens in another place of the chain do not pass either: b as a first block.
  const std::vector<TokenId> second = TokensOf("b");
  const Hash128 hash_of_ab[] = {forged[1]};
  EXPECT_EQ(pool.MatchLength(kRootHash, hash_of_ab, second, 9), 0u);
  // Nor does the same content under another salt.
  EXPECT_EQ(pool.MatchLength({9, 9}, forged, TokensOf("ab"), 9), 0u);
}

TEST(BlockPool, OfTwoEqualBlocksTheFirstStaysIndexed) {
  BlockPool pool(kBlock, {8});
  BlockTable first = Fill(&pool, "ab");
  BlockTable second = Fill(&pool, "abc");
  const auto hit = pool.Match(kRootHash, PageHashes(kRootHash, TokensOf("abc")), TokensOf("abc"), 9);
  ASSERT_EQ(hit[0].size(), 3u);
  EXPECT_EQ(hit[0].blocks()[0], first.blocks()[0]);
  EXPECT_EQ(hit[0].blocks()[2], second.blocks()[2]);
  EXPECT_FALSE(pool.IsIndexed(0, second.blocks()[0]));
}

TEST(BlockPool, AChainWhoseParentWasEvictedIsNotContinued) {
  BlockPool pool(kBlock, {4});
  BlockTable first = Fill(&pool, "a");
  BlockTable second = Fill(&pool, "ab");  // its own a is a duplicate, its b hangs on the first one
  first.Truncate(0);
  const uint32_t two[] = {2};
  auto rest = pool.Allocate(two);  // evicts a, and b leaves the index with it
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(Held(pool, "ab"), 0u);
  EXPECT_FALSE(pool.IsIndexed(0, second.blocks()[1]));
  pool.Audit();
}

TEST(BlockPool, QuarantinedBlocksComeBackOnlyByRelease) {
  BlockPool pool(kBlock, {4});
  const uint32_t three[] = {3};
  QuarantinedBlocks held = pool.Quarantine(std::move((*pool.Allocate(three))[0]));
  EXPECT_EQ(pool.counts(0).quarantined, 3u);
  const uint32_t two[] = {2};
  EXPECT_FALSE(pool.Allocate(two).has_value());
  pool.Audit();
  pool.Release(std::move(held));
  EXPECT_EQ(pool.counts(0).free, 4u);
  { QuarantinedBlocks dropped = pool.Quarantine(std::move((*pool.Allocate(two))[0])); }
  EXPECT_EQ(pool.counts(0).quarantined, 2u) << "a lost holder never frees what may still be written";
  pool.Audit();
}

TEST(BlockPool, TablesShareSplitAndAppendWithoutLosingAReference) {
  BlockPool pool(kBlock, {6});
  const uint32_t four[] = {4};
  BlockTable table = std::move((*pool.Allocate(four))[0]);
  BlockTable shared = table.Share(2);
  EXPECT_EQ(table.CountSole(), 2u);
  BlockTable tail = table.SplitOff(3);
  table.Truncate(0);
  EXPECT_EQ(pool.counts(0).owned, 3u);
  shared.Append(std::move(tail));
  EXPECT_EQ(shared.size(), 3u);
  BlockTable moved = std::move(shared);
  moved = BlockTable();
  EXPECT_EQ(pool.counts(0).free, 6u);
}

TEST(BlockPool, EventsTellWhatIsFindableInEveryGroupAndNetOutWhatCameAndWent) {
  BlockPool pool(kBlock, {2, 2});
  const std::vector<TokenId> tokens = TokensOf("a");
  const std::vector<Hash128> hashes = PageHashes(kRootHash, tokens);
  const uint32_t one[] = {1, 1};
  auto tables = *pool.Allocate(one);
  PrefixCursor cursors[2];
  ASSERT_TRUE(pool.IndexBlock(tables[0], 0, kRootHash, hashes, tokens, &cursors[0]));
  EXPECT_TRUE(pool.TakeEvents().stored.empty()) << "the other group lacks it";
  EXPECT_EQ(pool.MatchLength(kRootHash, hashes, tokens, 9), 0u);
  ASSERT_TRUE(pool.IndexBlock(tables[1], 0, kRootHash, hashes, tokens, &cursors[1]));
  EXPECT_EQ(pool.TakeEvents().stored, hashes);
  EXPECT_EQ(pool.TakeSnapshot(), hashes);
  tables.clear();
  const uint32_t all[] = {2, 2};
  ASSERT_TRUE(pool.Allocate(all).has_value());
  EXPECT_EQ(pool.TakeEvents().removed, hashes) << "removed once, with the first group that lost it";
}

// ---- against a naive model --------------------------------------------------------------------
// The model keeps strings and looks at everything every time.
struct Model {
  struct Entry {
    uint32_t block;
    uint64_t idle_since;  // 0: in use
  };
  std::map<std::string, Entry> index;  // whole prefix -> its last block
  std::map<uint32_t, int> references;
  uint32_t total = 0, quarantined = 0;
  uint64_t stamp = 0;

  std::string NameOf(uint32_t block) const {
    for (const auto& [name, e] : index) {
      if (e.block == block) return name;
    }
    return "";
  }
  bool IsLeaf(const std::string& name) const {
    const auto next = std::next(index.find(name));
    return next == index.end() || next->first.compare(0, name.size(), name) != 0;
  }
  uint32_t cached() const {
    uint32_t n = 0;
    for (const auto& [name, e] : index) n += e.idle_since != 0;
    return n;
  }
  uint32_t owned() const { return static_cast<uint32_t>(references.size()); }
  uint32_t free() const { return total - owned() - cached() - quarantined; }
  void Evict() {
    std::string victim;
    for (const bool leaves_only : {true, false}) {
      uint64_t oldest = ~uint64_t{0};
      for (const auto& [name, e] : index) {
        if (e.idle_since == 0 || e.idle_since >= oldest || (leaves_only && !IsLeaf(name))) continue;
        oldest = e.idle_since;
        victim = name;
      }
      if (!victim.empty()) break;
    }
    for (auto it = index.find(victim); it != index.end() && it->first.compare(0, victim.size(), victim) == 0;) {
      it = index.erase(it);
    }
  }
  void Add(uint32_t block) {
    if (++references[block] > 1) return;
    const std::string name = NameOf(block);
    if (!name.empty()) index[name].idle_since = 0;
  }
  void Drop(uint32_t block) {
    if (--references[block] > 0) return;
    references.erase(block);
    const std::string name = NameOf(block);
    if (!name.empty()) index[name].idle_since = ++stamp;
  }
};

class PoolWorld {
 public:
  PoolWorld(uint64_t seed, uint32_t blocks) : rng_(seed), pool_(kBlock, {blocks}) { model_.total = blocks; }

  void Act() {
    switch (rng_.Below(8)) {
      case 0:
      case 1:
        Start();
        break;
      case 2:
        Grow();
        break;
      case 3:
        IndexNext();
        IndexNext();
        break;
      case 4:
        Release();
        break;
      case 5:
        ShareOrMove();
        break;
      case 6:
        Truncate();
        break;
      case 7:
        rng_.Chance(0.5) ? EnterQuarantine() : LeaveQuarantine();
        break;
    }
  }
  void Check() {
    pool_.Audit();
    const BlockCounts& c = pool_.counts(0);
    ASSERT_EQ(c.owned, model_.owned());
    ASSERT_EQ(c.cached, model_.cached());
    ASSERT_EQ(c.quarantined, model_.quarantined);
    ASSERT_EQ(c.free, model_.free());
    for (uint32_t b = 0; b < c.total; ++b) ASSERT_EQ(pool_.IsIndexed(0, BlockId{b}), !model_.NameOf(b).empty());
    PrefixEvents events = pool_.TakeEvents();
    for (const Hash128& h : events.removed) ASSERT_EQ(known_.erase(h), 1u);
    for (const Hash128& h : events.stored) ASSERT_TRUE(known_.insert(h).second);
    std::set<Hash128> expected;
    for (const auto& [name, e] : model_.index) expected.insert(PageHashes(kRootHash, TokensOf(name)).back());
    ASSERT_EQ(known_, expected) << "who follows the events knows what is there";
  }
  void Finish() {
    lines_.clear();
    while (!held_.empty()) LeaveQuarantine();
    pool_.Audit();
    EXPECT_EQ(pool_.counts(0).owned, 0u);
    EXPECT_EQ(pool_.counts(0).available(), pool_.counts(0).total);
  }

 private:
  struct Line {
    std::string letters;
    BlockTable table;
    PrefixCursor cursor;
    uint32_t indexed = 0;
    bool indexable = true;
  };
  std::string Letters(size_t n) {
    std::string s;
    while (s.size() < n) s += static_cast<char>('a' + rng_.Below(2));
    return s;
  }
  Line* Any() { return lines_.empty() ? nullptr : &lines_[rng_.Below(lines_.size())]; }
  bool Take(Line* line, uint32_t n) {
    const uint32_t count[] = {n};
    const bool fits = model_.free() + model_.cached() >= n;
    const uint32_t before = line->table.size();
    EXPECT_EQ(pool_.Grow({&line->table, 1}, count), fits);
    if (!fits) return false;
    for (uint32_t i = 0; i < n; ++i) {
      if (model_.free() == 0) model_.Evict();
      model_.Add(Index(line->table.blocks()[before + i]));
    }
    return true;
  }
  void Start() {
    Line line;
    line.letters = Letters(1 + rng_.Below(5));
    const std::vector<TokenId> tokens = TokensOf(line.letters);
    const auto limit = static_cast<uint32_t>(rng_.Below(6));
    line.table = std::move(pool_.Match(kRootHash, PageHashes(kRootHash, tokens), tokens, limit)[0]);
    uint32_t hit = 0;
    while (hit < std::min<size_t>(limit, line.letters.size()) &&
           model_.index.contains(line.letters.substr(0, hit + 1))) {
      EXPECT_LT(hit, line.table.size());
      EXPECT_EQ(Index(line.table.blocks()[hit]), model_.index[line.letters.substr(0, hit + 1)].block);
      model_.Add(Index(line.table.blocks()[hit]));
      ++hit;
    }
    EXPECT_EQ(line.table.size(), hit);
    if (hit > 0) line.cursor = pool_.CursorOf(0, line.table.blocks()[hit - 1]);
    line.indexed = hit;
    if (Take(&line, static_cast<uint32_t>(line.letters.size()) - hit)) {
      lines_.push_back(std::move(line));
    } else {
      Drop(&line.table, 0);
    }
  }
  void Grow() {
    Line* line = Any();
    if (line == nullptr || line->letters.size() > 8) return;
    if (Take(line, 1)) line->letters += Letters(1);
  }
  void IndexNext() {
    Line* line = Any();
    if (line == nullptr || !line->indexable || line->indexed >= line->table.size()) return;
    const std::vector<TokenId> tokens = TokensOf(line->letters);
    const std::string name = line->letters.substr(0, line->indexed + 1);
    const uint32_t block = Index(line->table.blocks()[line->indexed]);
    const bool ok =
        pool_.IndexBlock(line->table, line->indexed, kRootHash, PageHashes(kRootHash, tokens), tokens, &line->cursor);
    if (!ok) {
      // Only when the block that it hangs on was evicted since; it may be back under another id.
      line->indexable = false;
      return;
    }
    ASSERT_TRUE(name.size() == 1 || model_.index.contains(name.substr(0, name.size() - 1)));
    model_.index.try_emplace(name, Model::Entry{block, 0});
    ++line->indexed;
  }
  void Drop(BlockTable* table, uint32_t keep) {
    for (uint32_t i = table->size(); i-- > keep;) model_.Drop(Index(table->blocks()[i]));
    table->Truncate(keep);
  }
  void Release() {
    if (lines_.empty()) return;
    const size_t i = rng_.Below(lines_.size());
    Drop(&lines_[i].table, 0);
    lines_.erase(lines_.begin() + static_cast<ptrdiff_t>(i));
  }
  void ShareOrMove() {
    Line* line = Any();
    if (line == nullptr) return;
    Line copy;
    copy.letters = line->letters;
    copy.indexable = false;
    copy.table = line->table.Share(line->table.size());
    for (const BlockId b : copy.table.blocks()) model_.Add(Index(b));
    BlockTable tail = copy.table.SplitOff(static_cast<uint32_t>(rng_.Below(copy.table.size() + 1)));
    copy.table.Append(std::move(tail));
    lines_.push_back(std::move(copy));
  }
  void Truncate() {
    Line* line = Any();
    if (line == nullptr || line->table.size() < 2) return;
    Drop(&line->table, line->table.size() - 1);
    line->letters.resize(line->table.size());
    if (line->indexed > line->table.size()) line->indexable = false;
  }
  void EnterQuarantine() {
    Line line;
    const auto n = static_cast<uint32_t>(1 + rng_.Below(3));
    if (!Take(&line, n)) return;
    for (const BlockId b : line.table.blocks()) model_.references.erase(Index(b));
    model_.quarantined += n;
    held_.push_back(pool_.Quarantine(std::move(line.table)));
  }
  void LeaveQuarantine() {
    if (held_.empty()) return;
    const size_t i = rng_.Below(held_.size());
    model_.quarantined -= held_[i].size();
    pool_.Release(std::move(held_[i]));
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
  }

  Rng rng_;
  BlockPool pool_;
  Model model_;
  std::vector<Line> lines_;
  std::vector<QuarantinedBlocks> held_;
  std::set<Hash128> known_;
};

TEST(BlockPool, BehavesAsTheNaiveModelOverRandomOperations) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    PoolWorld world(seed, static_cast<uint32_t>(4 + seed % 13));
    for (int i = 0; i < 80; ++i) {
      world.Act();
      world.Check();
      if (testing::Test::HasFailure()) return;
    }
    world.Finish();
  }
}

TEST(PageHashesTest, AreChainedAndExtendOverFullPagesOnly) {
  const std::vector<TokenId> tokens = TokensOf("abcd");
  const std::vector<Hash128> all = PageHashes(kRootHash, tokens);
  ASSERT_EQ(all.size(), 4u);
  std::vector<Hash128> some = PageHashes(kRootHash, std::span(tokens).first(2 * kBlock + 7));
  EXPECT_EQ(some.size(), 2u);
  ExtendPageHashes(kRootHash, tokens, &some);
  EXPECT_EQ(some, all);
  EXPECT_NE(PageHashes({7, 7}, tokens)[3], all[3]);
}

}  // namespace
}  // namespace baton

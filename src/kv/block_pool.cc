#include "kv/block_pool.h"

#include <algorithm>

#include "baton/check.h"
#include "baton/kv_layout.h"

namespace baton {

BlockPool::BlockPool(uint32_t block_tokens, const std::vector<uint32_t>& num_blocks)
    : block_tokens_(block_tokens), groups_(num_blocks.size()), cache_(block_tokens, num_blocks) {
  BATON_CHECK(block_tokens > 0 && block_tokens % kPageTokens == 0, "block_tokens must be a multiple of 16");
  BATON_CHECK(!num_blocks.empty(), "a pool needs a group");
  for (size_t g = 0; g < num_blocks.size(); ++g) {
    Group& group = groups_[g];
    group.blocks.resize(num_blocks[g]);
    group.counts.total = group.counts.free = num_blocks[g];
    group.free.reserve(num_blocks[g]);
    for (uint32_t b = num_blocks[g]; b-- > 0;) group.free.push_back(BlockId{b});
  }
}

bool BlockPool::CanAllocate(std::span<const uint32_t> count) const {
  BATON_CHECK(count.size() == groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].counts.available() < count[g]) return false;
  }
  return true;
}

std::optional<std::vector<BlockTable>> BlockPool::Allocate(std::span<const uint32_t> count) {
  std::vector<BlockTable> tables(groups_.size());
  if (!Grow(tables, count)) return std::nullopt;
  return tables;
}

bool BlockPool::Grow(std::span<BlockTable> tables, std::span<const uint32_t> count) {
  BATON_CHECK(tables.size() == groups_.size());
  if (!CanAllocate(count)) return false;
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    BlockTable& table = tables[g];
    BATON_CHECK(table.empty() || (table.pool_ == this && table.group_ == g), "a table of another group");
    table.pool_ = this;
    table.group_ = g;
    for (uint32_t i = 0; i < count[g]; ++i) table.blocks_.push_back(Take(g));
  }
  return true;
}

BlockId BlockPool::Take(uint32_t group) {
  Group& g = groups_[group];
  if (g.free.empty()) {
    evicted_.clear();
    BATON_CHECK(cache_.EvictOne(group, &evicted_), "no block is free or cached");
    for (const BlockId b : evicted_) {
      // Descendants that are in use stay owned, only unindexed.
      if (g.blocks[Index(b)].references != 0) continue;
      --g.counts.cached;
      ++g.counts.free;
      g.blocks[Index(b)].free = true;
      g.free.push_back(b);
    }
  }
  const BlockId block = g.free.back();
  g.free.pop_back();
  Block& b = g.blocks[Index(block)];
  b.free = false;
  b.references = 1;
  --g.counts.free;
  ++g.counts.owned;
  return block;
}

void BlockPool::AddReference(uint32_t group, BlockId block) {
  Group& g = groups_[group];
  Block& b = g.blocks[Index(block)];
  if (b.references++ == 0) {
    BATON_CHECK(!b.free && !b.quarantined, "a reference to a block that nobody has");
    cache_.SetUsed(group, block);
    --g.counts.cached;
    ++g.counts.owned;
  }
}

void BlockPool::DropReference(uint32_t group, BlockId block) {
  Group& g = groups_[group];
  Block& b = g.blocks[Index(block)];
  BATON_CHECK(b.references > 0, "a block released twice");
  if (--b.references > 0) return;
  --g.counts.owned;
  if (cache_.Contains(group, block)) {
    cache_.SetIdle(group, block);
    ++g.counts.cached;
    ++num_released_;
  } else {
    MakeFree(group, block);
  }
}

void BlockPool::MakeFree(uint32_t group, BlockId block) {
  Group& g = groups_[group];
  g.blocks[Index(block)].free = true;
  g.free.push_back(block);
  ++g.counts.free;
  ++num_released_;
}

std::vector<BlockTable> BlockPool::Match(const Hash128& root, std::span<const Hash128> page_hashes,
                                         std::span<const TokenId> tokens, uint32_t max_blocks) {
  std::vector<std::vector<BlockId>> found = cache_.Match(root, page_hashes, tokens, max_blocks);
  std::vector<BlockTable> tables;
  tables.reserve(groups_.size());
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    for (const BlockId block : found[g]) AddReference(g, block);
    tables.push_back(BlockTable(this, g, std::move(found[g])));
  }
  return tables;
}

uint32_t BlockPool::MatchLength(const Hash128& root, std::span<const Hash128> page_hashes,
                                std::span<const TokenId> tokens, uint32_t max_blocks) const {
  return static_cast<uint32_t>(cache_.Match(root, page_hashes, tokens, max_blocks)[0].size());
}

bool BlockPool::IndexBlock(const BlockTable& table, uint32_t index, const Hash128& root,
                           std::span<const Hash128> page_hashes, std::span<const TokenId> tokens,
                           PrefixCursor* cursor) {
  const size_t end = size_t{index + 1} * block_tokens_;
  BATON_CHECK(index < table.size() && tokens.size() >= end && page_hashes.size() >= end / kPageTokens,
              "a block is indexed when it is full");
  const Hash128& hash = page_hashes[end / kPageTokens - 1];
  const std::optional<PrefixCursor> next = cache_.Insert(table.group(), *cursor, table.blocks()[index], root, hash,
                                                         tokens.subspan(end - block_tokens_, block_tokens_));
  if (!next) return false;
  *cursor = *next;
  return true;
}

QuarantinedBlocks BlockPool::Quarantine(BlockTable&& table) {
  QuarantinedBlocks out;
  out.group_ = table.group_;
  out.blocks_ = std::move(table.blocks_);
  table.blocks_.clear();
  if (out.blocks_.empty()) return out;
  BATON_CHECK(table.pool_ == this);
  Group& g = groups_[out.group_];
  for (const BlockId block : out.blocks_) {
    Block& b = g.blocks[Index(block)];
    BATON_CHECK(b.references == 1 && !cache_.Contains(out.group_, block), "a shared block in quarantine");
    b.references = 0;
    b.quarantined = true;
    --g.counts.owned;
    ++g.counts.quarantined;
  }
  return out;
}

void BlockPool::Release(QuarantinedBlocks&& blocks) {
  if (blocks.blocks_.empty()) return;
  Group& g = groups_[blocks.group_];
  for (const BlockId block : blocks.blocks_) {
    Block& b = g.blocks[Index(block)];
    BATON_CHECK(b.quarantined);
    b.quarantined = false;
    --g.counts.quarantined;
    MakeFree(blocks.group_, block);
  }
  blocks.blocks_.clear();
}

void BlockPool::Audit() const {
  cache_.Audit();
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    const Group& g = groups_[group];
    BlockCounts seen;
    seen.total = static_cast<uint32_t>(g.blocks.size());
    for (uint32_t i = 0; i < g.blocks.size(); ++i) {
      const Block& b = g.blocks[i];
      const bool indexed = cache_.Contains(group, BlockId{i});
      const bool owned = b.references > 0;
      const bool cached = !owned && !b.free && !b.quarantined;
      BATON_CHECK(int{b.free} + int{owned} + int{cached} + int{b.quarantined} == 1, Describe());
      BATON_CHECK(!(indexed && (b.free || b.quarantined)), "an indexed block is free or quarantined");
      BATON_CHECK(!cached || indexed, "a block without owner is not indexed");
      BATON_CHECK(cache_.IsIdle(group, BlockId{i}) == cached, "the eviction order disagrees");
      seen.free += b.free;
      seen.owned += owned;
      seen.cached += cached;
      seen.quarantined += b.quarantined;
    }
    BATON_CHECK(seen == g.counts, Describe());
    BATON_CHECK(g.free.size() == seen.free, Describe());
    for (const BlockId b : g.free) BATON_CHECK(g.blocks[Index(b)].free, Describe());
    BATON_CHECK(seen.free + seen.owned + seen.cached + seen.quarantined == seen.total, Describe());
  }
}

std::string BlockPool::Describe() const {
  std::string out;
  for (const Group& g : groups_) {
    const BlockCounts& c = g.counts;
    if (!out.empty()) out += "; ";
    out += std::to_string(c.total) + " blocks: " + std::to_string(c.free) + " free, " + std::to_string(c.owned) +
           " owned, " + std::to_string(c.cached) + " cached, " + std::to_string(c.quarantined) + " quarantined";
  }
  return out;
}

}  // namespace baton

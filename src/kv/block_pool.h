// One worker's KV blocks as numbers: which are free, who holds which, which are kept as prefix cache, which
// must not be touched. It never sees the memory. Engine thread; no locks.
//
// Always true, per group: free + owned + cached + quarantined = total, and
//   free         no references, not indexed; may be handed out
//   owned        >= 1 reference, each in exactly one BlockTable; indexed or not
//   cached       no references, indexed in the prefix cache; may be evicted and handed out
//   quarantined  a peer may still write into it; leaves only through Release
// A block handed out by Allocate is not indexed and has one reference. Its bytes are whatever they were: the
// caller has it zeroed before anything reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baton/ids.h"
#include "kv/block_table.h"
#include "kv/prefix_cache.h"

namespace baton {

struct BlockCounts {
  uint32_t total = 0;
  uint32_t free = 0;
  uint32_t owned = 0;
  uint32_t cached = 0;
  uint32_t quarantined = 0;
  uint32_t available() const { return free + cached; }
  friend bool operator==(const BlockCounts&, const BlockCounts&) = default;
};

class BlockPool {
 public:
  // block_tokens: a multiple of kPageTokens. num_blocks[group].
  BlockPool(uint32_t block_tokens, const std::vector<uint32_t>& num_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  uint32_t block_tokens() const { return block_tokens_; }
  uint32_t num_groups() const { return static_cast<uint32_t>(groups_.size()); }
  uint32_t BlocksFor(uint64_t tokens) const {
    return static_cast<uint32_t>((tokens + block_tokens_ - 1) / block_tokens_);
  }
  const BlockCounts& counts(uint32_t group) const { return groups_[group].counts; }
  // Blocks that became free or cached since the start: unchanged means that no refused request fits now.
  uint64_t num_released() const { return num_released_; }

  // count[group] new blocks of every group, or nothing at all. Evicts cached blocks as needed, but only
  // once it is sure to succeed.
  std::optional<std::vector<BlockTable>> Allocate(std::span<const uint32_t> count);
  // Appends count[group] new blocks to tables[group], all or nothing. Tables may be empty.
  bool Grow(std::span<BlockTable> tables, std::span<const uint32_t> count);
  bool CanAllocate(std::span<const uint32_t> count) const;

  // The longest cached prefix of `tokens` in whole blocks, at most max_blocks, shared: result[group], all of
  // one length. page_hashes = PageHashes(root, tokens).
  std::vector<BlockTable> Match(const Hash128& root, std::span<const Hash128> page_hashes,
                                std::span<const TokenId> tokens, uint32_t max_blocks);
  // The same, only counted: nothing is shared or touched.
  uint32_t MatchLength(const Hash128& root, std::span<const Hash128> page_hashes, std::span<const TokenId> tokens,
                       uint32_t max_blocks) const;

  // Makes block number `index` of a table findable: every one of its bytes is written (S9; the caller vouches
  // for that). tokens and page_hashes are those of the table's whole sequence from position 0. `cursor` is
  // where block index - 1 stands in this group's index (the default cursor before block 0); it is moved on.
  // False: this chain can no longer be indexed, see PrefixCache::Insert; the caller stops trying.
  bool IndexBlock(const BlockTable& table, uint32_t index, const Hash128& root, std::span<const Hash128> page_hashes,
                  std::span<const TokenId> tokens, PrefixCursor* cursor);
  // The cursor of a block that Match returned.
  PrefixCursor CursorOf(uint32_t group, BlockId block) const { return cache_.CursorOf(group, block); }
  bool IsIndexed(uint32_t group, BlockId block) const { return cache_.Contains(group, block); }

  // Tables that hold the block.
  uint32_t NumReferences(uint32_t group, BlockId block) const { return groups_[group].blocks[Index(block)].references; }

  // The table's blocks have this one reference and are not indexed: only new blocks of a ticket are ever
  // quarantined (S2).
  QuarantinedBlocks Quarantine(BlockTable&& table);
  // The writer is proven quiet: the blocks are free again.
  void Release(QuarantinedBlocks&& blocks);

  PrefixEvents TakeEvents() { return cache_.TakeEvents(); }
  std::vector<Hash128> TakeSnapshot() { return cache_.TakeSnapshot(); }

  // Recounts everything from scratch; aborts where a count, a list or a link disagrees. For tests and the
  // simulator, after every event.
  void Audit() const;
  std::string Describe() const;  // counts per group, for logs

 private:
  friend class BlockTable;
  struct Block {
    uint32_t references = 0;
    bool quarantined = false;
    bool free = true;
  };
  struct Group {
    std::vector<Block> blocks;
    std::vector<BlockId> free;  // taken from the back
    BlockCounts counts;
  };
  BlockId Take(uint32_t group);  // a free block, evicting if none is; the caller made sure of one
  void AddReference(uint32_t group, BlockId block);
  void DropReference(uint32_t group, BlockId block);
  void MakeFree(uint32_t group, BlockId block);

  uint32_t block_tokens_;
  std::vector<Group> groups_;
  PrefixCache cache_;
  uint64_t num_released_ = 0;
  std::vector<BlockId> evicted_;  // scratch
};

}  // namespace baton

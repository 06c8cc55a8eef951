// A list of blocks of one group, and the only thing that owns references to blocks: a Sequence, an outbound
// hand-off, or a launched step that outlives its sequence holds one per group. Move-only; what it still
// holds when it is destroyed is released, last block first, so that the cache evicts leaves before their
// parents. Engine thread. The pool outlives every table.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "baton/ids.h"

namespace baton {

class BlockPool;

class BlockTable {
 public:
  BlockTable() = default;  // holds nothing and belongs to no pool; Append gives it one
  BlockTable(BlockTable&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), group_(other.group_), blocks_(std::move(other.blocks_)) {
    other.blocks_.clear();
  }
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;
  ~BlockTable() { Truncate(0); }

  const std::vector<BlockId>& blocks() const { return blocks_; }
  uint32_t size() const { return static_cast<uint32_t>(blocks_.size()); }
  bool empty() const { return blocks_.empty(); }
  uint32_t group() const { return group_; }

  // A second table with a reference to each of the first `count` blocks (at most size()).
  BlockTable Share(uint32_t count) const;
  // Keeps the first `count` blocks, releases the rest.
  void Truncate(uint32_t count);
  // Keeps the first `count` blocks, returns the rest with their references.
  BlockTable SplitOff(uint32_t count);
  // Takes over the blocks of `tail`, which is of the same pool and group, behind its own.
  void Append(BlockTable&& tail);
  // Blocks that no other table holds: what would become free or cached if this table went away.
  uint32_t CountSole() const;

 private:
  friend class BlockPool;
  BlockTable(BlockPool* pool, uint32_t group, std::vector<BlockId> blocks)
      : pool_(pool), group_(group), blocks_(std::move(blocks)) {}

  BlockPool* pool_ = nullptr;
  uint32_t group_ = 0;
  std::vector<BlockId> blocks_;  // one reference each
};

// Blocks whose writer has not been proven quiet. They are nobody's: neither read, nor handed out. The only
// way back is BlockPool::Release. A holder that is dropped leaves its blocks quarantined for good: losing
// memory is safe, reusing it is not.
class QuarantinedBlocks {
 public:
  QuarantinedBlocks() = default;
  QuarantinedBlocks(QuarantinedBlocks&&) = default;
  QuarantinedBlocks& operator=(QuarantinedBlocks&&) = default;
  QuarantinedBlocks(const QuarantinedBlocks&) = delete;
  QuarantinedBlocks& operator=(const QuarantinedBlocks&) = delete;

  uint32_t group() const { return group_; }
  uint32_t size() const { return static_cast<uint32_t>(blocks_.size()); }

 private:
  friend class BlockPool;
  uint32_t group_ = 0;
  std::vector<BlockId> blocks_;
};

}  // namespace baton

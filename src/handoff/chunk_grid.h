// How the KV of one hand-off is cut into chunks, and a chunk into copies. Pure arithmetic that writer and
// reader do alike from (layout, blocks that move): so a chunk is a number on the wire.
//
// A chunk is a band of blocks times a band of layers of one group. Together the chunks of a grid cover every
// byte of every moving block exactly once; the reader's blocks therefore need no zeroing before GRANT.
//
// A migration's grid grows with the sequence: Append, and LastApart for what a GRANT of it covers, since the last block
// is written until the cut-over and the others are not to wait for it.
//
// Moving blocks are the writer's, always. Where the reader's layout is unlike, they begin with the writer's block that
// holds the first token the reader lacks: its first pages may be held already and are sent again (at most a block a
// hand-off: a page of K is runs of 64 bytes in the tiles, which cost more to place one by one than to send).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "baton/kv_layout.h"
#include "baton/kv_transport.h"

namespace baton {

struct Chunk {
  uint32_t group = 0;
  uint32_t first_block = 0;  // among the moving blocks of the group
  uint32_t num_blocks = 0;
  uint32_t first_layer = 0;
  uint32_t num_layers = 0;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

class ChunkGrid {
 public:
  ChunkGrid() = default;
  // num_blocks[group]: blocks that move. Bands are 16 blocks (more only beyond kMaxChunks) by a tenth of the
  // layers but at least 4: small enough that nearly all bytes move while later layers compute.
  ChunkGrid(const KvLayout& layout, const std::vector<uint32_t>& num_blocks);
  // Chunks of so many further blocks of every group, numbered behind those before.
  void Append(const KvLayout& layout, uint32_t num_blocks);
  // The same, the last of the blocks in chunks of its own.
  void AppendLastApart(const KvLayout& layout, uint32_t num_blocks);

  ChunkIndex size() const { return size_; }
  Chunk At(ChunkIndex index) const;
  // What PlanCopies takes as first_target for that chunk between equal layouts, where each GRANT's blocks come in the
  // order of the groups, behind those of the GRANTs before.
  uint32_t FirstTarget(ChunkIndex index) const { return PartOf(index).first_target; }
  uint64_t BytesOf(const Chunk& chunk) const;
  uint64_t TotalBytes() const;

 private:
  // Blocks of a group that were added together.
  struct Part {
    uint32_t group = 0;
    uint32_t first_block = 0;   // among the group's moving blocks
    uint32_t first_target = 0;  // see PlaceTargets
    uint32_t num_blocks = 0, num_layers = 0, block_band = 1, layer_band = 1, layer_bands = 0;
    ChunkIndex first = 0;
    uint64_t bytes_per_block_layer = 0;
  };
  std::vector<uint32_t> PlaceTargets(const std::vector<uint32_t>& num_blocks);
  void AppendParts(const KvLayout& layout, const std::vector<uint32_t>& num_blocks,
                   const std::vector<uint32_t>& first_target);
  const Part& PartOf(ChunkIndex index) const;

  std::vector<Part> parts_;
  std::vector<uint32_t> blocks_;  // [group]: so far
  uint32_t targets_ = 0;
  ChunkIndex size_ = 0;
};

inline constexpr ChunkIndex kMaxChunks = 4096;

// The writer's first block that moves when the reader holds [0, hit_tokens) of num_tokens.
uint32_t FirstMovingBlock(const KvLayout& writer, uint32_t hit_tokens, uint32_t num_tokens);
inline uint32_t NumMovingBlocks(const KvLayout& writer, uint32_t hit_tokens, uint32_t num_tokens) {
  return writer.BlocksFor(num_tokens) - FirstMovingBlock(writer, hit_tokens, num_tokens);
}

// The copies of one chunk. `source`: the writer's blocks of the chunk's group that move, in order; `first_target`:
// index of the group's first block in the ticket; staging_block_bytes: 0 between equal layouts (block n into block n),
// else the targets are staging (StagingMap). Neighbours that are contiguous on both sides are one piece.
std::vector<CopyPiece> PlanCopies(const KvLayout& layout, const KvPoolPlan& source_pool, const Chunk& chunk,
                                  std::span<const BlockId> source, uint32_t first_target,
                                  uint64_t staging_block_bytes = 0);

}  // namespace baton

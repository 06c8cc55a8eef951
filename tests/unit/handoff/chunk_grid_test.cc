#include "handoff/chunk_grid.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"

namespace baton {
namespace {

KvLayout Layout(uint32_t layers, uint32_t heads, uint32_t dim, uint32_t block_tokens) {
  KvLayout layout;
  layout.block_tokens = block_tokens;
  layout.groups.push_back({KvKind::kFull, layers, heads, dim, DType::kBF16});
  return layout;
}

TEST(ChunkGridTest, EveryByteOfEveryMovingBlockIsCopiedExactlyOnce) {
  Rng rng(1);
  for (int round = 0; round < 300; ++round) {
    KvLayout layout = Layout(1 + rng.Below(40), 1 + rng.Below(4), 8, 16);
    if (rng.Chance(0.3)) layout.groups.push_back({KvKind::kFull, 1 + static_cast<uint32_t>(rng.Below(9)), 2, 4});
    std::vector<uint32_t> moving;
    std::vector<std::vector<BlockId>> source;
    uint32_t pool_blocks = 0;
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      moving.push_back(rng.Below(60));
      pool_blocks = std::max(pool_blocks, moving.back() + 1);
    }
    const KvPoolPlan pool = PlanPool(layout, uint64_t{1} << 30);
    uint32_t ticket_blocks = 0;
    std::vector<uint32_t> first_target;
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      first_target.push_back(ticket_blocks);
      ticket_blocks += moving[g];
      source.emplace_back();
      for (uint32_t b = 0; b < moving[g]; ++b) source.back().push_back(BlockId{moving[g] - b});
    }
    const ChunkGrid grid(layout, moving);
    EXPECT_LE(grid.size(), kMaxChunks);

    std::vector<std::vector<bool>> covered(ticket_blocks);
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      for (uint32_t b = 0; b < moving[g]; ++b) covered[first_target[g] + b].resize(layout.BlockBytes(g) / 4);
    }
    uint64_t total = 0;
    for (ChunkIndex i = 0; i < grid.size(); ++i) {
      const Chunk chunk = grid.At(i);
      uint64_t bytes = 0;
      for (const CopyPiece& p : PlanCopies(layout, pool, chunk, source[chunk.group], first_target[chunk.group])) {
        bytes += p.bytes;
        const uint32_t in_group = p.target_block - first_target[chunk.group];
        ASSERT_EQ(p.source, pool.BlockOffset(layout, chunk.group, source[chunk.group][in_group]) + p.target_offset);
        for (uint64_t at = p.target_offset / 4; at < (p.target_offset + p.bytes) / 4; ++at) {
          ASSERT_FALSE(covered[p.target_block][at]);
          covered[p.target_block][at] = true;
        }
      }
      ASSERT_EQ(bytes, grid.BytesOf(chunk));
      total += bytes;
    }
    ASSERT_EQ(total, grid.TotalBytes());
    for (const auto& block : covered) ASSERT_EQ(std::count(block.begin(), block.end(), false), 0);
  }
}

TEST(ChunkGridTest, NineTenthsOfA512TokenPromptMoveBeforeTheLastLayerOfThirty) {
  const ChunkGrid grid(Layout(30, 3, 64, 32), {16});
  uint64_t before = 0;
  for (ChunkIndex i = 0; i < grid.size(); ++i) {
    const Chunk c = grid.At(i);
    if (c.first_layer + c.num_layers <= 29) before += grid.BytesOf(c);
  }
  EXPECT_GE(before, grid.TotalBytes() * 9 / 10);
}

TEST(ChunkGridTest, AHugePromptStaysUnderTheChunkLimit) {
  EXPECT_LE(ChunkGrid(Layout(126, 1, 64, 16), {70000}).size(), kMaxChunks);
}

}  // namespace
}  // namespace baton

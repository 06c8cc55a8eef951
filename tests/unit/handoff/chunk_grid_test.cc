#include "handoff/chunk_grid.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"
#include "support/seed_share.h"

namespace baton {
namespace {

KvLayout Layout(uint32_t layers, uint32_t heads, uint32_t dim, uint32_t block_tokens, DType dtype = DType::kBF16) {
  KvLayout layout;
  layout.block_tokens = block_tokens;
  layout.groups.push_back({KvKind::kFull, layers, heads, dim, dtype});
  return layout;
}

DType AnyType(Rng* rng) {
  constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kI8};
  return kTypes[rng->Below(4)];
}

// FF-030
TEST(ChunkGridTest, EveryByteOfEveryMovingBlockIsCopiedExactlyOnce) {
  Rng rng(1);
  for (int round = 0; round < 300; ++round) {
    KvLayout layout = Layout(1 + rng.Below(40), 1 + rng.Below(4), 8, 16, AnyType(&rng));
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

// A migration: what each GRANT covers lies behind what the ones before covered, group after group.
TEST(ChunkGridTest, AGridThatGrowsCoversEveryByteOnceAndKeepsItsNumbers) {
  Rng rng(2);
  for (int round = 0; round < 200; ++round) {
    KvLayout layout = Layout(1 + rng.Below(40), 1 + rng.Below(3), 8, 16);
    if (rng.Chance(0.5)) layout.groups.push_back({KvKind::kFull, 1 + static_cast<uint32_t>(rng.Below(9)), 2, 4});
    const KvPoolPlan pool = PlanPool(layout, uint64_t{1} << 28);
    ChunkGrid grid;
    std::vector<std::pair<uint32_t, uint32_t>> targets;  // the ticket's n-th block: (group, block of the sequence)
    uint32_t blocks = 0;
    std::vector<Chunk> before;
    for (uint64_t part = 0; part < 1 + rng.Below(5); ++part) {
      const auto more = static_cast<uint32_t>(rng.Below(part == 0 ? 40 : 3));
      grid.AppendLastApart(layout, more);
      for (uint32_t g = 0; g < layout.groups.size(); ++g) {
        for (uint32_t b = 0; b < more; ++b) targets.emplace_back(g, blocks + b);
      }
      blocks += more;
      for (ChunkIndex i = 0; i < before.size(); ++i) ASSERT_EQ(grid.At(i), before[i]);
      before.clear();
      for (ChunkIndex i = 0; i < grid.size(); ++i) before.push_back(grid.At(i));
    }
    std::vector<BlockId> source;
    for (uint32_t b = 0; b < blocks; ++b) source.push_back(BlockId{blocks - b});
    std::vector<uint64_t> covered(targets.size());
    uint64_t total = 0;
    for (ChunkIndex i = 0; i < grid.size(); ++i) {
      const Chunk chunk = grid.At(i);
      for (const CopyPiece& p : PlanCopies(layout, pool, chunk, source, grid.FirstTarget(i))) {
        ASSERT_LT(p.target_block, targets.size());
        const auto [group, block] = targets[p.target_block];
        ASSERT_EQ(group, chunk.group);
        ASSERT_EQ(p.source, pool.BlockOffset(layout, group, source[block]) + p.target_offset);
        covered[p.target_block] += p.bytes;
        total += p.bytes;
      }
    }
    for (size_t t = 0; t < targets.size(); ++t) ASSERT_EQ(covered[t], layout.BlockBytes(targets[t].first));
    ASSERT_EQ(total, grid.TotalBytes());
  }
}

// Writer and reader of any block sizes, any prompt, any hit of the reader's: what the writer copies, read through the
// staging map, is each byte of each moving block once, in staging blocks of the reader, and no piece could be joined
// with the one before it.
TEST(ChunkGridTest, StagedCopiesCoverEveryByteOnceAndAreMerged) {
  for (uint64_t seed = 0; seed < Seeds(3000); ++seed) {
    Rng rng(seed);
    constexpr uint32_t kSizes[] = {16, 32, 64, 128};
    const auto layers = static_cast<uint32_t>(1 + rng.Below(12)), heads = static_cast<uint32_t>(1 + rng.Below(4));
    const KvLayout writer = Layout(layers, heads, 2, kSizes[rng.Below(4)], AnyType(&rng));
    const KvLayout reader = Layout(layers, heads, 2, kSizes[rng.Below(4)], AnyType(&rng));
    const StagingMap staging(writer, 0, reader.BlockBytes(0));
    if (!staging.fits()) continue;
    const auto tokens = static_cast<uint32_t>(1 + rng.Below(600));
    const auto hit = static_cast<uint32_t>(rng.Below(tokens / reader.block_tokens + 1)) * reader.block_tokens;
    const uint32_t first = FirstMovingBlock(writer, hit, tokens), moving = NumMovingBlocks(writer, hit, tokens);
    ASSERT_EQ(moving == 0, hit == tokens);
    ASSERT_TRUE(moving == 0 || first * writer.block_tokens <= hit);
    ASSERT_LT(hit / writer.block_tokens, first + 1) << "a block that the reader holds whole does not move";
    ASSERT_EQ(first + moving, writer.BlocksFor(tokens));

    const KvPoolPlan pool = PlanPool(writer, uint64_t{1} << 24);
    std::vector<BlockId> source;
    for (uint32_t b = 0; b < moving; ++b) source.push_back(BlockId{moving - b});
    const uint32_t staging_blocks = moving == 0 ? 0 : staging.BlocksFor(moving);
    // What lies at each staging byte, in words of 4: the offset in the writer's pool.
    const auto words = reader.BlockBytes(0) / 4;
    std::vector<uint64_t> landed(staging_blocks * words, UINT64_MAX);
    uint64_t total = 0;
    const ChunkGrid grid(writer, {moving});
    for (ChunkIndex i = 0; i < grid.size(); ++i) {
      const CopyPiece* before = nullptr;
      const auto pieces = PlanCopies(writer, pool, grid.At(i), source, 0, reader.BlockBytes(0));
      for (const CopyPiece& p : pieces) {
        ASSERT_LT(p.target_block, staging_blocks);
        ASSERT_LE(p.target_offset + p.bytes, reader.BlockBytes(0));
        ASSERT_FALSE(before != nullptr && before->target_block == p.target_block &&
                     before->target_offset + before->bytes == p.target_offset &&
                     before->source + before->bytes == p.source);
        before = &p;
        total += p.bytes;
        for (uint64_t at = 0; at < p.bytes / 4; ++at) {
          uint64_t& there = landed[p.target_block * words + p.target_offset / 4 + at];
          ASSERT_EQ(there, UINT64_MAX);
          there = p.source + at * 4;
        }
      }
    }
    ASSERT_EQ(total, uint64_t{moving} * writer.BlockBytes(0));
    for (uint32_t b = 0; b < moving; ++b) {
      for (uint64_t tile = 0; tile < writer.BlockBytes(0); tile += writer.TileBytes(0)) {
        const StagingMap::Place place = staging.At(b, tile);
        for (uint64_t at = 0; at < writer.TileBytes(0); at += 4) {
          ASSERT_EQ(landed[place.block * words + (place.offset + at) / 4],
                    pool.BlockOffset(writer, 0, source[b]) + tile + at);
        }
      }
    }
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

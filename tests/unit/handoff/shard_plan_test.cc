#include "handoff/shard_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/rng.h"
#include "support/seed_share.h"

namespace baton {
namespace {

KvLayout Layout(uint32_t layers, uint32_t heads, DType dtype = DType::kF32) {
  KvLayout layout;
  layout.block_tokens = 16;
  layout.groups.push_back({KvKind::kFull, layers, heads, 2, dtype});
  return layout;
}

// One block of a rank as words: each says which (block, head, layer, K|V, place in the tile) it is.
std::vector<uint64_t> Block(const KvLayout& whole, ParallelWidth width, Rank rank, uint32_t block) {
  const KvShard shard = ShardOf(whole.groups[0], width, rank);
  std::vector<uint64_t> words;
  for (uint32_t head = 0; head < shard.num_heads; ++head) {
    for (uint32_t tile = 0; tile < shard.num_layers * 2; ++tile) {
      for (uint64_t word = 0; word < whole.TileBytes(0) / 8; ++word) {
        const uint64_t at =
            ((block * 64ull + shard.first_head + head) * 256 + shard.first_layer * 2 + tile) * 4096 + word;
        words.push_back(Mix64(at));
      }
    }
  }
  return words;
}

std::vector<Rank> Ranks(ParallelWidth width) {
  std::vector<Rank> ranks;
  for (uint32_t t = 0; t < width.tensor; ++t) {
    for (uint32_t p = 0; p < width.pipeline; ++p) ranks.push_back({t, p});
  }
  return ranks;
}

// FF-038, FF-039
TEST(ShardPlanTest, EveryByteOfEveryRankComesOnceWhateverTheWidths) {
  for (uint64_t seed = 0; seed < Seeds(2000); ++seed) {
    Rng rng(seed);
    const auto heads = static_cast<uint32_t>(1 + rng.Below(12)), layers = static_cast<uint32_t>(1 + rng.Below(9));
    const KvLayout whole = Layout(layers, heads, rng.Chance(0.5) ? DType::kF32 : DType::kI8);
    const auto width = [&] {
      return ParallelWidth{static_cast<uint32_t>(1 + rng.Below(16)),
                           static_cast<uint32_t>(1 + rng.Below(std::min(layers, 4u)))};
    };
    const ParallelWidth writer = width(), reader = width();
    const auto blocks = static_cast<uint32_t>(1 + rng.Below(5));
    for (const Rank target : Ranks(reader)) {
      const uint64_t bytes = LayoutOf(whole, reader, target).BlockBytes(0);
      std::vector<std::vector<uint64_t>> landed(blocks, std::vector<uint64_t>(bytes / 8));
      std::vector<std::vector<bool>> written(blocks, std::vector<bool>(bytes / 8));
      for (const Rank source : Ranks(writer)) {
        const ShardPiece* before = nullptr;
        const auto plan = PlanShard(whole, 0, writer, source, reader, target, blocks);
        for (const ShardPiece& p : plan) {
          const std::vector<uint64_t> from = Block(whole, writer, source, p.block);
          ASSERT_LE(p.source_offset + p.bytes, from.size() * 8);
          ASSERT_LE(p.target_offset + p.bytes, bytes);
          ASSERT_FALSE(before != nullptr && before->block == p.block &&
                       before->source_offset + before->bytes == p.source_offset &&
                       before->target_offset + before->bytes == p.target_offset)
              << "two pieces that are one";
          before = &p;
          for (uint64_t word = 0; word < p.bytes / 8; ++word) {
            ASSERT_FALSE(written[p.block][p.target_offset / 8 + word]) << "twice, seed " << seed;
            written[p.block][p.target_offset / 8 + word] = true;
            landed[p.block][p.target_offset / 8 + word] = from[p.source_offset / 8 + word];
          }
        }
      }
      for (uint32_t b = 0; b < blocks; ++b) {
        ASSERT_EQ(std::count(written[b].begin(), written[b].end(), false), 0) << "seed " << seed;
        ASSERT_EQ(landed[b], Block(whole, reader, target, b)) << "seed " << seed;
      }
    }
  }
}

TEST(ShardPlanTest, EqualWidthsMoveAWholeBlockInOnePieceFromTheSameRank) {
  const KvLayout whole = Layout(8, 8);
  const ParallelWidth width{4, 2};
  for (const Rank target : Ranks(width)) {
    for (const Rank source : Ranks(width)) {
      const auto plan = PlanShard(whole, 0, width, source, width, target, 3);
      ASSERT_EQ(plan.size(), source == target ? 3u : 0u);
      if (source == target) EXPECT_EQ(plan[0].bytes, LayoutOf(whole, width, target).BlockBytes(0));
    }
  }
}

// FF-039
TEST(ShardPlanTest, FourRanksIntoEightSendOnePieceABlock) {
  const KvLayout whole = Layout(80, 8);
  for (const Rank target : Ranks({8, 1})) {
    const auto plan = PlanShard(whole, 0, {4, 1}, {target.tensor / 2, 0}, {8, 1}, target, 128);
    EXPECT_EQ(plan.size(), 128u);
    EXPECT_EQ(plan[0].bytes, LayoutOf(whole, {8, 1}, target).BlockBytes(0));
  }
}

// FF-038
TEST(ShardPlanTest, RanksThatHoldTheSameHeadShareTheBlocks) {
  const KvLayout whole = Layout(4, 2);  // 8 writers, 2 heads: four hold each
  for (const Rank source : Ranks({8, 1})) {
    std::set<uint32_t> blocks;
    for (const ShardPiece& p : PlanShard(whole, 0, {8, 1}, source, {1, 1}, {}, 16)) blocks.insert(p.block);
    EXPECT_EQ(blocks.size(), 4u) << source.tensor;
  }
}

}  // namespace
}  // namespace baton

#include "handoff/chunk_grid.h"

#include <algorithm>

#include "baton/check.h"

namespace baton {
namespace {
constexpr uint32_t CeilDiv(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
}  // namespace

ChunkGrid::ChunkGrid(const KvLayout& layout, const std::vector<uint32_t>& num_blocks) {
  BATON_CHECK(num_blocks.size() == layout.groups.size(), "one count of blocks per group");
  const auto share = static_cast<uint32_t>(kMaxChunks / std::max<size_t>(1, layout.groups.size()));
  for (uint32_t g = 0; g < layout.groups.size(); ++g) {
    GroupGrid grid;
    grid.num_blocks = num_blocks[g];
    grid.num_layers = layout.groups[g].num_layers;
    grid.layer_band = std::max(4u, CeilDiv(grid.num_layers, 10));
    grid.layer_bands = CeilDiv(grid.num_layers, grid.layer_band);
    grid.block_band = std::max(16u, CeilDiv(grid.num_blocks, std::max(1u, share / grid.layer_bands)));
    grid.first = size_;
    grid.bytes_per_block_layer = uint64_t{layout.groups[g].num_kv_heads} * 2 * layout.TileBytes(g);
    size_ += CeilDiv(grid.num_blocks, grid.block_band) * grid.layer_bands;
    groups_.push_back(grid);
  }
}

Chunk ChunkGrid::At(ChunkIndex index) const {
  BATON_CHECK(index < size_, "chunk beyond the grid");
  uint32_t g = 0;
  while (g + 1 < groups_.size() && groups_[g + 1].first <= index) ++g;
  const GroupGrid& grid = groups_[g];
  const uint32_t in_group = index - grid.first;
  Chunk chunk;
  chunk.group = g;
  chunk.first_block = in_group / grid.layer_bands * grid.block_band;
  chunk.num_blocks = std::min(grid.block_band, grid.num_blocks - chunk.first_block);
  chunk.first_layer = in_group % grid.layer_bands * grid.layer_band;
  chunk.num_layers = std::min(grid.layer_band, grid.num_layers - chunk.first_layer);
  return chunk;
}

uint64_t ChunkGrid::BytesOf(const Chunk& chunk) const {
  return uint64_t{chunk.num_blocks} * chunk.num_layers * groups_[chunk.group].bytes_per_block_layer;
}

uint64_t ChunkGrid::TotalBytes() const {
  uint64_t bytes = 0;
  for (const GroupGrid& g : groups_) bytes += uint64_t{g.num_blocks} * g.num_layers * g.bytes_per_block_layer;
  return bytes;
}

uint32_t FirstMovingBlock(const KvLayout& writer, uint32_t hit_tokens, uint32_t num_tokens) {
  return hit_tokens >= num_tokens ? writer.BlocksFor(num_tokens) : hit_tokens / writer.block_tokens;
}

std::vector<CopyPiece> PlanCopies(const KvLayout& layout, const KvPoolPlan& source_pool, const Chunk& chunk,
                                  std::span<const BlockId> source, uint32_t first_target,
                                  uint64_t staging_block_bytes) {
  const uint64_t head_bytes = uint64_t{chunk.num_layers} * 2 * layout.TileBytes(chunk.group);
  const StagingMap staging(layout, chunk.group, staging_block_bytes);
  std::vector<CopyPiece> pieces;
  const auto add = [&](const CopyPiece& piece) {
    CopyPiece* last = pieces.empty() ? nullptr : &pieces.back();
    if (last != nullptr && last->target_block == piece.target_block &&
        last->target_offset + last->bytes == piece.target_offset && last->source + last->bytes == piece.source) {
      last->bytes += piece.bytes;
    } else {
      pieces.push_back(piece);
    }
  };
  for (uint32_t b = chunk.first_block; b < chunk.first_block + chunk.num_blocks; ++b) {
    const uint64_t base = source_pool.BlockOffset(layout, chunk.group, source[b]);
    for (uint32_t head = 0; head < layout.groups[chunk.group].num_kv_heads; ++head) {
      const uint64_t offset = layout.TileOffset(chunk.group, head, chunk.first_layer, false);
      if (staging_block_bytes == 0) {
        add({base + offset, first_target + b, offset, head_bytes});
        continue;
      }
      for (uint64_t done = 0; done < head_bytes;) {
        const StagingMap::Place place = staging.At(b, offset + done);
        const uint64_t bytes = std::min(place.room, head_bytes - done);
        add({base + offset + done, first_target + place.block, place.offset, bytes});
        done += bytes;
      }
    }
  }
  return pieces;
}

}  // namespace baton

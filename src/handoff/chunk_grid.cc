#include "handoff/chunk_grid.h"

#include <algorithm>

#include "baton/check.h"

namespace baton {
namespace {
constexpr uint32_t CeilDiv(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
}  // namespace

ChunkGrid::ChunkGrid(const KvLayout& layout, const std::vector<uint32_t>& num_blocks) {
  BATON_CHECK(num_blocks.size() == layout.groups.size(), "one count of blocks per group");
  AppendParts(layout, num_blocks, PlaceTargets(num_blocks));
}

void ChunkGrid::Append(const KvLayout& layout, uint32_t num_blocks) {
  const std::vector<uint32_t> all(layout.groups.size(), num_blocks);
  AppendParts(layout, all, PlaceTargets(all));
}

void ChunkGrid::AppendLastApart(const KvLayout& layout, uint32_t num_blocks) {
  if (num_blocks == 0) return;
  const std::vector<uint32_t> all(layout.groups.size(), num_blocks), last(layout.groups.size(), 1);
  const std::vector<uint32_t> targets = PlaceTargets(all);
  if (num_blocks > 1) AppendParts(layout, std::vector<uint32_t>(layout.groups.size(), num_blocks - 1), targets);
  AppendParts(layout, last, targets);
}

// [group]: what a block's number among the moving ones is to be added to. May wrap; with that number it is right again.
std::vector<uint32_t> ChunkGrid::PlaceTargets(const std::vector<uint32_t>& num_blocks) {
  blocks_.resize(num_blocks.size(), 0);
  std::vector<uint32_t> first;
  for (size_t g = 0; g < num_blocks.size(); ++g) {
    first.push_back(targets_ - blocks_[g]);
    targets_ += num_blocks[g];
  }
  return first;
}

void ChunkGrid::AppendParts(const KvLayout& layout, const std::vector<uint32_t>& num_blocks,
                            const std::vector<uint32_t>& first_target) {
  const auto share = static_cast<uint32_t>(kMaxChunks / std::max<size_t>(1, layout.groups.size()));
  for (uint32_t g = 0; g < layout.groups.size(); ++g) {
    Part part;
    part.group = g;
    part.first_block = blocks_[g];
    part.first_target = first_target[g];
    part.num_blocks = num_blocks[g];
    part.num_layers = layout.groups[g].num_layers;
    part.layer_band = std::max(4u, CeilDiv(part.num_layers, 10));
    part.layer_bands = CeilDiv(part.num_layers, part.layer_band);
    part.block_band = std::max(16u, CeilDiv(part.num_blocks, std::max(1u, share / part.layer_bands)));
    part.first = size_;
    part.bytes_per_block_layer = uint64_t{layout.groups[g].num_kv_heads} * 2 * layout.TileBytes(g);
    size_ += CeilDiv(part.num_blocks, part.block_band) * part.layer_bands;
    blocks_[g] += part.num_blocks;
    parts_.push_back(part);
  }
}

const ChunkGrid::Part& ChunkGrid::PartOf(ChunkIndex index) const {
  BATON_CHECK(index < size_, "chunk beyond the grid");
  size_t p = 0;
  while (p + 1 < parts_.size() && parts_[p + 1].first <= index) ++p;
  return parts_[p];
}

Chunk ChunkGrid::At(ChunkIndex index) const {
  const Part& part = PartOf(index);
  const uint32_t in_part = index - part.first;
  const uint32_t from = in_part / part.layer_bands * part.block_band;
  Chunk chunk;
  chunk.group = part.group;
  chunk.first_block = part.first_block + from;
  chunk.num_blocks = std::min(part.block_band, part.num_blocks - from);
  chunk.first_layer = in_part % part.layer_bands * part.layer_band;
  chunk.num_layers = std::min(part.layer_band, part.num_layers - chunk.first_layer);
  return chunk;
}

uint64_t ChunkGrid::BytesOf(const Chunk& chunk) const {
  // Of one group all parts are alike in this.
  return uint64_t{chunk.num_blocks} * chunk.num_layers * parts_[chunk.group].bytes_per_block_layer;
}

uint64_t ChunkGrid::TotalBytes() const {
  uint64_t bytes = 0;
  for (const Part& p : parts_) bytes += uint64_t{p.num_blocks} * p.num_layers * p.bytes_per_block_layer;
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

#include "handoff/shard_plan.h"

#include <algorithm>

#include "baton/check.h"

namespace baton {
namespace {

struct Interval {
  uint32_t first = 0, end = 0;
};
constexpr uint32_t Share(uint32_t rank, uint32_t of, uint32_t width) {
  return static_cast<uint32_t>(uint64_t{rank} * of / width);
}
Interval Intersect(Interval a, Interval b) {
  const uint32_t first = std::max(a.first, b.first);
  return {first, std::max(first, std::min(a.end, b.end))};
}

// Ranks [first, end) hold the head, one after another.
Interval HoldersOf(uint32_t head, uint32_t heads, uint32_t width) {
  const auto ceil = [&](uint32_t h) { return static_cast<uint32_t>((uint64_t{h} * width + heads - 1) / heads); };
  if (width >= heads) return {ceil(head), ceil(head + 1)};
  uint32_t rank = Share(head, width, heads);
  while (Share(rank + 1, heads, width) <= head) ++rank;
  return {rank, rank + 1};
}

}  // namespace

KvShard ShardOf(const KvGroup& group, ParallelWidth width, Rank rank) {
  BATON_CHECK(rank.tensor < width.tensor && rank.pipeline < width.pipeline, "no such rank");
  BATON_CHECK(width.pipeline <= group.num_layers, "more stages than layers");
  const uint32_t head = Share(rank.tensor, group.num_kv_heads, width.tensor);
  const uint32_t layer = Share(rank.pipeline, group.num_layers, width.pipeline);
  const uint32_t end_head =
      width.tensor > group.num_kv_heads ? head + 1 : Share(rank.tensor + 1, group.num_kv_heads, width.tensor);
  return {head, end_head - head, layer, Share(rank.pipeline + 1, group.num_layers, width.pipeline) - layer};
}

KvLayout LayoutOf(const KvLayout& whole, ParallelWidth width, Rank rank) {
  KvLayout layout = whole;
  for (KvGroup& group : layout.groups) {
    const KvShard shard = ShardOf(group, width, rank);
    group.num_kv_heads = shard.num_heads;
    group.num_layers = shard.num_layers;
  }
  return layout;
}

std::vector<ShardPiece> PlanShard(const KvLayout& whole, uint32_t group, ParallelWidth writer, Rank source,
                                  ParallelWidth reader, Rank target, uint32_t num_blocks) {
  const KvGroup& g = whole.groups[group];
  const KvShard from = ShardOf(g, writer, source), to = ShardOf(g, reader, target);
  const KvLayout from_layout = LayoutOf(whole, writer, source), to_layout = LayoutOf(whole, reader, target);
  const Interval heads =
      Intersect({from.first_head, from.first_head + from.num_heads}, {to.first_head, to.first_head + to.num_heads});
  const Interval layers = Intersect({from.first_layer, from.first_layer + from.num_layers},
                                    {to.first_layer, to.first_layer + to.num_layers});
  std::vector<ShardPiece> pieces;
  if (heads.first == heads.end || layers.first == layers.end) return pieces;
  const uint64_t run = uint64_t{layers.end - layers.first} * 2 * whole.TileBytes(group);
  for (uint32_t block = 0; block < num_blocks; ++block) {
    const size_t first = pieces.size();
    for (uint32_t head = heads.first; head < heads.end; ++head) {
      const Interval holders = HoldersOf(head, g.num_kv_heads, writer.tensor);
      if (holders.first + block % (holders.end - holders.first) != source.tensor) continue;
      const ShardPiece piece{
          block, from_layout.TileOffset(group, head - from.first_head, layers.first - from.first_layer, false),
          to_layout.TileOffset(group, head - to.first_head, layers.first - to.first_layer, false), run};
      ShardPiece* last = pieces.size() == first ? nullptr : &pieces.back();
      if (last != nullptr && last->source_offset + last->bytes == piece.source_offset &&
          last->target_offset + last->bytes == piece.target_offset) {
        last->bytes += run;
      } else {
        pieces.push_back(piece);
      }
    }
  }
  return pieces;
}

}  // namespace baton

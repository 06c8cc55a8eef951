// Which bytes go from which rank to which when writer and reader are spread over unlike numbers of ranks: tensor
// parallel by KV heads, pipeline parallel by layers. Pure arithmetic over equal block sizes and tile forms; nothing in
// this tree runs more than one rank yet, so PlanCopies is what hand-offs use.
//
// A rank's blocks have the layout of its own heads and layers, [its heads][its layers][K|V][tile], so what two ranks
// share is one run a head, and runs that touch on both sides are one piece.
#pragma once

#include <cstdint>
#include <vector>

#include "baton/kv_layout.h"

namespace baton {

struct ParallelWidth {
  uint32_t tensor = 1;    // T; any number, also more than there are heads: then a head lies on several ranks
  uint32_t pipeline = 1;  // at most the number of layers
};
struct Rank {
  uint32_t tensor = 0;
  uint32_t pipeline = 0;
  friend bool operator==(const Rank&, const Rank&) = default;
};

// What a rank holds of a group.
struct KvShard {
  uint32_t first_head = 0, num_heads = 0;
  uint32_t first_layer = 0, num_layers = 0;
};
// Rank r of T holds heads [r H / T, (r + 1) H / T), or, where T > H, head r H / T. Stages take layers likewise.
KvShard ShardOf(const KvGroup& group, ParallelWidth width, Rank rank);
// A rank's layout: the whole one with its heads and layers.
KvLayout LayoutOf(const KvLayout& whole, ParallelWidth width, Rank rank);

struct ShardPiece {
  uint32_t block = 0;                             // among the moving blocks, the same number on both sides
  uint64_t source_offset = 0, target_offset = 0;  // inside the rank's block
  uint64_t bytes = 0;
  friend bool operator==(const ShardPiece&, const ShardPiece&) = default;
};
// What rank `source` of the writer sends to rank `target` of the reader, of blocks [0, num_blocks) of `group`, in order
// of the target. Over all sources every byte of every block of the target comes once. Of the ranks that hold one head
// each sends every n-th block, so none idles.
std::vector<ShardPiece> PlanShard(const KvLayout& whole, uint32_t group, ParallelWidth writer, Rank source,
                                  ParallelWidth reader, Rank target, uint32_t num_blocks);

}  // namespace baton

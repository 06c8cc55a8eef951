// The shape of a worker's KV memory: arithmetic only. Layers fall into groups (same kind and window); each
// group has its own pool of blocks. A block of a group is [kv_head][layer][K|V][tile], so that one head over
// a range of layers is one contiguous piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "baton/ids.h"
#include "baton/status.h"
#include "baton/tensor.h"

namespace baton {

enum class KvKind : uint8_t { kFull };  // sliding windows and latents get kinds of their own

// How one head's K or V of one layer lies inside a block.
// kPairs: K [dim/2][token][2], V [token/2][dim][2] (bf16 pairs, the form that vdpbf16ps reads).
// kTokenMajor: K and V [token][dim].
// A tile of kI8 has its elements in the same order, then [token] fp32 scales: a value is its integer times the scale of
// its token. Zero bytes are zeros in every type.
enum class TileForm : uint8_t { kPairs, kTokenMajor };

struct KvGroup {
  KvKind kind = KvKind::kFull;
  uint32_t num_layers = 0;  // KV layers of this group, numbered from 0 inside the group
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;  // even
  DType dtype = DType::kBF16;
  friend bool operator==(const KvGroup&, const KvGroup&) = default;
};

inline constexpr uint32_t kPageTokens = 16;  // the unit that prefix hashes count in

struct KvLayout {
  uint32_t block_tokens = 32;  // a multiple of kPageTokens
  TileForm tile = TileForm::kPairs;
  std::vector<KvGroup> groups;

  // K or V of one head and layer: block_tokens * head_dim * element, and the scales of kI8.
  size_t TileBytes(uint32_t group) const;
  size_t BlockBytes(uint32_t group) const;
  // Bytes from the block's start to the K (value = false) or V tile of (head, layer).
  size_t TileOffset(uint32_t group, uint32_t head, uint32_t layer, bool value) const;
  uint32_t BlocksFor(uint64_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }
  size_t BytesPerToken() const;  // over all groups, scales included
  std::string Describe() const;  // for logs and refusals
  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

// Whether KV that lies as `from` says can be made into what `to` says: equal, or a converter exists.
// FAILED_PRECONDITION that names both otherwise. Needs equal shapes (groups, layers, heads, dims) and tile forms;
// block sizes are free, and element types among bf16, fp16, fp32, int8. Symmetric and transitive.
Status CanConvert(const KvLayout& from, const KvLayout& to);
// Otherwise what is converted was computed with another rounding than the reader's: it has a numeric identity of its
// own, whatever the reader's is.
bool SameElementTypes(const KvLayout& a, const KvLayout& b);

// Staging: a reader whose layout is unlike the writer's takes the writer's bytes into spare blocks of its own, tile by
// tile in the writer's order (block, head, layer, K | V), as many whole tiles to a block as fit.
class StagingMap {
 public:
  // staging_block_bytes: of one of the reader's blocks.
  StagingMap(const KvLayout& writer, uint32_t group, uint64_t staging_block_bytes);
  bool fits() const { return tiles_per_block_ > 0; }  // a tile of the writer fits into a block
  uint32_t BlocksFor(uint32_t writer_blocks) const;
  struct Place {
    uint32_t block = 0;  // among the staging blocks
    uint64_t offset = 0;
    uint64_t room = 0;  // bytes from there on that hold tiles
  };
  // `offset`: of a tile, in the writer's block number `block` of those that move.
  Place At(uint32_t block, uint64_t offset) const;

 private:
  uint64_t tile_bytes_, tiles_per_writer_block_, tiles_per_block_;
};

// How many blocks each group has, and where its pool begins inside the worker's one allocation.
struct KvPoolPlan {
  std::vector<uint32_t> num_blocks;    // [group]
  std::vector<uint64_t> group_offset;  // [group], bytes, 4096-aligned
  uint64_t total_bytes = 0;
  uint64_t BlockOffset(const KvLayout& layout, uint32_t group, BlockId block) const {
    return group_offset[group] + uint64_t{Index(block)} * layout.BlockBytes(group);
  }
  friend bool operator==(const KvPoolPlan&, const KvPoolPlan&) = default;
};
// As many blocks as fit into `budget_bytes`, each group able to hold the same number of tokens.
KvPoolPlan PlanPool(const KvLayout& layout, uint64_t budget_bytes);

}  // namespace baton

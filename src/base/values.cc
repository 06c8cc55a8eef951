// Arithmetic of the value types in include/baton.
#include <algorithm>
#include <array>
#include <limits>

#include "baton/check.h"
#include "baton/kv_layout.h"
#include "baton/kv_transport.h"
#include "baton/request.h"
#include "baton/tensor.h"

namespace baton {

const DTypeTraits& Traits(DType dtype) {
  static constexpr std::array<DTypeTraits, 7> kTraits = {{{"F32", 1, 4},
                                                          {"F16", 1, 2},
                                                          {"BF16", 1, 2},
                                                          {"Q8_0", 32, 34},
                                                          {"Q4_0", 32, 18},
                                                          {"Q4_1", 32, 20},
                                                          {"INT8", 1, 1}}};
  return kTraits[static_cast<size_t>(dtype)];
}

size_t BytesOf(DType dtype, size_t elements) {
  const DTypeTraits& t = Traits(dtype);
  BATON_CHECK(elements % t.block_elements == 0, t.name);
  return elements / t.block_elements * t.block_bytes;
}

std::string_view Word(TransferMode mode) {
  static constexpr std::array<std::string_view, 3> kWords = {"one-sided", "receiver-posted", "keyed-put"};
  return kWords[static_cast<size_t>(mode)];
}

FinishReason FinishAt(const StopRules& stop, TokenId token, uint32_t index) {
  const auto contains = [token](const std::vector<TokenId>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  if (index >= stop.min_tokens) {
    if (contains(stop.stop_token_ids)) return FinishReason::kStop;
    if (!stop.ignore_eos && contains(stop.eos_token_ids)) return FinishReason::kStop;
  }
  return index + 1 >= stop.max_tokens ? FinishReason::kLength : FinishReason::kNone;
}

size_t KvLayout::TileBytes(uint32_t group) const {
  const KvGroup& g = groups[group];
  const size_t scales = g.dtype == DType::kI8 ? size_t{block_tokens} * kKvScaleBytes : 0;
  return BytesOf(g.dtype, size_t{block_tokens} * g.head_dim) + scales;
}

size_t KvLayout::BlockBytes(uint32_t group) const {
  const KvGroup& g = groups[group];
  return size_t{g.num_kv_heads} * g.num_layers * 2 * TileBytes(group);
}

size_t KvLayout::TileOffset(uint32_t group, uint32_t head, uint32_t layer, bool value) const {
  const KvGroup& g = groups[group];
  return ((size_t{head} * g.num_layers + layer) * 2 + (value ? 1 : 0)) * TileBytes(group);
}

size_t KvLayout::BytesPerToken() const {
  size_t bytes = 0;
  for (uint32_t g = 0; g < groups.size(); ++g) bytes += BlockBytes(g) / block_tokens;
  return bytes;
}

std::string KvLayout::Describe() const {
  std::string out = std::to_string(block_tokens) + " tokens a block, " +
                    (tile == TileForm::kPairs ? "pair tiles" : "token-major tiles");
  for (const KvGroup& g : groups) {
    out += "; " + std::to_string(g.num_layers) + " layers x " + std::to_string(g.num_kv_heads) + " heads x " +
           std::to_string(g.head_dim) + " " + std::string(Traits(g.dtype).name) +
           (g.dtype == DType::kI8 ? " with a scale a head and token" : "");
  }
  return out;
}

Status CanConvert(const KvLayout& from, const KvLayout& to) {
  if (from == to) return OkStatus();
  const auto refuse = [&](const std::string& why) {
    return FailedPreconditionError("KV layouts do not go together, " + why + ": " + from.Describe() + " | " +
                                   to.Describe());
  };
  if (from.tile != to.tile) return refuse("no converter between tile forms");
  if (from.groups.size() != to.groups.size()) return refuse("unlike numbers of groups");
  const auto known = [](DType t) {
    return t == DType::kBF16 || t == DType::kF16 || t == DType::kF32 || t == DType::kI8;
  };
  for (size_t g = 0; g < from.groups.size(); ++g) {
    KvGroup shape = from.groups[g];
    if (shape.dtype != to.groups[g].dtype && (!known(shape.dtype) || !known(to.groups[g].dtype))) {
      return refuse("no converter between element types");
    }
    shape.dtype = to.groups[g].dtype;
    if (!(shape == to.groups[g])) return refuse("unlike layers, heads or dimensions");
  }
  for (const KvLayout* layout : {&from, &to}) {
    if (layout->block_tokens == 0 || layout->block_tokens % kPageTokens != 0) {
      return refuse("a block is not whole pages of " + std::to_string(kPageTokens) + " tokens");
    }
  }
  return OkStatus();
}

bool SameElementTypes(const KvLayout& a, const KvLayout& b) {
  return std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(), b.groups.end(),
                    [](const KvGroup& x, const KvGroup& y) { return x.dtype == y.dtype; });
}

StagingMap::StagingMap(const KvLayout& writer, uint32_t group, uint64_t staging_block_bytes)
    : tile_bytes_(writer.TileBytes(group)),
      tiles_per_writer_block_(writer.BlockBytes(group) / std::max<uint64_t>(1, tile_bytes_)),
      tiles_per_block_(staging_block_bytes / std::max<uint64_t>(1, tile_bytes_)) {}

uint32_t StagingMap::BlocksFor(uint32_t writer_blocks) const {
  BATON_CHECK(fits(), "a tile does not fit into a staging block");
  return static_cast<uint32_t>((writer_blocks * tiles_per_writer_block_ + tiles_per_block_ - 1) / tiles_per_block_);
}

StagingMap::Place StagingMap::At(uint32_t block, uint64_t offset) const {
  BATON_CHECK(fits() && offset % tile_bytes_ == 0, "no tile begins there");
  const uint64_t tile = block * tiles_per_writer_block_ + offset / tile_bytes_;
  const uint64_t in_block = tile % tiles_per_block_;
  return {static_cast<uint32_t>(tile / tiles_per_block_), in_block * tile_bytes_,
          (tiles_per_block_ - in_block) * tile_bytes_};
}

KvPoolPlan PlanPool(const KvLayout& layout, uint64_t budget_bytes) {
  constexpr uint64_t kAlign = 4096;
  const auto aligned = [](uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; };
  uint64_t per_block = 0;
  for (uint32_t g = 0; g < layout.groups.size(); ++g) per_block += layout.BlockBytes(g);
  KvPoolPlan plan;
  if (per_block == 0) return plan;
  const uint64_t padding = kAlign * layout.groups.size();
  const uint64_t blocks = budget_bytes > padding ? (budget_bytes - padding) / per_block : 0;
  const auto n = static_cast<uint32_t>(std::min<uint64_t>(blocks, std::numeric_limits<uint32_t>::max() - 1));
  uint64_t offset = 0;
  for (uint32_t g = 0; g < layout.groups.size(); ++g) {
    plan.num_blocks.push_back(n);
    plan.group_offset.push_back(offset);
    offset += aligned(uint64_t{n} * layout.BlockBytes(g));
  }
  plan.total_bytes = offset;
  return plan;
}

}  // namespace baton

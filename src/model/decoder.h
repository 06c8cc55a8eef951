// What a decoder-only transformer is made of, as data. One runner executes every description; a family file
// (llama.cc) only reads one from a model's metadata and names the tensors. Plain values, any thread.
#pragma once

#include <cstdint>
#include <string>

#include "baton/kv_layout.h"

namespace baton {

// Each list holds what the runner can execute. A family that needs another kind is refused by name.
enum class AttentionKind : uint8_t { kGrouped };  // full causal; query heads share KV heads in equal groups
enum class NormKind : uint8_t { kRms };
enum class RopeKind : uint8_t { kHalves };    // dimension i turns with i + rope_dim / 2 (the canonical order)
enum class MlpKind : uint8_t { kGatedSilu };  // down(silu(gate(x)) * up(x))

struct DecoderDescription {
  std::string family;  // "llama"
  std::string name;    // for people; from the files
  uint32_t num_layers = 0;
  uint32_t hidden = 0;
  uint32_t num_heads = 0;
  uint32_t num_kv_heads = 0;  // divides num_heads
  uint32_t head_dim = 0;      // even
  uint32_t mlp_hidden = 0;
  uint32_t vocab_size = 0;
  uint32_t context_tokens = 0;
  AttentionKind attention = AttentionKind::kGrouped;
  NormKind norm = NormKind::kRms;
  float norm_eps = 0;
  RopeKind rope = RopeKind::kHalves;
  float rope_theta = 0;
  MlpKind mlp = MlpKind::kGatedSilu;
  bool tied_head = false;  // the head is the embedding table

  uint32_t query_dim() const { return num_heads * head_dim; }
  uint32_t kv_dim() const { return num_kv_heads * head_dim; }
  uint64_t NumParameters() const;
};

// How this model's KV lies on a CPU: one group of all layers, pair tiles.
KvLayout MakeKvLayout(const DecoderDescription& decoder, uint32_t block_tokens, DType dtype = DType::kBF16);

}  // namespace baton

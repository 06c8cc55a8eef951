#include "model/decoder.h"

namespace baton {

uint64_t DecoderDescription::NumParameters() const {
  const uint64_t h = hidden;
  const uint64_t layer = 2 * h + h * (query_dim() + 2 * uint64_t{kv_dim()}) + h * query_dim() + 3 * h * mlp_hidden;
  return num_layers * layer + h + h * vocab_size * (tied_head ? 1 : 2);
}

KvLayout MakeKvLayout(const DecoderDescription& decoder, uint32_t block_tokens, DType dtype) {
  KvLayout layout;
  layout.block_tokens = block_tokens;
  layout.tile = TileForm::kPairs;
  layout.groups.push_back({KvKind::kFull, decoder.num_layers, decoder.num_kv_heads, decoder.head_dim, dtype});
  return layout;
}

}  // namespace baton

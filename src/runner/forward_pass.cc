#include "runner/forward_pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "baton/check.h"
#include "device/cpu/kv_convert.h"

namespace baton {
namespace {

// Rows of logits held at once; more sampling rows go in pieces.
constexpr uint32_t kLogitRows = 32;

uint64_t RopeTableBytes(const DecoderDescription& d) {
  return uint64_t{d.context_tokens} * d.head_dim * sizeof(float);  // cos and sin, head_dim / 2 each
}

}  // namespace

uint64_t ForwardPass::Carve(const DecoderDescription& d, size_t row_bytes, uint32_t max_rows, std::byte* base,
                            Buffers* buffers) {
  uint64_t used = 0;
  const auto take = [&](uint64_t bytes) {
    std::byte* at = base == nullptr ? nullptr : base + used;
    used += (bytes + 63) / 64 * 64;
    return at;
  };
  const auto floats = [&](uint64_t rows, uint64_t columns) {
    return reinterpret_cast<float*>(take(rows * columns * sizeof(float)));
  };
  Buffers b;
  b.hidden = floats(max_rows, d.hidden);
  b.normed = floats(max_rows, d.hidden);
  b.qkv = floats(max_rows, d.query_dim() + 2 * uint64_t{d.kv_dim()});
  b.attended = floats(max_rows, d.query_dim());
  b.mlp = floats(max_rows, 2 * uint64_t{d.mlp_hidden});
  b.final_rows = floats(kLogitRows, d.hidden);
  b.logits = floats(kLogitRows, d.vocab_size);
  b.embedding_rows = take(max_rows * row_bytes);
  if (buffers != nullptr) *buffers = b;
  return used;
}

uint64_t ForwardPass::WorkspaceBytes(const DecoderDescription& decoder, uint32_t max_rows) {
  return Carve(decoder, decoder.hidden * sizeof(float), max_rows, nullptr, nullptr) + RopeTableBytes(decoder);
}

ForwardPass::ForwardPass(const LoadedModel& model, CpuDevice& device, const KvLayout& layout,
                         const KvPoolPlan& pool_plan, std::byte* pool)
    : model_(model), decoder_(model.decoder()), device_(device), layout_(layout), pool_plan_(pool_plan), pool_(pool) {}

StatusOr<std::unique_ptr<ForwardPass>> ForwardPass::Create(const LoadedModel& model, CpuDevice& device,
                                                           const KvLayout& layout, const KvPoolPlan& pool_plan,
                                                           std::span<std::byte> pool, uint32_t max_rows) {
  const DecoderDescription& d = model.decoder();
  BATON_RETURN_IF_ERROR(CheckCpuKvLayout(layout));
  if (layout.groups.size() != 1 ||
      layout.groups != MakeKvLayout(d, layout.block_tokens, layout.groups[0].dtype).groups) {
    return FailedPreconditionError("the KV layout (" + layout.Describe() + ") is not this model's");
  }
  if (pool_plan.total_bytes > pool.size() || pool_plan.num_blocks.size() != 1) {
    return FailedPreconditionError("a KV pool of " + std::to_string(pool.size()) + " bytes, the plan needs " +
                                   std::to_string(pool_plan.total_bytes));
  }
  if (max_rows == 0) return InvalidArgumentError("a step of at most 0 tokens computes nothing");
  std::unique_ptr<ForwardPass> pass(new ForwardPass(model, device, layout, pool_plan, pool.data()));
  const size_t row_bytes = model.embedding().row_bytes();
  BATON_ASSIGN_OR_RETURN(pass->workspace_, AlignedMemory::Allocate(Carve(d, row_bytes, max_rows, nullptr, nullptr)));
  Carve(d, row_bytes, max_rows, pass->workspace_.data(), &pass->buffers_);
  pass->max_rows_ = max_rows;

  BATON_ASSIGN_OR_RETURN(pass->rope_, AlignedMemory::Allocate(RopeTableBytes(d)));
  pass->cos_ = pass->rope_.as<float>();
  pass->sin_ = pass->cos_ + size_t{d.context_tokens} * (d.head_dim / 2);
  for (uint32_t i = 0; i < d.head_dim / 2; ++i) {
    const double exponent = 2.0 * i / d.head_dim;
    pass->inverse_frequencies_.push_back(static_cast<float>(1.0 / std::pow(double{d.rope_theta}, exponent)));
  }
  return pass;
}

// Filled as far as positions were seen, so that a long context costs nothing at the start. The angle is rounded
// to fp32, as the models were trained with.
void ForwardPass::ExtendRopeTable(uint32_t positions) {
  const size_t half = inverse_frequencies_.size();
  for (; rope_positions_ < positions; ++rope_positions_) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<float>(rope_positions_) * inverse_frequencies_[i];
      cos_[rope_positions_ * half + i] = static_cast<float>(std::cos(angle));
      sin_[rope_positions_ * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void ForwardPass::PrepareBlocks(const StepPlan& plan) {
  for (uint32_t g = 0; g < plan.zero.size(); ++g) {
    const size_t bytes = layout_.BlockBytes(g);
    const std::vector<BlockId>& blocks = plan.zero[g];
    device_.pool().ParallelFor(blocks.size(), 1, [&](size_t begin, size_t end, int) {
      for (size_t i = begin; i < end; ++i) {
        std::memset(pool_ + pool_plan_.BlockOffset(layout_, g, blocks[i]), 0, bytes);
      }
    });
  }
  for (const BlockCopy& copy : plan.copies) {
    std::memcpy(pool_ + pool_plan_.BlockOffset(layout_, copy.group, copy.to),
                pool_ + pool_plan_.BlockOffset(layout_, copy.group, copy.from), layout_.BlockBytes(copy.group));
  }
}

void ForwardPass::Convert(const KvConversion& conversion) {
  for (uint32_t g = 0; g < conversion.groups.size(); ++g) {
    const KvConversion::Group& blocks = conversion.groups[g];
    std::vector<const std::byte*> staging;
    std::vector<std::byte*> target;
    for (const BlockId b : blocks.staging) staging.push_back(pool_ + pool_plan_.BlockOffset(layout_, g, b));
    for (const BlockId b : blocks.target) target.push_back(pool_ + pool_plan_.BlockOffset(layout_, g, b));
    const KvConvertParams params{&conversion.from,      &layout_, g,     conversion.first_token,
                                 conversion.num_tokens, staging,  target};
    device_.pool().ParallelFor(target.size() * layout_.groups[g].num_kv_heads, 1,
                               [&](size_t begin, size_t end, int) { ConvertKv(params, begin, end); });
  }
}

void ForwardPass::BuildRows(const StepPlan& plan, const SequenceTables& tables) {
  positions_.clear();
  spans_.clear();
  for (const SequenceStep& s : plan.sequences) {
    const BlockId* blocks = tables.At(s.sequence).blocks[0].data();
    spans_.push_back({blocks, static_cast<uint32_t>(positions_.size()), s.num_tokens, s.first_position});
    for (uint32_t i = 0; i < s.num_tokens; ++i) positions_.push_back(s.first_position + i);
  }
  BATON_CHECK(positions_.size() <= max_rows_, "a step has more tokens than the workspace");
  ExtendRopeTable(*std::max_element(positions_.begin(), positions_.end()) + 1);
}

void ForwardPass::Embed(std::span<const TokenId> ids) {
  const EmbeddingRows& table = model_.embedding();
  device_.pool().ParallelFor(ids.size(), 0, [&](size_t begin, size_t end, int) {
    table.Gather(ids.subspan(begin, end - begin), buffers_.embedding_rows + begin * table.row_bytes());
  });
  std::vector<TokenId> rows(ids.size());
  std::iota(rows.begin(), rows.end(), 0);
  device_.Embed({.dtype = table.dtype(),
                 .table = buffers_.embedding_rows,
                 .row_bytes = table.row_bytes(),
                 .n = decoder_.hidden,
                 .ids = rows.data(),
                 .out = buffers_.hidden,
                 .out_stride = decoder_.hidden},
                rows.size());
}

void ForwardPass::Linear(const FusedLinear& weights, const float* x, size_t x_stride, size_t rows,
                         const float* residual, float* out, size_t out_stride) {
  size_t column = 0;
  for (const PackedMatrix& part : weights.parts) {
    device_.Gemm({.w = part.view(),
                  .x = x,
                  .x_stride = x_stride,
                  .rows = static_cast<uint32_t>(rows),
                  .residual = residual == nullptr ? nullptr : residual + column,
                  .residual_stride = out_stride,
                  .out = out + column,
                  .out_stride = out_stride});
    column += part.view().n;
  }
}

// hidden -> attended: norm, QKV, rope, the rows' own K and V into the cache, attention over it.
void ForwardPass::Attention(uint32_t layer) {
  const LayerWeights& weights = model_.layers()[layer];
  const DecoderDescription& d = decoder_;
  const size_t rows = positions_.size();
  const size_t query = d.query_dim(), kv = d.kv_dim(), stride = query + 2 * kv;
  device_.RmsNorm({.x = buffers_.hidden,
                   .x_stride = d.hidden,
                   .weight = weights.attention_norm.data(),
                   .eps = d.norm_eps,
                   .n = d.hidden,
                   .out = buffers_.normed,
                   .out_stride = d.hidden},
                  rows);
  Linear(weights.qkv, buffers_.normed, d.hidden, rows, nullptr, buffers_.qkv, stride);
  device_.Rope({.pairs = RopePairs::kHalves,
                .x = buffers_.qkv,
                .x_stride = stride,
                .heads = d.num_heads + d.num_kv_heads,
                .head_dim = d.head_dim,
                .rotary_dim = d.head_dim,
                .positions = positions_.data(),
                .cos_table = cos_,
                .sin_table = sin_},
               rows);
  const KvTiles tiles = MakeKvTiles(layout_, 0, layer, pool_ + pool_plan_.group_offset[0]);
  const auto num_spans = static_cast<uint32_t>(spans_.size());
  device_.KvWrite({.kv = tiles,
                   .k = buffers_.qkv + query,
                   .k_stride = stride,
                   .v = buffers_.qkv + query + kv,
                   .v_stride = stride,
                   .spans = spans_.data(),
                   .num_spans = num_spans},
                  rows);
  device_.Attention({.kv = tiles,
                     .q = buffers_.qkv,
                     .q_stride = stride,
                     .num_heads = d.num_heads,
                     .scale = 1.0f / std::sqrt(static_cast<float>(d.head_dim)),
                     .out = buffers_.attended,
                     .out_stride = query,
                     .rows = static_cast<uint32_t>(rows),
                     .spans = spans_.data(),
                     .num_spans = num_spans});
}

// hidden += MLP(norm(hidden)) for the first `rows` rows.
void ForwardPass::Mlp(const LayerWeights& weights, size_t rows) {
  const DecoderDescription& d = decoder_;
  const size_t stride = 2 * size_t{d.mlp_hidden};
  device_.RmsNorm({.x = buffers_.hidden,
                   .x_stride = d.hidden,
                   .weight = weights.mlp_norm.data(),
                   .eps = d.norm_eps,
                   .n = d.hidden,
                   .out = buffers_.normed,
                   .out_stride = d.hidden},
                  rows);
  Linear(weights.gate_up, buffers_.normed, d.hidden, rows, nullptr, buffers_.mlp, stride);
  device_.SiluMul({.gate = buffers_.mlp,
                   .up = buffers_.mlp + d.mlp_hidden,
                   .in_stride = stride,
                   .n = d.mlp_hidden,
                   .out = buffers_.mlp,
                   .out_stride = stride},
                  rows);
  Linear(weights.down, buffers_.mlp, stride, rows, buffers_.hidden, buffers_.hidden, d.hidden);
}

// Moves the wanted rows of hidden and attended to the front. After the last layer's attention nothing reads the
// other rows any more.
void ForwardPass::KeepRows(std::span<const uint32_t> wanted) {
  const size_t hidden = decoder_.hidden, query = decoder_.query_dim();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const size_t from = wanted[i];
    if (from == i) continue;
    std::memcpy(buffers_.hidden + i * hidden, buffers_.hidden + from * hidden, hidden * sizeof(float));
    std::memcpy(buffers_.attended + i * query, buffers_.attended + from * query, query * sizeof(float));
  }
}

void ForwardPass::Run(const StepPlan& plan, const SequenceTables& tables, std::span<const TokenId> ids,
                      std::span<const uint32_t> wanted, const std::function<void(uint32_t)>& layer_done) {
  BuildRows(plan, tables);
  BATON_CHECK(ids.size() == positions_.size(), "one id per row");
  Embed(ids);
  size_t rows = ids.size();
  for (uint32_t layer = 0; layer < decoder_.num_layers; ++layer) {
    const LayerWeights& weights = model_.layers()[layer];
    Attention(layer);
    layer_done(layer + 1);
    if (layer + 1 == decoder_.num_layers) {
      KeepRows(wanted);
      rows = wanted.size();
      if (rows == 0) return;
    }
    Linear(weights.output, buffers_.attended, decoder_.query_dim(), rows, buffers_.hidden, buffers_.hidden,
           decoder_.hidden);
    Mlp(weights, rows);
  }
}

void ForwardPass::Logits(size_t num_wanted, const std::function<void(size_t, std::span<const float>)>& use) {
  const DecoderDescription& d = decoder_;
  for (size_t first = 0; first < num_wanted; first += kLogitRows) {
    const size_t rows = std::min<size_t>(kLogitRows, num_wanted - first);
    device_.RmsNorm({.x = buffers_.hidden + first * d.hidden,
                     .x_stride = d.hidden,
                     .weight = model_.final_norm().data(),
                     .eps = d.norm_eps,
                     .n = d.hidden,
                     .out = buffers_.final_rows,
                     .out_stride = d.hidden},
                    rows);
    device_.Gemm({.w = model_.head(),
                  .x = buffers_.final_rows,
                  .x_stride = d.hidden,
                  .rows = static_cast<uint32_t>(rows),
                  .out = buffers_.logits,
                  .out_stride = d.vocab_size});
    use(first, {buffers_.logits, rows * d.vocab_size});
  }
}

}  // namespace baton

// PORT. A device's kernels as plain function pointers over parameter structs whose fields carry the shapes.
// kernels/reference defines what every entry computes; every other table gives the same bits (kernels/README.md).
// A kernel allocates nothing, takes no lock, touches only the outputs of its work range [begin, end) and may run
// on any thread: callers split the range as they like, the split never changes a result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "baton/ids.h"
#include "baton/tensor.h"

namespace baton {

// Columns (output features) of one panel of a packed weight.
inline constexpr uint32_t kPanelColumns = 16;
// Attention works in pieces of this many tokens, counted from position 0.
inline constexpr uint32_t kAttentionPiece = 128;
inline constexpr uint32_t kMaxHeadDim = 256;
// Working memory that gemm and attention need per concurrent call, 64-byte aligned.
inline constexpr size_t kKernelScratchBytes = size_t{1} << 20;

// A weight [n, k] of a linear layer in panels of 16 outputs, dtype unchanged. Borrows its memory.
// ceil(n / 16) panels; columns past n hold zero bytes. Inside a panel:
//   plain types: for each k: 16 values. kBF16: as 8 dwords, dword j = column j | column j + 8 << 16.
//   kQ8_0: for each 32 k: 16 fp16 d, then [32 k][16] int8.
//   kQ4_0: for each 32 k: 16 fp16 d, then [32 k][8 bytes], byte j = column j | column j + 8 << 4.
//   kQ4_1: the same with 16 fp16 d and 16 fp16 min.
struct PackedWeight {
  DType dtype = DType::kF32;
  uint32_t n = 0;
  uint32_t k = 0;  // a multiple of 32 for quantised types
  size_t panel_bytes = 0;
  const std::byte* panels = nullptr;  // 64-byte aligned
  uint32_t num_panels() const { return (n + kPanelColumns - 1) / kPanelColumns; }
};

// out[i] = row ids[i] of `table` [*, n] (raw, not packed) as fp32. Range: i in [0, rows).
struct EmbedParams {
  DType dtype = DType::kF32;
  const std::byte* table = nullptr;
  size_t row_bytes = 0;
  uint32_t n = 0;
  const TokenId* ids = nullptr;  // valid rows
  float* out = nullptr;
  size_t out_stride = 0;  // strides count elements
};

// Each row has `vectors` vectors of n floats, one after another (1: a plain norm; num_heads: a norm per head).
// out = x / sqrt(mean(x^2) + eps) * weight. out may be x. Range: rows.
struct RmsNormParams {
  const float* x = nullptr;
  size_t x_stride = 0;
  const float* weight = nullptr;  // [n]
  float eps = 1e-5f;
  uint32_t n = 0;
  uint32_t vectors = 1;
  float* out = nullptr;
  size_t out_stride = 0;
};

// out[m][n] = residual[m][n] + (bias[n] + sum over k of x[m][k] * w[n][k]); null residual or bias: left out.
// residual may be out. Range: panels of w, [0, w.num_panels()). Needs scratch.
struct GemmParams {
  PackedWeight w;
  const float* x = nullptr;  // [rows, w.k]
  size_t x_stride = 0;
  uint32_t rows = 0;
  const float* bias = nullptr;
  const float* residual = nullptr;
  size_t residual_stride = 0;
  float* out = nullptr;
  size_t out_stride = 0;
};

// Which elements of a head rotate together.
enum class RopePairs : uint8_t {
  kInterleaved,  // (2i, 2i + 1)
  kHalves,       // (i, i + rotary_dim / 2), "NeoX"
};
// Rotates the first rotary_dim elements of each of `heads` consecutive heads of a row, in place. Range: rows.
struct RopeParams {
  RopePairs pairs = RopePairs::kHalves;
  float* x = nullptr;
  size_t x_stride = 0;
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  uint32_t rotary_dim = 0;              // even, <= head_dim
  const uint32_t* positions = nullptr;  // [rows]
  const float* cos_table = nullptr;     // [position][rotary_dim / 2]
  const float* sin_table = nullptr;
};

// One layer of a group's KV pool: tiles in TileForm::kPairs, of bf16, fp16, fp32 (in which nothing is rounded) or int8
// with a scale a token (kv_layout.h).
struct KvTiles {
  std::byte* pool = nullptr;  // block 0
  size_t block_bytes = 0;
  size_t k_offset = 0;  // from a block's start to the K tile of head 0
  size_t v_offset = 0;
  size_t head_stride = 0;  // bytes from one head's tile to the next head's
  uint32_t block_tokens = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;  // even, <= kMaxHeadDim
  DType dtype = DType::kBF16;
};

// Consecutive rows of a batch that belong to one sequence, at consecutive positions.
struct RowSpan {
  const BlockId* blocks = nullptr;  // the blocks of positions [0, first_position + num_rows), in order
  uint32_t first_row = 0;
  uint32_t num_rows = 0;
  uint32_t first_position = 0;
};

// Rounds K and V rows [num_kv_heads * head_dim] to kv.dtype (nearest even; fp16 saturates at +-65504; int8: by the
// largest magnitude of the head's row, KvScale in kernels/formats.h) and stores them at their positions. Spans tile
// [0, rows) in order. Range: rows.
struct KvWriteParams {
  KvTiles kv;
  const float* k = nullptr;
  size_t k_stride = 0;
  const float* v = nullptr;
  size_t v_stride = 0;
  const RowSpan* spans = nullptr;
  uint32_t num_spans = 0;
};

// Causal attention of query rows over the cache, which already holds the rows' own K and V. Query heads
// [kv_head * group, (kv_head + 1) * group), group = num_heads / num_kv_heads, read one KV head.
// Bytes of slots past a row's position may be anything finite. Spans tile [0, rows) in order.
// Range: items [0, num_kv_heads * rows), item = kv_head * rows + row. Needs scratch.
struct AttentionParams {
  KvTiles kv;
  const float* q = nullptr;  // [rows][num_heads * head_dim]
  size_t q_stride = 0;
  uint32_t num_heads = 0;  // at most 64 per KV head
  float scale = 0;
  float* out = nullptr;  // like q; may not be q
  size_t out_stride = 0;
  uint32_t rows = 0;
  const RowSpan* spans = nullptr;
  uint32_t num_spans = 0;
};

// out[i] = silu(gate[i]) * up[i], rows of n. out may be gate or up. Range: rows.
struct SiluMulParams {
  const float* gate = nullptr;
  const float* up = nullptr;
  size_t in_stride = 0;  // of gate and of up
  uint32_t n = 0;
  float* out = nullptr;
  size_t out_stride = 0;
};

// out = a + b over n floats. out may be a or b. Range: elements.
struct AddParams {
  const float* a = nullptr;
  const float* b = nullptr;
  float* out = nullptr;
};

// out[row] = index of the greatest of n values, the lowest index of equals; NaN never wins (0 if all are NaN).
// Range: rows.
struct ArgmaxParams {
  const float* x = nullptr;
  size_t x_stride = 0;
  uint32_t n = 0;
  uint32_t* out = nullptr;
};

struct KernelTable {
  const char* name = "";  // "reference", "avx2", ...: the flag's value
  void (*embed)(const EmbedParams&, size_t begin, size_t end) = nullptr;
  void (*rms_norm)(const RmsNormParams&, size_t begin, size_t end) = nullptr;
  void (*gemm)(const GemmParams&, size_t begin, size_t end, void* scratch) = nullptr;
  void (*rope)(const RopeParams&, size_t begin, size_t end) = nullptr;
  void (*kv_write)(const KvWriteParams&, size_t begin, size_t end) = nullptr;
  void (*attention)(const AttentionParams&, size_t begin, size_t end, void* scratch) = nullptr;
  void (*silu_mul)(const SiluMulParams&, size_t begin, size_t end) = nullptr;
  void (*add)(const AddParams&, size_t begin, size_t end) = nullptr;
  void (*argmax)(const ArgmaxParams&, size_t begin, size_t end) = nullptr;
};

}  // namespace baton

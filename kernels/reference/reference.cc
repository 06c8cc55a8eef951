// What every kernel computes, written to be read: scalar fp32, one output element at a time. The order of the
// operations below is the definition (kernels/README.md); every other table gives the same bits.
#include <cmath>

#include "kernels/formats.h"
#include "kernels/tables.h"

namespace baton {
namespace {

// Sums as all tables do: lane j takes elements j, j + 16, j + 32, ... in order, then the lanes fold by halves.
class LaneSum {
 public:
  float& operator[](size_t element) { return lanes_[element % 16]; }
  float Total() const {
    float sum[16];
    for (int i = 0; i < 16; ++i) sum[i] = lanes_[i];
    for (int half = 8; half >= 1; half /= 2) {
      for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
    }
    return sum[0];
  }

 private:
  float lanes_[16] = {};
};

// Element (column n, k) of a packed weight.
float PackedElement(const PackedWeight& w, uint32_t n, uint32_t k) {
  const auto* panel = reinterpret_cast<const uint8_t*>(w.panels) + (n / 16) * w.panel_bytes;
  const uint32_t c = n % 16;
  if (!IsQuantised(w.dtype)) {
    const size_t row = size_t{k} * 16;
    if (w.dtype == DType::kF32) {
      float value;
      std::memcpy(&value, panel + (row + c) * 4, sizeof value);
      return value;
    }
    if (w.dtype == DType::kF16) return Fp16ToFloat(LoadU16(panel + (row + c) * 2));
    return Bf16ToFloat(LoadU16(panel + (row + (c % 8) * 2 + c / 8) * 2));
  }
  const uint8_t* group = panel + k / kQuantGroup * PanelGroupBytes(w.dtype);
  const uint32_t i = k % kQuantGroup;
  const float d = Fp16ToFloat(LoadU16(group + c * 2));
  if (w.dtype == DType::kQ8_0) return static_cast<float>(static_cast<int8_t>(group[32 + i * 16 + c])) * d;
  const uint8_t* nibbles = group + (w.dtype == DType::kQ4_0 ? 32 : 64);
  const uint8_t byte = nibbles[i * 8 + c % 8];
  const int q = c < 8 ? byte & 15 : byte >> 4;
  if (w.dtype == DType::kQ4_0) return static_cast<float>(q - 8) * d;
  return std::fma(static_cast<float>(q), d, Fp16ToFloat(LoadU16(group + 32 + c * 2)));
}

void Embed(const EmbedParams& p, size_t begin, size_t end) {
  for (size_t row = begin; row < end; ++row) {
    const std::byte* source = p.table + static_cast<size_t>(p.ids[row]) * p.row_bytes;
    for (uint32_t i = 0; i < p.n; ++i) p.out[row * p.out_stride + i] = RowElement(p.dtype, source, i);
  }
}

void RmsNorm(const RmsNormParams& p, size_t begin, size_t end) {
  for (size_t row = begin; row < end; ++row) {
    for (uint32_t v = 0; v < p.vectors; ++v) {
      const float* x = p.x + row * p.x_stride + size_t{v} * p.n;
      float* out = p.out + row * p.out_stride + size_t{v} * p.n;
      LaneSum squares;
      for (uint32_t i = 0; i < p.n; ++i) squares[i] = std::fma(x[i], x[i], squares[i]);
      const float inverse = 1.0f / std::sqrt(squares.Total() / static_cast<float>(p.n) + p.eps);
      for (uint32_t i = 0; i < p.n; ++i) out[i] = x[i] * inverse * p.weight[i];
    }
  }
}

void Gemm(const GemmParams& p, size_t begin, size_t end, void* scratch) {
  auto* column = static_cast<float*>(scratch);  // a part of one column of w; the accumulators live in `sums`
  constexpr uint32_t kPart = 4096;
  const size_t last = end * kPanelColumns < p.w.n ? end * kPanelColumns : p.w.n;
  for (size_t n = begin * kPanelColumns; n < last; ++n) {
    for (uint32_t first_row = 0; first_row < p.rows; first_row += kPart) {
      float* sums = column + kPart;
      const uint32_t rows = p.rows - first_row < kPart ? p.rows - first_row : kPart;
      for (uint32_t m = 0; m < rows; ++m) sums[m] = 0;
      for (uint32_t k0 = 0; k0 < p.w.k; k0 += kPart) {
        const uint32_t count = p.w.k - k0 < kPart ? p.w.k - k0 : kPart;
        for (uint32_t k = 0; k < count; ++k) column[k] = PackedElement(p.w, static_cast<uint32_t>(n), k0 + k);
        for (uint32_t m = 0; m < rows; ++m) {
          const float* x = p.x + (size_t{first_row} + m) * p.x_stride + k0;
          for (uint32_t k = 0; k < count; ++k) sums[m] = std::fma(column[k], x[k], sums[m]);
        }
      }
      for (uint32_t m = 0; m < rows; ++m) {
        const size_t row = size_t{first_row} + m;
        float value = sums[m];
        if (p.bias != nullptr) value += p.bias[n];
        if (p.residual != nullptr) value += p.residual[row * p.residual_stride + n];
        p.out[row * p.out_stride + n] = value;
      }
    }
  }
}

void Rope(const RopeParams& p, size_t begin, size_t end) {
  const uint32_t half = p.rotary_dim / 2;
  for (size_t row = begin; row < end; ++row) {
    const float* cos = p.cos_table + size_t{p.positions[row]} * half;
    const float* sin = p.sin_table + size_t{p.positions[row]} * half;
    for (uint32_t h = 0; h < p.heads; ++h) {
      float* x = p.x + row * p.x_stride + size_t{h} * p.head_dim;
      for (uint32_t i = 0; i < half; ++i) {
        float& a = p.pairs == RopePairs::kHalves ? x[i] : x[2 * i];
        float& b = p.pairs == RopePairs::kHalves ? x[i + half] : x[2 * i + 1];
        const float rotated_a = std::fma(a, cos[i], -(b * sin[i]));
        const float rotated_b = std::fma(b, cos[i], a * sin[i]);
        a = rotated_a;
        b = rotated_b;
      }
    }
  }
}

// Where K or V of (head, position) lies: K [dim / 2][token][2], V [token / 2][dim][2].
std::byte* CacheElement(const KvTiles& kv, const BlockId* blocks, uint32_t head, uint32_t position, uint32_t d,
                        bool value) {
  const uint32_t t = position % kv.block_tokens;
  std::byte* tile = kv.pool + size_t{Index(blocks[position / kv.block_tokens])} * kv.block_bytes +
                    (value ? kv.v_offset : kv.k_offset) + head * kv.head_stride;
  const size_t element =
      value ? (size_t{t / 2} * kv.head_dim + d) * 2 + t % 2 : (size_t{d / 2} * kv.block_tokens + t) * 2 + d % 2;
  const size_t size = kv.dtype == DType::kF32 ? 4 : kv.dtype == DType::kI8 ? 1 : 2;
  return tile + element * size;
}
// The scale of (head, position)'s K or V in a cache of int8: behind the tile's elements, [token].
std::byte* CacheScale(const KvTiles& kv, const BlockId* blocks, uint32_t head, uint32_t position, bool value) {
  const size_t t = position % kv.block_tokens;
  return kv.pool + size_t{Index(blocks[position / kv.block_tokens])} * kv.block_bytes +
         (value ? kv.v_offset : kv.k_offset) + head * kv.head_stride + size_t{kv.block_tokens} * kv.head_dim +
         t * kKvScaleBytes;
}

void StoreCache(const KvTiles& kv, float value, std::byte* element) {
  if (kv.dtype == DType::kF32) {
    std::memcpy(element, &value, sizeof value);
  } else {
    const uint16_t rounded = kv.dtype == DType::kF16 ? FloatToFp16(value) : FloatToBf16(value);
    std::memcpy(element, &rounded, sizeof rounded);
  }
}

// Of int8: the integer.
float LoadCache(const KvTiles& kv, const std::byte* element) {
  if (kv.dtype == DType::kI8) return static_cast<float>(static_cast<int8_t>(*element));
  if (kv.dtype == DType::kF16) return Fp16ToFloat(LoadU16(element));
  if (kv.dtype != DType::kF32) return Bf16ToFloat(LoadU16(element));
  float value;
  std::memcpy(&value, element, sizeof value);
  return value;
}

// What an element counts times, in attention.
float ScaleOf(const KvTiles& kv, const BlockId* blocks, uint32_t head, uint32_t position, bool value) {
  float scale = 1;
  if (kv.dtype == DType::kI8) std::memcpy(&scale, CacheScale(kv, blocks, head, position, value), sizeof scale);
  return scale;
}

void StoreInt8(const KvTiles& kv, const float* row, const BlockId* blocks, uint32_t head, uint32_t position,
               bool value) {
  const KvScale scale = KvScaleOfRow(row, kv.head_dim);
  std::memcpy(CacheScale(kv, blocks, head, position, value), &scale.scale, sizeof scale.scale);
  for (uint32_t d = 0; d < kv.head_dim; ++d) {
    *CacheElement(kv, blocks, head, position, d, value) = static_cast<std::byte>(KvInt8(row[d], scale.inverse));
  }
}

void KvWrite(const KvWriteParams& p, size_t begin, size_t end) {
  for (uint32_t s = 0; s < p.num_spans; ++s) {
    const RowSpan& span = p.spans[s];
    for (uint32_t r = 0; r < span.num_rows; ++r) {
      const size_t row = size_t{span.first_row} + r;
      if (row < begin || row >= end) continue;
      const uint32_t position = span.first_position + r;
      for (uint32_t h = 0; h < p.kv.num_kv_heads; ++h) {
        if (p.kv.dtype == DType::kI8) {
          const size_t head = size_t{h} * p.kv.head_dim;
          StoreInt8(p.kv, p.k + row * p.k_stride + head, span.blocks, h, position, false);
          StoreInt8(p.kv, p.v + row * p.v_stride + head, span.blocks, h, position, true);
          continue;
        }
        for (uint32_t d = 0; d < p.kv.head_dim; ++d) {
          const size_t i = size_t{h} * p.kv.head_dim + d;
          StoreCache(p.kv, p.k[row * p.k_stride + i], CacheElement(p.kv, span.blocks, h, position, d, false));
          StoreCache(p.kv, p.v[row * p.v_stride + i], CacheElement(p.kv, span.blocks, h, position, d, true));
        }
      }
    }
  }
}

// One query head at one position. A piece: its own maximum, sum and weighted values; then it merges into what
// came before it.
void AttendOne(const KvTiles& kv, const BlockId* blocks, uint32_t kv_head, uint32_t position, float scale,
               const float* q, float* out) {
  float best = 0;  // of the pieces so far
  float total = 0;
  for (uint32_t first = 0; first <= position; first += kAttentionPiece) {
    const uint32_t count = position + 1 - first < kAttentionPiece ? position + 1 - first : kAttentionPiece;
    float weight[kAttentionPiece];
    float piece_best = -INFINITY;
    for (uint32_t t = 0; t < count; ++t) {
      float dot = 0;
      for (uint32_t d = 0; d < kv.head_dim; ++d) {
        dot = std::fma(q[d], LoadCache(kv, CacheElement(kv, blocks, kv_head, first + t, d, false)), dot);
      }
      weight[t] = dot * ScaleOf(kv, blocks, kv_head, first + t, false) * scale;
      piece_best = piece_best > weight[t] ? piece_best : weight[t];
    }
    LaneSum sum;
    for (uint32_t t = 0; t < count; ++t) {
      weight[t] = ExpOf(weight[t] - piece_best);
      sum[t] += weight[t];
      weight[t] *= ScaleOf(kv, blocks, kv_head, first + t, true);
    }
    const float piece_total = sum.Total();
    const float new_best = best > piece_best ? best : piece_best;
    const float keep = ExpOf(best - new_best);
    const float add = ExpOf(piece_best - new_best);
    for (uint32_t d = 0; d < kv.head_dim; ++d) {
      float value = 0;
      for (uint32_t t = 0; t < count; ++t) {
        value = std::fma(weight[t], LoadCache(kv, CacheElement(kv, blocks, kv_head, first + t, d, true)), value);
      }
      out[d] = first == 0 ? value : std::fma(out[d], keep, value * add);
    }
    total = first == 0 ? piece_total : std::fma(total, keep, piece_total * add);
    best = first == 0 ? piece_best : new_best;
  }
  const float inverse = 1.0f / total;
  for (uint32_t d = 0; d < kv.head_dim; ++d) out[d] *= inverse;
}

void Attention(const AttentionParams& p, size_t begin, size_t end, void*) {
  const uint32_t group = p.num_heads / p.kv.num_kv_heads;
  for (uint32_t s = 0; s < p.num_spans; ++s) {
    const RowSpan& span = p.spans[s];
    for (uint32_t h = 0; h < p.num_heads; ++h) {
      const uint32_t kv_head = h / group;
      for (uint32_t r = 0; r < span.num_rows; ++r) {
        const size_t row = size_t{span.first_row} + r;
        const size_t item = size_t{kv_head} * p.rows + row;
        if (item < begin || item >= end) continue;
        const size_t offset = size_t{h} * p.kv.head_dim;
        AttendOne(p.kv, span.blocks, kv_head, span.first_position + r, p.scale, p.q + row * p.q_stride + offset,
                  p.out + row * p.out_stride + offset);
      }
    }
  }
}

void SiluMul(const SiluMulParams& p, size_t begin, size_t end) {
  for (size_t row = begin; row < end; ++row) {
    for (uint32_t i = 0; i < p.n; ++i) {
      const float gate = p.gate[row * p.in_stride + i];
      const float up = p.up[row * p.in_stride + i];
      p.out[row * p.out_stride + i] = gate / (1.0f + ExpOf(-gate)) * up;
    }
  }
}

void Add(const AddParams& p, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) p.out[i] = p.a[i] + p.b[i];
}

void Argmax(const ArgmaxParams& p, size_t begin, size_t end) {
  for (size_t row = begin; row < end; ++row) {
    const float* x = p.x + row * p.x_stride;
    uint32_t best = 0;
    for (uint32_t i = 1; i < p.n; ++i) {
      if (x[i] > x[best] || (x[best] != x[best] && x[i] == x[i])) best = i;
    }
    p.out[row] = best;
  }
}

}  // namespace

const KernelTable kReferenceKernels = {
    .name = "reference",
    .embed = Embed,
    .rms_norm = RmsNorm,
    .gemm = Gemm,
    .rope = Rope,
    .kv_write = KvWrite,
    .attention = Attention,
    .silu_mul = SiluMul,
    .add = Add,
    .argmax = Argmax,
};

}  // namespace baton

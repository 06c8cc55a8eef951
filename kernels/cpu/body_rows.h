// The row-wise kernels over 16 fp32 lanes, and the table of one ISA; included after body.h.
#pragma once

#include "kernels/cpu/body.h"

namespace baton {
namespace {

// fn(i, mask of the lanes that exist, whether all do) over n elements, 16 at a time.
template <typename Fn>
BATON_INLINE void ForLanes(uint32_t n, const Fn& fn) {
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) fn(i, LaneMask{}, true);
  if (i < n) fn(i, FirstLanes(n - i), false);
}
BATON_INLINE Lanes LoadSome(const float* p, LaneMask mask, bool all) { return all ? Load(p) : LoadMasked(p, mask); }
BATON_INLINE void StoreSome(float* p, LaneMask mask, bool all, Lanes v) {
  if (all) {
    Store(p, v);
  } else {
    StoreMasked(p, mask, v);
  }
}

void Embed(const EmbedParams& p, size_t begin, size_t end) {
  for (size_t row = begin; row < end; ++row) {
    const std::byte* source = p.table + static_cast<size_t>(p.ids[row]) * p.row_bytes;
    float* out = p.out + row * p.out_stride;
    for (uint32_t i = 0; i < p.n; ++i) out[i] = RowElement(p.dtype, source, i);
  }
}

void RmsNorm(const RmsNormParams& p, size_t begin, size_t end) {
  for (size_t row = begin; row < end; ++row) {
    for (uint32_t v = 0; v < p.vectors; ++v) {
      const float* x = p.x + row * p.x_stride + size_t{v} * p.n;
      float* out = p.out + row * p.out_stride + size_t{v} * p.n;
      Lanes squares = Zero();
      ForLanes(p.n, [&](uint32_t i, LaneMask mask, bool all) {
        const Lanes value = LoadSome(x + i, mask, all);
        squares = Fma(value, value, squares);
      });
      const float mean = TreeSum(squares) / static_cast<float>(p.n);
      const Lanes inverse = Set(1.0f / __builtin_sqrtf(mean + p.eps));
      ForLanes(p.n, [&](uint32_t i, LaneMask mask, bool all) {
        const Lanes scaled = Mul(LoadSome(x + i, mask, all), inverse);
        StoreSome(out + i, mask, all, Mul(scaled, LoadSome(p.weight + i, mask, all)));
      });
    }
  }
}

void RopeHalves(float* x, const float* cos, const float* sin, uint32_t half) {
  ForLanes(half, [&](uint32_t i, LaneMask mask, bool all) {
    const Lanes a = LoadSome(x + i, mask, all);
    const Lanes b = LoadSome(x + half + i, mask, all);
    const Lanes c = LoadSome(cos + i, mask, all);
    const Lanes s = LoadSome(sin + i, mask, all);
    StoreSome(x + i, mask, all, Fma(a, c, Mul(Mul(b, s), Set(-1.0f))));
    StoreSome(x + half + i, mask, all, Fma(b, c, Mul(a, s)));
  });
}
void RopeInterleaved(float* x, const float* cos, const float* sin, uint32_t half) {
  for (uint32_t i = 0; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = __builtin_fmaf(a, cos[i], -(b * sin[i]));
    x[2 * i + 1] = __builtin_fmaf(b, cos[i], a * sin[i]);
  }
}
void Rope(const RopeParams& p, size_t begin, size_t end) {
  const uint32_t half = p.rotary_dim / 2;
  for (size_t row = begin; row < end; ++row) {
    const float* cos = p.cos_table + size_t{p.positions[row]} * half;
    const float* sin = p.sin_table + size_t{p.positions[row]} * half;
    for (uint32_t h = 0; h < p.heads; ++h) {
      float* x = p.x + row * p.x_stride + size_t{h} * p.head_dim;
      if (p.pairs == RopePairs::kHalves) {
        RopeHalves(x, cos, sin, half);
      } else {
        RopeInterleaved(x, cos, sin, half);
      }
    }
  }
}

BATON_INLINE uint16_t KvBits(uint16_t, DType dtype, float f) {
  return dtype == DType::kF16 ? FloatToFp16(f) : FloatToBf16(f);
}
BATON_INLINE float KvBits(float, DType, float f) { return f; }

// One head's K and V of one position into its tiles, at slot t.
template <typename Element>
void WriteHead(const KvTiles& kv, uint8_t* block, uint32_t head, uint32_t t, const float* k, const float* v) {
  auto* k_tile = reinterpret_cast<Element*>(block + kv.k_offset + head * kv.head_stride) + size_t{t} * 2;
  auto* v_tile =
      reinterpret_cast<Element*>(block + kv.v_offset + head * kv.head_stride) + size_t{t / 2} * kv.head_dim * 2 + t % 2;
  for (uint32_t d = 0; d < kv.head_dim; d += 2) {
    k_tile[size_t{d} * kv.block_tokens] = KvBits(Element{}, kv.dtype, k[d]);
    k_tile[size_t{d} * kv.block_tokens + 1] = KvBits(Element{}, kv.dtype, k[d + 1]);
  }
  for (uint32_t d = 0; d < kv.head_dim; ++d) v_tile[size_t{d} * 2] = KvBits(Element{}, kv.dtype, v[d]);
}

// The same as int8: integers, and behind the tile's elements the row's scale.
void WriteInt8Head(const KvTiles& kv, uint8_t* block, uint32_t head, uint32_t t, const float* k, const float* v) {
  uint8_t* k_tile = block + kv.k_offset + head * kv.head_stride;
  uint8_t* v_tile = block + kv.v_offset + head * kv.head_stride;
  const size_t scale_offset = size_t{kv.block_tokens} * kv.head_dim + size_t{t} * kKvScaleBytes;
  const KvScale k_scale = KvScaleOfRow(k, kv.head_dim), v_scale = KvScaleOfRow(v, kv.head_dim);
  __builtin_memcpy(k_tile + scale_offset, &k_scale.scale, kKvScaleBytes);
  __builtin_memcpy(v_tile + scale_offset, &v_scale.scale, kKvScaleBytes);
  int8_t integers[kMaxHeadDim];
  for (uint32_t d = 0; d < kv.head_dim; ++d) integers[d] = KvInt8(k[d], k_scale.inverse);
  for (uint32_t d = 0; d < kv.head_dim; d += 2) {
    __builtin_memcpy(k_tile + (size_t{d / 2} * kv.block_tokens + t) * 2, integers + d, 2);
  }
  for (uint32_t d = 0; d < kv.head_dim; ++d) integers[d] = KvInt8(v[d], v_scale.inverse);
  uint8_t* to = v_tile + size_t{t / 2} * kv.head_dim * 2 + t % 2;
  for (uint32_t d = 0; d < kv.head_dim; ++d) to[size_t{d} * 2] = static_cast<uint8_t>(integers[d]);
}

// V's pairs join two tokens that different threads may write, so its halves are stored one by one.
void KvWrite(const KvWriteParams& p, size_t begin, size_t end) {
  const KvTiles& kv = p.kv;
  for (uint32_t s = 0; s < p.num_spans; ++s) {
    const RowSpan& span = p.spans[s];
    const size_t span_end = size_t{span.first_row} + span.num_rows;
    const size_t stop = span_end < end ? span_end : end;
    for (size_t row = span.first_row > begin ? span.first_row : begin; row < stop; ++row) {
      const uint32_t position = span.first_position + static_cast<uint32_t>(row - span.first_row);
      const uint32_t t = position % kv.block_tokens;
      auto* block = reinterpret_cast<uint8_t*>(kv.pool) +
                    static_cast<size_t>(static_cast<uint32_t>(span.blocks[position / kv.block_tokens])) *
                        kv.block_bytes;
      for (uint32_t h = 0; h < kv.num_kv_heads; ++h) {
        const float* k = p.k + row * p.k_stride + size_t{h} * kv.head_dim;
        const float* v = p.v + row * p.v_stride + size_t{h} * kv.head_dim;
        if (kv.dtype == DType::kF32) {
          WriteHead<float>(kv, block, h, t, k, v);
          continue;
        }
        if (kv.dtype == DType::kF16) {
          WriteHead<uint16_t>(kv, block, h, t, k, v);
          continue;
        }
        if (kv.dtype == DType::kI8) {
          WriteInt8Head(kv, block, h, t, k, v);
          continue;
        }
        auto* k_tile = reinterpret_cast<uint32_t*>(block + kv.k_offset + h * kv.head_stride) + t;
        auto* v_tile = reinterpret_cast<uint16_t*>(block + kv.v_offset + h * kv.head_stride) +
                       size_t{t / 2} * kv.head_dim * 2 + t % 2;
        for (uint32_t d = 0; d < kv.head_dim; d += 2) {
          k_tile[size_t{d / 2} * kv.block_tokens] = FloatToBf16(k[d]) | uint32_t{FloatToBf16(k[d + 1])} << 16;
        }
        for (uint32_t d = 0; d < kv.head_dim; ++d) v_tile[size_t{d} * 2] = FloatToBf16(v[d]);
      }
    }
  }
}

void SiluMul(const SiluMulParams& p, size_t begin, size_t end) {
  for (size_t row = begin; row < end; ++row) {
    const float* gate = p.gate + row * p.in_stride;
    const float* up = p.up + row * p.in_stride;
    float* out = p.out + row * p.out_stride;
    ForLanes(p.n, [&](uint32_t i, LaneMask mask, bool all) {
      const Lanes g = LoadSome(gate + i, mask, all);
      const Lanes silu = Div(g, Add(Set(1.0f), Exp(Mul(g, Set(-1.0f)))));
      StoreSome(out + i, mask, all, Mul(silu, LoadSome(up + i, mask, all)));
    });
  }
}

void AddRange(const AddParams& p, size_t begin, size_t end) {
  size_t i = begin;
  for (; i + 16 <= end; i += 16) Store(p.out + i, Add(Load(p.a + i), Load(p.b + i)));
  for (; i < end; ++i) p.out[i] = p.a[i] + p.b[i];
}

// The greatest of n values that are not NaN; -inf if there is none.
float Greatest(const float* x, uint32_t n) {
  const Lanes nothing = Set(-__builtin_inff());
  Lanes most = nothing;
  ForLanes(n, [&](uint32_t i, LaneMask mask, bool all) {
    const Lanes value = LoadSome(x + i, mask, all);
    most = Max(all ? value : Select(mask, value, nothing), most);
  });
  return MaxOf(most);
}
void Argmax(const ArgmaxParams& p, size_t begin, size_t end) {
  constexpr uint32_t kChunk = 1024;
  for (size_t row = begin; row < end; ++row) {
    const float* x = p.x + row * p.x_stride;
    const float best = Greatest(x, p.n);
    uint32_t found = 0;
    for (uint32_t i = 0; i < p.n; i += kChunk) {
      const uint32_t stop = Least(p.n, i + kChunk);
      if (Greatest(x + i, stop - i) < best) continue;
      uint32_t j = i;
      while (j < stop && !(x[j] == best)) ++j;
      if (j == stop) continue;
      found = j;
      break;
    }
    p.out[row] = found;
  }
}

constexpr KernelTable MakeTable(const char* name) {
  KernelTable table;
  table.name = name;
  table.embed = Embed;
  table.rms_norm = RmsNorm;
  table.gemm = Gemm;
  table.rope = Rope;
  table.kv_write = KvWrite;
  table.attention = Attention;
  table.silu_mul = SiluMul;
  table.add = AddRange;
  table.argmax = Argmax;
  return table;
}

}  // namespace
}  // namespace baton

// The vector kernels, written once over 16 fp32 lanes (lanes_<isa>.h, included before this file) and compiled
// once per ISA with its own -m flags. Everything has internal linkage and no std template is used, so that the
// linker never shares a copy between ISAs. What is computed, and in which order, is kernels/reference.
#pragma once

#include "kernels/formats.h"
#include "kernels/tables.h"

namespace baton {
namespace {

BATON_INLINE uint32_t Least(uint32_t a, uint32_t b) { return a < b ? a : b; }
BATON_INLINE uint32_t CeilDiv(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

BATON_INLINE Lanes Exp(Lanes x) {
  // Operand order: a NaN in x passes through.
  const Lanes c = Max(Set(kExpLow), Min(Set(kExpHigh), x));
  const Lanes shifted = Fma(c, Set(kLog2E), Set(kRoundMagic));
  const Lanes n = Sub(shifted, Set(kRoundMagic));
  const Lanes r = Fma(n, Set(-kLn2Low), Fma(n, Set(-kLn2High), c));
  Lanes p = Set(kExpC[6]);
  for (int i = 5; i >= 0; --i) p = Fma(p, r, Set(kExpC[i]));
  return ZeroBelow(x, Set(kExpLow), Mul(p, ExponentScale(shifted)));
}

// ---- weights -----------------------------------------------------------------------------------
// Reads one panel group (32 k of 16 columns); At(i) is the fp32 weight of the group's i-th k.
struct GroupF32 {
  const uint8_t* base;
  BATON_INLINE explicit GroupF32(const uint8_t* group) : base(group) {}
  BATON_INLINE Lanes At(uint32_t i) const { return DecodeF32(base + i * 64); }
};
struct GroupF16 {
  const uint8_t* base;
  BATON_INLINE explicit GroupF16(const uint8_t* group) : base(group) {}
  BATON_INLINE Lanes At(uint32_t i) const { return DecodeF16(base + i * 32); }
};
struct GroupBF16 {
  const uint8_t* base;
  BATON_INLINE explicit GroupBF16(const uint8_t* group) : base(group) {}
  BATON_INLINE Lanes At(uint32_t i) const { return DecodeBF16(base + i * 32); }
};
struct GroupQ8_0 {
  const uint8_t* base;
  Lanes d;
  BATON_INLINE explicit GroupQ8_0(const uint8_t* group) : base(group + 32), d(DecodeF16(group)) {}
  BATON_INLINE Lanes At(uint32_t i) const { return Mul(DecodeInt8(base + i * 16), d); }
};
struct GroupQ4_0 {
  const uint8_t* base;
  Lanes d, minus_8d;
  BATON_INLINE explicit GroupQ4_0(const uint8_t* group)
      : base(group + 32), d(NibbleScale(DecodeF16(group))), minus_8d(Mul(DecodeF16(group), Set(-8.0f))) {}
  // (q - 8) * d needs at most 15 bits, so q * d - 8 d is the same exact number (but for the zero's sign, which
  // no sum from +0 can show).
  BATON_INLINE Lanes At(uint32_t i) const { return Fma(DecodeNibbles(base + i * 8), d, minus_8d); }
};
struct GroupQ4_1 {
  const uint8_t* base;
  Lanes d, min;
  BATON_INLINE explicit GroupQ4_1(const uint8_t* group)
      : base(group + 64), d(NibbleScale(DecodeF16(group))), min(DecodeF16(group + 32)) {}
  BATON_INLINE Lanes At(uint32_t i) const { return Fma(DecodeNibbles(base + i * 8), d, min); }
};

// ---- gemm --------------------------------------------------------------------------------------
// Adds bias and residual to 16 columns of one row and stores them; `columns` of them exist.
BATON_INLINE void Finish(const GemmParams& p, size_t row, uint32_t n, uint32_t columns, Lanes sum) {
  float* out = p.out + row * p.out_stride + n;
  const float* residual = p.residual == nullptr ? nullptr : p.residual + row * p.residual_stride + n;
  if (columns >= kPanelColumns) {
    if (p.bias != nullptr) sum = Add(sum, Load(p.bias + n));
    if (residual != nullptr) sum = Add(sum, Load(residual));
    Store(out, sum);
    return;
  }
  const LaneMask mask = FirstLanes(columns);
  if (p.bias != nullptr) sum = Add(sum, LoadMasked(p.bias + n, mask));
  if (residual != nullptr) sum = Add(sum, LoadMasked(residual, mask));
  StoreMasked(out, mask, sum);
}

// Few rows: weights are decoded on the way, kPanels panels in flight to hide the latency of the adds.
template <typename Group, uint32_t kGroupBytes, uint32_t kRows, uint32_t kPanels>
void GemvPanels(const GemmParams& p, size_t panel) {
  const auto* base = reinterpret_cast<const uint8_t*>(p.w.panels) + panel * p.w.panel_bytes;
  const float* x = p.x;
  const size_t x_stride = p.x_stride;
  Lanes sum[kPanels][kRows];
#pragma GCC unroll 8
  for (uint32_t j = 0; j < kPanels; ++j) {
#pragma GCC unroll 8
    for (uint32_t r = 0; r < kRows; ++r) sum[j][r] = Zero();
  }
  const uint32_t k = p.w.k;
  for (uint32_t k0 = 0; k0 < k; k0 += kQuantGroup) {
    const uint8_t* group = base + size_t{k0 / kQuantGroup} * kGroupBytes;
    const auto step = [&](const Group* weights, uint32_t i) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (uint32_t j = 0; j < kPanels; ++j) {
        const Lanes w = weights[j].At(i);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < kRows; ++r) sum[j][r] = Fma(w, Set(x[r * x_stride + k0 + i]), sum[j][r]);
      }
    };
    const auto run = [&](const Group* weights) __attribute__((always_inline)) {
      if (k - k0 >= kQuantGroup) {
#pragma GCC unroll 2
        for (uint32_t i = 0; i < kQuantGroup; ++i) step(weights, i);
      } else {
        for (uint32_t i = 0; i < k - k0; ++i) step(weights, i);
      }
    };
    // Panels are short streams: the same place of the next ones is fetched ahead.
    const uint8_t* next = group + kPanels * p.w.panel_bytes;
#pragma GCC unroll 4
    for (uint32_t j = 0; j < kPanels; ++j) {
      for (uint32_t b = 0; b < kGroupBytes; b += 64) PrefetchL2(next + j * p.w.panel_bytes + b);
    }
    const size_t panel_bytes = p.w.panel_bytes;
    if constexpr (kPanels == 1) {
      const Group weights[] = {Group(group)};
      run(weights);
    } else if constexpr (kPanels == 2) {
      const Group weights[] = {Group(group), Group(group + panel_bytes)};
      run(weights);
    } else {
      static_assert(kPanels == 4);
      const Group weights[] = {Group(group), Group(group + panel_bytes), Group(group + 2 * panel_bytes),
                               Group(group + 3 * panel_bytes)};
      run(weights);
    }
  }
#pragma GCC unroll 8
  for (uint32_t j = 0; j < kPanels; ++j) {
    const auto n = static_cast<uint32_t>(panel + j) * kPanelColumns;
#pragma GCC unroll 8
    for (uint32_t r = 0; r < kRows; ++r) Finish(p, r, n, p.w.n - n, sum[j][r]);
  }
}

template <typename Group, uint32_t kGroupBytes, uint32_t kRows>
void GemvRows(const GemmParams& p, size_t begin, size_t end) {
  constexpr uint32_t kPanels = kGemvPanels[kRows - 1];
  size_t panel = begin;
  for (; panel + kPanels <= end; panel += kPanels) GemvPanels<Group, kGroupBytes, kRows, kPanels>(p, panel);
  for (; panel < end; ++panel) GemvPanels<Group, kGroupBytes, kRows, 1>(p, panel);
}

constexpr uint32_t kGemvRows = 4;  // up to here weights are decoded on the way
template <typename Group, uint32_t kGroupBytes>
void Gemv(const GemmParams& p, size_t begin, size_t end) {
  switch (p.rows) {
    case 1: return GemvRows<Group, kGroupBytes, 1>(p, begin, end);
    case 2: return GemvRows<Group, kGroupBytes, 2>(p, begin, end);
    case 3: return GemvRows<Group, kGroupBytes, 3>(p, begin, end);
    case kGemvRows: return GemvRows<Group, kGroupBytes, kGemvRows>(p, begin, end);
  }
}

// A panel's weights [k0, k0 + count) as fp32 [count][16]. k0 is a multiple of 32.
template <typename Group, uint32_t kGroupBytes>
void DecodePanel(const PackedWeight& w, size_t panel, uint32_t k0, uint32_t count, float* out) {
  const auto* group = reinterpret_cast<const uint8_t*>(w.panels) + panel * w.panel_bytes +
                      size_t{k0 / kQuantGroup} * kGroupBytes;
  for (uint32_t k = 0; k < count; k += kQuantGroup, group += kGroupBytes) {
    const Group weights(group);
    const uint32_t here = Least(kQuantGroup, count - k);
    for (uint32_t i = 0; i < here; ++i) Store(out + (size_t{k} + i) * 16, weights.At(i));
  }
}

// sums[r][j] += sum over k of x[r][k] * b[j][k][16], ascending k. sums: [rows][kPanels] at sums_stride floats per
// row, 16 per panel. `b` holds panels of b_stride floats.
template <uint32_t kRows, uint32_t kPanels>
void Micro(const float* x, size_t x_stride, const float* b, size_t b_stride, uint32_t k, bool resume, float* sums,
           size_t sums_stride) {
  Lanes sum[kRows][kPanels];
#pragma GCC unroll 16
  for (uint32_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (uint32_t j = 0; j < kPanels; ++j) sum[r][j] = resume ? Load(sums + r * sums_stride + j * 16) : Zero();
  }
#pragma GCC unroll 2
  for (uint32_t i = 0; i < k; ++i) {
    Lanes w[kPanels];
#pragma GCC unroll 4
    for (uint32_t j = 0; j < kPanels; ++j) w[j] = Load(b + j * b_stride + size_t{i} * 16);
#pragma GCC unroll 16
    for (uint32_t r = 0; r < kRows; ++r) {
      const Lanes value = Set(x[r * x_stride + i]);
#pragma GCC unroll 4
      for (uint32_t j = 0; j < kPanels; ++j) sum[r][j] = Fma(w[j], value, sum[r][j]);
    }
  }
#pragma GCC unroll 16
  for (uint32_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (uint32_t j = 0; j < kPanels; ++j) Store(sums + r * sums_stride + j * 16, sum[r][j]);
  }
}

constexpr uint32_t kMicroRows = BATON_MICRO_ROWS;
using MicroFn = void (*)(const float*, size_t, const float*, size_t, uint32_t, bool, float*, size_t);
template <uint32_t kPanels>
constexpr MicroFn kMicro[] = {
    Micro<1, kPanels>, Micro<2, kPanels>, Micro<3, kPanels>, Micro<4, kPanels>,
    Micro<5, kPanels>, Micro<6, kPanels>,
#if BATON_MICRO_ROWS == 12
    Micro<7, kPanels>, Micro<8, kPanels>, Micro<9, kPanels>, Micro<10, kPanels>,
    Micro<11, kPanels>, Micro<12, kPanels>,
#endif
};

// Rows of block `i` when `rows` are cut evenly into `blocks`.
BATON_INLINE uint32_t EvenCut(uint32_t rows, uint32_t blocks, uint32_t i) {
  return static_cast<uint32_t>(uint64_t{rows} * i / blocks);
}

// Many rows: panels are decoded once into scratch, then every row block runs over them. Weights longer than
// kPartK come in parts of k whose sums wait in scratch.
constexpr uint32_t kPartK = 2048;
constexpr size_t kDecodedFloats = size_t{kPartK} * 16 * 2;  // 256 KiB
constexpr uint32_t kPartRows = 1024;

template <typename Group, uint32_t kGroupBytes>
void GemmPanels(const GemmParams& p, size_t panel, uint32_t panels, uint32_t first_row, uint32_t rows,
                float* decoded, float* sums) {
  const uint32_t k = p.w.k;
  const size_t b_stride = size_t{Least(k, kPartK)} * 16;
  const uint32_t blocks = CeilDiv(rows, kMicroRows);
  // One part: a tile is finished at once and its place is used again, so that it stays in L1.
  const bool keep = k > kPartK;
  for (uint32_t k0 = 0; k0 < k; k0 += kPartK) {
    const uint32_t count = Least(kPartK, k - k0);
    const bool last = k0 + count == k;
    for (uint32_t j = 0; j < panels; ++j) {
      DecodePanel<Group, kGroupBytes>(p.w, panel + j, k0, count, decoded + j * b_stride);
    }
    for (uint32_t b = 0; b < blocks; ++b) {
      const uint32_t r0 = EvenCut(rows, blocks, b);
      const uint32_t height = EvenCut(rows, blocks, b + 1) - r0;
      const float* x = p.x + (size_t{first_row} + r0) * p.x_stride + k0;
      for (uint32_t j = 0; j < panels; j += kMicroPanels) {
        const uint32_t width = Least(kMicroPanels, panels - j);
        const size_t sums_stride = size_t{width} * 16;
        float* tile = keep ? sums + (size_t{r0} * panels + size_t{j} * height) * 16 : sums;
        const MicroFn micro = width == kMicroPanels ? kMicro<kMicroPanels>[height - 1] : kMicro<1>[height - 1];
        micro(x, p.x_stride, decoded + j * b_stride, b_stride, count, k0 != 0, tile, sums_stride);
        if (!last) continue;
        for (uint32_t r = 0; r < height; ++r) {
          for (uint32_t c = 0; c < width; ++c) {
            const auto n = static_cast<uint32_t>(panel + j + c) * kPanelColumns;
            Finish(p, size_t{first_row} + r0 + r, n, p.w.n - n, Load(tile + r * sums_stride + c * 16));
          }
        }
      }
    }
  }
}

template <typename Group, uint32_t kGroupBytes>
void GemmOf(const GemmParams& p, size_t begin, size_t end, void* scratch) {
  if (p.rows <= kGemvRows) return Gemv<Group, kGroupBytes>(p, begin, end);
  auto* decoded = static_cast<float*>(scratch);
  float* sums = decoded + kDecodedFloats;
  const size_t panel_floats = size_t{Least(p.w.k, kPartK)} * 16;
  // At most 8, so that the sums of kPartRows rows fit; a whole number of micro-kernel widths.
  auto panels = Least(8, static_cast<uint32_t>(kDecodedFloats / panel_floats));
  panels -= panels % kMicroPanels;
  for (uint32_t row = 0; row < p.rows; row += kPartRows) {
    const uint32_t rows = Least(kPartRows, p.rows - row);
    for (size_t panel = begin; panel < end; panel += panels) {
      const uint32_t here = Least(panels, static_cast<uint32_t>(end - panel));
      GemmPanels<Group, kGroupBytes>(p, panel, here, row, rows, decoded, sums);
    }
  }
}

void Gemm(const GemmParams& p, size_t begin, size_t end, void* scratch) {
  switch (p.w.dtype) {
    case DType::kF32: return GemmOf<GroupF32, PanelGroupBytes(DType::kF32)>(p, begin, end, scratch);
    case DType::kF16: return GemmOf<GroupF16, PanelGroupBytes(DType::kF16)>(p, begin, end, scratch);
    case DType::kBF16: return GemmOf<GroupBF16, PanelGroupBytes(DType::kBF16)>(p, begin, end, scratch);
    case DType::kQ8_0: return GemmOf<GroupQ8_0, PanelGroupBytes(DType::kQ8_0)>(p, begin, end, scratch);
    case DType::kQ4_0: return GemmOf<GroupQ4_0, PanelGroupBytes(DType::kQ4_0)>(p, begin, end, scratch);
    case DType::kQ4_1: return GemmOf<GroupQ4_1, PanelGroupBytes(DType::kQ4_1)>(p, begin, end, scratch);
    case DType::kI8: return;  // no weight is of it
  }
}

// ---- attention ---------------------------------------------------------------------------------
constexpr uint32_t kTileVectors = 64;    // (row, query head) pairs of one tile at most
constexpr uint32_t kWantedVectors = 48;  // as many as a tile takes where rows abound
constexpr uint32_t kDirectVectors = 8;   // up to here K and V are read from the cache as they lie
constexpr uint32_t kDirectRows = 4;

// Where a tile's parts lie in scratch; 492 KiB in all.
struct AttentionScratch {
  float q[kTileVectors * kMaxHeadDim];            // [vector][head_dim]
  float keys[kAttentionPiece * kMaxHeadDim];      // [token / 16][head_dim][16]
  float values[kAttentionPiece * kMaxHeadDim];    // [dim / 16][128][16]
  float weights[kTileVectors * kAttentionPiece];  // [vector][128]: scores, then exponentials
  float piece[kTileVectors * kMaxHeadDim];        // [vector][padded dim]: this piece's weighted values
  float sum[kTileVectors * kMaxHeadDim];          // the same, all pieces so far
  float key_scales[kAttentionPiece];              // of a cache of int8
  float value_scales[kAttentionPiece];
  float best[kTileVectors];
  float total[kTileVectors];
};
static_assert(sizeof(AttentionScratch) <= kKernelScratchBytes);

// One tile: `rows` query rows of one sequence from `row` (of the batch) at `position` on, one KV head.
struct AttentionTile {
  const AttentionParams* p;
  const BlockId* blocks;
  AttentionScratch* s;
  uint32_t kv_head;
  size_t row;
  uint32_t position;
  uint32_t end;       // tokens that the last row sees
  uint32_t group;     // query heads per KV head
  uint32_t vectors;   // rows * group; vector = row * group + query head
  uint32_t head_dim;
  uint32_t padded;    // head_dim rounded up to 16
};

BATON_INLINE const uint8_t* CacheTile(const AttentionTile& t, uint32_t token, bool value) {
  const KvTiles& kv = t.p->kv;
  return reinterpret_cast<const uint8_t*>(kv.pool) +
         static_cast<size_t>(static_cast<uint32_t>(t.blocks[token / kv.block_tokens])) * kv.block_bytes +
         (value ? kv.v_offset : kv.k_offset) + t.kv_head * kv.head_stride;
}

// How a tile's pairs are read: 16 of them, as they lie; of int8 without their scales.
struct Bf16Pairs {
  static constexpr uint32_t kBytes = 4;
  BATON_INLINE static PairLanes Load(const uint8_t* p) { return LoadPairs(p); }
  BATON_INLINE static PairLanes LoadFirst(const uint8_t* p, uint32_t count) {
    return LoadPairsMasked(p, FirstLanes(count));
  }
};
struct Int8Pairs {
  static constexpr uint32_t kBytes = 2;
  BATON_INLINE static PairLanes Load(const uint8_t* p) { return LoadInt8Pairs(p); }
  // What lies behind a tile's elements are its scales, at least 64 bytes: they may be read, and no integer is anything
  // but finite in a lane that nobody looks at.
  BATON_INLINE static PairLanes LoadFirst(const uint8_t* p, uint32_t) { return LoadInt8Pairs(p); }
};

// The K of 16 tokens from `token` on, at pair `d2`: (2 d2, 2 d2 + 1).
template <typename Pairs>
BATON_INLINE PairLanes KeyPairs(const uint8_t* tile, uint32_t block_tokens, uint32_t in_block, uint32_t d2) {
  return Pairs::Load(tile + (size_t{d2} * block_tokens + in_block) * Pairs::kBytes);
}
template <typename Pairs>
BATON_INLINE PairLanes ValuePairs(const AttentionTile& t, const uint8_t* tile, uint32_t in_block, uint32_t d) {
  const uint8_t* p = tile + (size_t{in_block / 2} * t.head_dim + d) * Pairs::kBytes;
  return d + 16 <= t.head_dim ? Pairs::Load(p) : Pairs::LoadFirst(p, t.head_dim - d);
}

BATON_INLINE float KvFloat(uint16_t bits) { return Fp16ToFloat(bits); }
BATON_INLINE float KvFloat(float f) { return f; }

// The same panels out of tiles of fp16 or fp32.
template <typename Element>
void ExpandKeysOf(const AttentionTile& t, uint32_t first, uint32_t count) {
  const uint32_t block_tokens = t.p->kv.block_tokens;
  for (uint32_t i = 0; i < count; i += 16) {
    const auto* tile = reinterpret_cast<const Element*>(CacheTile(t, first + i, false));
    float* out = t.s->keys + size_t{i} * t.head_dim;
    for (uint32_t d2 = 0; d2 < t.head_dim / 2; ++d2) {
      const Element* row = tile + (size_t{d2} * block_tokens + (first + i) % block_tokens) * 2;
      for (uint32_t lane = 0; lane < 16; ++lane) {
        out[size_t{d2} * 32 + lane] = KvFloat(row[lane * 2]);
        out[size_t{d2} * 32 + 16 + lane] = KvFloat(row[lane * 2 + 1]);
      }
    }
  }
}
template <typename Element>
void ExpandValuesOf(const AttentionTile& t, uint32_t first, uint32_t count) {
  const uint32_t block_tokens = t.p->kv.block_tokens;
  for (uint32_t i = 0; i < count; i += 2) {
    const auto* row = reinterpret_cast<const Element*>(CacheTile(t, first + i, true)) +
                      size_t{(first + i) % block_tokens / 2} * t.head_dim * 2;
    for (uint32_t d = 0; d < t.padded; ++d) {
      float* out = t.s->values + (size_t{d / 16 * 16} * kAttentionPiece) + size_t{i} * 16 + d % 16;
      const bool there = d < t.head_dim;
      out[0] = there ? KvFloat(row[size_t{d} * 2]) : 0.0f;
      out[16] = there ? KvFloat(row[size_t{d} * 2 + 1]) : 0.0f;
    }
  }
}

// And out of what is read in pairs.
template <typename Pairs>
void ExpandKeyPairs(const AttentionTile& t, uint32_t first, uint32_t count) {
  const uint32_t block_tokens = t.p->kv.block_tokens;
  for (uint32_t i = 0; i < count; i += 16) {
    const uint8_t* tile = CacheTile(t, first + i, false);
    float* out = t.s->keys + size_t{i} * t.head_dim;
    for (uint32_t d2 = 0; d2 < t.head_dim / 2; ++d2) {
      const PairLanes k = KeyPairs<Pairs>(tile, block_tokens, (first + i) % block_tokens, d2);
      Store(out + size_t{d2} * 32, k.first);
      Store(out + size_t{d2} * 32 + 16, k.second);
    }
  }
}

template <typename Pairs>
void ExpandValuePairs(const AttentionTile& t, uint32_t first, uint32_t count) {
  const uint32_t block_tokens = t.p->kv.block_tokens;
  for (uint32_t i = 0; i < count; i += 2) {
    const uint8_t* tile = CacheTile(t, first + i, true);
    for (uint32_t d = 0; d < t.head_dim; d += 16) {
      const PairLanes v = ValuePairs<Pairs>(t, tile, (first + i) % block_tokens, d);
      float* out = t.s->values + (size_t{d} * kAttentionPiece) + size_t{i} * 16;
      Store(out, v.first);
      Store(out + 16, v.second);
    }
  }
}

// K of the piece's tokens [first, first + count) as fp32 panels of 16 tokens; of int8 without their scales.
void ExpandKeys(const AttentionTile& t, uint32_t first, uint32_t count) {
  switch (t.p->kv.dtype) {
    case DType::kF32: return ExpandKeysOf<float>(t, first, count);
    case DType::kF16: return ExpandKeysOf<uint16_t>(t, first, count);
    case DType::kI8: return ExpandKeyPairs<Int8Pairs>(t, first, count);
    default: return ExpandKeyPairs<Bf16Pairs>(t, first, count);
  }
}
void ExpandValues(const AttentionTile& t, uint32_t first, uint32_t count) {
  switch (t.p->kv.dtype) {
    case DType::kF32: return ExpandValuesOf<float>(t, first, count);
    case DType::kF16: return ExpandValuesOf<uint16_t>(t, first, count);
    case DType::kI8: return ExpandValuePairs<Int8Pairs>(t, first, count);
    default: return ExpandValuePairs<Bf16Pairs>(t, first, count);
  }
}

// The piece's scales, where the cache has them.
void LoadScales(const AttentionTile& t, uint32_t first, uint32_t count) {
  const KvTiles& kv = t.p->kv;
  const size_t elements = size_t{kv.block_tokens} * t.head_dim;
  for (uint32_t i = 0; i < count; i += 16) {
    const size_t offset = elements + size_t{(first + i) % kv.block_tokens} * kKvScaleBytes;
    Store(t.s->key_scales + i, DecodeF32(CacheTile(t, first + i, false) + offset));
    Store(t.s->value_scales + i, DecodeF32(CacheTile(t, first + i, true) + offset));
  }
}

// Scores of kRows vectors from `vector` on against the piece, straight from the cache.
template <typename Pairs, uint32_t kRows>
void ScoresDirect(const AttentionTile& t, uint32_t vector, uint32_t first, uint32_t count) {
  const uint32_t block_tokens = t.p->kv.block_tokens;
  const uint32_t head_dim = t.head_dim;
  const float* q = t.s->q + size_t{vector} * head_dim;
  for (uint32_t i = 0; i < count; i += 16) {
    const uint8_t* tile = CacheTile(t, first + i, false);
    const uint32_t in_block = (first + i) % block_tokens;
    // The V of these tokens, a line per pair of dimensions; it is read next.
    const uint8_t* ahead = CacheTile(t, first + i, true) + size_t{in_block} * head_dim * (Pairs::kBytes / 2);
    Lanes dot[kRows];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < kRows; ++r) dot[r] = Zero();
    for (uint32_t d2 = 0; d2 < head_dim / 2; ++d2) {
      const PairLanes k = KeyPairs<Pairs>(tile, block_tokens, in_block, d2);
      PrefetchL2(ahead + size_t{d2} * 16 * Pairs::kBytes);
#pragma GCC unroll 4
      for (uint32_t r = 0; r < kRows; ++r) dot[r] = Fma(k.first, Set(q[r * head_dim + d2 * 2]), dot[r]);
#pragma GCC unroll 4
      for (uint32_t r = 0; r < kRows; ++r) dot[r] = Fma(k.second, Set(q[r * head_dim + d2 * 2 + 1]), dot[r]);
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < kRows; ++r) Store(t.s->weights + (size_t{vector} + r) * kAttentionPiece + i, dot[r]);
  }
}

template <typename Pairs, uint32_t kRows>
void ValuesDirect(const AttentionTile& t, uint32_t vector, uint32_t first, uint32_t count) {
  const uint32_t block_tokens = t.p->kv.block_tokens;
  const float* weights = t.s->weights + size_t{vector} * kAttentionPiece;
  for (uint32_t d = 0; d < t.head_dim; d += 16) {
    Lanes sum[kRows];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < kRows; ++r) sum[r] = Zero();
    for (uint32_t done = 0; done < count;) {
      const uint8_t* tile = CacheTile(t, first + done, true);
      const uint32_t in_block = (first + done) % block_tokens;
      const uint32_t here = Least(block_tokens - in_block, count - done);
      // This chunk of dimensions' share of the next piece's K, a line per pair of tokens.
      const uint32_t next = first + kAttentionPiece + done;
      const uint8_t* ahead = next < t.end ? CacheTile(t, next, false) + size_t{d} * block_tokens * (Pairs::kBytes / 2) : tile;
      for (uint32_t i = 0; i < here; i += 2) {
        const PairLanes v = ValuePairs<Pairs>(t, tile, in_block + i, d);
        PrefetchL2(ahead + size_t{i} * 8 * Pairs::kBytes);
        const float* w = weights + done + i;  // past `count` the weights are 0
#pragma GCC unroll 4
        for (uint32_t r = 0; r < kRows; ++r) sum[r] = Fma(v.first, Set(w[r * kAttentionPiece]), sum[r]);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < kRows; ++r) sum[r] = Fma(v.second, Set(w[r * kAttentionPiece + 1]), sum[r]);
      }
      done += here;
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < kRows; ++r) Store(t.s->piece + (size_t{vector} + r) * t.padded + d, sum[r]);
  }
}

using DirectFn = void (*)(const AttentionTile&, uint32_t, uint32_t, uint32_t);
template <typename Pairs>
constexpr DirectFn kScoresDirect[] = {ScoresDirect<Pairs, 1>, ScoresDirect<Pairs, 2>, ScoresDirect<Pairs, 3>,
                                      ScoresDirect<Pairs, 4>};
template <typename Pairs>
constexpr DirectFn kValuesDirect[] = {ValuesDirect<Pairs, 1>, ValuesDirect<Pairs, 2>, ValuesDirect<Pairs, 3>,
                                      ValuesDirect<Pairs, 4>};

BATON_INLINE bool IsInt8(const AttentionTile& t) { return t.p->kv.dtype == DType::kI8; }
BATON_INLINE bool ReadsCacheDirectly(const AttentionTile& t) {
  return t.vectors <= kDirectVectors && (IsInt8(t) || t.p->kv.dtype == DType::kBF16);
}

// weights[vector][token] = q . k for the piece's first `count` tokens, rounded up to 16.
void Scores(const AttentionTile& t, uint32_t first, uint32_t count) {
  if (ReadsCacheDirectly(t)) {
    const DirectFn* direct = IsInt8(t) ? kScoresDirect<Int8Pairs> : kScoresDirect<Bf16Pairs>;
    const uint32_t cuts = CeilDiv(t.vectors, kDirectRows);
    for (uint32_t c = 0; c < cuts; ++c) {
      const uint32_t v = EvenCut(t.vectors, cuts, c);
      direct[EvenCut(t.vectors, cuts, c + 1) - v - 1](t, v, first, count);
    }
    return;
  }
  ExpandKeys(t, first, count);
  const uint32_t cuts = CeilDiv(t.vectors, kMicroRows);
  for (uint32_t c = 0; c < cuts; ++c) {
    const uint32_t v = EvenCut(t.vectors, cuts, c);
    const uint32_t height = EvenCut(t.vectors, cuts, c + 1) - v;
    for (uint32_t i = 0; i < count; i += 16) {
      kMicro<1>[height - 1](t.s->q + size_t{v} * t.head_dim, t.head_dim, t.s->keys + size_t{i} * t.head_dim, 0,
                            t.head_dim, false, t.s->weights + size_t{v} * kAttentionPiece + i, kAttentionPiece);
    }
  }
}

// piece[vector] = sum over the piece's first `count` tokens of weight * V.
void WeightedValues(const AttentionTile& t, uint32_t first, uint32_t count) {
  if (ReadsCacheDirectly(t)) {
    const DirectFn* direct = IsInt8(t) ? kValuesDirect<Int8Pairs> : kValuesDirect<Bf16Pairs>;
    const uint32_t cuts = CeilDiv(t.vectors, kDirectRows);
    for (uint32_t c = 0; c < cuts; ++c) {
      const uint32_t v = EvenCut(t.vectors, cuts, c);
      direct[EvenCut(t.vectors, cuts, c + 1) - v - 1](t, v, first, count);
    }
    return;
  }
  ExpandValues(t, first, count);
  const uint32_t cuts = CeilDiv(t.vectors, kMicroRows);
  for (uint32_t c = 0; c < cuts; ++c) {
    const uint32_t v = EvenCut(t.vectors, cuts, c);
    const uint32_t height = EvenCut(t.vectors, cuts, c + 1) - v;
    for (uint32_t d = 0; d < t.head_dim; d += 16) {
      kMicro<1>[height - 1](t.s->weights + size_t{v} * kAttentionPiece, kAttentionPiece,
                            t.s->values + size_t{d} * kAttentionPiece, 0, count, false,
                            t.s->piece + size_t{v} * t.padded + d, t.padded);
    }
  }
}

struct PieceSum {
  float best, total;
};
// One vector's scores of a piece become exponentials; `valid` tokens count, those up to `count` rounded up to 16
// get weight 0. Of a cache of int8 (kScaled) scores and weights get the scales that its integers lack.
template <bool kScaled>
PieceSum Softmax(const AttentionScratch& s, float* weights, float scale, uint32_t valid, uint32_t count) {
  const Lanes factor = Set(scale);
  const Lanes nothing = Set(-__builtin_inff());
  Lanes most = nothing;
  for (uint32_t i = 0; i < valid; i += 16) {
    Lanes score = Load(weights + i);
    if constexpr (kScaled) score = Mul(score, Load(s.key_scales + i));
    score = Mul(score, factor);
    if (valid - i < 16) score = Select(FirstLanes(valid - i), score, nothing);
    Store(weights + i, score);
    most = Max(most, score);
  }
  const float best = MaxOf(most);
  Lanes sum = Zero();
  uint32_t i = 0;
  for (; i < valid; i += 16) {
    const Lanes e = Exp(Sub(Load(weights + i), Set(best)));
    sum = Add(sum, e);
    if constexpr (kScaled) {
      const Lanes weight = Mul(e, Load(s.value_scales + i));
      Store(weights + i, valid - i < 16 ? Select(FirstLanes(valid - i), weight, Zero()) : weight);
    } else {
      Store(weights + i, e);
    }
  }
  for (; i < count; i += 16) Store(weights + i, Zero());
  return {best, TreeSum(sum)};
}

// Merges the piece of one vector into what came before it.
void MergePiece(const AttentionTile& t, uint32_t vector, bool is_first, PieceSum piece) {
  float* sum = t.s->sum + size_t{vector} * t.padded;
  const float* values = t.s->piece + size_t{vector} * t.padded;
  float& best = t.s->best[vector];
  float& total = t.s->total[vector];
  if (is_first) {
    for (uint32_t d = 0; d < t.head_dim; d += 16) Store(sum + d, Load(values + d));
    best = piece.best;
    total = piece.total;
    return;
  }
  const float new_best = best > piece.best ? best : piece.best;
  const float keep = ExpOf(best - new_best);
  const float add = ExpOf(piece.best - new_best);
  for (uint32_t d = 0; d < t.head_dim; d += 16) {
    Store(sum + d, Fma(Load(sum + d), Set(keep), Mul(Load(values + d), Set(add))));
  }
  total = __builtin_fmaf(total, keep, piece.total * add);
  best = new_best;
}

void Attend(const AttentionTile& t) {
  const AttentionParams& p = *t.p;
  const size_t head = size_t{t.kv_head} * t.group * t.head_dim;
  const size_t row_floats = size_t{t.group} * t.head_dim;
  const uint32_t rows = t.vectors / t.group;
  for (uint32_t r = 0; r < rows; ++r) {
    __builtin_memcpy(t.s->q + r * row_floats, p.q + (t.row + r) * p.q_stride + head, row_floats * sizeof(float));
  }
  for (uint32_t first = 0; first < t.end; first += kAttentionPiece) {
    const uint32_t count = Least(kAttentionPiece, t.end - first);
    Scores(t, first, count);
    if (IsInt8(t)) LoadScales(t, first, count);
    PieceSum sums[kTileVectors];
    for (uint32_t v = 0; v < t.vectors; ++v) {
      const uint32_t seen = t.position + v / t.group + 1;  // tokens, from 0
      const uint32_t valid = seen > first ? Least(kAttentionPiece, seen - first) : 0;
      float* weights = t.s->weights + size_t{v} * kAttentionPiece;
      sums[v] = IsInt8(t) ? Softmax<true>(*t.s, weights, p.scale, valid, count)
                          : Softmax<false>(*t.s, weights, p.scale, valid, count);
    }
    WeightedValues(t, first, count);
    for (uint32_t v = 0; v < t.vectors; ++v) {
      if (t.position + v / t.group >= first) MergePiece(t, v, first == 0, sums[v]);
    }
  }
  for (uint32_t v = 0; v < t.vectors; ++v) {
    float* out = p.out + (t.row + v / t.group) * p.out_stride + head + size_t{v % t.group} * t.head_dim;
    const Lanes inverse = Set(1.0f / t.s->total[v]);
    for (uint32_t d = 0; d < t.head_dim; d += 16) {
      const Lanes value = Mul(Load(t.s->sum + size_t{v} * t.padded + d), inverse);
      if (d + 16 <= t.head_dim) {
        Store(out + d, value);
      } else {
        StoreMasked(out + d, FirstLanes(t.head_dim - d), value);
      }
    }
  }
}

void Attention(const AttentionParams& p, size_t begin, size_t end, void* scratch) {
  AttentionTile t{};
  t.p = &p;
  t.s = static_cast<AttentionScratch*>(scratch);
  t.group = p.num_heads / p.kv.num_kv_heads;
  t.head_dim = p.kv.head_dim;
  t.padded = CeilDiv(t.head_dim, 16) * 16;
  const uint32_t tile_rows = t.group >= kWantedVectors ? 1 : kWantedVectors / t.group;
  for (uint32_t h = 0; h < p.kv.num_kv_heads; ++h) {
    const size_t base = size_t{h} * p.rows;
    if (base >= end || base + p.rows <= begin) continue;
    const size_t first_row = begin > base ? begin - base : 0;
    const size_t last_row = end - base < p.rows ? end - base : p.rows;
    t.kv_head = h;
    for (uint32_t i = 0; i < p.num_spans; ++i) {
      const RowSpan& span = p.spans[i];
      const size_t span_end = size_t{span.first_row} + span.num_rows;
      const size_t stop = span_end < last_row ? span_end : last_row;
      t.blocks = span.blocks;
      for (size_t row = span.first_row > first_row ? span.first_row : first_row; row < stop; row += tile_rows) {
        t.row = row;
        t.position = span.first_position + static_cast<uint32_t>(row - span.first_row);
        const uint32_t rows = Least(tile_rows, static_cast<uint32_t>(stop - row));
        t.end = t.position + rows;
        t.vectors = rows * t.group;
        Attend(t);
      }
    }
  }
}

}  // namespace
}  // namespace baton

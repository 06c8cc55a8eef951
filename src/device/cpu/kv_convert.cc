#include "device/cpu/kv_convert.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "baton/check.h"
#include "baton/kernel_table.h"
#include "kernels/formats.h"

namespace baton {
namespace {

struct Bf16 {
  uint16_t bits;
  explicit operator float() const { return Bf16ToFloat(bits); }
  static Bf16 From(float f) { return {FloatToBf16(f)}; }
};
struct Fp16 {
  uint16_t bits;
  explicit operator float() const { return Fp16ToFloat(bits); }
  static Fp16 From(float f) { return {FloatToFp16(f)}; }
};
struct Fp32 {
  float value;
  explicit operator float() const { return value; }
  static Fp32 From(float f) { return {f}; }
};
// Without its scale: copied as it is, never converted alone.
struct Int8 {
  int8_t value;
};

template <typename From, typename To>
void Run(const std::byte* from, std::byte* to, size_t n) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, n * sizeof(To));
  } else {
    for (size_t i = 0; i < n; ++i) {
      From in;
      std::memcpy(&in, from + i * sizeof(From), sizeof(From));
      const To out = To::From(static_cast<float>(in));
      std::memcpy(to + i * sizeof(To), &out, sizeof(To));
    }
  }
}

// One page of one tile. A tile in pairs is K [dim/2][token][2], V [token/2][dim][2]; token-major is [token][dim].
struct PageShape {
  TileForm form;
  uint32_t dim = 0;
  uint32_t from_tokens = 0, to_tokens = 0;  // of a block
  uint32_t valid = 0;                       // tokens of the page; the rest becomes zero
};

template <typename From, typename To>
void Page(const PageShape& s, bool value, const std::byte* from, uint32_t from_page, std::byte* to, uint32_t to_page) {
  if (s.form == TileForm::kPairs && !value) {
    const size_t from_row = size_t{s.from_tokens} * 2 * sizeof(From), to_row = size_t{s.to_tokens} * 2 * sizeof(To);
    from += size_t{from_page} * kPageTokens * 2 * sizeof(From);
    to += size_t{to_page} * kPageTokens * 2 * sizeof(To);
    for (uint32_t row = 0; row < s.dim / 2; ++row, from += from_row, to += to_row) {
      if (s.valid == kPageTokens) {
        Run<From, To>(from, to, kPageTokens * 2);  // a constant length
        continue;
      }
      Run<From, To>(from, to, size_t{s.valid} * 2);
      std::memset(to + size_t{s.valid} * 2 * sizeof(To), 0, size_t{kPageTokens - s.valid} * 2 * sizeof(To));
    }
    return;
  }
  // Tokens, or pairs of them, one after another: a page is one piece.
  const size_t page = size_t{kPageTokens} * s.dim;
  from += from_page * page * sizeof(From);
  to += to_page * page * sizeof(To);
  const bool pairs = s.form == TileForm::kPairs;
  const size_t whole = size_t{pairs ? s.valid / 2 * 2 : s.valid} * s.dim;
  Run<From, To>(from, to, whole);
  std::memset(to + whole * sizeof(To), 0, (page - whole) * sizeof(To));
  if (!pairs || s.valid % 2 == 0) return;
  for (size_t d = 0; d < s.dim; ++d) {
    Run<From, To>(from + (whole + 2 * d) * sizeof(From), to + (whole + 2 * d) * sizeof(To), 1);
  }
}

// The scales of one page of an int8 tile.
size_t ScaleOffset(const PageShape& s, uint32_t block_tokens, uint32_t page) {
  return size_t{block_tokens} * s.dim + size_t{page} * kPageTokens * kKvScaleBytes;
}

void CopyInt8Page(const PageShape& s, bool value, const std::byte* from, uint32_t from_page, std::byte* to,
                  uint32_t to_page) {
  Page<Int8, Int8>(s, value, from, from_page, to, to_page);
  const size_t bytes = size_t{s.valid} * kKvScaleBytes;
  std::byte* scales = to + ScaleOffset(s, s.to_tokens, to_page);
  std::memcpy(scales, from + ScaleOffset(s, s.from_tokens, from_page), bytes);
  std::memset(scales + bytes, 0, kPageTokens * kKvScaleBytes - bytes);
}

// Where int8 becomes another type or another type int8, a page goes through its rows in fp32, since a scale is a row's.
using Rows = float[kPageTokens][kMaxHeadDim];

size_t ElementAt(const PageShape& s, bool value, uint32_t block_tokens, uint32_t token, uint32_t d) {
  if (s.form == TileForm::kTokenMajor) return size_t{token} * s.dim + d;
  return value ? (size_t{token / 2} * s.dim + d) * 2 + token % 2 : (size_t{d / 2} * block_tokens + token) * 2 + d % 2;
}

template <typename From>
void ReadRows(const PageShape& s, bool value, const std::byte* tile, uint32_t page, Rows* rows) {
  for (uint32_t t = 0; t < s.valid; ++t) {
    float scale = 1;
    if constexpr (std::is_same_v<From, Int8>) {
      std::memcpy(&scale, tile + ScaleOffset(s, s.from_tokens, page) + size_t{t} * kKvScaleBytes, sizeof scale);
    }
    for (uint32_t d = 0; d < s.dim; ++d) {
      From in;
      std::memcpy(&in, tile + ElementAt(s, value, s.from_tokens, page * kPageTokens + t, d) * sizeof in, sizeof in);
      if constexpr (std::is_same_v<From, Int8>) {
        (*rows)[t][d] = static_cast<float>(in.value) * scale;
      } else {
        (*rows)[t][d] = static_cast<float>(in);
      }
    }
  }
  for (uint32_t t = s.valid; t < kPageTokens; ++t) std::fill_n((*rows)[t], s.dim, 0.0f);
}

template <typename To>
void WriteRows(const PageShape& s, bool value, const Rows& rows, std::byte* tile, uint32_t page) {
  for (uint32_t t = 0; t < kPageTokens; ++t) {
    KvScale scale{};
    if constexpr (std::is_same_v<To, Int8>) {
      scale = KvScaleOfRow(rows[t], s.dim);
      std::memcpy(tile + ScaleOffset(s, s.to_tokens, page) + size_t{t} * kKvScaleBytes, &scale.scale, kKvScaleBytes);
    }
    for (uint32_t d = 0; d < s.dim; ++d) {
      To out;
      if constexpr (std::is_same_v<To, Int8>) {
        out.value = KvInt8(rows[t][d], scale.inverse);
      } else {
        out = To::From(rows[t][d]);
      }
      std::memcpy(tile + ElementAt(s, value, s.to_tokens, page * kPageTokens + t, d) * sizeof out, &out, sizeof out);
    }
  }
}

template <typename From, typename To>
void PageByRows(const PageShape& s, bool value, const std::byte* from, uint32_t from_page, std::byte* to,
                uint32_t to_page) {
  BATON_CHECK(s.dim <= kMaxHeadDim, "a head dimension that no CPU layout has");
  Rows rows;
  ReadRows<From>(s, value, from, from_page, &rows);
  WriteRows<To>(s, value, rows, to, to_page);
}

using PageFn = void (*)(const PageShape&, bool, const std::byte*, uint32_t, std::byte*, uint32_t);

template <typename From>
PageFn PageTo(DType to) {
  switch (to) {
    case DType::kBF16:
      return Page<From, Bf16>;
    case DType::kF16:
      return Page<From, Fp16>;
    case DType::kF32:
      return Page<From, Fp32>;
    case DType::kI8:
      return PageByRows<From, Int8>;
    default:
      return nullptr;
  }
}
PageFn PageOfInt8To(DType to) {
  switch (to) {
    case DType::kBF16:
      return PageByRows<Int8, Bf16>;
    case DType::kF16:
      return PageByRows<Int8, Fp16>;
    case DType::kF32:
      return PageByRows<Int8, Fp32>;
    case DType::kI8:
      return CopyInt8Page;
    default:
      return nullptr;
  }
}
PageFn PageBetween(DType from, DType to) {
  switch (from) {
    case DType::kBF16:
      return PageTo<Bf16>(to);
    case DType::kF16:
      return PageTo<Fp16>(to);
    case DType::kF32:
      return PageTo<Fp32>(to);
    case DType::kI8:
      return PageOfInt8To(to);
    default:
      return nullptr;
  }
}

}  // namespace

void ConvertKv(const KvConvertParams& p, size_t begin, size_t end) {
  const KvGroup& group = p.to->groups[p.group];
  const PageFn page = PageBetween(p.from->groups[p.group].dtype, group.dtype);
  BATON_CHECK(page != nullptr, "no converter: " + p.from->Describe() + " | " + p.to->Describe());
  const StagingMap staging(*p.from, p.group, p.to->BlockBytes(p.group));
  const uint32_t first_block = p.first_token / p.from->block_tokens;
  PageShape shape{p.to->tile, group.head_dim, p.from->block_tokens, p.to->block_tokens, 0};
  for (size_t item = begin; item < end; ++item) {
    const auto block = static_cast<uint32_t>(item / group.num_kv_heads);
    const auto head = static_cast<uint32_t>(item % group.num_kv_heads);
    for (uint32_t tile = 0; tile < group.num_layers * 2; ++tile) {
      const uint32_t layer = tile / 2;
      const bool value = tile % 2 == 1;
      std::byte* const to = p.target[block] + p.to->TileOffset(p.group, head, layer, value);
      for (uint32_t n = 0; n < p.to->block_tokens / kPageTokens; ++n) {
        const uint32_t position = p.first_token + block * p.to->block_tokens + n * kPageTokens;
        shape.valid = std::min(kPageTokens, std::max(p.num_tokens, position) - position);
        // A page without tokens has no place in the source: any will do, nothing of it is read.
        const std::byte* from = p.staging[0];
        if (shape.valid > 0) {
          const StagingMap::Place place = staging.At(position / p.from->block_tokens - first_block,
                                                     p.from->TileOffset(p.group, head, layer, value));
          from = p.staging[place.block] + place.offset;
        }
        page(shape, value, from, position % p.from->block_tokens / kPageTokens, to, n);
      }
    }
  }
}

}  // namespace baton

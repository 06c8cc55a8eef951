// KV of one layout made into another, against an oracle that places every value by its position in double precision.
#include "device/cpu/kv_convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "kernels/formats.h"

namespace baton {
namespace {

double Load(DType dtype, const std::byte* at) {
  if (dtype == DType::kI8) return static_cast<int8_t>(*at);
  if (dtype == DType::kF32) {
    float f;
    std::memcpy(&f, at, 4);
    return f;
  }
  const uint16_t h = LoadU16(at);
  return dtype == DType::kBF16 ? Bf16ToFloat(h) : Fp16ToFloat(h);
}
void Store(DType dtype, float value, std::byte* at) {
  if (dtype == DType::kI8) {
    *at = static_cast<std::byte>(static_cast<int8_t>(value));
    return;
  }
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, 4);
    return;
  }
  uint16_t h;
  if (dtype == DType::kBF16) {
    h = FloatToBf16(value);
  } else {
    const auto f = static_cast<_Float16>(value);
    std::memcpy(&h, &f, 2);
  }
  std::memcpy(at, &h, 2);
}

// Elements from a tile's start to (token, d), as kv_layout.h says.
size_t Element(const KvLayout& l, bool value, uint32_t token, uint32_t d) {
  const uint32_t dim = l.groups[0].head_dim;
  if (l.tile == TileForm::kTokenMajor) return size_t{token} * dim + d;
  if (value) return (size_t{token / 2} * dim + d) * 2 + token % 2;
  return (size_t{d / 2} * l.block_tokens + token) * 2 + d % 2;
}

struct World {
  KvLayout from, to;
  uint32_t first = 0, tokens = 0;
  std::vector<std::vector<std::byte>> staging, target;

  void Draw(Rng* rng, DType source, DType dest) {
    constexpr uint32_t kSizes[] = {16, 32, 64, 128};
    from.tile = to.tile = rng->Chance(0.8) ? TileForm::kPairs : TileForm::kTokenMajor;
    from.block_tokens = kSizes[rng->Below(4)];
    to.block_tokens = kSizes[rng->Below(4)];
    KvGroup group{KvKind::kFull, static_cast<uint32_t>(1 + rng->Below(3)), static_cast<uint32_t>(1 + rng->Below(3)),
                  static_cast<uint32_t>(8 + 2 * rng->Below(5)), source};
    from.groups = {group};
    group.dtype = dest;
    to.groups = {group};
    tokens = static_cast<uint32_t>(1 + rng->Below(300));
    first = static_cast<uint32_t>(rng->Below((tokens - 1) / to.block_tokens + 1)) * to.block_tokens;
  }
  uint32_t FirstSource() const { return first / from.block_tokens; }
  bool Fill(Rng* rng) {
    const StagingMap map(from, 0, to.BlockBytes(0));
    if (!map.fits()) return false;
    staging.assign(map.BlocksFor(from.BlocksFor(tokens) - FirstSource()), std::vector<std::byte>(to.BlockBytes(0)));
    for (auto& block : staging) {
      for (std::byte& b : block) b = static_cast<std::byte>(rng->Next());  // past the valid count: anything
    }
    target.assign(to.BlocksFor(tokens) - first / to.block_tokens,
                  std::vector<std::byte>(to.BlockBytes(0), std::byte{0xee}));
    return true;
  }
  std::byte* At(uint32_t head, uint32_t layer, bool value, uint32_t position, uint32_t d) {
    const StagingMap map(from, 0, to.BlockBytes(0));
    const auto place = map.At(position / from.block_tokens - FirstSource(), from.TileOffset(0, head, layer, value));
    return staging[place.block].data() + place.offset +
           Element(from, value, position % from.block_tokens, d) * BytesOf(from.groups[0].dtype, 1);
  }
  const std::byte* Out(uint32_t head, uint32_t layer, bool value, uint32_t slot, uint32_t d) const {
    return target[slot / to.block_tokens].data() + to.TileOffset(0, head, layer, value) +
           Element(to, value, slot % to.block_tokens, d) * BytesOf(to.groups[0].dtype, 1);
  }
  // The scale of a row of int8 is behind the tile's elements; of other types it is 1.
  double ScaleIn(uint32_t head, uint32_t layer, bool value, uint32_t position) {
    if (from.groups[0].dtype != DType::kI8) return 1;
    const uint32_t slot = position % from.block_tokens;
    return Load(DType::kF32, At(head, layer, value, position - slot, 0) + from.block_tokens * from.groups[0].head_dim +
                                 size_t{slot} * 4);
  }
  double ScaleOut(uint32_t head, uint32_t layer, bool value, uint32_t slot) const {
    if (to.groups[0].dtype != DType::kI8) return 1;
    const uint32_t in_block = slot % to.block_tokens;
    return Load(DType::kF32, Out(head, layer, value, slot - in_block, 0) + to.block_tokens * to.groups[0].head_dim +
                                 size_t{in_block} * 4);
  }
  // As the kernels make them: 17 bits.
  void StoreScale(Rng* rng, uint32_t head, uint32_t layer, bool value, uint32_t position) {
    const uint32_t slot = position % from.block_tokens;
    const double scale = std::ldexp(static_cast<double>(0x10000 + rng->Below(0x10000)), -24 - int(rng->Below(12)));
    Store(DType::kF32, static_cast<float>(scale),
          At(head, layer, value, position - slot, 0) + from.block_tokens * from.groups[0].head_dim + size_t{slot} * 4);
  }
  void Convert() {
    std::vector<const std::byte*> in;
    std::vector<std::byte*> out;
    for (auto& b : staging) in.push_back(b.data());
    for (auto& b : target) out.push_back(b.data());
    const KvConvertParams params{&from, &to, 0, first, tokens, in, out};
    const size_t items = target.size() * to.groups[0].num_kv_heads;
    for (size_t i = 0; i < items; ++i) ConvertKv(params, i, i + 1);
  }
};

// The worst distance from the exact value that rounding to the nearest allows; `largest`: of the row.
double Bound(DType from, DType to, double exact, double largest) {
  if (from == to || to == DType::kF32) return 0;
  if (to == DType::kI8) return largest / 254 * (1 + 0x1p-14);
  if (to == DType::kBF16) return std::max(std::abs(exact) * 0x1p-8, 0x1p-134);
  if (std::abs(exact) > 65504) return std::abs(exact) - 65504;
  return std::max(std::abs(exact) * 0x1p-11, 0x1p-25);
}

constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kI8};

// fn(head, layer, whether it is V) for every tile of a block.
template <typename Fn>
void ForTiles(const KvGroup& g, const Fn& fn) {
  for (uint32_t head = 0; head < g.num_kv_heads; ++head) {
    for (uint32_t layer = 0; layer < g.num_layers; ++layer) {
      for (const bool value : {false, true}) fn(head, layer, value);
    }
  }
}

TEST(KvConvertTest, EveryValueIsInItsPlaceWithinTheBoundAndTheRestIsZero) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 480; ++seed) {
    Rng rng(seed);
    const DType source = kTypes[seed % 4], dest = kTypes[seed / 4 % 4];
    World w;
    w.Draw(&rng, source, dest);
    if (!w.Fill(&rng)) continue;
    const KvGroup& g = w.from.groups[0];
    const uint32_t begin = w.FirstSource() * w.from.block_tokens;
    ForTiles(g, [&](uint32_t head, uint32_t layer, bool value) {
      for (uint32_t position = begin; position < w.tokens; ++position) {
        if (source == DType::kI8) w.StoreScale(&rng, head, layer, value, position);
        for (uint32_t d = 0; d < g.head_dim; ++d) {
          const double scale = std::exp2(static_cast<double>(rng.Below(40)) - 24);
          const auto x = static_cast<float>((rng.Unit() - 0.5) * scale);
          Store(source, source == DType::kI8 ? static_cast<float>(rng.Below(255)) - 127 : x,
                w.At(head, layer, value, position, d));
        }
      }
    });
    w.Convert();
    ForTiles(g, [&](uint32_t head, uint32_t layer, bool value) {
      for (uint32_t slot = 0; slot < w.target.size() * w.to.block_tokens; ++slot) {
        const uint32_t position = w.first + slot;
        const double to_scale = w.ScaleOut(head, layer, value, slot);
        if (position >= w.tokens) {
          for (uint32_t d = 0; d < g.head_dim; ++d) ASSERT_EQ(Load(dest, w.Out(head, layer, value, slot, d)), 0);
          ASSERT_EQ(to_scale, dest == DType::kI8 ? 0 : 1) << "a slot past the valid count";
          continue;
        }
        const double from_scale = w.ScaleIn(head, layer, value, position);
        double largest = 0;
        for (uint32_t d = 0; d < g.head_dim; ++d) {
          largest = std::max(largest, std::abs(Load(source, w.At(head, layer, value, position, d)) * from_scale));
        }
        for (uint32_t d = 0; d < g.head_dim; ++d) {
          const double exact = Load(source, w.At(head, layer, value, position, d)) * from_scale;
          const double got = Load(dest, w.Out(head, layer, value, slot, d)) * to_scale;
          ASSERT_LE(std::abs(got - exact), Bound(source, dest, exact, largest)) << exact << " seed " << seed;
          ++compared;
        }
      }
    });
  }
  EXPECT_GT(compared, 1'000'000);
}

// What was quantised once is not changed by going through fp32: a hand-off there and back loses nothing.
TEST(KvConvertTest, Int8ThroughFp32AndBackIsTheSameBytes) {
  int worlds = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    World there;
    there.Draw(&rng, DType::kF32, DType::kI8);
    there.first = 0;
    if (!there.Fill(&rng)) continue;
    const KvGroup& g = there.from.groups[0];
    ForTiles(g, [&](uint32_t head, uint32_t layer, bool value) {
      for (uint32_t position = 0; position < there.tokens; ++position) {
        const double size = std::exp2(static_cast<double>(rng.Below(120)) - 60);
        for (uint32_t d = 0; d < g.head_dim; ++d) {
          Store(DType::kF32, static_cast<float>((rng.Unit() - 0.5) * size), there.At(head, layer, value, position, d));
        }
      }
    });
    there.Convert();
    World back;
    back.from = there.to, back.to = there.from;
    back.first = 0, back.tokens = there.tokens;
    World again = there;
    if (!back.Fill(&rng) || !again.Fill(&rng)) continue;
    const auto hand_over = [&](World* from, World* to) {
      const StagingMap map(to->from, 0, to->to.BlockBytes(0));
      const size_t tile = to->from.TileBytes(0);
      for (uint32_t block = 0; block < from->target.size(); ++block) {
        for (size_t offset = 0; offset < from->to.BlockBytes(0); offset += tile) {
          const auto place = map.At(block, offset);
          std::memcpy(to->staging[place.block].data() + place.offset, from->target[block].data() + offset, tile);
        }
      }
      to->Convert();
    };
    hand_over(&there, &back);
    hand_over(&back, &again);
    ASSERT_EQ(again.target, there.target) << "seed " << seed;
    ++worlds;
  }
  EXPECT_GT(worlds, 20);
}

TEST(KvConvertTest, RowsThatInt8CannotScaleAreZerosOrNan) {
  Rng rng(2);
  World w;
  w.Draw(&rng, DType::kF32, DType::kI8);
  w.tokens = 16, w.first = 0;
  ASSERT_TRUE(w.Fill(&rng));
  for (uint32_t t = 0; t < 4; ++t) {
    for (uint32_t d = 0; d < 8; ++d) Store(DType::kF32, t == 0 ? 0.0f : 1e-37f, w.At(0, 0, false, t, d));
  }
  for (uint32_t d = 8; d < w.from.groups[0].head_dim; ++d) {
    for (uint32_t t = 0; t < 4; ++t) Store(DType::kF32, 0, w.At(0, 0, false, t, d));
  }
  Store(DType::kF32, NAN, w.At(0, 0, false, 2, 3));
  Store(DType::kF32, INFINITY, w.At(0, 0, false, 3, 4));
  w.Convert();
  for (uint32_t t = 0; t < 4; ++t) {
    const double scale = w.ScaleOut(0, 0, false, t);
    EXPECT_TRUE(t < 2 ? scale == 0 : std::isnan(scale)) << t;
    for (uint32_t d = 0; d < 8; ++d) EXPECT_EQ(Load(DType::kI8, w.Out(0, 0, false, t, d)), 0);
  }
}

// All fp16 values, and what lies half way between neighbours and next to that.
TEST(KvConvertTest, Fp16RoundsToTheNearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = Fp16ToFloat(static_cast<uint16_t>(bits)), high = Fp16ToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (const uint32_t sign : {0u, 0x8000u}) {
      const float s = sign == 0 ? 1.0f : -1.0f;
      ASSERT_EQ(FloatToFp16(s * low), sign | bits);
      ASSERT_EQ(FloatToFp16(s * middle), sign | even) << middle;
      ASSERT_EQ(FloatToFp16(s * std::nextafter(middle, low)), sign | bits) << middle;
      ASSERT_EQ(FloatToFp16(s * std::nextafter(middle, high)), sign | (bits + 1)) << middle;
    }
  }
  EXPECT_EQ(FloatToFp16(65520), 0x7bff);
  EXPECT_TRUE(std::isnan(Fp16ToFloat(FloatToFp16(NAN))));
}

TEST(KvConvertTest, WhatFp16CannotHoldIsTheLargestThatItCan) {
  Rng rng(1);
  World w;
  w.Draw(&rng, DType::kF32, DType::kF16);
  w.tokens = 16, w.first = 0;
  ASSERT_TRUE(w.Fill(&rng));
  const float values[] = {1e30f, -1e30f, std::numeric_limits<float>::infinity(), 65519, 65504};
  for (uint32_t d = 0; d < 5; ++d) Store(DType::kF32, values[d], w.At(0, 0, true, 0, d));
  w.Convert();
  for (uint32_t d = 0; d < 5; ++d) {
    EXPECT_EQ(Load(DType::kF16, w.Out(0, 0, true, 0, d)), values[d] < 0 ? -65504 : 65504);
  }
}

}  // namespace
}  // namespace baton

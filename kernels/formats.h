// Scalar definitions that every table shares: number formats, the packed panel's geometry, exp. All functions
// have internal linkage: this header is compiled with several -m flags, and a shared inline function would let
// the linker pick a copy that the CPU cannot run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "baton/kernel_table.h"

namespace baton {

static constexpr uint32_t kQuantGroup = 32;  // weights that share a scale, along k

[[maybe_unused]] static constexpr bool IsQuantised(DType t) {
  return t == DType::kQ8_0 || t == DType::kQ4_0 || t == DType::kQ4_1;
}
// Bytes of 16 columns over 32 values of k.
[[maybe_unused]] static constexpr size_t PanelGroupBytes(DType t) {
  switch (t) {
    case DType::kF32:
      return 32 * 16 * 4;
    case DType::kF16:
    case DType::kBF16:
      return 32 * 16 * 2;
    case DType::kQ8_0:
      return 32 + 32 * 16;
    case DType::kQ4_0:
      return 32 + 32 * 8;
    case DType::kQ4_1:
      return 64 + 32 * 8;
    case DType::kI8:
      break;  // of the KV cache alone
  }
  return 0;
}
// Plain types have no scales: a panel is k rows of 16 values, cut anywhere.
[[maybe_unused]] static constexpr size_t PanelBytes(DType t, uint32_t k) {
  return IsQuantised(t) ? PanelGroupBytes(t) * (k / 32) : PanelGroupBytes(t) / 32 * k;
}

[[maybe_unused]] static inline float BitsToFloat(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
[[maybe_unused]] static inline uint32_t FloatToBits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}
[[maybe_unused]] static inline float Bf16ToFloat(uint16_t h) { return BitsToFloat(uint32_t{h} << 16); }
// To nearest, ties to even; a NaN stays a NaN.
[[maybe_unused]] static inline uint16_t FloatToBf16(float f) {
  const uint32_t u = FloatToBits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
[[maybe_unused]] static inline float Fp16ToFloat(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return BitsToFloat(sign | FloatToBits(magnitude));
  }
  if (exponent == 31) {  // a signalling NaN becomes quiet, as vcvtph2ps makes it
    return BitsToFloat(sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0));
  }
  return BitsToFloat(sign | ((exponent + 112) << 23) | (mantissa << 13));
}
// To the nearest, ties to even. What does not fit becomes +-65504, so that one large value of a cache does not turn
// every sum that it enters into an infinity.
[[maybe_unused]] static inline uint16_t FloatToFp16(float f) {
  const uint32_t u = FloatToBits(f);
  const uint32_t magnitude = u & 0x7fffffffu;
  const uint32_t most = 0x477fe000u;  // 65504
  const uint32_t a = magnitude < most ? magnitude : most;
  const uint32_t normal = (a + 0xfffu + ((a >> 13) & 1u) - (112u << 23)) >> 13;
  // Below 2^-14 a step is 2^-24, which is what an addition to 0.5 rounds to.
  const uint32_t small = FloatToBits(BitsToFloat(a) + 0.5f) - FloatToBits(0.5f);
  const uint32_t finite = a < 0x38800000u ? small : normal;
  return static_cast<uint16_t>(((u >> 16) & 0x8000u) | (magnitude > 0x7f800000u ? 0x7e00u : finite));
}
[[maybe_unused]] static inline uint16_t LoadU16(const void* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Element i of a raw row (GGUF's block forms for quantised types).
[[maybe_unused]] static inline float RowElement(DType dtype, const std::byte* row, uint32_t i) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  const uint32_t group = i / kQuantGroup;
  const uint32_t j = i % kQuantGroup;
  switch (dtype) {
    case DType::kF32: {
      float value;
      std::memcpy(&value, bytes + size_t{i} * 4, sizeof value);
      return value;
    }
    case DType::kF16:
      return Fp16ToFloat(LoadU16(bytes + size_t{i} * 2));
    case DType::kBF16:
      return Bf16ToFloat(LoadU16(bytes + size_t{i} * 2));
    case DType::kQ8_0: {
      const uint8_t* block = bytes + size_t{group} * 34;
      return static_cast<float>(static_cast<int8_t>(block[2 + j])) * Fp16ToFloat(LoadU16(block));
    }
    case DType::kQ4_0: {
      const uint8_t* block = bytes + size_t{group} * 18;
      const int q = j < 16 ? block[2 + j] & 15 : block[2 + j - 16] >> 4;
      return static_cast<float>(q - 8) * Fp16ToFloat(LoadU16(block));
    }
    case DType::kQ4_1: {
      const uint8_t* block = bytes + size_t{group} * 20;
      const int q = j < 16 ? block[4 + j] & 15 : block[4 + j - 16] >> 4;
      return __builtin_fmaf(static_cast<float>(q), Fp16ToFloat(LoadU16(block)), Fp16ToFloat(LoadU16(block + 2)));
    }
    case DType::kI8:
      break;
  }
  return 0;
}

// A head's K or V of one token as int8: the nearest integer to x / scale, where scale is the row's largest magnitude
// over 127, cut to 17 bits. So the largest becomes +-127, an integer times the scale is exact in fp32, and a row that
// is read and quantised again gives the same bytes. |x - q * scale| <= (1 + 2^-14) * largest / 254. A row whose scale
// would be subnormal (all below 127 * 2^-126) has scale 0 and integers 0; one with a NaN or an infinity has a NaN and
// 0, so that it reads as NaN and is noticed.
struct KvScale {
  float scale, inverse;  // inverse: 0 where the integers are
};
[[maybe_unused]] static inline KvScale KvScaleOf(uint32_t largest_magnitude_bits) {
  if (largest_magnitude_bits >= 0x7f800000u) return {BitsToFloat(0x7fc00000u), 0.0f};
  const float scale = BitsToFloat(FloatToBits(BitsToFloat(largest_magnitude_bits) / 127.0f) & ~0x7fu);
  if (scale < 0x1p-126f) return {0.0f, 0.0f};
  return {scale, 1.0f / scale};
}
[[maybe_unused]] static inline KvScale KvScaleOfRow(const float* x, uint32_t n) {
  uint32_t largest = 0;  // of the bits: above every number are the infinities, above them the NaNs
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t magnitude = FloatToBits(x[i]) & 0x7fffffffu;
    largest = largest > magnitude ? largest : magnitude;
  }
  return KvScaleOf(largest);
}
// To the nearest, ties to even; |x| is at most the row's largest.
[[maybe_unused]] static inline int8_t KvInt8(float x, float inverse) {
  const float shifted = x * inverse + 12582912.0f;  // 1.5 * 2^23: the low byte is the integer
  return inverse == 0.0f ? int8_t{0} : static_cast<int8_t>(FloatToBits(shifted));
}

// exp, the same bits everywhere: x clamped to [-87.33, 88], n = x / ln 2 rounded to even, a degree-6 polynomial
// of the rest, times 2^n. Below the range it is exactly 0. Relative error below 2e-7. NaN gives NaN.
static constexpr float kExpLow = -87.33f;
static constexpr float kExpHigh = 88.0f;
static constexpr float kLog2E = 0x1.715476p+0f;
static constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
static constexpr float kLn2High = 0x1.62e400p-1f;
static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
static constexpr float kExpC[7] = {1.0f,           1.0f,           0x1.fffffcp-2f, 0x1.555492p-3f,
                                   0x1.5558f2p-5f, 0x1.1239e2p-7f, 0x1.6a2434p-10f};
[[maybe_unused]] static inline float ExpOf(float x) {
  float c = kExpHigh < x ? kExpHigh : x;
  c = kExpLow > c ? kExpLow : c;
  const float shifted = __builtin_fmaf(c, kLog2E, kRoundMagic);
  const float n = shifted - kRoundMagic;
  const float r = __builtin_fmaf(n, -kLn2Low, __builtin_fmaf(n, -kLn2High, c));
  float p = kExpC[6];
  for (int i = 5; i >= 0; --i) p = __builtin_fmaf(p, r, kExpC[i]);
  // The magic number's low bits are 0 modulo 2^9, so shifting its integer by 23 keeps only n.
  const float scale = BitsToFloat((FloatToBits(shifted) << 23) + 0x3f800000u);
  return x < kExpLow ? 0.0f : p * scale;
}

}  // namespace baton

// Sixteen fp32 lanes as two ymm registers. The same names as lanes_avx512.h: kernels/cpu/body.h is written over
// them. Decoders turn 16 packed columns of one k (formats in baton/kernel_table.h) into fp32.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace baton {
namespace {

#define BATON_INLINE inline __attribute__((always_inline))

// Rows and panels of the micro-kernel that keep the accumulators within 16 registers.
#define BATON_MICRO_ROWS 6
constexpr uint32_t kMicroPanels = 1;
// Panels in flight for 1 to 4 rows that are computed while weights are decoded.
constexpr uint32_t kGemvPanels[] = {2, 2, 1, 1};

struct Lanes {
  __m256 lo, hi;  // lanes 0..7, 8..15
};

BATON_INLINE Lanes Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
BATON_INLINE Lanes Set(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
BATON_INLINE Lanes Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
BATON_INLINE void Store(float* p, Lanes v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
BATON_INLINE Lanes Add(Lanes a, Lanes b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
BATON_INLINE Lanes Sub(Lanes a, Lanes b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
BATON_INLINE Lanes Mul(Lanes a, Lanes b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
BATON_INLINE Lanes Div(Lanes a, Lanes b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
// a * b + c, rounded once.
BATON_INLINE Lanes Fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// a > b ? a : b and a < b ? a : b: b where either is NaN.
BATON_INLINE Lanes Max(Lanes a, Lanes b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
BATON_INLINE Lanes Min(Lanes a, Lanes b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }

// Bits of lanes 0..count-1 set; count <= 16.
struct LaneMask {
  __m256i lo, hi;
};
BATON_INLINE LaneMask FirstLanes(uint32_t count) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i n = _mm256_set1_epi32(static_cast<int>(count));
  return {_mm256_cmpgt_epi32(n, index), _mm256_cmpgt_epi32(n, _mm256_add_epi32(index, _mm256_set1_epi32(8)))};
}
// Lanes outside the mask: not read, 0; not written.
BATON_INLINE Lanes LoadMasked(const float* p, LaneMask m) {
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
BATON_INLINE void StoreMasked(float* p, LaneMask m, Lanes v) {
  _mm256_maskstore_ps(p, m.lo, v.lo);
  _mm256_maskstore_ps(p + 8, m.hi, v.hi);
}
BATON_INLINE Lanes Select(LaneMask m, Lanes yes, Lanes no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_castsi256_ps(m.lo)),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_castsi256_ps(m.hi))};
}
// v where x >= bound or x is NaN, else 0.
BATON_INLINE Lanes ZeroBelow(Lanes x, Lanes bound, Lanes v) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.lo, bound.lo, _CMP_NLT_UQ), v.lo),
          _mm256_and_ps(_mm256_cmp_ps(x.hi, bound.hi, _CMP_NLT_UQ), v.hi)};
}
// 2^n from the bits of n + kRoundMagic (formats.h).
BATON_INLINE Lanes ExponentScale(Lanes shifted) {
  const __m256i one = _mm256_set1_epi32(0x3f800000);
  const auto half = [one](__m256 v) __attribute__((always_inline)) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(v), 23), one));
  };
  return {half(shifted.lo), half(shifted.hi)};
}
// Folds by halves: lane j += lane j + 8, then + 4, + 2, + 1.
BATON_INLINE float TreeSum(Lanes v) {
  const __m256 eight = _mm256_add_ps(v.lo, v.hi);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
BATON_INLINE float MaxOf(Lanes v) {
  const __m256 eight = _mm256_max_ps(v.lo, v.hi);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// 16 dwords of bf16 pairs: the low and the high halves as fp32.
struct PairLanes {
  Lanes first, second;
};
BATON_INLINE PairLanes SplitPairs(__m256i a, __m256i b) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(a, high)), _mm256_castsi256_ps(_mm256_and_si256(b, high))}};
}
BATON_INLINE PairLanes LoadPairs(const void* p) {
  const auto* v = static_cast<const __m256i*>(p);
  return SplitPairs(_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1));
}
BATON_INLINE PairLanes LoadPairsMasked(const void* p, LaneMask m) {
  const auto* v = static_cast<const int*>(p);
  return SplitPairs(_mm256_maskload_epi32(v, m.lo), _mm256_maskload_epi32(v + 8, m.hi));
}
// 16 pairs of int8 in a row.
BATON_INLINE PairLanes LoadInt8Pairs(const void* p) {
  const auto* v = static_cast<const __m128i*>(p);
  const __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128(v)), b = _mm256_cvtepi8_epi16(_mm_loadu_si128(v + 1));
  const auto low = [](__m256i x) __attribute__((always_inline)) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 16), 16));
  };
  const auto high = [](__m256i x) __attribute__((always_inline)) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(x, 16));
  };
  return {{low(a), low(b)}, {high(a), high(b)}};
}

BATON_INLINE Lanes DecodeF32(const uint8_t* p) { return Load(reinterpret_cast<const float*>(p)); }
BATON_INLINE Lanes DecodeF16(const uint8_t* p) {
  const auto* v = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(v)), _mm256_cvtph_ps(_mm_loadu_si128(v + 1))};
}
BATON_INLINE Lanes DecodeBF16(const uint8_t* p) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(v, 16)), _mm256_castsi256_ps(_mm256_and_si256(v, high))};
}
BATON_INLINE Lanes DecodeInt8(const uint8_t* p) {
  const auto half = [](const uint8_t* q) __attribute__((always_inline)) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q))));
  };
  return {half(p), half(p + 8)};
}
// 8 bytes: low nibbles are columns 0..7, high nibbles 8..15. High ones stay in place and count 16-fold, which the
// scale of those columns takes back exactly: NibbleScale(d) * DecodeNibbles(p) is d * q.
BATON_INLINE Lanes DecodeNibbles(const uint8_t* p) {
  const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(0x0f))),
          _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(0xf0)))};
}
BATON_INLINE Lanes NibbleScale(Lanes d) { return {d.lo, _mm256_mul_ps(d.hi, _mm256_set1_ps(0.0625f))}; }

// Fetches a line into L2. The address may be anything.
BATON_INLINE void PrefetchL2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace
}  // namespace baton

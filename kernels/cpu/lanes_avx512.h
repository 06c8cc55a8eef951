// Sixteen fp32 lanes as one zmm register: AVX-512 F, BW, DQ and VL. The same names as lanes_avx2.h. Includes no
// intrinsics: avx512.cc takes the compiler's, the conformance test a model of them for CPUs that lack them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton {
namespace {

#define BATON_INLINE inline __attribute__((always_inline))

// Rows and panels of the micro-kernel: 24 accumulators of 32 registers.
#define BATON_MICRO_ROWS 12
constexpr uint32_t kMicroPanels = 2;
// Panels in flight for 1 to 4 rows that are computed while weights are decoded.
constexpr uint32_t kGemvPanels[] = {4, 4, 2, 2};

struct Lanes {
  __m512 v;
};

BATON_INLINE Lanes Zero() { return {_mm512_setzero_ps()}; }
BATON_INLINE Lanes Set(float x) { return {_mm512_set1_ps(x)}; }
BATON_INLINE Lanes Load(const float* p) { return {_mm512_loadu_ps(p)}; }
BATON_INLINE void Store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
BATON_INLINE Lanes Add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
BATON_INLINE Lanes Sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
BATON_INLINE Lanes Mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
BATON_INLINE Lanes Div(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c, rounded once.
BATON_INLINE Lanes Fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a > b ? a : b and a < b ? a : b: b where either is NaN.
BATON_INLINE Lanes Max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
BATON_INLINE Lanes Min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }

// Bits of lanes 0..count-1 set; count <= 16.
struct LaneMask {
  __mmask16 bits;
};
BATON_INLINE LaneMask FirstLanes(uint32_t count) {
  return {static_cast<__mmask16>(count >= 16 ? 0xffffu : (1u << count) - 1)};
}
// Lanes outside the mask: not read, 0; not written.
BATON_INLINE Lanes LoadMasked(const float* p, LaneMask m) { return {_mm512_maskz_loadu_ps(m.bits, p)}; }
BATON_INLINE void StoreMasked(float* p, LaneMask m, Lanes a) { _mm512_mask_storeu_ps(p, m.bits, a.v); }
BATON_INLINE Lanes Select(LaneMask m, Lanes yes, Lanes no) { return {_mm512_mask_blend_ps(m.bits, no.v, yes.v)}; }
// v where x >= bound or x is NaN, else 0.
BATON_INLINE Lanes ZeroBelow(Lanes x, Lanes bound, Lanes a) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, bound.v, _CMP_NLT_UQ), a.v)};
}
// 2^n from the bits of n + kRoundMagic (formats.h).
BATON_INLINE Lanes ExponentScale(Lanes shifted) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f800000)))};
}
// Folds by halves: lane j += lane j + 8, then + 4, + 2, + 1.
BATON_INLINE float TreeSum(Lanes a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
BATON_INLINE float MaxOf(Lanes a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// 16 dwords of bf16 pairs: the low and the high halves as fp32.
struct PairLanes {
  Lanes first, second;
};
BATON_INLINE PairLanes SplitPairs(__m512i a) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(a, 16))}, {_mm512_castsi512_ps(_mm512_and_si512(a, high))}};
}
BATON_INLINE PairLanes LoadPairs(const void* p) { return SplitPairs(_mm512_loadu_si512(p)); }
BATON_INLINE PairLanes LoadPairsMasked(const void* p, LaneMask m) {
  return SplitPairs(_mm512_maskz_loadu_epi32(m.bits, p));
}
// 16 pairs of int8 in a row.
BATON_INLINE PairLanes LoadInt8Pairs(const void* p) {
  const __m512i a = _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return {{_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(a, 16), 16))},
          {_mm512_cvtepi32_ps(_mm512_srai_epi32(a, 16))}};
}

BATON_INLINE Lanes DecodeF32(const uint8_t* p) { return Load(reinterpret_cast<const float*>(p)); }
BATON_INLINE Lanes DecodeF16(const uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
BATON_INLINE Lanes DecodeBF16(const uint8_t* p) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
  return {_mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_slli_epi32(v, 16)), high, 1))};
}
BATON_INLINE Lanes DecodeInt8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// 8 bytes: low nibbles are columns 0..7, high nibbles 8..15. NibbleScale(d) * DecodeNibbles(p) is d * q.
BATON_INLINE Lanes DecodeNibbles(const uint8_t* p) {
  const __m128i v = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i both = _mm_unpacklo_epi64(v, _mm_srli_epi16(v, 4));
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_and_si128(both, _mm_set1_epi8(15))))};
}
BATON_INLINE Lanes NibbleScale(Lanes d) { return d; }

// Fetches a line into L2. The address may be anything.
BATON_INLINE void PrefetchL2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace
}  // namespace baton

// The AVX-512 kernels compiled over SIMDe's model of the instructions, so that their source is tested on CPUs
// that lack them. What Debian's SIMDe does not have, or does not round once (fmadd), is modelled here lane by lane.
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>
#include <simde/x86/sse4.2.h>

#include <cmath>
#include <cstring>

#include "kernels/formats.h"

namespace baton::testing {

template <typename To, typename From>
To Bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
struct Floats16 {
  float x[16];
};
struct Ints16 {
  int32_t x[16];
};
template <typename Fn>
simde__m512 FloatLanes(const Fn& fn) {
  Floats16 out;
  for (int i = 0; i < 16; ++i) out.x[i] = fn(i);
  return Bits<simde__m512>(out);
}
inline simde__m512 Fmadd(simde__m512 a, simde__m512 b, simde__m512 c) {
  const auto l = Bits<Floats16>(a), r = Bits<Floats16>(b), s = Bits<Floats16>(c);
  return FloatLanes([&](int i) { return std::fma(l.x[i], r.x[i], s.x[i]); });
}
inline simde__m512 MaskzLoad(simde__mmask16 m, const void* p) {
  return FloatLanes([&](int i) { return m >> i & 1 ? static_cast<const float*>(p)[i] : 0.0f; });
}
inline void MaskStore(void* p, simde__mmask16 m, simde__m512 v) {
  const auto lanes = Bits<Floats16>(v);
  for (int i = 0; i < 16; ++i) {
    if (m >> i & 1) static_cast<float*>(p)[i] = lanes.x[i];
  }
}
inline simde__m512i MaskzLoadInt(simde__mmask16 m, const void* p) {
  Ints16 out;
  for (int i = 0; i < 16; ++i) {
    out.x[i] = 0;
    if (m >> i & 1) std::memcpy(&out.x[i], static_cast<const char*>(p) + i * 4, 4);
  }
  return Bits<simde__m512i>(out);
}
inline simde__m256 UpperHalf(simde__m512 v, int) {
  simde__m256 out;
  std::memcpy(&out, reinterpret_cast<const char*>(&v) + 32, 32);
  return out;
}
inline simde__m512 FromHalf(simde__m256i v) {
  uint16_t h[16];
  std::memcpy(h, &v, sizeof h);
  return FloatLanes([&](int i) { return Fp16ToFloat(h[i]); });
}
template <typename T>
simde__m512i Widen(simde__m128i v) {
  T bytes[16];
  std::memcpy(bytes, &v, sizeof bytes);
  Ints16 out;
  for (int i = 0; i < 16; ++i) out.x[i] = bytes[i];
  return Bits<simde__m512i>(out);
}
inline simde__m512i ShiftRight(simde__m512i v, int count) {
  auto lanes = Bits<Ints16>(v);
  for (int32_t& x : lanes.x) x >>= count;
  return Bits<simde__m512i>(lanes);
}
inline simde__m512 ToFloat(simde__m512i v) {
  const auto lanes = Bits<Ints16>(v);
  return FloatLanes([&](int i) { return static_cast<float>(lanes.x[i]); });
}

}  // namespace baton::testing

#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps ::baton::testing::Fmadd
#define _mm512_maskz_loadu_ps ::baton::testing::MaskzLoad
#define _mm512_mask_storeu_ps ::baton::testing::MaskStore
#define _mm512_maskz_loadu_epi32 ::baton::testing::MaskzLoadInt
#define _mm512_extractf32x8_ps ::baton::testing::UpperHalf
#define _mm512_cvtph_ps ::baton::testing::FromHalf
#define _mm512_cvtepi8_epi32 ::baton::testing::Widen<int8_t>
#define _mm512_cvtepu8_epi32 ::baton::testing::Widen<uint8_t>
#define _mm512_srai_epi32 ::baton::testing::ShiftRight
#define _mm512_cvtepi32_ps ::baton::testing::ToFloat

#include "kernels/cpu/lanes_avx512.h"
#include "kernels/cpu/body_rows.h"

namespace baton::testing {

extern const KernelTable kAvx512Model;
constinit const KernelTable kAvx512Model = MakeTable("avx512_model");

}  // namespace baton::testing

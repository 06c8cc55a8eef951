#include <immintrin.h>

#include "benchmarks/kernels/probe.h"

namespace baton::bench {

double FmaFlopsAvx2(int rounds, float* sink) {
  __m256 a[12];
  for (int i = 0; i < 12; ++i) a[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
  for (int r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) a[i] = _mm256_fmadd_ps(a[i], x, y);
  }
  __m256 total = a[0];
  for (int i = 1; i < 12; ++i) total = _mm256_add_ps(total, a[i]);
  _mm256_storeu_ps(sink, total);
  return 12.0 * 8 * 2 * rounds;
}

}  // namespace baton::bench

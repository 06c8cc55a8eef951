#include "benchmarks/kernels/probe.h"

#include <cstdint>

namespace baton::bench {

double ReadSum(const void* data, size_t bytes) {
  // 16-byte vectors through eight sums: far faster than memory on any CPU.
  using V = uint64_t __attribute__((vector_size(16)));
  const auto* p = static_cast<const V*>(data);
  V s[8] = {};
  for (size_t i = 0; i + 8 <= bytes / 16; i += 8) {
    for (size_t j = 0; j < 8; ++j) s[j] += p[i + j];
  }
  V total = {};
  for (const V& v : s) total += v;
  return static_cast<double>(total[0] ^ total[1]);
}

}  // namespace baton::bench

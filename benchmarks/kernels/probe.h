// What this machine can do at most: the limits that every rate is printed next to.
#pragma once

#include <cstddef>

namespace baton::bench {

// Independent fp32 fused multiply-adds in registers; returns the flops done. `sink` keeps the compiler honest.
double FmaFlopsAvx2(int rounds, float* sink);
// Sums `bytes` (a multiple of 256) from memory.
double ReadSum(const void* data, size_t bytes);

}  // namespace baton::bench

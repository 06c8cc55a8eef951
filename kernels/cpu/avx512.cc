// The AVX-512 table: compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl and what avx2.cc takes.
#include <immintrin.h>

#include "kernels/cpu/lanes_avx512.h"
#include "kernels/cpu/body_rows.h"

namespace baton {

constinit const KernelTable kAvx512Kernels = MakeTable("avx512");

}  // namespace baton

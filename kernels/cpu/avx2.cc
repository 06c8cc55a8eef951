// The AVX2 table: compiled with -mavx2 -mfma -mf16c (kernels/CMakeLists.txt).
#include "kernels/cpu/lanes_avx2.h"
#include "kernels/cpu/body_rows.h"

namespace baton {

constinit const KernelTable kAvx2Kernels = MakeTable("avx2");

}  // namespace baton

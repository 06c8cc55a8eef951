// The CPU kernel tables. A table whose instructions the CPU lacks may be named but not called: the choice by
// CPUID is src/device/cpu/cpu_features.h.
#pragma once

#include "baton/kernel_table.h"

namespace baton {

extern const KernelTable kReferenceKernels;
extern const KernelTable kAvx2Kernels;    // AVX2, FMA, F16C
extern const KernelTable kAvx512Kernels;  // AVX-512 F, BW, DQ, VL

}  // namespace baton

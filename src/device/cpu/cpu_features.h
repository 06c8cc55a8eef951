// What this machine's CPU and operating system can run, and the kernel tables that follow from it. Everything
// is decided once, at the first call; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baton/kernel_table.h"
#include "baton/status.h"

namespace baton {

struct CpuFeatures {
  bool avx2 = false;    // AVX2, FMA and F16C, and the system saves ymm
  bool avx512 = false;  // F, BW, VL, DQ, and the system saves zmm
};
const CpuFeatures& DetectedCpuFeatures();

// Tables that can run here, slowest first; the first is always "reference".
const std::vector<const KernelTable*>& AvailableCpuKernels();
// The last of them.
const KernelTable& BestCpuKernels();
// By name; "" or "auto" is the best one. INVALID_ARGUMENT names what is available.
StatusOr<const KernelTable*> CpuKernelsByName(std::string_view name);

// Cores this process may run on (its affinity mask and its cgroup's CPU quota, rounded down, at least 1).
int UsableCpuCores();

}  // namespace baton

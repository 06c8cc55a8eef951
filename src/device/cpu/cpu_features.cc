#include "device/cpu/cpu_features.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

#ifdef BATON_X86_KERNELS
#include <cpuid.h>
#endif

#include "kernels/tables.h"

namespace baton {
namespace {

#ifdef BATON_X86_KERNELS
uint64_t ReadXcr0() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

CpuFeatures Detect() {
  CpuFeatures features;
  uint32_t a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return features;
  const bool osxsave = (c & bit_OSXSAVE) != 0;
  const bool fma_f16c = (c & bit_FMA) != 0 && (c & bit_F16C) != 0 && (c & bit_AVX) != 0;
  if (!osxsave || !fma_f16c) return features;
  const uint64_t xcr0 = ReadXcr0();
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return features;
  constexpr uint64_t kYmmState = 0x6;   // xmm, ymm
  constexpr uint64_t kZmmState = 0xe6;  // and the mask registers, both parts of zmm
  features.avx2 = (xcr0 & kYmmState) == kYmmState && (b & bit_AVX2) != 0;
  const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  features.avx512 = features.avx2 && (xcr0 & kZmmState) == kZmmState && (b & avx512) == avx512;
  return features;
}
#else
CpuFeatures Detect() { return {}; }
#endif

// Cores that the cgroup's quota allows; a large number without one.
int CgroupCores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 1 << 20;
  return std::max(1, static_cast<int>(std::atof(quota.c_str()) / period));
}

}  // namespace

const CpuFeatures& DetectedCpuFeatures() {
  static const CpuFeatures features = Detect();
  return features;
}

const std::vector<const KernelTable*>& AvailableCpuKernels() {
  static const std::vector<const KernelTable*> tables = [] {
    std::vector<const KernelTable*> found = {&kReferenceKernels};
#ifdef BATON_X86_KERNELS
    if (DetectedCpuFeatures().avx2) found.push_back(&kAvx2Kernels);
    if (DetectedCpuFeatures().avx512) found.push_back(&kAvx512Kernels);
#endif
    return found;
  }();
  return tables;
}

const KernelTable& BestCpuKernels() { return *AvailableCpuKernels().back(); }

StatusOr<const KernelTable*> CpuKernelsByName(std::string_view name) {
  if (name.empty() || name == "auto") return &BestCpuKernels();
  std::string available;
  for (const KernelTable* table : AvailableCpuKernels()) {
    if (name == table->name) return table;
    available += std::string(available.empty() ? "" : ", ") + table->name;
  }
  return InvalidArgumentError("CPU kernels '" + std::string(name) + "' cannot run here; available: auto, " + available);
}

int UsableCpuCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int mask = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, std::min(mask, CgroupCores()));
}

}  // namespace baton

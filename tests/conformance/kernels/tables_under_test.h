// The tables that this machine can run, as test parameters.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/cpu/cpu_features.h"
#include "kernels/tables.h"

namespace baton::testing {

extern const KernelTable kAvx512Model;  // avx512_model.cc; built with AVX2 and FMA

inline std::vector<const KernelTable*> TablesUnderTest() {
  std::vector<const KernelTable*> tables = AvailableCpuKernels();
#ifdef BATON_AVX512_MODEL
  if (DetectedCpuFeatures().avx2) tables.push_back(&kAvx512Model);
#endif
  return tables;
}
// All but the reference: what must equal it.
inline std::vector<const KernelTable*> FastTables() {
  std::vector<const KernelTable*> tables = TablesUnderTest();
  tables.erase(tables.begin());
  return tables;
}
inline std::string TableName(const ::testing::TestParamInfo<const KernelTable*>& param) { return param.param->name; }

}  // namespace baton::testing

// The tables that this machine can run, as test parameters.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/cpu/cpu_features.h"
#include "kernels/tables.h"

namespace baton::testing {

inline std::vector<const KernelTable*> TablesUnderTest() { return AvailableCpuKernels(); }
inline std::string TableName(const ::testing::TestParamInfo<const KernelTable*>& param) { return param.param->name; }

}  // namespace baton::testing

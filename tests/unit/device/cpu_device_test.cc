// The pool hands every item to exactly one worker whatever it did before, an idle pool sleeps, and a device's
// results do not depend on its threads.
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/packed_matrix.h"

namespace baton {
namespace {

TEST(CpuPool, RunsEveryItemOnceForAnyItemsGrainAndThreads) {
  Rng rng(1);
  for (const int threads : {1, 2, 3, 5}) {
    auto pool = CpuPool::Create({threads, {}});
    ASSERT_TRUE(pool.ok());
    for (int round = 0; round < 300; ++round) {
      const size_t items = rng.Below(200);
      const size_t grain = rng.Below(3) == 0 ? 0 : rng.Below(20);
      std::vector<std::atomic<int>> done(items);
      std::atomic<bool> worker_known = true;
      (*pool)->ParallelFor(items, grain, [&](size_t begin, size_t end, int worker) {
        if (worker < 0 || worker >= threads) worker_known = false;
        for (size_t i = begin; i < end; ++i) ++done[i];
      });
      for (const auto& d : done) ASSERT_EQ(d.load(), 1) << "threads " << threads << " grain " << grain;
      ASSERT_TRUE(worker_known);
    }
  }
}

TEST(CpuPool, WakesSleepingWorkersAgainAndAgain) {
  auto pool = CpuPool::Create({3, {}});
  ASSERT_TRUE(pool.ok());
  std::vector<long> sums(3);
  for (int round = 1; round <= 60; ++round) {
    // Longer and shorter than the spin, so that workers are met spinning, falling asleep and sleeping.
    std::this_thread::sleep_for(std::chrono::microseconds(round % 6 * 10));
    (*pool)->ParallelFor(3, 0, [&](size_t begin, size_t, int) { sums[begin] += round; });
  }
  for (const long sum : sums) EXPECT_EQ(sum, 60 * 61 / 2);
}

TEST(CpuPool, AnIdlePoolUsesNextToNoCpu) {
  auto pool = CpuPool::Create({4, {}});
  ASSERT_TRUE(pool.ok());
  (*pool)->ParallelFor(4, 0, [](size_t, size_t, int) {});
  const auto cpu_ns = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const long long before = cpu_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(cpu_ns() - before, 30'000'000) << "of 1200 ms that spinning workers would use";
}

TEST(CpuPool, RefusesSettingsInWords) {
  EXPECT_EQ(CpuPool::Create({0, {}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(CpuPool::Create({100000, {}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(CpuPool::Create({2, {0}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(CpuPool::Create({2, {0, -1}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(CpuPool::Create({2, {0, 1 << 20}}).status().code(), Code::kInvalidArgument);
}

TEST(CpuFeatures, TheBestTableCanBeAskedForByNameAndAnUnknownNameListsTheOthers) {
  for (const KernelTable* table : AvailableCpuKernels()) {
    const auto found = CpuKernelsByName(table->name);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, table);
  }
  EXPECT_EQ(*CpuKernelsByName("auto"), &BestCpuKernels());
  const auto unknown = CpuKernelsByName("mmx");
  EXPECT_EQ(unknown.status().code(), Code::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("reference"), std::string::npos);
  EXPECT_GE(UsableCpuCores(), 1);
}

TEST(AlignedMemory, IsAlignedZeroAndMovable) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, (size_t{2} << 20) + 1}) {
    auto memory = AlignedMemory::Allocate(bytes);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % (2 << 20), 0u);
    EXPECT_EQ(memory->data()[bytes - 1], std::byte{0});
    memory->data()[bytes - 1] = std::byte{7};
    AlignedMemory moved = std::move(*memory);
    EXPECT_EQ(memory->data(), nullptr);
    EXPECT_EQ(moved.data()[bytes - 1], std::byte{7});
  }
  EXPECT_EQ(AlignedMemory::Allocate(0)->data(), nullptr);
  EXPECT_EQ(AlignedMemory::Allocate(size_t{1} << 60).status().code(), Code::kResourceExhausted);
}

// A gemm and an attention on a device; everything else of a device is one call through RunRows.
std::vector<float> Compute(CpuDevice& device, uint32_t rows) {
  Rng rng(7);
  const uint32_t n = 300, k = 96;
  std::vector<uint16_t> weight(size_t{n} * k);
  for (uint16_t& w : weight) w = static_cast<uint16_t>(0x3c00 + rng.Below(0x800));  // bf16 near 0.01 to 2
  const TensorView view{DType::kBF16, {n, k}, reinterpret_cast<const std::byte*>(weight.data()), weight.size() * 2};
  auto packed = PackedMatrix::Pack(device.pool(), view);
  std::vector<float> x(size_t{rows} * k), out(size_t{rows} * (n + 6 * 32));
  for (float& v : x) v = static_cast<float>(rng.Unit());
  const size_t stride = n + 6 * 32;
  device.Gemm(
      {.w = packed->view(), .x = x.data(), .x_stride = k, .rows = rows, .out = out.data(), .out_stride = stride});

  KvLayout layout;
  layout.groups = {{KvKind::kFull, 2, 2, 32, DType::kBF16}};
  const uint32_t blocks = layout.BlocksFor(rows);
  auto pool = AlignedMemory::Allocate(blocks * layout.BlockBytes(0));
  const KvTiles tiles = MakeKvTiles(layout, 0, 1, pool->data());
  std::vector<BlockId> table;
  for (uint32_t i = 0; i < blocks; ++i) table.push_back(BlockId{blocks - 1 - i});
  const RowSpan span{table.data(), 0, rows, 0};
  device.KvWrite({.kv = tiles,
                  .k = out.data(),
                  .k_stride = stride,
                  .v = out.data() + 64,
                  .v_stride = stride,
                  .spans = &span,
                  .num_spans = 1},
                 rows);
  AttentionParams attention{.kv = tiles,
                            .q = out.data(),
                            .q_stride = stride,
                            .num_heads = 6,
                            .scale = 0.2f,
                            .out = out.data() + n,
                            .out_stride = stride,
                            .rows = rows,
                            .spans = &span,
                            .num_spans = 1};
  device.Attention(attention);
  device.Add({out.data(), out.data(), out.data()}, out.size());
  return out;
}

TEST(CpuDevice, GivesTheSameBitsWithAnyNumberOfThreads) {
  for (const uint32_t rows : {1u, 3u, 40u, 150u}) {
    std::vector<float> first;
    for (const int threads : {1, 2, 3}) {
      auto device = CpuDevice::Create({threads, {}, ""});
      ASSERT_TRUE(device.ok()) << device.status().message();
      const std::vector<float> out = Compute(**device, rows);
      if (first.empty()) first = out;
      ASSERT_EQ(0, std::memcmp(first.data(), out.data(), out.size() * sizeof(float))) << threads << " threads";
    }
  }
}

TEST(CpuDevice, RefusesKvLayoutsThatItsKernelsDoNotRead) {
  KvLayout layout;
  layout.groups = {{KvKind::kFull, 2, 2, 64, DType::kBF16}};
  EXPECT_TRUE(CheckCpuKvLayout(layout).ok());
  auto refused = [](KvLayout l) { return CheckCpuKvLayout(l).code() == Code::kFailedPrecondition; };
  KvLayout other = layout;
  other.tile = TileForm::kTokenMajor;
  EXPECT_TRUE(refused(other));
  other = layout;
  other.block_tokens = 48;
  EXPECT_TRUE(refused(other));
  other = layout;
  other.groups[0].dtype = DType::kQ8_0;
  EXPECT_TRUE(refused(other));
  for (const DType dtype : {DType::kF16, DType::kF32, DType::kI8}) {
    other.groups[0].dtype = dtype;
    EXPECT_TRUE(CheckCpuKvLayout(other).ok());
  }
  other = layout;
  other.groups[0].head_dim = 258;
  EXPECT_TRUE(refused(other));
}

}  // namespace
}  // namespace baton

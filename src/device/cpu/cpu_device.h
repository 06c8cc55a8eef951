// One CPU as a device: a kernel table, the pool that runs it, and each worker's scratch. Calls compute on the
// calling thread and the pool and return when the result is in memory. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "baton/kernel_table.h"
#include "baton/kv_layout.h"
#include "baton/status.h"
#include "device/cpu/aligned_memory.h"
#include "device/cpu/cpu_pool.h"

namespace baton {

class CpuDevice {
 public:
  struct Options {
    int threads = 0;        // 0: UsableCpuCores()
    std::vector<int> cpus;  // see CpuPool::Options
    std::string kernels;    // table name; "" or "auto": the best that runs here
  };
  static StatusOr<std::unique_ptr<CpuDevice>> Create(const Options& options);

  // Rows (or elements, for Add) [0, count) of each entry; shapes as in kernel_table.h.
  void Embed(const EmbedParams& p, size_t rows);
  void RmsNorm(const RmsNormParams& p, size_t rows);
  void Gemm(const GemmParams& p);
  void Rope(const RopeParams& p, size_t rows);
  void KvWrite(const KvWriteParams& p, size_t rows);
  void Attention(const AttentionParams& p);
  void SiluMul(const SiluMulParams& p, size_t rows);
  void Add(const AddParams& p, size_t elements);
  void Argmax(const ArgmaxParams& p, size_t rows);

  const KernelTable& kernels() const { return kernels_; }
  CpuPool& pool() { return *pool_; }

 private:
  CpuDevice(const KernelTable& kernels, std::unique_ptr<CpuPool> pool, AlignedMemory scratch);
  void* Scratch(int worker) const { return scratch_.data() + static_cast<size_t>(worker) * kKernelScratchBytes; }

  const KernelTable& kernels_;
  std::unique_ptr<CpuPool> pool_;
  AlignedMemory scratch_;  // [threads][kKernelScratchBytes]
};

// One layer of `group`, whose pool's block 0 lies at `group_pool`. FAILED_PRECONDITION for a layout that the CPU
// kernels do not read: they want bf16, fp16, fp32 or int8, TileForm::kPairs, an even head_dim of at most 256.
Status CheckCpuKvLayout(const KvLayout& layout);
KvTiles MakeKvTiles(const KvLayout& layout, uint32_t group, uint32_t layer, std::byte* group_pool);

}  // namespace baton

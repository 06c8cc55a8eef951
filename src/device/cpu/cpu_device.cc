#include "device/cpu/cpu_device.h"

#include <algorithm>
#include <string>
#include <utility>

#include "device/cpu/cpu_features.h"
#include "kernels/tables.h"

namespace baton {
namespace {
// Below this many floats of work the pool's barrier costs more than it saves.
constexpr size_t kSerialFloats = 8192;
}  // namespace

StatusOr<std::unique_ptr<CpuDevice>> CpuDevice::Create(const Options& options) {
  BATON_ASSIGN_OR_RETURN(const KernelTable* kernels, CpuKernelsByName(options.kernels));
  const int threads = options.threads == 0 ? UsableCpuCores() : options.threads;
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<CpuPool> pool, CpuPool::Create({threads, options.cpus}));
  BATON_ASSIGN_OR_RETURN(AlignedMemory scratch,
                         AlignedMemory::Allocate(kKernelScratchBytes * static_cast<size_t>(threads)));
  return std::unique_ptr<CpuDevice>(new CpuDevice(*kernels, std::move(pool), std::move(scratch)));
}

CpuDevice::CpuDevice(const KernelTable& kernels, std::unique_ptr<CpuPool> pool, AlignedMemory scratch)
    : kernels_(kernels), pool_(std::move(pool)), scratch_(std::move(scratch)) {}

// Row-wise entries: serial when small, else fixed shares.
template <typename P>
static void RunRows(CpuPool& pool, void (*kernel)(const P&, size_t, size_t), const P& p, size_t rows,
                    size_t floats_per_row) {
  if (rows * floats_per_row <= kSerialFloats) {
    kernel(p, 0, rows);
    return;
  }
  pool.ParallelFor(rows, 0, [&](size_t begin, size_t end, int) { kernel(p, begin, end); });
}

void CpuDevice::Embed(const EmbedParams& p, size_t rows) { RunRows(*pool_, kernels_.embed, p, rows, p.n); }
void CpuDevice::RmsNorm(const RmsNormParams& p, size_t rows) {
  RunRows(*pool_, kernels_.rms_norm, p, rows, size_t{p.n} * p.vectors);
}
void CpuDevice::Rope(const RopeParams& p, size_t rows) {
  RunRows(*pool_, kernels_.rope, p, rows, size_t{p.heads} * p.rotary_dim);
}
void CpuDevice::KvWrite(const KvWriteParams& p, size_t rows) {
  RunRows(*pool_, kernels_.kv_write, p, rows, size_t{p.kv.num_kv_heads} * p.kv.head_dim * 2);
}
void CpuDevice::SiluMul(const SiluMulParams& p, size_t rows) { RunRows(*pool_, kernels_.silu_mul, p, rows, p.n); }
void CpuDevice::Add(const AddParams& p, size_t elements) { RunRows(*pool_, kernels_.add, p, elements, 1); }
void CpuDevice::Argmax(const ArgmaxParams& p, size_t rows) { RunRows(*pool_, kernels_.argmax, p, rows, p.n); }

void CpuDevice::Gemm(const GemmParams& p) {
  if (p.rows == 0) return;
  // Few rows read the weights once: fixed, contiguous, long runs stream best. Many rows compute: shares are
  // taken as workers come free, so that a core that is disturbed holds nobody up.
  const size_t panels = p.w.num_panels();
  size_t grain = 0;
  if (p.rows >= 32) {
    const size_t shares = static_cast<size_t>(pool_->threads()) * 4;
    grain = std::max<size_t>(2, (panels + shares - 1) / shares);
  }
  pool_->ParallelFor(panels, grain,
                     [&](size_t begin, size_t end, int worker) { kernels_.gemm(p, begin, end, Scratch(worker)); });
}

void CpuDevice::Attention(const AttentionParams& p) {
  const size_t items = size_t{p.kv.num_kv_heads} * p.rows;
  // Items cost what their context is long, so they are taken as workers come free, in runs long enough for the
  // kernel's tiles of 48 query vectors where there are many.
  constexpr size_t kRunVectors = 96;
  const size_t most = std::max<size_t>(1, kRunVectors / (p.num_heads / p.kv.num_kv_heads));
  const size_t grain = std::clamp<size_t>(items / (static_cast<size_t>(pool_->threads()) * 8), 1, most);
  pool_->ParallelFor(items, grain,
                     [&](size_t begin, size_t end, int worker) { kernels_.attention(p, begin, end, Scratch(worker)); });
}

Status CheckCpuKvLayout(const KvLayout& layout) {
  if (layout.tile != TileForm::kPairs) {
    return FailedPreconditionError("CPU kernels read KV tiles in pairs, not token-major: " + layout.Describe());
  }
  if (layout.block_tokens == 0 || layout.block_tokens % kPageTokens != 0 || layout.block_tokens > kAttentionPiece ||
      kAttentionPiece % layout.block_tokens != 0) {
    return FailedPreconditionError("CPU kernels take KV blocks of 16, 32, 64 or 128 tokens, not " +
                                   std::to_string(layout.block_tokens));
  }
  for (const KvGroup& group : layout.groups) {
    if (group.dtype != DType::kBF16 && group.dtype != DType::kF16 && group.dtype != DType::kF32 &&
        group.dtype != DType::kI8) {
      return FailedPreconditionError("CPU kernels keep KV as bf16, fp16, fp32 or int8: " + layout.Describe());
    }
    if (group.head_dim == 0 || group.head_dim % 2 != 0 || group.head_dim > kMaxHeadDim) {
      return FailedPreconditionError("head dimension " + std::to_string(group.head_dim) +
                                     "; CPU kernels take even ones up to " + std::to_string(kMaxHeadDim));
    }
  }
  return OkStatus();
}

KvTiles MakeKvTiles(const KvLayout& layout, uint32_t group, uint32_t layer, std::byte* group_pool) {
  KvTiles tiles;
  tiles.pool = group_pool;
  tiles.block_bytes = layout.BlockBytes(group);
  tiles.k_offset = layout.TileOffset(group, 0, layer, false);
  tiles.v_offset = layout.TileOffset(group, 0, layer, true);
  tiles.head_stride =
      layout.groups[group].num_kv_heads > 1 ? layout.TileOffset(group, 1, layer, false) - tiles.k_offset : 0;
  tiles.block_tokens = layout.block_tokens;
  tiles.num_kv_heads = layout.groups[group].num_kv_heads;
  tiles.head_dim = layout.groups[group].head_dim;
  tiles.dtype = layout.groups[group].dtype;
  return tiles;
}

}  // namespace baton

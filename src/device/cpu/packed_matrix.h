// Weights in the form that gemm reads: packed once at load, dtype unchanged (a Q4_1 weight stays 20 bytes per
// 32 values; only columns that fill the last panel are added).
#pragma once

#include <span>

#include "baton/kernel_table.h"
#include "baton/status.h"
#include "baton/tensor.h"
#include "device/cpu/aligned_memory.h"
#include "device/cpu/cpu_pool.h"

namespace baton {

class PackedMatrix {
 public:
  PackedMatrix() = default;
  // Stacks `parts` ([out, in] each, equal dtype and equal in) along their outputs: output columns of the result
  // are those of parts[0], then parts[1], ... (Q, K and V; gate and up). Runs on the pool; the parts' memory is
  // not needed afterwards. INVALID_ARGUMENT names the part and the reason.
  static StatusOr<PackedMatrix> Pack(CpuPool& pool, std::span<const TensorView> parts);
  static StatusOr<PackedMatrix> Pack(CpuPool& pool, const TensorView& weight) {
    return Pack(pool, std::span<const TensorView>(&weight, 1));
  }
  // The same into `memory` (64-byte aligned, zeroed, PackedBytes(parts) bytes), which outlives the result: many
  // matrices share one allocation, since each of its own would end in an unused part of a huge page.
  static StatusOr<PackedMatrix> PackInto(CpuPool& pool, std::span<const TensorView> parts, std::span<std::byte> memory);
  // What Pack allocates; the parts are such as Pack takes.
  static size_t PackedBytes(std::span<const TensorView> parts);

  const PackedWeight& view() const { return view_; }
  size_t bytes() const { return view_.panel_bytes * view_.num_panels(); }

 private:
  AlignedMemory memory_;  // empty after PackInto
  PackedWeight view_;
};

}  // namespace baton

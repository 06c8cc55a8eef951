// The arithmetic of one step on the CPU: a batch of rows (decode tokens and prompt chunks alike) through the
// decoder. Owns the activations, sized once; borrows model, device and KV pool. One thread at a time.
// Always true: a row's result depends on its sequence's tokens alone; no kernel call mixes rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "baton/kernel_table.h"
#include "baton/kv_layout.h"
#include "baton/model_runner.h"
#include "baton/sequence_tables.h"
#include "baton/status.h"
#include "baton/step_plan.h"
#include "device/cpu/aligned_memory.h"
#include "device/cpu/cpu_device.h"
#include "model/loaded_model.h"

namespace baton {

class ForwardPass {
 public:
  static StatusOr<std::unique_ptr<ForwardPass>> Create(const LoadedModel& model, CpuDevice& device,
                                                       const KvLayout& layout, const KvPoolPlan& pool_plan,
                                                       std::span<std::byte> pool, uint32_t max_rows);
  static uint64_t WorkspaceBytes(const DecoderDescription& decoder, uint32_t max_rows);

  // Zeroing and block copies, in that order of the plan's lists: zero first, then copy.
  void PrepareBlocks(const StepPlan& plan);
  // Between steps: KV out of staging into blocks of this layout.
  void Convert(const KvConversion& conversion);
  // Runs all layers. `ids`: one per row, valid, in plan order. `layer_done(n)` after the KV of layers [0, n) is
  // in the pool. Rows outside `wanted` (ascending) get no final hidden state.
  void Run(const StepPlan& plan, const SequenceTables& tables, std::span<const TokenId> ids,
           std::span<const uint32_t> wanted, const std::function<void(uint32_t)>& layer_done);
  // After Run: logits of `wanted` rows, in pieces; `use(first, logits)` gets rows wanted[first ...], each
  // vocab_size floats, one after another.
  void Logits(size_t num_wanted, const std::function<void(size_t, std::span<const float>)>& use);

 private:
  struct Buffers {
    float *hidden = nullptr, *normed = nullptr, *qkv = nullptr, *attended = nullptr, *mlp = nullptr,
          *final_rows = nullptr, *logits = nullptr;
    std::byte* embedding_rows = nullptr;
  };
  ForwardPass(const LoadedModel& model, CpuDevice& device, const KvLayout& layout, const KvPoolPlan& pool_plan,
              std::byte* pool);
  // Lays out the buffers in `base`, or only counts their bytes when it is null.
  static uint64_t Carve(const DecoderDescription& d, size_t row_bytes, uint32_t max_rows, std::byte* base,
                        Buffers* buffers);
  void BuildRows(const StepPlan& plan, const SequenceTables& tables);
  void ExtendRopeTable(uint32_t positions);
  void Embed(std::span<const TokenId> ids);
  void Attention(uint32_t layer);
  void Mlp(const LayerWeights& weights, size_t rows);
  void KeepRows(std::span<const uint32_t> wanted);
  void Linear(const FusedLinear& weights, const float* x, size_t x_stride, size_t rows, const float* residual,
              float* out, size_t out_stride);

  const LoadedModel& model_;
  const DecoderDescription& decoder_;
  CpuDevice& device_;
  const KvLayout layout_;
  const KvPoolPlan pool_plan_;
  std::byte* const pool_;
  uint32_t max_rows_ = 0;
  AlignedMemory workspace_, rope_;
  Buffers buffers_;
  uint32_t rope_positions_ = 0;            // filled rows of the rope table
  float *cos_ = nullptr, *sin_ = nullptr;  // [context_tokens][head_dim / 2]
  std::vector<float> inverse_frequencies_;

  // Of the running step.
  std::vector<uint32_t> positions_;
  std::vector<RowSpan> spans_;
};

}  // namespace baton

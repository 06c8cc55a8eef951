// A model's weights in memory, packed once in the form that the CPU's kernels read; quantised weights stay in
// their size. Immutable after Load; any thread reads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "baton/kernel_table.h"
#include "baton/status.h"
#include "device/cpu/cpu_pool.h"
#include "device/cpu/packed_matrix.h"
#include "model/model_file.h"

namespace baton {

// Linear layers that read one input, side by side: outputs [0, n) of a row are those of part 0, then part 1, ...
// One part where the stored types agree.
struct FusedLinear {
  std::vector<PackedMatrix> parts;
  uint32_t n() const;
};

struct LayerWeights {
  std::vector<float> attention_norm, mlp_norm;  // [hidden]
  FusedLinear qkv;                              // [query_dim + 2 kv_dim, hidden], canonical RoPE order
  FusedLinear output;                           // [hidden, query_dim]
  FusedLinear gate_up;                          // [2 mlp_hidden, hidden]
  FusedLinear down;                             // [hidden, mlp_hidden]
};

// The embedding table: rows of its own, or read out of the packed head when the two are tied, so that a tied
// table is in memory once.
class EmbeddingRows {
 public:
  DType dtype() const { return dtype_; }
  size_t row_bytes() const { return row_bytes_; }
  uint32_t vocab_size() const { return vocab_size_; }
  // The rows of `ids` (valid), one after another in the file's form.
  void Gather(std::span<const TokenId> ids, std::byte* out) const;

 private:
  friend class LoadedModel;
  DType dtype_ = DType::kF32;
  size_t row_bytes_ = 0;
  uint32_t vocab_size_ = 0;
  const std::byte* raw_ = nullptr;        // untied
  const PackedWeight* packed_ = nullptr;  // tied
};

// Called on the loading thread after each piece.
using LoadProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

class LoadedModel {
 public:
  // The file's pages are let go as they are packed; `file` is not needed afterwards.
  static StatusOr<std::unique_ptr<LoadedModel>> Load(const ModelFile& file, CpuPool& pool,
                                                     const LoadProgress& progress = {});

  const DecoderDescription& decoder() const { return decoder_; }
  const ModelIdentity& identity() const { return identity_; }
  const std::vector<LayerWeights>& layers() const { return layers_; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  const PackedWeight& head() const { return head_.view(); }
  const EmbeddingRows& embedding() const { return embedding_; }
  uint64_t bytes() const { return memory_.size(); }  // norms, a few kB each, come on top

 private:
  LoadedModel() = default;
  DecoderDescription decoder_;
  ModelIdentity identity_;
  AlignedMemory memory_;  // all packed matrices and an untied embedding; huge pages, no part of one unused
  std::vector<LayerWeights> layers_;
  std::vector<float> final_norm_;
  PackedMatrix head_;
  EmbeddingRows embedding_;
};

// What Load will hold, from the header alone.
uint64_t PackedBytes(const ModelFile& file);

// Row `row` of a packed weight in its unpacked form (BytesOf(dtype, k) bytes).
void UnpackRow(const PackedWeight& weight, uint32_t row, std::byte* out);

}  // namespace baton

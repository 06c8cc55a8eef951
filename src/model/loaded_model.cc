#include "model/loaded_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/cpu/cpu_features.h"

namespace baton {
namespace {

// Tensors that one FusedLinear stacks; neighbours of one type share a part.
using Stack = std::vector<const SourceTensor*>;

std::vector<Stack> Runs(const Stack& tensors) {
  std::vector<Stack> runs;
  for (const SourceTensor* t : tensors) {
    if (runs.empty() || runs.back().front()->view.dtype != t->view.dtype) runs.emplace_back();
    runs.back().push_back(t);
  }
  return runs;
}

Stack Qkv(const SourceLayer& l) { return {&l.query, &l.key, &l.value}; }
Stack GateUp(const SourceLayer& l) { return {&l.gate, &l.up}; }

std::vector<TensorView> Views(const Stack& tensors) {
  std::vector<TensorView> views;
  for (const SourceTensor* t : tensors) views.push_back(t->view);
  return views;
}

// Every piece of the one allocation begins at a cache line.
uint64_t Aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

uint64_t PackedBytesOf(const Stack& tensors) {
  uint64_t bytes = 0;
  for (const Stack& run : Runs(tensors)) bytes += Aligned(PackedMatrix::PackedBytes(Views(run)));
  return bytes;
}

// fp32 of a plain vector.
std::vector<float> ToFloats(const TensorView& view) {
  std::vector<float> out(view.shape.back());
  const TokenId zero = 0;
  const EmbedParams params{view.dtype, view.data,  view.bytes, static_cast<uint32_t>(out.size()),
                           &zero,      out.data(), out.size()};
  AvailableCpuKernels().front()->embed(params, 0, 1);
  return out;
}

// A matrix of heads with its rows in canonical order.
void Canonicalize(const TensorView& view, uint32_t head_dim, std::byte* out) {
  const size_t row_bytes = BytesOf(view.dtype, view.shape[1]);
  const uint64_t half = head_dim / 2;
  for (uint64_t row = 0; row < view.shape[0]; ++row) {
    const uint64_t r = row % head_dim;
    const uint64_t from = row - r + (r < half ? 2 * r : 2 * (r - half) + 1);
    std::memcpy(out + row * row_bytes, view.data + from * row_bytes, row_bytes);
  }
}

// Packs what a ModelFile maps, one FusedLinear at a time.
class Packer {
 public:
  // `memory`: PackedBytes(file), zeroed.
  Packer(const ModelFile& file, CpuPool& pool, const LoadProgress& progress, std::span<std::byte> memory)
      : file_(file), pool_(pool), progress_(progress), memory_(memory) {}

  // `num_rotated`: how many of the leading tensors hold heads to rotate, and so may need another row order.
  Status Pack(const Stack& tensors, size_t num_rotated, FusedLinear* out) {
    size_t index = 0;
    for (const Stack& run : Runs(tensors)) {
      std::vector<TensorView> views = Views(run);
      std::vector<AlignedMemory> copies;
      for (size_t i = 0; i < run.size(); ++i) {
        const SourceTensor* t = run[i];
        const bool reorder = index++ < num_rotated && file_.rope_rows() == RopeRows::kInterleaved;
        const bool unaligned = reinterpret_cast<uintptr_t>(t->view.data) % 4 != 0;  // safetensors promise nothing
        if (!reorder && !unaligned) continue;
        BATON_ASSIGN_OR_RETURN(AlignedMemory copy, AlignedMemory::Allocate(t->view.bytes));
        if (reorder) {
          Canonicalize(t->view, file_.decoder().head_dim, copy.data());
        } else {
          std::memcpy(copy.data(), t->view.data, t->view.bytes);
        }
        views[i].data = copy.data();
        copies.push_back(std::move(copy));
      }
      const size_t bytes = PackedMatrix::PackedBytes(views);
      BATON_ASSIGN_OR_RETURN(PackedMatrix matrix, PackedMatrix::PackInto(pool_, views, Take(bytes)));
      out->parts.push_back(std::move(matrix));
      for (const SourceTensor* t : run) Done(*t);
    }
    return OkStatus();
  }

  std::vector<float> Vector(const SourceTensor& tensor) {
    std::vector<float> out = ToFloats(tensor.view);
    Done(tensor);
    return out;
  }

  void Done(const SourceTensor& tensor) {
    file_.Release(tensor);
    done_ += tensor.view.bytes;
    if (progress_) progress_(std::min(done_, file_.weight_bytes()), file_.weight_bytes());
  }
  std::span<std::byte> Take(uint64_t bytes) {
    const std::span<std::byte> out = memory_.subspan(used_, bytes);
    used_ += Aligned(bytes);
    return out;
  }

 private:
  const ModelFile& file_;
  CpuPool& pool_;
  const LoadProgress& progress_;
  const std::span<std::byte> memory_;
  uint64_t used_ = 0;
  uint64_t done_ = 0;
};

Status PackLayer(const SourceLayer& source, Packer* packer, LayerWeights* out) {
  out->attention_norm = packer->Vector(source.attention_norm);
  out->mlp_norm = packer->Vector(source.mlp_norm);
  BATON_RETURN_IF_ERROR(packer->Pack(Qkv(source), 2, &out->qkv));
  BATON_RETURN_IF_ERROR(packer->Pack({&source.output}, 0, &out->output));
  BATON_RETURN_IF_ERROR(packer->Pack(GateUp(source), 0, &out->gate_up));
  return packer->Pack({&source.down}, 0, &out->down);
}

}  // namespace

uint32_t FusedLinear::n() const {
  uint32_t n = 0;
  for (const PackedMatrix& part : parts) n += part.view().n;
  return n;
}

uint64_t PackedBytes(const ModelFile& file) {
  uint64_t bytes = PackedBytesOf({&file.head()});
  if (!file.decoder().tied_head) bytes += Aligned(file.embedding().view.bytes);
  for (const SourceLayer& l : file.layers()) {
    bytes += PackedBytesOf(Qkv(l)) + PackedBytesOf({&l.output}) + PackedBytesOf(GateUp(l)) + PackedBytesOf({&l.down});
  }
  return bytes;
}

StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::Load(const ModelFile& file, CpuPool& pool,
                                                         const LoadProgress& progress) {
  std::unique_ptr<LoadedModel> model(new LoadedModel);
  model->decoder_ = file.decoder();
  model->identity_ = file.identity();
  file.Prefetch();
  BATON_ASSIGN_OR_RETURN(model->memory_, AlignedMemory::Allocate(PackedBytes(file)));
  Packer packer(file, pool, progress, {model->memory_.data(), model->memory_.size()});

  EmbeddingRows& rows = model->embedding_;
  const TensorView& table = file.embedding().view;
  rows.dtype_ = table.dtype;
  rows.row_bytes_ = BytesOf(table.dtype, table.shape[1]);
  rows.vocab_size_ = static_cast<uint32_t>(table.shape[0]);
  if (!file.decoder().tied_head) {
    const std::span<std::byte> raw = packer.Take(table.bytes);
    std::memcpy(raw.data(), table.data, table.bytes);
    rows.raw_ = raw.data();
    packer.Done(file.embedding());
  }
  FusedLinear head;
  BATON_RETURN_IF_ERROR(packer.Pack({&file.head()}, 0, &head));
  model->head_ = std::move(head.parts.front());
  if (file.decoder().tied_head) rows.packed_ = &model->head_.view();

  model->final_norm_ = packer.Vector(file.final_norm());
  model->layers_.resize(file.layers().size());
  for (size_t i = 0; i < file.layers().size(); ++i) {
    BATON_RETURN_IF_ERROR(PackLayer(file.layers()[i], &packer, &model->layers_[i]));
  }
  return model;
}

void EmbeddingRows::Gather(std::span<const TokenId> ids, std::byte* out) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<uint32_t>(ids[i]);
    if (packed_ != nullptr) {
      UnpackRow(*packed_, id, out + i * row_bytes_);
    } else {
      std::memcpy(out + i * row_bytes_, raw_ + id * row_bytes_, row_bytes_);
    }
  }
}

}  // namespace baton

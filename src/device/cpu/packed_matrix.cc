#include "device/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/formats.h"

namespace baton {
namespace {

// The rows of the stacked parts, as bytes; null past the last.
std::vector<const uint8_t*> StackedRows(std::span<const TensorView> parts, size_t row_bytes) {
  std::vector<const uint8_t*> rows;
  for (const TensorView& part : parts) {
    const auto* base = reinterpret_cast<const uint8_t*>(part.data);
    for (uint64_t i = 0; i < part.shape[0]; ++i) rows.push_back(base + i * row_bytes);
  }
  rows.resize((rows.size() + kPanelColumns - 1) / kPanelColumns * kPanelColumns, nullptr);
  return rows;
}

// Quantised forms: a GGUF block is its fp16 scales, then 32 int8, or 16 bytes of nibbles (elements j, j + 16).
void PackScales(const uint8_t* const* rows, size_t offset, size_t scale_bytes, uint8_t* group) {
  for (uint32_t c = 0; c < kPanelColumns; ++c) {
    if (rows[c] == nullptr) continue;
    std::memcpy(group + c * 2, rows[c] + offset, 2);
    if (scale_bytes == 4) std::memcpy(group + 32 + c * 2, rows[c] + offset + 2, 2);
  }
}

// Columns c and c + 8 share a byte; both halves of a GGUF byte are placed at once.
void PackNibbles(const uint8_t* const* rows, size_t offset, uint8_t* values) {
  static constexpr uint8_t kZero[16] = {};
  for (uint32_t c = 0; c < 8; ++c) {
    const uint8_t* low = rows[c] == nullptr ? kZero : rows[c] + offset;
    const uint8_t* high = rows[c + 8] == nullptr ? kZero : rows[c + 8] + offset;
    for (uint32_t i = 0; i < 16; ++i) {
      values[i * 8 + c] = static_cast<uint8_t>((low[i] & 15u) | (high[i] & 15u) << 4);
      values[(i + 16) * 8 + c] = static_cast<uint8_t>(low[i] >> 4 | (high[i] & 0xf0u));
    }
  }
}

void PackQuantised(DType dtype, const uint8_t* const* rows, uint32_t k, uint8_t* panel) {
  const size_t block_bytes = Traits(dtype).block_bytes;
  const size_t scale_bytes = dtype == DType::kQ4_1 ? 4 : 2;
  for (uint32_t g = 0; g < k / kQuantGroup; ++g) {
    uint8_t* group = panel + g * PanelGroupBytes(dtype);
    uint8_t* values = group + scale_bytes * kPanelColumns;
    const size_t offset = g * block_bytes;
    PackScales(rows, offset, scale_bytes, group);
    if (dtype != DType::kQ8_0) {
      PackNibbles(rows, offset + scale_bytes, values);
      continue;
    }
    for (uint32_t c = 0; c < kPanelColumns; ++c) {
      if (rows[c] == nullptr) continue;
      const uint8_t* q = rows[c] + offset + scale_bytes;
      for (uint32_t i = 0; i < kQuantGroup; ++i) values[i * 16 + c] = q[i];
    }
  }
}

template <typename T>
void PackPlain(bool pairs, const uint8_t* const* rows, uint32_t k, uint8_t* panel) {
  for (uint32_t c = 0; c < kPanelColumns; ++c) {
    if (rows[c] == nullptr) continue;
    const uint32_t place = pairs ? c % 8 * 2 + c / 8 : c;
    for (uint32_t i = 0; i < k; ++i) {
      std::memcpy(panel + (size_t{i} * kPanelColumns + place) * sizeof(T), rows[c] + size_t{i} * sizeof(T), sizeof(T));
    }
  }
}

Status CheckParts(std::span<const TensorView> parts) {
  if (parts.empty()) return InvalidArgumentError("no weight to pack");
  for (size_t i = 0; i < parts.size(); ++i) {
    const TensorView& part = parts[i];
    const std::string where = "weight part " + std::to_string(i);
    if (part.shape.size() != 2) {
      return InvalidArgumentError(where + " has " + std::to_string(part.shape.size()) +
                                  " dimensions; a linear layer's weight has 2");
    }
    if (part.dtype != parts[0].dtype || part.shape[1] != parts[0].shape[1]) {
      return InvalidArgumentError(where + " is " + std::string(Traits(part.dtype).name) + " with " +
                                  std::to_string(part.shape[1]) + " inputs, part 0 is " +
                                  std::string(Traits(parts[0].dtype).name) + " with " +
                                  std::to_string(parts[0].shape[1]) + "; pack them apart");
    }
    if (part.dtype == DType::kI8) return InvalidArgumentError(where + " is INT8, which is a type of the KV cache");
    const uint64_t k = part.shape[1];
    constexpr uint64_t kMost = uint64_t{1} << 30;
    if (part.shape[0] == 0 || k == 0 || part.shape[0] > kMost || k > kMost) {
      return InvalidArgumentError(where + " has shape [" + std::to_string(part.shape[0]) + ", " + std::to_string(k) +
                                  "]; both must be 1 to 2^30");
    }
    if (k % Traits(part.dtype).block_elements != 0) {
      return InvalidArgumentError(where + ": " + std::to_string(k) + " inputs are no multiple of the " +
                                  std::string(Traits(part.dtype).name) + " block of " +
                                  std::to_string(Traits(part.dtype).block_elements));
    }
    const size_t needed = part.shape[0] * BytesOf(part.dtype, k);
    if (part.data == nullptr || part.bytes < needed) {
      return InvalidArgumentError(where + " needs " + std::to_string(needed) + " bytes and has " +
                                  std::to_string(part.data == nullptr ? 0 : part.bytes));
    }
  }
  return OkStatus();
}

}  // namespace

size_t PackedMatrix::PackedBytes(std::span<const TensorView> parts) {
  uint64_t n = 0;
  for (const TensorView& part : parts) n += part.shape[0];
  const uint64_t panels = (n + kPanelColumns - 1) / kPanelColumns;
  return panels * PanelBytes(parts[0].dtype, static_cast<uint32_t>(parts[0].shape[1]));
}

StatusOr<PackedMatrix> PackedMatrix::Pack(CpuPool& pool, std::span<const TensorView> parts) {
  BATON_RETURN_IF_ERROR(CheckParts(parts));
  BATON_ASSIGN_OR_RETURN(AlignedMemory memory, AlignedMemory::Allocate(PackedBytes(parts)));
  BATON_ASSIGN_OR_RETURN(PackedMatrix matrix, PackInto(pool, parts, {memory.data(), memory.size()}));
  matrix.memory_ = std::move(memory);
  return matrix;
}

StatusOr<PackedMatrix> PackedMatrix::PackInto(CpuPool& pool, std::span<const TensorView> parts,
                                              std::span<std::byte> memory) {
  BATON_RETURN_IF_ERROR(CheckParts(parts));
  uint64_t n = 0;
  for (const TensorView& part : parts) n += part.shape[0];
  if (n > (uint64_t{1} << 31)) return InvalidArgumentError("stacked weights have " + std::to_string(n) + " outputs");
  if (memory.size() < PackedBytes(parts)) {
    return InvalidArgumentError("a packed weight of " + std::to_string(PackedBytes(parts)) + " bytes, the memory has " +
                                std::to_string(memory.size()));
  }
  PackedMatrix matrix;
  PackedWeight& view = matrix.view_;
  view.dtype = parts[0].dtype;
  view.n = static_cast<uint32_t>(n);
  view.k = static_cast<uint32_t>(parts[0].shape[1]);
  view.panel_bytes = PanelBytes(view.dtype, view.k);
  view.panels = memory.data();

  const std::vector<const uint8_t*> rows = StackedRows(parts, BytesOf(view.dtype, view.k));
  // Fixed shares: a worker packs, and so first touches, the panels that it will read.
  pool.ParallelFor(view.num_panels(), 0, [&](size_t begin, size_t end, int) {
    for (size_t p = begin; p < end; ++p) {
      auto* panel = reinterpret_cast<uint8_t*>(memory.data()) + p * view.panel_bytes;
      const uint8_t* const* panel_rows = rows.data() + p * kPanelColumns;
      switch (view.dtype) {
        case DType::kF32:
          PackPlain<uint32_t>(false, panel_rows, view.k, panel);
          break;
        case DType::kF16:
          PackPlain<uint16_t>(false, panel_rows, view.k, panel);
          break;
        case DType::kBF16:
          PackPlain<uint16_t>(true, panel_rows, view.k, panel);
          break;
        case DType::kQ8_0:
        case DType::kQ4_0:
        case DType::kQ4_1:
          PackQuantised(view.dtype, panel_rows, view.k, panel);
          break;
        case DType::kI8:
          break;  // refused above
      }
    }
  });
  return matrix;
}

}  // namespace baton

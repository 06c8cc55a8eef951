// The inverse of the weight packer for one row: see PackedWeight for the panel forms. Rows come back in GGUF's
// forms: a block of 32 values is its fp16 scale (and minimum), then 32 int8 or 16 bytes of which byte i holds
// value i in the low and value i + 16 in the high half.
#include <cstring>

#include "model/loaded_model.h"

namespace baton {
namespace {

constexpr uint32_t kBlock = 32;

void Copy2(const std::byte* from, std::byte* to) { std::memcpy(to, from, 2); }

void UnpackPlain(const std::byte* panel, uint32_t column, uint32_t k, uint32_t size, bool pairs, std::byte* out) {
  const uint32_t slot = !pairs ? column : column < 8 ? 2 * column : 2 * (column - 8) + 1;
  for (uint32_t i = 0; i < k; ++i) {
    std::memcpy(out + i * size, panel + (size_t{i} * kPanelColumns + slot) * size, size);
  }
}

void UnpackQ8(const std::byte* panel, uint32_t column, uint32_t k, std::byte* out) {
  constexpr size_t kPanelBlock = kPanelColumns * (2 + kBlock);
  for (uint32_t b = 0; b < k / kBlock; ++b, panel += kPanelBlock, out += 2 + kBlock) {
    Copy2(panel + 2 * column, out);
    const std::byte* values = panel + 2 * kPanelColumns;
    for (uint32_t i = 0; i < kBlock; ++i) out[2 + i] = values[i * kPanelColumns + column];
  }
}

// `scalars`: fp16 values before the nibbles, 1 or 2.
void UnpackQ4(const std::byte* panel, uint32_t column, uint32_t k, uint32_t scalars, std::byte* out) {
  const size_t panel_block = kPanelColumns * (2 * scalars + kBlock / 2);
  const size_t row_block = 2 * scalars + kBlock / 2;
  const uint32_t byte = column % 8, shift = column < 8 ? 0 : 4;
  for (uint32_t b = 0; b < k / kBlock; ++b, panel += panel_block, out += row_block) {
    for (uint32_t s = 0; s < scalars; ++s) Copy2(panel + 2 * (s * kPanelColumns + column), out + 2 * s);
    const std::byte* nibbles = panel + 2 * scalars * kPanelColumns;
    const auto value = [&](uint32_t i) { return (std::to_integer<uint32_t>(nibbles[i * 8 + byte]) >> shift) & 15; };
    for (uint32_t i = 0; i < kBlock / 2; ++i) {
      out[2 * scalars + i] = static_cast<std::byte>(value(i) | value(i + kBlock / 2) << 4);
    }
  }
}

}  // namespace

void UnpackRow(const PackedWeight& weight, uint32_t row, std::byte* out) {
  const std::byte* panel = weight.panels + row / kPanelColumns * weight.panel_bytes;
  const uint32_t column = row % kPanelColumns;
  switch (weight.dtype) {
    case DType::kF32:
      return UnpackPlain(panel, column, weight.k, 4, false, out);
    case DType::kF16:
      return UnpackPlain(panel, column, weight.k, 2, false, out);
    case DType::kBF16:
      return UnpackPlain(panel, column, weight.k, 2, true, out);
    case DType::kQ8_0:
      return UnpackQ8(panel, column, weight.k, out);
    case DType::kQ4_0:
      return UnpackQ4(panel, column, weight.k, 1, out);
    case DType::kQ4_1:
      return UnpackQ4(panel, column, weight.k, 2, out);
    case DType::kI8:
      return;  // no weight is of it
  }
}

}  // namespace baton

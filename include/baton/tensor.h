// Element types and a view of a tensor in memory. Quantised types use GGUF's block forms; `bytes` of a row
// follow from block_elements and block_bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace baton {

// kI8 is an element type of the KV cache alone, whose tiles hold its scales (kv_layout.h); weights are never of it.
enum class DType : uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kI8 };
inline constexpr uint32_t kKvScaleBytes = 4;  // fp32, of a token in a tile of kI8

struct DTypeTraits {
  std::string_view name;
  uint32_t block_elements;  // 1 for plain types, 32 for the quantised ones
  uint32_t block_bytes;
};
const DTypeTraits& Traits(DType dtype);
// Bytes of `elements` values; elements must be a multiple of block_elements.
size_t BytesOf(DType dtype, size_t elements);

// Row-major, outermost dimension first: a weight of a linear layer is [out, in]. Borrows its memory.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

}  // namespace baton

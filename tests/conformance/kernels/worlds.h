// Random inputs for kernel tests: weights of every type, paged KV memory with garbage where nobody may look,
// and float64 arithmetic to measure the reference against.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "baton/kernel_table.h"
#include "device/cpu/aligned_memory.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/cpu_pool.h"
#include "device/cpu/packed_matrix.h"
#include "kernels/formats.h"

namespace baton::testing {

inline constexpr DType kAllTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1};

inline float Uniform(Rng& rng) { return static_cast<float>(rng.Unit() * 2 - 1); }
inline std::vector<float> Floats(Rng& rng, size_t n) {
  std::vector<float> out(n);
  for (float& x : out) x = Uniform(rng);
  return out;
}
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}
// A finite fp16 of magnitude 2^-10 to 2.
inline uint16_t RandomFp16(Rng& rng) {
  return static_cast<uint16_t>(rng.Below(2) << 15 | (5 + rng.Below(11)) << 10 | rng.Below(1024));
}

// A raw [n, k] weight, as a file holds it.
struct RawWeight {
  DType dtype{};
  uint32_t n = 0, k = 0;
  std::vector<std::byte> bytes;
  size_t row_bytes() const { return BytesOf(dtype, k); }
  TensorView view() const { return {dtype, {n, k}, bytes.data(), bytes.size()}; }
  float At(uint32_t row, uint32_t i) const { return RowElement(dtype, bytes.data() + row * row_bytes(), i); }
};
inline RawWeight RandomWeight(Rng& rng, DType dtype, uint32_t n, uint32_t k) {
  RawWeight w{dtype, n, k, {}};
  w.bytes.resize(n * w.row_bytes());
  for (std::byte& b : w.bytes) b = static_cast<std::byte>(rng.Next());
  auto put16 = [&](size_t at, uint16_t v) { std::memcpy(&w.bytes[at], &v, 2); };
  if (dtype == DType::kF32) {
    for (size_t i = 0; i < w.bytes.size(); i += 4) {
      const float v = Uniform(rng);
      std::memcpy(&w.bytes[i], &v, 4);
    }
  } else if (!IsQuantised(dtype)) {
    for (size_t i = 0; i < w.bytes.size(); i += 2) {
      put16(i, dtype == DType::kF16 ? RandomFp16(rng) : FloatToBf16(Uniform(rng)));
    }
  } else {
    for (size_t i = 0; i < w.bytes.size(); i += Traits(dtype).block_bytes) {
      put16(i, RandomFp16(rng));
      if (dtype == DType::kQ4_1) put16(i + 2, RandomFp16(rng));
    }
  }
  return w;
}

struct Scratch {
  Scratch() : memory(std::move(*AlignedMemory::Allocate(kKernelScratchBytes))) {}
  void* get() const { return memory.data(); }
  AlignedMemory memory;
};

inline std::vector<float> RunGemm(const KernelTable& table, const PackedWeight& w, const std::vector<float>& x,
                                  uint32_t rows, size_t x_stride, const Scratch& scratch) {
  GemmParams p;
  p.w = w;
  p.x = x.data();
  p.x_stride = x_stride;
  p.rows = rows;
  std::vector<float> out(size_t{rows} * w.n, NAN);
  p.out = out.data();
  p.out_stride = w.n;
  table.gemm(p, 0, w.num_panels(), scratch.get());
  return out;
}

// One layer of paged KV memory in random block order, every byte finite garbage until written.
struct KvWorld {
  KvTiles tiles;
  std::vector<std::byte> pool;
  std::vector<std::vector<BlockId>> blocks;  // [sequence]
};
inline KvWorld MakeKvWorld(Rng& rng, uint32_t kv_heads, uint32_t head_dim, uint32_t block_tokens,
                           const std::vector<uint32_t>& lengths, DType dtype = DType::kBF16) {
  KvWorld world;
  KvTiles& t = world.tiles;
  t.block_tokens = block_tokens;
  t.num_kv_heads = kv_heads;
  t.head_dim = head_dim;
  t.dtype = dtype;
  const size_t scales = dtype == DType::kI8 ? block_tokens * kKvScaleBytes : 0;
  const size_t tile = BytesOf(dtype, size_t{block_tokens} * head_dim) + scales;
  constexpr size_t kLayers = 2;  // ours is the second
  t.k_offset = 2 * tile;
  t.v_offset = 3 * tile;
  t.head_stride = kLayers * 2 * tile;
  t.block_bytes = kv_heads * t.head_stride;
  uint32_t total = 0;
  for (uint32_t length : lengths) total += (length + block_tokens - 1) / block_tokens;
  std::vector<BlockId> order;
  for (uint32_t i = 0; i < total; ++i) order.push_back(BlockId{i});
  for (uint32_t i = total; i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
  size_t next = 0;
  for (uint32_t length : lengths) {
    const size_t count = (length + block_tokens - 1) / block_tokens;
    world.blocks.emplace_back(order.begin() + static_cast<ptrdiff_t>(next),
                              order.begin() + static_cast<ptrdiff_t>(next + count));
    next += count;
  }
  world.pool.resize(total * t.block_bytes);
  // Of int8 every byte is a finite integer, and these are finite as scales too.
  for (size_t i = 0; i < world.pool.size(); i += dtype == DType::kF32 || dtype == DType::kI8 ? 4 : 2) {
    const float garbage = Uniform(rng) * 1e30f;
    const uint16_t narrow = dtype == DType::kF16 ? FloatToFp16(garbage) : FloatToBf16(garbage);
    if (dtype == DType::kF32 || dtype == DType::kI8) {
      std::memcpy(&world.pool[i], &garbage, 4);
    } else {
      std::memcpy(&world.pool[i], &narrow, 2);
    }
  }
  t.pool = world.pool.data();
  return world;
}

}  // namespace baton::testing

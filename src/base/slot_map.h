// Dense storage with generation-checked handles. A handle is {slot, generation} packed in a uint64_t; a
// generation is never reused, so a stale handle finds nothing. Values lie side by side and never move. Iteration
// is in slot order: deterministic.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace baton {

template <typename T, typename Handle>
class SlotMap {
 public:
  Handle Insert(T value) {
    uint32_t slot;
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else {
      slot = static_cast<uint32_t>(generations_.size());
      generations_.push_back(0);
      if (slot % kChunk == 0) chunks_.push_back(std::make_unique<Chunk>());
    }
    ValueAt(slot).emplace(std::move(value));
    ++generations_[slot];
    ++size_;
    return HandleOf(slot);
  }
  T* Find(Handle h) {
    const auto raw = static_cast<uint64_t>(h);
    const auto slot = static_cast<uint32_t>(raw);
    const auto generation = static_cast<uint32_t>(raw >> 32);
    const bool held = slot < generations_.size() && generations_[slot] == generation && IsTaken(generation);
    return held ? &*ValueAt(slot) : nullptr;
  }
  const T* Find(Handle h) const { return const_cast<SlotMap*>(this)->Find(h); }
  bool Erase(Handle h) {
    if (Find(h) == nullptr) return false;
    const auto slot = static_cast<uint32_t>(static_cast<uint64_t>(h));
    ValueAt(slot).reset();
    ++generations_[slot];
    free_.push_back(slot);
    --size_;
    return true;
  }
  size_t size() const { return size_; }
  template <typename Fn>
  void ForEach(Fn fn) {
    for (uint32_t slot = 0; slot < generations_.size(); ++slot) {
      if (IsTaken(generations_[slot])) fn(HandleOf(slot), *ValueAt(slot));
    }
  }

 private:
  static constexpr uint32_t kChunk = 64;
  using Chunk = std::array<std::optional<T>, kChunk>;
  // Raised when a slot is taken and when it is left.
  static bool IsTaken(uint32_t generation) { return generation % 2 == 1; }
  std::optional<T>& ValueAt(uint32_t slot) { return (*chunks_[slot / kChunk])[slot % kChunk]; }
  Handle HandleOf(uint32_t slot) const { return static_cast<Handle>((uint64_t{generations_[slot]} << 32) | slot); }

  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<uint32_t> generations_;  // [slot]
  std::vector<uint32_t> free_;
  size_t size_ = 0;
};

}  // namespace baton

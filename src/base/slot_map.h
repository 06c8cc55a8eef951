// Dense storage with generation-checked handles. A handle is {slot, generation} packed in a uint64_t; a
// generation is never reused, so a stale handle finds nothing. Iteration is in slot order: deterministic.
#pragma once

#include <cstdint>
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
      slot = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
    }
    Slot& s = slots_[slot];
    ++s.generation;
    s.value.emplace(std::move(value));
    ++size_;
    return static_cast<Handle>((uint64_t{s.generation} << 32) | slot);
  }
  T* Find(Handle h) {
    const auto raw = static_cast<uint64_t>(h);
    const auto slot = static_cast<uint32_t>(raw);
    if (slot >= slots_.size()) return nullptr;
    Slot& s = slots_[slot];
    return s.value && s.generation == static_cast<uint32_t>(raw >> 32) ? &*s.value : nullptr;
  }
  const T* Find(Handle h) const { return const_cast<SlotMap*>(this)->Find(h); }
  bool Erase(Handle h) {
    if (Find(h) == nullptr) return false;
    const auto slot = static_cast<uint32_t>(static_cast<uint64_t>(h));
    slots_[slot].value.reset();
    free_.push_back(slot);
    --size_;
    return true;
  }
  size_t size() const { return size_; }
  template <typename Fn>
  void ForEach(Fn fn) {
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].value) fn(static_cast<Handle>((uint64_t{slots_[i].generation} << 32) | i), *slots_[i].value);
    }
  }

 private:
  struct Slot {
    uint32_t generation = 0;
    std::optional<T> value;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  size_t size_ = 0;
};

}  // namespace baton

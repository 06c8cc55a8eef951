// Anonymous memory on 2 MiB borders with huge pages asked for: weights, activations, scratch and KV pools that
// no other process maps. Zero-filled by the kernel; a page costs nothing until it is touched.
#pragma once

#include <cstddef>

#include "baton/status.h"

namespace baton {

class AlignedMemory {
 public:
  AlignedMemory() = default;
  static StatusOr<AlignedMemory> Allocate(size_t bytes);  // RESOURCE_EXHAUSTED when the kernel refuses
  ~AlignedMemory();
  AlignedMemory(AlignedMemory&& other) noexcept;
  AlignedMemory& operator=(AlignedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  size_t size() const { return size_; }  // as asked for

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;
};

}  // namespace baton

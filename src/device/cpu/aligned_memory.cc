#include "device/cpu/aligned_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace baton {
namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}

StatusOr<AlignedMemory> AlignedMemory::Allocate(size_t bytes) {
  AlignedMemory memory;
  if (bytes == 0) return memory;
  if (bytes > SIZE_MAX / 2) {
    return ResourceExhaustedError("memory of " + std::to_string(bytes) + " bytes cannot be had");
  }
  const size_t wanted = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  // One huge page more than wanted; what lies before and after the aligned part is given back.
  const size_t mapped = wanted + kHugePage;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return ResourceExhaustedError("mmap of " + std::to_string(wanted) + " bytes: " + std::strerror(errno) +
                                  "; lower the KV memory or use a smaller model");
  }
  const auto address = reinterpret_cast<uintptr_t>(base);
  const uintptr_t aligned = (address + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned != address) munmap(base, aligned - address);
  const uintptr_t end = address + mapped;
  if (end != aligned + wanted) munmap(reinterpret_cast<void*>(aligned + wanted), end - aligned - wanted);
  memory.data_ = reinterpret_cast<std::byte*>(aligned);
  memory.size_ = bytes;
  memory.mapped_ = wanted;
  madvise(memory.data_, wanted, MADV_HUGEPAGE);  // a wish: without it the memory is slower, not wrong
  return memory;
}

AlignedMemory::~AlignedMemory() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

AlignedMemory::AlignedMemory(AlignedMemory&& other) noexcept { *this = std::move(other); }

AlignedMemory& AlignedMemory::operator=(AlignedMemory&& other) noexcept {
  if (this == &other) return *this;
  if (data_ != nullptr) munmap(data_, mapped_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  mapped_ = std::exchange(other.mapped_, 0);
  return *this;
}

}  // namespace baton

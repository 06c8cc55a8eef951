// A file mapped read-only, and unmapped with the object.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "baton/status.h"

namespace baton {

class FileMapping {
 public:
  static StatusOr<std::unique_ptr<FileMapping>> Open(const std::filesystem::path& path);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  // Drops the pages that lie wholly in `range` from this process; they are read again on a later touch.
  // False: `range` is not of this mapping.
  bool Release(std::span<const std::byte> range) const;
  // Asks the kernel to read ahead in `range`.
  void Prefetch(std::span<const std::byte> range) const;

 private:
  explicit FileMapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace baton

#include "model/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace baton {
namespace {

Status FileError(const char* what, const std::filesystem::path& path) {
  const int code = errno;
  std::string message = std::string("cannot ") + what + " " + path.string() + ": " + std::strerror(code);
  return code == ENOENT ? NotFoundError(std::move(message)) : FailedPreconditionError(std::move(message));
}

// The pages inside [begin, end): whole ones only when `inner`, every touched one otherwise.
std::span<std::byte> Pages(std::span<const std::byte> range, bool inner) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<uintptr_t>(range.data());
  auto end = begin + range.size();
  begin = inner ? (begin + page - 1) / page * page : begin / page * page;
  if (inner) end = end / page * page;
  if (end <= begin) return {};
  return {reinterpret_cast<std::byte*>(begin), end - begin};
}

}  // namespace

StatusOr<std::unique_ptr<FileMapping>> FileMapping::Open(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("open", path);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    Status status = FileError("read the size of", path);
    close(fd);
    return status;
  }
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    close(fd);
    return InvalidArgumentError(path.string() + (S_ISREG(info.st_mode) ? " is empty" : " is not a file"));
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  Status status = memory == MAP_FAILED ? FileError("map", path) : OkStatus();
  close(fd);
  if (!status.ok()) return status;
  return std::unique_ptr<FileMapping>(new FileMapping({static_cast<const std::byte*>(memory), size}));
}

FileMapping::~FileMapping() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

bool FileMapping::Release(std::span<const std::byte> range) const {
  if (range.data() < bytes_.data() || range.data() + range.size() > bytes_.data() + bytes_.size()) return false;
  const std::span<std::byte> pages = Pages(range, /*inner=*/true);
  if (!pages.empty()) madvise(pages.data(), pages.size(), MADV_DONTNEED);
  return true;
}

void FileMapping::Prefetch(std::span<const std::byte> range) const {
  const std::span<std::byte> pages = Pages(range, /*inner=*/false);
  if (!pages.empty()) madvise(pages.data(), pages.size(), MADV_WILLNEED);
}

}  // namespace baton

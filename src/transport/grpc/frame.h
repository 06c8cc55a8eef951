// One message of a KV stream: its kind, the encoded header (link_messages.h), then the bytes of a data message. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/link_messages.h"
#include "transport/pieces.h"

namespace baton {

inline constexpr size_t kFrameBytes = 1 << 20;  // of KV in one frame, at most
// What a receiver takes: a notice of the most pieces, or a data frame, and room for the rest of the header.
inline constexpr size_t kMaxFrame = kMaxPiecesPerPost * 16 + (64 << 10);

// One block of bytes that its writer fills and gRPC then owns.
class Frame {
 public:
  Frame() = default;
  Frame(LinkMessage kind, std::span<const std::byte> header, size_t payload_bytes = 0);
  std::span<std::byte> payload() { return {bytes_.get() + payload_at_, size_ - payload_at_}; }
  size_t size() const { return size_; }
  std::unique_ptr<std::byte[]> Release() { return std::move(bytes_); }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  size_t size_ = 0, payload_at_ = 0;
};

// A frame as it came: pieces of memory in order, which outlive this.
class ReceivedFrame {
 public:
  // Nothing: shorter than what it announces.
  static std::optional<ReceivedFrame> Parse(std::span<const std::span<const std::byte>> parts);
  LinkMessage kind() const { return kind_; }
  std::span<const std::byte> header() const { return header_; }
  uint64_t payload_bytes() const { return left_; }
  // The next bytes of the payload. The caller takes no more than there are.
  void TakePayload(std::span<std::byte> to);

 private:
  void Take(std::span<std::byte> to);

  LinkMessage kind_{};
  std::vector<std::byte> header_;
  std::span<const std::span<const std::byte>> parts_;
  size_t part_ = 0, offset_ = 0;
  uint64_t left_ = 0;
};

}  // namespace baton

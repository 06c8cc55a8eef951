#include "transport/grpc/frame.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "baton/check.h"
#include "transport/wire.h"

namespace baton {
namespace {

constexpr size_t kPrefix = 6;  // kind, length of the header

}  // namespace

Frame::Frame(LinkMessage kind, std::span<const std::byte> header, size_t payload_bytes)
    : bytes_(std::make_unique_for_overwrite<std::byte[]>(kPrefix + header.size() + payload_bytes)),
      size_(kPrefix + header.size() + payload_bytes),
      payload_at_(kPrefix + header.size()) {
  WireWriter prefix;
  prefix.Put(static_cast<uint16_t>(kind));
  prefix.Put(static_cast<uint32_t>(header.size()));
  std::memcpy(bytes_.get(), prefix.bytes().data(), kPrefix);
  std::memcpy(bytes_.get() + kPrefix, header.data(), header.size());
}

std::optional<ReceivedFrame> ReceivedFrame::Parse(std::span<const std::span<const std::byte>> parts) {
  ReceivedFrame frame;
  frame.parts_ = parts;
  for (const auto& part : parts) frame.left_ += part.size();
  if (frame.left_ < kPrefix) return std::nullopt;
  std::array<std::byte, kPrefix> prefix;
  frame.Take(prefix);
  WireReader in(prefix);
  frame.kind_ = static_cast<LinkMessage>(in.Get<uint16_t>());
  const auto header = in.Get<uint32_t>();
  if (header > frame.left_) return std::nullopt;
  frame.header_.resize(header);
  frame.Take(frame.header_);
  return frame;
}

void ReceivedFrame::TakePayload(std::span<std::byte> to) { Take(to); }

void ReceivedFrame::Take(std::span<std::byte> to) {
  BATON_CHECK(to.size() <= left_, "more than the frame has");
  left_ -= to.size();
  while (!to.empty()) {
    const std::span<const std::byte> from = parts_[part_].subspan(offset_);
    const size_t n = std::min(from.size(), to.size());
    std::memcpy(to.data(), from.data(), n);
    to = to.subspan(n);
    offset_ += n;
    if (offset_ < parts_[part_].size()) break;
    ++part_;
    offset_ = 0;
  }
}

}  // namespace baton

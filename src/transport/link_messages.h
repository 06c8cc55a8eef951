// What a writer's transport and a reader's say to each other, whatever carries it: UCX active messages, a gRPC stream.
// A link is one Open of one writer, named by a random number that the writer draws; every message carries it. Parsing
// validates lengths and counts; ranges are checked against the ticket by the AdmissionTable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baton/kv_transport.h"
#include "transport/pieces.h"

namespace baton {

enum class LinkMessage : uint16_t { kHello = 1, kAnswer = 2, kData = 3, kPlaced = 4, kNotice = 5 };

inline constexpr uint16_t kLinkProtocol = 1;
inline constexpr uint32_t kMaxDataPieces = 128;  // of one data message

// Writer -> reader, first on a link.
struct LinkHello {
  uint64_t link = 0;
  uint64_t instance = 0;  // of the descriptor that the writer was given
  ProcessId writer;
  TransferMode mode{};
  std::vector<std::byte> address;  // the way back to the writer; empty: the connection that brought this
  std::vector<std::byte> Encode() const;
  static std::optional<LinkHello> Parse(std::span<const std::byte> bytes);
};

// Reader -> writer: the link is usable, or refused.
struct LinkAnswer {
  uint64_t link = 0;
  Status status;
  std::vector<std::byte> key;  // mode kKeyedPut: to the reader's pool, this link's own; else empty and not written
  std::vector<std::byte> Encode() const;
  static std::optional<LinkAnswer> Parse(std::span<const std::byte> bytes);
};

// Writer -> reader, receiver-posted only: the header of a message whose payload is the pieces' bytes in order.
struct LinkData {
  uint64_t link = 0;
  Ticket ticket;
  OpId op{};
  uint32_t part = 0;                // numbers the op's data messages from 0
  std::vector<TargetPiece> pieces;  // 1 to kMaxDataPieces
  std::vector<std::byte> Encode() const;
  static std::optional<LinkData> Parse(std::span<const std::byte> bytes);
};

// Reader -> writer: the bytes of one data message lie in place, or were refused and will not be placed.
struct LinkPlaced {
  uint64_t link = 0;
  OpId op{};
  uint32_t part = 0;
  Status status;
  std::vector<std::byte> Encode() const;
  static std::optional<LinkPlaced> Parse(std::span<const std::byte> bytes);
};

// Writer -> reader, after every byte of the chunk is complete at the target.
struct LinkNotice {
  uint64_t link = 0;
  Ticket ticket;
  ChunkIndex chunk = 0;
  Attempt attempt = 1;
  std::vector<TargetPiece> pieces;  // in plan order: the digest runs over them
  std::vector<std::byte> Encode() const;
  static std::optional<LinkNotice> Parse(std::span<const std::byte> bytes);
};

}  // namespace baton

// The form in which a list of copies crosses the wire and is carried out: neighbours merged, cut at 1 MiB, in plan
// order, so that the concatenated bytes (and so the digest) are those of the plan. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "baton/kv_transport.h"

namespace baton {

inline constexpr uint32_t kMaxPieceBytes = 1u << 20;
inline constexpr uint32_t kMaxPiecesPerPost = 1u << 16;  // after merging and cutting: a notice of 1 MiB

// The target side of one copy. The reader resolves it against the ticket's blocks.
struct TargetPiece {
  uint32_t block = 0;
  uint32_t bytes = 0;
  uint64_t offset = 0;
};

// Pieces of no bytes vanish. kInvalidArgument: a source outside a pool of `pool_bytes`, or too many pieces.
StatusOr<std::vector<CopyPiece>> NormalizePieces(std::span<const CopyPiece> pieces, uint64_t pool_bytes);

uint64_t TotalBytes(std::span<const CopyPiece> pieces);

inline TargetPiece TargetOf(const CopyPiece& p) {
  return {p.target_block, static_cast<uint32_t>(p.bytes), p.target_offset};
}

}  // namespace baton

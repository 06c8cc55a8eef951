#include "transport/pieces.h"

#include <algorithm>
#include <string>

namespace baton {
namespace {

bool Joins(const CopyPiece& a, const CopyPiece& b) {
  return a.target_block == b.target_block && a.source + a.bytes == b.source &&
         a.target_offset + a.bytes == b.target_offset && a.bytes + b.bytes <= kMaxPieceBytes;
}

}  // namespace

StatusOr<std::vector<CopyPiece>> NormalizePieces(std::span<const CopyPiece> pieces, uint64_t pool_bytes) {
  std::vector<CopyPiece> out;
  for (CopyPiece piece : pieces) {
    if (piece.source > pool_bytes || piece.bytes > pool_bytes - piece.source) {
      return InvalidArgumentError("post: source [" + std::to_string(piece.source) + ", +" +
                                  std::to_string(piece.bytes) + ") lies outside this pool of " +
                                  std::to_string(pool_bytes) + " bytes");
    }
    if (piece.target_offset > UINT64_MAX - piece.bytes) {
      return InvalidArgumentError("post: target offset " + std::to_string(piece.target_offset) + " overflows");
    }
    while (piece.bytes > 0) {
      CopyPiece part = piece;
      part.bytes = std::min<uint64_t>(piece.bytes, kMaxPieceBytes);
      piece.source += part.bytes;
      piece.target_offset += part.bytes;
      piece.bytes -= part.bytes;
      if (!out.empty() && Joins(out.back(), part)) {
        out.back().bytes += part.bytes;
      } else if (out.size() == kMaxPiecesPerPost) {
        return InvalidArgumentError("post: more than " + std::to_string(kMaxPiecesPerPost) +
                                    " pieces; post smaller chunks");
      } else {
        out.push_back(part);
      }
    }
  }
  return out;
}

uint64_t TotalBytes(std::span<const CopyPiece> pieces) {
  uint64_t total = 0;
  for (const CopyPiece& p : pieces) total += p.bytes;
  return total;
}

}  // namespace baton

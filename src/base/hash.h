// Hashes with fixed definitions: the same bytes give the same value on every machine (XXH3, little endian).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "baton/ids.h"

namespace baton {

uint64_t Hash64(std::span<const std::byte> bytes);
uint64_t Hash64(std::string_view text);
Hash128 HashBytes128(std::span<const std::byte> bytes);

// XXH3-64 over pieces fed one after another: equals Hash64 of their concatenation.
class StreamHash64 {
 public:
  StreamHash64();
  ~StreamHash64();
  StreamHash64(const StreamHash64&) = delete;
  StreamHash64& operator=(const StreamHash64&) = delete;
  void Add(std::span<const std::byte> bytes);
  uint64_t Digest() const;

 private:
  void* state_;
};

// Hash of a page of tokens, chained to its predecessor's hash (or the root).
Hash128 ChainHash(const Hash128& parent, std::span<const TokenId> tokens);
// The chain's root: everything besides the tokens that the KV bytes depend on.
Hash128 ChainRoot(const Hash128& weights, const Hash128& numeric, std::string_view salt);

}  // namespace baton

// The keys that clients show. Holds digests alone, so that no key can reach a log; compares in a time that depends
// on the number of keys alone.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "baton/status.h"

namespace baton {

class ApiKeys {
 public:
  static constexpr size_t kLeastLength = 16;
  static constexpr size_t kMostLength = 512;

  ApiKeys() = default;  // none: everybody is admitted
  // A file's text: a key a line; empty lines and those that begin with # are skipped. Errors name the line, never
  // the key.
  static StatusOr<ApiKeys> Parse(std::string_view text);

  bool required() const { return !digests_.empty(); }
  size_t size() const { return digests_.size(); }
  // Of a call's `authorization`: "Bearer KEY". UNAUTHENTICATED, with what to do.
  Status Check(std::optional<std::string_view> authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest DigestOf(std::string_view key);
  std::vector<Digest> digests_;
};

}  // namespace baton

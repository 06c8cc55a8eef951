// The keys that clients show. Holds digests alone, so that no key can reach a log; compares in a time that depends
// on the number of keys alone.
#pragma once

#include <array>
#include <cstdint>
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
  // A file's text: a key a line; empty lines and those that begin with # are skipped. "operator KEY" is one that may
  // also look at the cluster and give it orders: as soon as there is one, no other key may. Errors name the line,
  // never the key.
  static StatusOr<ApiKeys> Parse(std::string_view text);

  bool required() const { return !keys_.empty(); }
  size_t size() const { return keys_.size(); }
  enum class Use : uint8_t { kAsk, kOperate };
  // Of a call's `authorization`: "Bearer KEY". UNAUTHENTICATED, or PERMISSION_DENIED for a key that may only ask, with
  // what to do.
  Status Check(std::optional<std::string_view> authorization, Use use) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest DigestOf(std::string_view key);
  struct Known {
    Digest digest;
    bool operates = false;
  };
  std::vector<Known> keys_;
  bool some_operate_ = false;
};

}  // namespace baton

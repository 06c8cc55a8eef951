#include "credentials/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <string>

namespace baton {

namespace {

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// The scheme's letters may be of either case (RFC 9110).
bool TakeBearer(std::string_view* text) {
  constexpr std::string_view kScheme = "bearer ";
  if (text->size() < kScheme.size()) return false;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = (*text)[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != kScheme[i]) return false;
  }
  text->remove_prefix(kScheme.size());
  return true;
}

}  // namespace

ApiKeys::Digest ApiKeys::DigestOf(std::string_view key) {
  Digest out;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), out.data());
  return out;
}

StatusOr<ApiKeys> ApiKeys::Parse(std::string_view text) {
  ApiKeys out;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view key = Trim(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (key.empty() || key.front() == '#') continue;
    constexpr std::string_view kOperator = "operator ";
    const bool operates = key.substr(0, kOperator.size()) == kOperator;
    if (operates) key = Trim(key.substr(kOperator.size()));
    const std::string where = "line " + std::to_string(number) + ": ";
    if (key.size() < kLeastLength || key.size() > kMostLength) {
      return InvalidArgumentError(where + "a key of " + std::to_string(key.size()) + " characters; " +
                                  std::to_string(kLeastLength) + " to " + std::to_string(kMostLength) +
                                  " are possible (openssl rand -hex 24 makes one)");
    }
    if (!std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; })) {
      return InvalidArgumentError(where + "a key is printable ASCII without spaces");
    }
    out.keys_.push_back({DigestOf(key), operates});
    out.some_operate_ |= operates;
  }
  if (out.keys_.empty()) return InvalidArgumentError("holds no key; a line each (openssl rand -hex 24 makes one)");
  return out;
}

Status ApiKeys::Check(std::optional<std::string_view> authorization, Use use) const {
  if (!required()) return OkStatus();
  if (!authorization || !TakeBearer(&*authorization)) {
    return Status(Code::kUnauthenticated,
                  "an API key is needed: metadata \"authorization: Bearer KEY\" (BATON_API_KEY or --api-key)");
  }
  const Digest shown = DigestOf(Trim(*authorization));
  int known = 0, operates = 0;
  for (const Known& key : keys_) {
    const int same = static_cast<int>(CRYPTO_memcmp(shown.data(), key.digest.data(), shown.size()) == 0);
    known |= same;
    operates |= same & static_cast<int>(key.operates);
  }
  if (known == 0) return Status(Code::kUnauthenticated, "this API key is not known here");
  if (use == Use::kOperate && some_operate_ && operates == 0) {
    return Status(Code::kPermissionDenied, "this API key may ask the model, not operate the cluster; that needs a key of an "
                                           "operator");
  }
  return OkStatus();
}

}  // namespace baton

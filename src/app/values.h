// Texts of option values and what they mean. Every parser refuses what it does not understand in full; the
// message begins with what is wrong and says what is possible. Pure, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/clock.h"
#include "baton/status.h"

namespace baton {

StatusOr<int64_t> ParseInteger(std::string_view text);
StatusOr<double> ParseReal(std::string_view text);
StatusOr<uint64_t> ParseBytes(std::string_view text);     // B, KiB, MiB, GiB, TiB, KB, MB, GB, TB; "auto" = 0
StatusOr<Duration> ParseDuration(std::string_view text);  // ms, s, m, h
StatusOr<bool> ParseFlag(std::string_view text);
StatusOr<std::vector<int>> ParseCores(std::string_view text);  // "0-3,8", ascending, each once; "" = none

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
  std::string ToString() const;  // brackets around IPv6
};
StatusOr<HostPort> ParseHostPort(std::string_view text);
bool IsLoopback(std::string_view host);  // 127.0.0.0/8, ::1, localhost
bool IsWildcard(std::string_view host);  // 0.0.0.0, :: and their other spellings: every interface, nothing to dial

// Token ids, "1, 2,3": one or more, each from 0 to 2^31 - 1.
StatusOr<std::vector<int32_t>> ParseTokenIds(std::string_view text);
bool IsPlainWord(std::string_view text);  // printable ASCII without spaces

std::vector<std::string> SplitList(std::string_view text,
                                   char separator);  // pieces trimmed, empty ones kept out

}  // namespace baton

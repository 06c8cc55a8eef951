// BATON_CHECK: a bug in Baton itself stops the process at once, with the place and the values. It stays
// in release builds. Nothing that a client, a peer or a file can cause may reach one.
#pragma once

#include <string_view>

namespace baton {

// Prints "file:line: check failed: <expr>: <detail>" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* expr, std::string_view detail);

}  // namespace baton

// BATON_CHECK(cond) or BATON_CHECK(cond, detail), detail convertible to std::string_view and evaluated
// only on failure.
#define BATON_CHECK(cond, ...)                                                        \
  do {                                                                                \
    if (!(cond)) [[unlikely]]                                                         \
      ::baton::CheckFailed(__FILE__, __LINE__, #cond, std::string_view{__VA_ARGS__}); \
  } while (false)

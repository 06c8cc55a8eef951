// UTF-8: what counts as valid, and what stands in for what is not. Pure functions, any thread.
//
// Always true: "valid" is Unicode's definition (no surrogates, no overlong forms, nothing above U+10FFFF);
// an invalid sequence becomes one U+FFFD per maximal subpart, as WHATWG decoders, Rust and so HF's decode do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "baton/status.h"

namespace baton {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// For text that a client sent: INVALID_ARGUMENT naming the field and the byte offset of the first fault.
Status ValidateUtf8(std::string_view text, std::string_view field);
// Offset of the first byte that does not belong to a valid character; text.size() if there is none.
size_t FirstInvalidUtf8(std::string_view text);

// One character at the start of a text. `valid` false: `length` bytes form a maximal subpart of an ill-formed
// sequence; `truncated` true: the text ends inside a character that was valid so far.
struct Utf8Step {
  uint32_t code_point = 0xFFFD;
  uint32_t length = 0;
  bool valid = false;
  bool truncated = false;
};
Utf8Step DecodeUtf8(std::string_view text);  // text is not empty
void AppendUtf8(uint32_t code_point, std::string* out);

// Bytes in, whole characters out. The concatenation of what Push and Finish append equals Whole() of the
// concatenation of the bytes, for every way of cutting them. Holds back at most 3 bytes.
class Utf8Assembler {
 public:
  void Push(std::string_view bytes, std::string* out);
  void Finish(std::string* out);  // a partial character becomes U+FFFD; then as new
  bool holds_back() const { return !partial_.empty(); }
  static std::string Whole(std::string_view bytes);

 private:
  std::string partial_;
};

}  // namespace baton

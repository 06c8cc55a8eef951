#include "text/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "baton/check.h"
#include "text/utf8.h"

namespace baton {

bool IsWhiteSpace(uint32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsPythonWhiteSpace(uint32_t c) { return IsWhiteSpace(c) || (c >= 0x1C && c <= 0x1F); }

bool IsWordCharacter(uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D;  // Join_Control
  }
}

uint32_t CodePointAt(std::string_view text, size_t at, size_t* bytes) {
  const Utf8Step step = DecodeUtf8(text.substr(at));
  *bytes = step.valid ? step.length : 1;
  return step.code_point;
}

uint32_t CodePointBefore(std::string_view text, size_t end, size_t* bytes) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  const uint32_t code = CodePointAt(text, at, bytes);
  if (at + *bytes == end) return code;
  *bytes = 1;
  return 0xFFFD;
}

size_t LeadingWhiteSpace(std::string_view text) {
  size_t at = 0, bytes = 0;
  while (at < text.size() && IsWhiteSpace(CodePointAt(text, at, &bytes))) at += bytes;
  return at;
}

size_t TrailingWhiteSpace(std::string_view text) {
  size_t end = text.size(), bytes = 0;
  while (end > 0 && IsWhiteSpace(CodePointBefore(text, end, &bytes))) end -= bytes;
  return text.size() - end;
}

bool BeginsInWord(std::string_view text) {
  size_t bytes = 0;
  return !text.empty() && IsWordCharacter(CodePointAt(text, 0, &bytes));
}

bool EndsInWord(std::string_view text) {
  size_t bytes = 0;
  return !text.empty() && IsWordCharacter(CodePointBefore(text, text.size(), &bytes));
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return count;
}

std::string ToNfc(std::string_view text) {
  bool ascii = true;
  for (char c : text) ascii &= static_cast<uint8_t>(c) < 0x80;
  if (ascii) return std::string(text);
  utf8proc_uint8_t* made = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &made, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  BATON_CHECK(size >= 0, "NFC is asked for valid UTF-8 only");
  return std::string(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
}

bool IsNfc(std::string_view text) { return ToNfc(text) == text; }

}  // namespace baton

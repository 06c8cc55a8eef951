// The few questions about characters that tokenizers and templates ask. Pure functions over valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

bool IsWhiteSpace(uint32_t code_point);        // Unicode White_Space
bool IsPythonWhiteSpace(uint32_t code_point);  // str.isspace and str.strip: also U+001C to U+001F
bool IsWordCharacter(uint32_t code_point);     // letters, marks, decimal digits, connectors: \w

size_t LeadingWhiteSpace(std::string_view text);   // bytes
size_t TrailingWhiteSpace(std::string_view text);  // bytes
bool BeginsInWord(std::string_view text);
bool EndsInWord(std::string_view text);

// The code point at text[at], and how many bytes it has; ill-formed bytes count one each.
uint32_t CodePointAt(std::string_view text, size_t at, size_t* bytes);
// ... of the one that ends at `end`, > 0.
uint32_t CodePointBefore(std::string_view text, size_t end, size_t* bytes);
size_t CountCodePoints(std::string_view text);

bool IsNfc(std::string_view text);
std::string ToNfc(std::string_view text);

}  // namespace baton

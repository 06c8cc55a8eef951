// Python's str operations on text that remembers who wrote it. Positions count code points. Private to src/text.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace baton::jinja {

// The indices that Python's slice takes of n items; step is not 0.
std::vector<int64_t> SliceIndices(int64_t n, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step);
MarkedText SliceText(const MarkedText& text, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step);
// Code points [index, index + 1); nothing if there is no such one. Negative counts from the end.
std::optional<MarkedText> CharacterAt(const MarkedText& text, int64_t index);
std::vector<MarkedText> Characters(const MarkedText& text);

// Removes code points of `characters`, or white space if absent, from the ends asked for.
MarkedText Strip(const MarkedText& text, std::optional<std::string_view> characters, bool left, bool right);
// At most `most` cuts (negative: all); absent separator: runs of white space, none at the ends.
std::vector<MarkedText> Split(const MarkedText& text, std::optional<std::string_view> separator, int64_t most);
std::vector<MarkedText> SplitFromRight(const MarkedText& text, std::string_view separator, int64_t most);
std::vector<MarkedText> SplitLines(const MarkedText& text);
MarkedText Replace(const MarkedText& text, const MarkedText& from, const MarkedText& to, int64_t most);

enum class Case { kUpper, kLower, kCapitalize, kTitle };
MarkedText ChangeCase(const MarkedText& text, Case how);

}  // namespace baton::jinja

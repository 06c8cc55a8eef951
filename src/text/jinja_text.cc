#include "text/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <string>

#include "text/unicode.h"
#include "text/utf8.h"

namespace baton::jinja {
namespace {

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

// Where each code point begins, and the end.
std::vector<size_t> Starts(std::string_view text) {
  std::vector<size_t> starts;
  size_t bytes = 0;
  for (size_t at = 0; at < text.size(); at += bytes) {
    starts.push_back(at);
    CodePointAt(text, at, &bytes);
  }
  starts.push_back(text.size());
  return starts;
}

bool InSet(std::optional<std::string_view> characters, uint32_t c) {
  if (!characters) return IsPythonWhiteSpace(c);
  size_t bytes = 0;
  for (size_t at = 0; at < characters->size(); at += bytes) {
    if (CodePointAt(*characters, at, &bytes) == c) return true;
  }
  return false;
}

}  // namespace

std::vector<int64_t> SliceIndices(int64_t n, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step) {
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
  const auto clip = [&](std::optional<int64_t> v, int64_t absent) {
    if (!v) return absent;
    return std::clamp(*v < 0 ? *v + n : *v, low, high);
  };
  const int64_t begin = clip(start, step > 0 ? low : high), end = clip(stop, step > 0 ? high : low);
  std::vector<int64_t> indices;
  // Beyond n a step takes one item, whatever its size; so sums stay small.
  const int64_t stride = std::clamp<int64_t>(step, -n - 1, n + 1);
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += stride) indices.push_back(i);
  return indices;
}

MarkedText SliceText(const MarkedText& text, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step) {
  const bool ascii = IsAscii(text.text);
  const std::vector<size_t> starts = ascii ? std::vector<size_t>() : Starts(text.text);
  const auto n = static_cast<int64_t>(ascii ? text.text.size() : starts.size() - 1);
  const std::vector<int64_t> taken = SliceIndices(n, start, stop, step);
  if (taken.empty()) return {};
  const auto place = [&](int64_t i) { return ascii ? static_cast<size_t>(i) : starts[static_cast<size_t>(i)]; };
  if (step == 1) return text.Slice(place(taken.front()), place(taken.back() + 1));
  MarkedText out;
  for (int64_t i : taken) out.Append(text.Slice(place(i), place(i + 1)));
  return out;
}

std::optional<MarkedText> CharacterAt(const MarkedText& text, int64_t index) {
  const auto n = static_cast<int64_t>(CountCodePoints(text.text));
  if (index < 0) index += n;
  if (index < 0 || index >= n) return std::nullopt;
  return SliceText(text, index, index + 1, 1);
}

std::vector<MarkedText> Characters(const MarkedText& text) {
  std::vector<MarkedText> out;
  const std::vector<size_t> starts = Starts(text.text);
  for (size_t i = 0; i + 1 < starts.size(); ++i) out.push_back(text.Slice(starts[i], starts[i + 1]));
  return out;
}

MarkedText Strip(const MarkedText& text, std::optional<std::string_view> characters, bool left, bool right) {
  size_t begin = 0, end = text.text.size(), bytes = 0;
  while (left && begin < end && InSet(characters, CodePointAt(text.text, begin, &bytes))) begin += bytes;
  while (right && end > begin && InSet(characters, CodePointBefore(text.text, end, &bytes))) end -= bytes;
  return text.Slice(begin, end);
}

std::vector<MarkedText> Split(const MarkedText& text, std::optional<std::string_view> separator, int64_t most) {
  std::vector<MarkedText> out;
  const std::string& all = text.text;
  size_t at = 0;
  if (separator) {
    for (int64_t cuts = 0; most < 0 || cuts < most; ++cuts) {
      const size_t found = all.find(*separator, at);
      if (found == std::string::npos) break;
      out.push_back(text.Slice(at, found));
      at = found + separator->size();
    }
    out.push_back(text.Slice(at, all.size()));
    return out;
  }
  size_t bytes = 0;
  const auto skip = [&](bool space) {
    while (at < all.size() && IsPythonWhiteSpace(CodePointAt(all, at, &bytes)) == space) at += bytes;
  };
  for (int64_t cuts = 0;; ++cuts) {
    skip(true);
    if (at == all.size()) return out;
    const size_t begin = at;
    if (most >= 0 && cuts == most) {
      out.push_back(Strip(text.Slice(begin, all.size()), std::nullopt, false, true));
      return out;
    }
    skip(false);
    out.push_back(text.Slice(begin, at));
  }
}

std::vector<MarkedText> SplitFromRight(const MarkedText& text, std::string_view separator, int64_t most) {
  std::vector<MarkedText> out;
  size_t end = text.text.size();
  for (int64_t cuts = 0; (most < 0 || cuts < most) && end >= separator.size(); ++cuts) {
    const size_t found = text.text.rfind(separator, end - separator.size());
    if (found == std::string::npos) break;
    out.push_back(text.Slice(found + separator.size(), end));
    end = found;
  }
  out.push_back(text.Slice(0, end));
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<MarkedText> SplitLines(const MarkedText& text) {
  std::vector<MarkedText> out;
  const std::string& all = text.text;
  size_t begin = 0, bytes = 0;
  for (size_t at = 0; at < all.size();) {
    const uint32_t c = CodePointAt(all, at, &bytes);
    const bool ends = (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    const size_t line_end = at;
    at += bytes;
    if (!ends) continue;
    if (c == '\r' && at < all.size() && all[at] == '\n') ++at;
    out.push_back(text.Slice(begin, line_end));
    begin = at;
  }
  if (begin < all.size()) out.push_back(text.Slice(begin, all.size()));
  return out;
}

MarkedText Replace(const MarkedText& text, const MarkedText& from, const MarkedText& to, int64_t most) {
  MarkedText out;
  size_t at = 0;
  if (from.text.empty()) {
    const std::vector<size_t> starts = Starts(text.text);
    for (size_t i = 0; i < starts.size(); ++i) {
      if (most < 0 || static_cast<int64_t>(i) < most) out.Append(to);
      if (i + 1 < starts.size()) out.Append(text.Slice(starts[i], starts[i + 1]));
    }
    return out;
  }
  for (int64_t done = 0; most < 0 || done < most; ++done) {
    const size_t found = text.text.find(from.text, at);
    if (found == std::string::npos) break;
    out.Append(text.Slice(at, found));
    out.Append(to);
    at = found + from.text.size();
  }
  out.Append(text.Slice(at, text.text.size()));
  return out;
}

MarkedText ChangeCase(const MarkedText& text, Case how) {
  MarkedText out;
  size_t at = 0, bytes = 0;
  bool in_word = false;
  for (const MarkedText::Run& run : text.runs) {
    for (; at < run.end; at += bytes) {
      const uint32_t c = CodePointAt(text.text, at, &bytes);
      const auto code = static_cast<utf8proc_int32_t>(c);
      const bool first = how == Case::kCapitalize ? at == 0 : !in_word;
      const bool upper = how == Case::kUpper || (how != Case::kLower && first);
      std::string changed;
      if (upper && c == 0xDF) {
        changed = how == Case::kUpper ? "SS" : "Ss";
      } else {
        const auto mapped = !upper                ? utf8proc_tolower(code)
                            : how == Case::kUpper ? utf8proc_toupper(code)
                                                  : utf8proc_totitle(code);
        AppendUtf8(static_cast<uint32_t>(mapped), &changed);
      }
      out.Append(changed, run.trusted);
      in_word = how == Case::kTitle && !IsPythonWhiteSpace(c) &&
                std::string_view("-({[<").find(static_cast<char>(c < 0x80 ? c : 'a')) == std::string_view::npos;
    }
  }
  return out;
}

}  // namespace baton::jinja

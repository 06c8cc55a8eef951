#include "text/utf8.h"

namespace baton {
namespace {

// Bytes that make a character begun by `lead`, and the range that its second byte must be in (Unicode's table of
// well-formed sequences). length 0: no character begins so.
struct Lead {
  uint8_t length, low, high;
};
constexpr Lead ClassifyLead(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step DecodeUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const Lead lead = ClassifyLead(byte(0));
  if (lead.length == 1) return {byte(0), 1, true, false};
  if (lead.length == 0) return {0xFFFD, 1, false, false};
  uint32_t code = byte(0) & (0xFFu >> (lead.length + 1));
  for (uint32_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {0xFFFD, i, false, true};
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {0xFFFD, i, false, false};
    code = code << 6 | (byte(i) & 0x3F);
  }
  return {code, lead.length, true, false};
}

void AppendUtf8(uint32_t c, std::string* out) {
  const auto put = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  if (c < 0x10000) return put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
}

size_t FirstInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = DecodeUtf8(text.substr(at));
    if (!step.valid) return at;
    at += step.length;
  }
  return text.size();
}

Status ValidateUtf8(std::string_view text, std::string_view field) {
  const size_t at = FirstInvalidUtf8(text);
  if (at == text.size()) return OkStatus();
  static constexpr char kHex[] = "0123456789abcdef";
  const auto byte = static_cast<uint8_t>(text[at]);
  return InvalidArgumentError(std::string(field) + ": not UTF-8: byte 0x" + kHex[byte >> 4] + kHex[byte & 15] +
                              " at offset " + std::to_string(at) + " of " + std::to_string(text.size()) +
                              "; send UTF-8 text");
}

void Utf8Assembler::Push(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!partial_.empty()) {
    joined = std::move(partial_);
    partial_.clear();
    joined.append(bytes);
    bytes = joined;
  }
  size_t copied = 0, at = 0;
  while (at < bytes.size()) {
    if (static_cast<uint8_t>(bytes[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = DecodeUtf8(bytes.substr(at));
    if (!step.valid) {
      out->append(bytes.substr(copied, at - copied));
      copied = at + step.length;
      if (step.truncated) {
        partial_.assign(bytes.substr(at));
        return;
      }
      out->append(kReplacementCharacter);
    }
    at += step.length;
  }
  out->append(bytes.substr(copied));
}

void Utf8Assembler::Finish(std::string* out) {
  if (partial_.empty()) return;
  partial_.clear();
  out->append(kReplacementCharacter);
}

std::string Utf8Assembler::Whole(std::string_view bytes) {
  std::string out;
  Utf8Assembler assembler;
  assembler.Push(bytes, &out);
  assembler.Finish(&out);
  return out;
}

}  // namespace baton

#include "text/utf8.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "text/detokenizer.h"

namespace baton {
namespace {

// A tokenizer whose token i is the byte i, and token 256 a special one.
class Bytes : public Tokenizer {
 public:
  Bytes() {
    for (int i = 0; i < 256; ++i) bytes_[i] = static_cast<char>(i);
  }
  void Encode(const std::vector<TextSpan>&, bool, std::vector<TokenId>*) const override {}
  std::string_view TokenBytes(TokenId id, bool with_special) const override {
    if (id == 256) return with_special ? "<end>" : "";
    return {&bytes_[id], 1};
  }
  bool IsSpecial(TokenId id) const override { return id == 256; }
  uint32_t vocab_size() const override { return 257; }
  const std::vector<TokenId>& eos_ids() const override { return eos_; }

 private:
  char bytes_[256];
  std::vector<TokenId> eos_;
};

// Bytes that are UTF-8, nearly UTF-8, or noise.
std::string RandomBytes(Rng* rng) {
  std::string out;
  const uint64_t n = 1 + rng->Below(12);
  for (uint64_t i = 0; i < n; ++i) {
    std::string c;
    static constexpr uint32_t kCodes[] = {'a', 0x7F, 0x80, 0x7FF, 0x800, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF, 0x4E2D};
    AppendUtf8(kCodes[rng->Below(std::size(kCodes))], &c);
    if (rng->Chance(0.3)) c.resize(1 + rng->Below(c.size()));
    if (rng->Chance(0.1)) c = static_cast<char>(rng->Below(256));
    out += c;
  }
  return out;
}

TEST(Utf8, EveryScalarValueIsDecodedAsItWasWritten) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    std::string text;
    AppendUtf8(c, &text);
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    const Utf8Step step = DecodeUtf8(text);
    ASSERT_EQ(step.valid, !surrogate) << c;
    if (surrogate) continue;
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(step.length, text.size());
  }
}

TEST(Utf8, ValidationNamesTheFieldAndTheFirstBadByte) {
  EXPECT_TRUE(ValidateUtf8("na\xC3\xAFve", "prompt").ok());
  const Status status = ValidateUtf8("ab\xC0\x80", "messages[1].content");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "messages[1].content: not UTF-8: byte 0xc0 at offset 2 of 4; send UTF-8 text");
  for (const char* bad : {"\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
                          "\xF5", "\xE4\xB8"}) {
    EXPECT_EQ(FirstInvalidUtf8(bad), 0u) << bad;
  }
}

// The examples of Unicode's chapter 3.9, "U+FFFD substitution of maximal subparts".
TEST(Utf8, IllFormedSequencesBecomeOneReplacementPerMaximalSubpart) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(Utf8Assembler::Whole("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(Utf8Assembler::Whole("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(Utf8Assembler::Whole("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(Utf8Assembler::Whole("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

// FF-045, FF-058, FF-059, FF-060
TEST(Detokenizer, PiecesAreWholeCharactersAndJoinToTheDecodedWhole) {
  const Bytes tokenizer;
  size_t held_back = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Rng rng(seed);
    std::vector<TokenId> ids;
    for (char c : RandomBytes(&rng)) {
      ids.push_back(static_cast<uint8_t>(c));
      if (rng.Chance(0.05)) ids.push_back(256);
    }
    const bool skip = rng.Chance(0.5);
    Detokenizer detokenizer(&tokenizer, skip);
    std::string joined;
    for (TokenId id : ids) {
      std::string piece;
      detokenizer.Push(id, &piece);
      ASSERT_EQ(FirstInvalidUtf8(piece), piece.size()) << "seed " << seed;
      held_back += piece.empty();
      joined += piece;
    }
    detokenizer.Finish(&joined);
    ASSERT_EQ(joined, Decode(tokenizer, ids, skip)) << "seed " << seed;
  }
  EXPECT_GT(held_back, 10000u);
}

// FF-060
TEST(Utf8Assembler, TheCutOfTheBytesChangesNothing) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Rng rng(seed);
    const std::string bytes = RandomBytes(&rng);
    Utf8Assembler assembler;
    std::string joined;
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = 1 + rng.Below(4);
      assembler.Push(std::string_view(bytes).substr(at, n), &joined);
      at += n;
    }
    assembler.Finish(&joined);
    ASSERT_EQ(joined, Utf8Assembler::Whole(bytes)) << "seed " << seed;
    ASSERT_FALSE(assembler.holds_back());
  }
}

}  // namespace
}  // namespace baton

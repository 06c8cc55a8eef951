#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "base/rng.h"
#include "text/bpe_merges.h"
#include "text/bpe_tokenizer.h"
#include "text/detokenizer.h"

namespace baton {
namespace {

using Ids = std::vector<TokenId>;

// Merge rules over 4 letters: 60 random pairs, each making a new symbol.
struct Rules {
  std::vector<std::pair<TokenId, TokenId>> pairs;
  BpeMerges merges;
  explicit Rules(Rng* rng) {
    merges.Reserve(60);
    for (uint32_t rank = 0; rank < 60; ++rank) {
      const auto known = static_cast<uint64_t>(4 + pairs.size());
      pairs.emplace_back(rng->Below(known), rng->Below(known));
      merges.Insert(pairs.back().first, pairs.back().second, rank, static_cast<TokenId>(4 + rank));
    }
  }
  // By the definition: again and again the best pair, leftmost first.
  Ids Slow(Ids ids) const {
    for (;;) {
      size_t best_rank = pairs.size(), best_at = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        for (size_t rank = 0; rank < best_rank; ++rank) {
          if (pairs[rank] == std::pair(ids[i], ids[i + 1])) best_rank = rank, best_at = i;
        }
      }
      if (best_rank == pairs.size()) return ids;
      ids[best_at] = static_cast<TokenId>(4 + best_rank);
      ids.erase(ids.begin() + static_cast<long>(best_at) + 1);
    }
  }
};

TEST(BpeMerges, ShortAndLongWordsMergeAsTheDefinitionSays) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    const Rules rules(&rng);
    Ids ids;
    for (uint64_t n = rng.Below(60); n > 0; --n) ids.push_back(static_cast<TokenId>(rng.Below(4)));
    const Ids expected = rules.Slow(ids);
    BpeMerges::Scratch scratch;
    rules.merges.Apply(&ids, &scratch);
    ASSERT_EQ(ids, expected) << "seed " << seed;
  }
}

// FF-073
TEST(BpeMerges, AMegabyteInOneWordCostsNLogNSteps) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    Rng rng(seed);
    BpeMerges merges;
    merges.Reserve(24);
    // a a -> b, b b -> c ...: every level merges everything.
    for (TokenId level = 0; level < 20; ++level) merges.Insert(level, level, static_cast<uint32_t>(level), level + 1);
    Ids ids(size_t{1} << 20, 0);
    if (seed > 0) {
      for (TokenId& id : ids) id = static_cast<TokenId>(rng.Below(seed + 1));
    }
    const auto n = static_cast<double>(ids.size());
    BpeMerges::Scratch scratch;
    merges.Apply(&ids, &scratch);
    EXPECT_LT(static_cast<double>(scratch.steps), 6 * n);  // a quadratic scan would take n * n / 2
    if (seed == 0) EXPECT_EQ(ids, Ids{20});
  }
}

constexpr TokenId kEnd = 300, kThink = 301, kGap = 302;

// 256 bytes, "th", "the", " the", and three added tokens: <|end|> (special), <think> (plain in the file), "  ".
BpeVocabulary Vocabulary() {
  BpeVocabulary v;
  for (int b = 0; b < 256; ++b) v.tokens.emplace_back(1, static_cast<char>(b));
  v.tokens.resize(303);
  v.tokens[256] = "th", v.tokens[257] = "the", v.tokens[258] = " the", v.tokens[259] = "end";
  v.tokens[260] = "en";
  v.merges = {{'t', 'h'}, {256, 'e'}, {' ', 257}, {'e', 'n'}, {260, 'd'}};
  v.tokens[kEnd] = "<|end|>", v.tokens[kThink] = "<think>", v.tokens[kGap] = "  ";
  v.added = {{.id = kEnd, .text = "<|end|>", .special = true, .control = true},
             {.id = kThink, .text = "<think>", .control = true},
             {.id = kGap, .text = "  "}};
  v.splits = {{kGpt2Pattern}};
  v.prefix = {kEnd};
  v.eos = {kEnd};
  return v;
}

std::unique_ptr<BpeTokenizer> Make(BpeVocabulary v = Vocabulary()) {
  auto made = BpeTokenizer::Make(std::move(v));
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return *std::move(made);
}

Ids Encode(const Tokenizer& t, const std::vector<TextSpan>& text, bool add_special = false) {
  Ids ids;
  t.Encode(text, add_special, &ids);
  return ids;
}

// FF-062
TEST(BpeTokenizer, ControlTokensComeFromTrustedTextAlone) {
  const auto t = Make();
  EXPECT_EQ(Encode(*t, {{"the<|end|> the", true}}), (Ids{257, kEnd, 258}));
  EXPECT_EQ(Encode(*t, {{"<think>", true}}), Ids{kThink});
  EXPECT_EQ(Encode(*t, {{"<|end|>", false}}), (Ids{'<', '|', 259, '|', '>'}));
  EXPECT_EQ(Encode(*t, {{"<think>", false}}), (Ids{'<', 256, 'i', 'n', 'k', '>'}));
  // An ordinary added token is text like any other.
  EXPECT_EQ(Encode(*t, {{"the  the", false}}), (Ids{257, kGap, 257}));
}

TEST(BpeTokenizer, OneUntrustedByteAnywhereInAControlTokensTextMakesItPlain) {
  const auto t = Make();
  const std::string text = "<|end|>";
  for (size_t i = 0; i < text.size(); ++i) {
    const Ids ids = Encode(*t, {{text.substr(0, i), true}, {text.substr(i, 1), false}, {text.substr(i + 1), true}});
    EXPECT_EQ(ids, (Ids{'<', '|', 259, '|', '>'})) << i;
  }
  for (size_t i = 0; i <= text.size(); ++i) {
    EXPECT_EQ(Encode(*t, {{text.substr(0, i), true}, {text.substr(i), true}}), Ids{kEnd}) << i;
  }
}

TEST(BpeTokenizer, SpansThatNoControlTokenDividesAreOneText) {
  const auto t = Make();
  EXPECT_EQ(Encode(*t, {{"x t", true}, {"h", false}, {"e", true}}), (Ids{'x', 258}));
}

TEST(BpeTokenizer, NoMergeAndNoWordLookUpMakesAControlToken) {
  BpeVocabulary v = Vocabulary();
  v.added.push_back({.id = 259, .text = "end", .special = true, .control = true});
  v.whole_words_first = true;
  const auto t = Make(v);
  EXPECT_EQ(Encode(*t, {{"end", false}}), (Ids{260, 'd'}));
  EXPECT_EQ(Encode(*t, {{"end", true}}), Ids{259});
}

TEST(BpeTokenizer, SpecialTokensHideUnlessAskedFor) {
  const auto t = Make();
  EXPECT_EQ(t->TokenBytes(kEnd, false), "");
  EXPECT_EQ(t->TokenBytes(kEnd, true), "<|end|>");
  EXPECT_EQ(t->TokenBytes(kThink, false), "<think>");
  EXPECT_TRUE(t->IsSpecial(kEnd));
  EXPECT_FALSE(t->IsSpecial(kThink));
  EXPECT_EQ(t->Find("<|end|>"), kEnd);
  EXPECT_EQ(t->Find("the"), 257);
  EXPECT_EQ(t->Find("nothing"), std::nullopt);
  EXPECT_EQ(Encode(*t, {{"the", false}}, true), (Ids{kEnd, 257}));
}

// FF-073
TEST(BpeTokenizer, EveryScalarValueComesBack) {
  const auto t = Make();
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, &text);
    ASSERT_EQ(Decode(*t, Encode(*t, {{text, false}}), true), text) << c;
  }
}

TEST(BpeTokenizer, IllFormedTextIsEncodedAsReplacementCharacters) {
  const auto t = Make();
  EXPECT_EQ(Encode(*t, {{"a\xFF\xE4\xB8", false}, {"\xAD", false}}), Encode(*t, {{"a\uFFFD\uFFFD\uFFFD", false}}));
}

// FF-073
TEST(BpeTokenizer, BytesWithoutATokenVanishOrBecomeTheUnknownToken) {
  BpeVocabulary v = Vocabulary();
  v.tokens['q'].clear();
  EXPECT_EQ(Encode(*Make(v), {{"tqhe", false}}), Ids{257});
  v.unknown = kGap;
  EXPECT_EQ(Encode(*Make(v), {{"tqhe", false}}), (Ids{'t', kGap, 'h', 'e'}));
}

TEST(BpeTokenizer, ThreadsThatShareOneGetTheSameIds) {
  const auto t = Make();
  const auto fresh = Make();
  const std::vector<TextSpan> text = {{"the end of the other then  and the <|end|>", true}};
  const Ids expected = Encode(*fresh, text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int& w : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) w += Encode(*t, text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(BpeTokenizer, AVocabularyWhoseIdsDoNotFitIsRefused) {
  const auto refused = [](void (*damage)(BpeVocabulary*)) {
    BpeVocabulary v = Vocabulary();
    damage(&v);
    const auto made = BpeTokenizer::Make(std::move(v));
    return made.ok() ? std::string("accepted") : made.status().message();
  };
  EXPECT_EQ(refused([](BpeVocabulary* v) { v->eos = {303}; }), "vocabulary: an end token has id 303 of 303 tokens");
  EXPECT_EQ(refused([](BpeVocabulary* v) {
              v->merges.push_back({'a', -1});
            }),
            "vocabulary: a merge has id -1 of 303 tokens");
  EXPECT_EQ(refused([](BpeVocabulary* v) {
              v->merges.push_back({'a', ' '});
            }),
            "vocabulary: merge 5 makes \"a\u0120\", which is no token");
  EXPECT_EQ(refused([](BpeVocabulary* v) { v->added[0].text.clear(); }),
            "vocabulary: added token 300 has 0 bytes; 1 to 1024 are supported");
  EXPECT_EQ(refused([](BpeVocabulary* v) { v->tokens.clear(); }), "vocabulary: no tokens");
}

TEST(PreTokenizer, PatternsThatTwoEnginesReadDifferentlyAreRefused) {
  for (const char* pattern : {"\\w+", "[a[bc]]", "[a&&b]", "^a", "a$", "\\bx", "(?m:a)", "a{,3}", "a{1,2}+", "[\\S]"}) {
    const auto made = PreTokenizer::Make({{pattern}});
    ASSERT_FALSE(made.ok()) << pattern;
    EXPECT_EQ(made.status().code(), Code::kUnimplemented) << pattern;
  }
  EXPECT_EQ(PreTokenizer::Make({{"(a"}}).status().code(), Code::kInvalidArgument);
}

TEST(PreTokenizer, APatternThatGivesUpLeavesTheRestAsOneWord) {
  auto made = PreTokenizer::Make({{"(?:x+x+)+y"}});  // exponential on x...x
  ASSERT_TRUE(made.ok());
  const std::string text(40, 'x');
  std::vector<std::string_view> words;
  made->Cut(text, &words);
  ASSERT_EQ(words.size(), 1u);
  EXPECT_EQ(words[0], text);
}

}  // namespace
}  // namespace baton

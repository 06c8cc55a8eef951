#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace baton {
namespace {

struct Outcome {
  std::string text;
  int matched = -1;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// What must come out, by looking at every place: the match that ends first, of those the longest.
Outcome Search(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t k = 0; k < stops.size(); ++k) {
      if (stops[k].size() > end || text.compare(end - stops[k].size(), stops[k].size(), stops[k]) != 0) continue;
      if (best < 0 || stops[k].size() > stops[static_cast<size_t>(best)].size()) best = static_cast<int>(k);
    }
    if (best >= 0) return {text.substr(0, include ? end : end - stops[static_cast<size_t>(best)].size()), best};
  }
  return {text, -1};
}

std::string RandomText(Rng* rng, size_t most) {
  std::string out;
  const uint64_t n = rng->Below(most + 1);
  for (uint64_t i = 0; i < n; ++i) out += "aab"[rng->Below(3)];
  return out;
}

// FF-054, FF-055
TEST(StopStrings, FindWhatANaiveSearchFindsHoweverTheTextIsCut) {
  size_t matches = 0;
  for (uint64_t seed = 0; seed < 50000; ++seed) {
    Rng rng(seed);
    std::vector<std::string> stops;
    size_t longest = 0;
    for (uint64_t k = 1 + rng.Below(3); k > 0; --k) {
      stops.push_back("b" + RandomText(&rng, 6));
      if (rng.Chance(0.5)) stops.back() = "a" + stops.back();
      longest = std::max(longest, stops.back().size());
    }
    const std::string text = RandomText(&rng, 30);
    const bool include = rng.Chance(0.5);
    StopStrings finder(stops, include);
    Outcome got;
    bool stopped = false;
    for (size_t at = 0; at < text.size() && !stopped;) {
      const size_t n = rng.Below(5);
      std::string piece;
      stopped = finder.Push(std::string_view(text).substr(at, n), &piece);
      ASSERT_LT(finder.held_back().size(), longest) << "seed " << seed;
      got.text += piece;
      at += n;
    }
    if (!stopped) finder.Finish(&got.text);
    got.matched = finder.matched();
    ASSERT_EQ(got, Search(text, stops, include)) << "seed " << seed << " text " << text;
    matches += got.matched >= 0;
  }
  EXPECT_GT(matches, 10000u);
}

TEST(StopStrings, TextThatCannotBecomeAStopIsShownAtOnce) {
  StopStrings finder({"\n\nUser:"}, false);
  std::string out;
  EXPECT_FALSE(finder.Push("Hello\n", &out));
  EXPECT_EQ(out, "Hello");
  EXPECT_FALSE(finder.Push("world", &out));
  EXPECT_EQ(out, "Hello\nworld");
  EXPECT_FALSE(finder.Push("\n\nUse", &out));
  EXPECT_EQ(out, "Hello\nworld");
  EXPECT_TRUE(finder.Push("r: more", &out));
  EXPECT_EQ(out, "Hello\nworld");
  EXPECT_EQ(finder.matched(), 0);
}

TEST(StopStrings, WithoutAnyEverythingPasses) {
  StopStrings finder;
  std::string out;
  EXPECT_FALSE(finder.Push("abc", &out));
  finder.Finish(&out);
  EXPECT_EQ(out, "abc");
}

TEST(StopStrings, AClientsListIsRefusedByPlaceAndLimit) {
  EXPECT_TRUE(ValidateStopStrings({"a", "\xC3\xA9"}).ok());
  EXPECT_EQ(ValidateStopStrings({"a", ""}).message(), "stop[1]: empty; a stop string needs at least one character");
  EXPECT_EQ(ValidateStopStrings(std::vector<std::string>(33, "a")).message(),
            "stop: 33 strings, at most 32 are allowed");
  EXPECT_EQ(ValidateStopStrings({std::string(1025, 'a')}).message(), "stop[0]: 1025 bytes, at most 1024 are allowed");
  EXPECT_FALSE(ValidateStopStrings({"\xFF"}).ok());
}

}  // namespace
}  // namespace baton

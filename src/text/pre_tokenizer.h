// Cuts text into the words that are merged on their own. Patterns are compiled once (PCRE2, UTF + UCP + JIT);
// any thread cuts.
//
// Always true: pieces come in order and, but for a step that drops gaps, cover the text. `\s` and `\S` mean
// Unicode's White_Space, as in Oniguruma (PCRE2's own \s also has U+180E). A pattern that gives up (match or
// stack limit) takes the rest of its piece as one word: never an error, never an endless search.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "baton/status.h"
#include "text/vocabulary.h"

namespace baton {

class PreTokenizer {
 public:
  PreTokenizer();
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  static StatusOr<PreTokenizer> Make(const std::vector<SplitStep>& steps);

  // Appends the words, views into `text`, which is valid UTF-8.
  void Cut(std::string_view text, std::vector<std::string_view>* words) const;

 private:
  struct Step;
  std::vector<Step> steps_;
};

// "\s" and "\S" spelled out as White_Space. UNIMPLEMENTED for what PCRE2 and Oniguruma read differently.
StatusOr<std::string> TranslateOnigurumaPattern(std::string_view pattern);

// The patterns that several models share.
extern const char kGpt2Pattern[];
extern const char kLlama3Pattern[];
extern const char kQwen2Pattern[];
inline constexpr char kSingleNumberPattern[] = R"(\p{N})";

}  // namespace baton

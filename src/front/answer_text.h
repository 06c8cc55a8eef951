// One answer's text as its tokens arrive: whole characters, stop strings held back and found. A function of the
// tokens so far, however they came.
#pragma once

#include <string>
#include <vector>

#include "baton/tokenizer.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace baton {

class AnswerText {
 public:
  AnswerText(const Tokenizer* tokenizer, bool skip_special, std::vector<std::string> stops, bool include_stop)
      : detokenizer_(tokenizer, skip_special), strings_(stops), stops_(strings_, include_stop) {}

  // Appends what can be shown. True: a stop string ended here, the answer is over.
  bool Push(TokenId token, std::string* out) {
    piece_.clear();
    detokenizer_.Push(token, &piece_);
    return stops_.Push(piece_, out);
  }
  // No more tokens: appends what was held back. True: what the last, broken character became ended a stop string.
  bool Finish(std::string* out) {
    piece_.clear();
    detokenizer_.Finish(&piece_);
    if (!piece_.empty() && stops_.Push(piece_, out)) return true;
    stops_.Finish(out);
    return false;
  }
  // The stop string that was found, or "".
  const std::string& matched() const {
    static const std::string kNone;
    return stops_.matched() < 0 ? kNone : strings_[static_cast<size_t>(stops_.matched())];
  }

 private:
  Detokenizer detokenizer_;
  std::vector<std::string> strings_;
  StopStrings stops_;
  std::string piece_;
};

}  // namespace baton

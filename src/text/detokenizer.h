// Tokens in, text out, as an answer is streamed. One per choice of a request; the front's thread.
//
// Always true: every piece is valid UTF-8 of whole characters, and the concatenation of the pieces equals Decode
// of all tokens, however they were cut. State is a function of the tokens so far, so it can be rebuilt.
#pragma once

#include <span>
#include <string>

#include "baton/tokenizer.h"
#include "text/utf8.h"

namespace baton {

class Detokenizer {
 public:
  // `tokenizer` outlives this. With `skip_special`, special tokens give no text.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special) : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // Appends what can be shown. `id` is in the vocabulary.
  void Push(TokenId id, std::string* out);
  // Appends U+FFFD for a character that never became whole; then as new.
  void Finish(std::string* out);

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Assembler assembler_;
};

std::string Decode(const Tokenizer& tokenizer, std::span<const TokenId> ids, bool skip_special);

}  // namespace baton

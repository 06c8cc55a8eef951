// PORT. Text to token ids and back. Immutable after load: every call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/ids.h"
#include "baton/status.h"

namespace baton {

// A piece of text to tokenize. In trusted text (a template's own) control tokens are recognised; in text
// from a user they never are: it is plain text even where it spells <|im_end|>.
struct TextSpan {
  std::string text;
  bool trusted = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Neighbouring spans are tokenized as one text as far as control tokens do not divide them. Appends.
  // `add_special`: begin/end tokens as the model's files ask for.
  virtual void Encode(const std::vector<TextSpan>& text, bool add_special, std::vector<TokenId>* ids) const = 0;
  // The bytes of one token; may be a part of a UTF-8 character. Control tokens give "" unless
  // `with_special`. An id outside the vocabulary is a bug of the caller (validate first).
  virtual std::string_view TokenBytes(TokenId id, bool with_special) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;
  virtual uint32_t vocab_size() const = 0;
  virtual const std::vector<TokenId>& eos_ids() const = 0;
};

}  // namespace baton

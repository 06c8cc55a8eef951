#include "text/detokenizer.h"

namespace baton {

void Detokenizer::Push(TokenId id, std::string* out) {
  assembler_.Push(tokenizer_->TokenBytes(id, !skip_special_), out);
}

void Detokenizer::Finish(std::string* out) { assembler_.Finish(out); }

std::string Decode(const Tokenizer& tokenizer, std::span<const TokenId> ids, bool skip_special) {
  std::string bytes;
  for (TokenId id : ids) bytes.append(tokenizer.TokenBytes(id, !skip_special));
  return Utf8Assembler::Whole(bytes);
}

}  // namespace baton

// Byte-level BPE. Text becomes words (added tokens, then NFC, then regular expressions), words become bytes,
// and neighbours merge by priority.
//
// Any thread may call a BpeTokenizer: after Make it never changes, but for a memo of one relaxed atomic byte
// per token whose value is a function of the vocabulary.
//
// Always true: control tokens come from trusted spans alone: a match that touches one untrusted byte is no
// match, and no merge or word look-up makes one. Work per word is O(n log n).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/tokenizer.h"
#include "text/added_tokens.h"
#include "text/bpe_merges.h"
#include "text/pre_tokenizer.h"
#include "text/token_table.h"
#include "text/vocabulary.h"

namespace baton {

class BpeTokenizer : public Tokenizer {
 public:
  static StatusOr<std::unique_ptr<BpeTokenizer>> Make(BpeVocabulary vocabulary);

  // Ill-formed UTF-8 is encoded as U+FFFD; text from a client should have been refused by ValidateUtf8 before.
  void Encode(const std::vector<TextSpan>& text, bool add_special, std::vector<TokenId>* ids) const override;
  std::string_view TokenBytes(TokenId id, bool with_special) const override;
  bool IsSpecial(TokenId id) const override;
  uint32_t vocab_size() const override { return static_cast<uint32_t>(tokens_.size()); }
  const std::vector<TokenId>& eos_ids() const override { return eos_; }

  // The text of bos and of the first end token, for a chat template; "" where the files name none.
  std::string_view bos_text() const;
  std::string_view eos_text() const;
  // The id whose bytes are exactly `text`, special tokens included; nothing if there is none.
  std::optional<TokenId> Find(std::string_view text) const;

 private:
  BpeTokenizer() = default;
  struct Scratch;
  void EncodePlain(std::string_view text, Scratch* scratch, std::vector<TokenId>* ids) const;
  void EncodeNormalized(const MarkedRuns& stretch, Scratch* scratch, std::vector<TokenId>* ids) const;
  void EncodeWord(std::string_view word, Scratch* scratch, std::vector<TokenId>* ids) const;

  enum Whole : uint8_t { kUnknown, kYes, kNo };  // does the token's own text encode to the token alone?
  enum Flag : uint8_t { kSpecial = 1, kControl = 2 };

  std::vector<std::string> tokens_;
  std::vector<uint8_t> flags_;
  std::vector<TokenId> control_;
  TokenTable by_bytes_;  // tokens that words may become: no control tokens
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;
  TokenId byte_ids_[256];  // -1: that byte is no token
  size_t longest_ = 0;
  BpeMerges merges_;
  PreTokenizer pre_;
  AddedTokenMatcher exact_;       // looked for in the text as it came
  AddedTokenMatcher normalized_;  // ... after normalization
  bool nfc_ = false;
  bool whole_words_first_ = false;
  std::optional<TokenId> unknown_;
  std::vector<TokenId> prefix_, suffix_, eos_;
  std::optional<TokenId> bos_;
};

}  // namespace baton

// What a byte-level BPE tokenizer is made from, and the two kinds of files it comes from. Plain values; the
// loaders run once at start, on any thread.
//
// Always true: a loader gives a vocabulary that tokenizes exactly as the file's own tool does, or refuses by
// the name of what it cannot do (UNIMPLEMENTED), or of what is broken (INVALID_ARGUMENT). Nothing is ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/ids.h"
#include "baton/status.h"

namespace baton {

inline constexpr uint32_t kMaxVocabulary = 1u << 22;  // ids above are refused as corrupt

// One step of cutting text into words. The pieces that `regex` matches become pieces of their own; what lies
// between stays a piece, or disappears with `drop_gaps`. Syntax of Oniguruma as tokenizer.json uses it.
struct SplitStep {
  std::string regex;
  bool drop_gaps = false;
};

struct AddedToken {
  TokenId id = 0;
  std::string text;
  bool special = false;      // absent from decoded text unless asked for
  bool control = false;      // recognised in trusted text alone; true for every special token
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // ... and after it
  bool single_word = false;  // not inside a word
  bool normalized = false;   // looked for after normalization
  bool in_model = false;     // also an ordinary token: a word may be it, merges may make it
};

struct BpeVocabulary {
  std::vector<std::string> tokens;                  // by id: the bytes; "" where an id is not used
  std::vector<std::pair<TokenId, TokenId>> merges;  // by falling priority; left + right is a token
  std::vector<SplitStep> splits;                    // applied one after another
  bool nfc = false;
  bool whole_words_first = false;  // a word that is a token is not merged from its bytes (`ignore_merges`)
  std::optional<TokenId> unknown;  // for a byte that is no token; absent: such bytes are dropped, as HF does
  std::vector<AddedToken> added;
  std::vector<TokenId> prefix;  // what Encode(add_special) puts before the text, often {bos}
  std::vector<TokenId> suffix;  // ... and after it
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;  // every id that ends an answer; empty if the files name none
};

// A Hugging Face folder's texts; "" for a file that is not there.
struct HfTokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::string generation_config_json;
  std::string chat_template_jinja;
};
StatusOr<HfTokenizerFiles> ReadHfTokenizerFiles(const std::string& folder);
StatusOr<BpeVocabulary> VocabularyFromHf(const HfTokenizerFiles& files);
// The template's source: chat_template.jinja, else tokenizer_config's chat_template (the one named "default" of a
// list). NOT_FOUND if there is none.
StatusOr<std::string> ChatTemplateFromHf(const HfTokenizerFiles& files);

// `tokenizer.ggml.*` of a GGUF file, filled by the model loader. Views into the mapped file: needed during
// the call alone.
struct GgufVocabulary {
  std::string model;  // tokenizer.ggml.model: "gpt2" is byte-level BPE
  std::string pre;    // tokenizer.ggml.pre
  std::vector<std::string_view> tokens;
  std::vector<int32_t> token_types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; may be empty
  std::vector<std::string_view> merges;  // "left right"
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::vector<TokenId> more_eos;  // eot, eom: also end an answer
  std::optional<bool> add_bos;    // absent: as the pre-tokenizer's models do
  std::optional<bool> add_eos;
};
StatusOr<BpeVocabulary> VocabularyFromGguf(const GgufVocabulary& gguf);

// The byte-level alphabet in which files write tokens: every byte is one visible character. FromAlphabet gives
// the text itself where a character is none of the alphabet's.
std::string FromAlphabet(std::string_view token);
std::string ToAlphabet(std::string_view bytes);

}  // namespace baton

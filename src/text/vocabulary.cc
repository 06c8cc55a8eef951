#include "text/vocabulary.h"

#include <array>

#include "text/pre_tokenizer.h"
#include "text/token_table.h"
#include "text/utf8.h"
#include "text/vocabulary_parts.h"

namespace baton {
namespace {

// GPT-2's table: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards, in order.
struct Alphabet {
  std::array<uint16_t, 256> of_byte{};
  std::array<int16_t, 324> of_code{};
  constexpr Alphabet() {
    of_code.fill(-1);
    uint16_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool self = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      of_byte[static_cast<size_t>(b)] = self ? static_cast<uint16_t>(b) : next++;
      of_code[of_byte[static_cast<size_t>(b)]] = static_cast<int16_t>(b);
    }
  }
};
constexpr Alphabet kAlphabet;

struct PreTokenizerByName {
  std::string_view name;
  std::vector<SplitStep> splits;
  bool whole_words_first;
  bool add_bos;  // where the file does not say
};

// The names that GGUF converters write, and what the models behind them were trained with.
const std::vector<PreTokenizerByName>& NamedPreTokenizers() {
  static const auto* const kTable = [] {
    const std::vector<SplitStep> gpt2{{kGpt2Pattern}};
    const std::vector<SplitStep> digits_then_gpt2{{kSingleNumberPattern}, {kGpt2Pattern}};
    const std::vector<SplitStep> llama3{{kLlama3Pattern}}, qwen2{{kQwen2Pattern}};
    return new std::vector<PreTokenizerByName>{
        {"smollm", digits_then_gpt2, false, false},
        {"starcoder", digits_then_gpt2, false, false},
        {"refact", digits_then_gpt2, false, false},
        {"command-r", digits_then_gpt2, false, true},
        {"codeshell", digits_then_gpt2, false, false},
        {"exaone", digits_then_gpt2, false, false},
        {"gpt-2", gpt2, false, false},
        {"phi-2", gpt2, false, false},
        {"olmo", gpt2, false, false},
        {"mpt", gpt2, false, false},
        {"llama-bpe", llama3, true, true},
        {"llama3", llama3, true, true},
        {"llama-v3", llama3, true, true},
        {"qwen2", qwen2, false, false},
        {"deepseek-r1-qwen", qwen2, false, false},
        {"stablelm2", qwen2, false, false},
    };
  }();
  return *kTable;
}

std::string Join(const std::vector<PreTokenizerByName>& table) {
  std::string out;
  for (const auto& entry : table) out += (out.empty() ? "" : ", ") + std::string(entry.name);
  return out;
}

}  // namespace

std::string FromAlphabet(std::string_view token) {
  std::string out;
  out.reserve(token.size());
  for (size_t at = 0; at < token.size();) {
    const Utf8Step step = DecodeUtf8(token.substr(at));
    if (!step.valid || step.code_point >= kAlphabet.of_code.size() || kAlphabet.of_code[step.code_point] < 0) {
      return std::string(token);
    }
    out.push_back(static_cast<char>(kAlphabet.of_code[step.code_point]));
    at += step.length;
  }
  return out;
}

std::string ToAlphabet(std::string_view bytes) {
  std::string out;
  for (char c : bytes) AppendUtf8(kAlphabet.of_byte[static_cast<uint8_t>(c)], &out);
  return out;
}

bool LooksLikeMarkup(std::string_view text) {
  return text.size() >= 3 && text.find_first_of(" \t\r\n") == std::string_view::npos &&
         ((text.front() == '<' && text.back() == '>') || (text.front() == '[' && text.back() == ']'));
}

StatusOr<std::pair<TokenId, TokenId>> FindMerge(const TokenTable& by_text, std::string_view left,
                                                std::string_view right, size_t rank) {
  const TokenId a = by_text.Find(left), b = by_text.Find(right);
  if (a >= 0 && b >= 0) return std::pair{a, b};
  return InvalidArgumentError("merge " + std::to_string(rank) + ": \"" + std::string(a < 0 ? left : right) +
                              "\" is no token");
}

StatusOr<std::pair<std::string_view, std::string_view>> CutMerge(std::string_view merge, size_t rank) {
  const size_t space = merge.find(' ', 1);
  if (space == std::string_view::npos || space + 1 >= merge.size()) {
    return InvalidArgumentError("merge " + std::to_string(rank) + ": \"" + std::string(merge) +
                                "\" is not two tokens with a space between");
  }
  return std::pair{merge.substr(0, space), merge.substr(space + 1)};
}

StatusOr<BpeVocabulary> VocabularyFromGguf(const GgufVocabulary& gguf) {
  if (gguf.model != "gpt2") {
    return UnimplementedError("tokenizer.ggml.model \"" + gguf.model +
                              "\" is not supported; \"gpt2\" (byte-level BPE) is");
  }
  const PreTokenizerByName* pre = nullptr;
  for (const auto& entry : NamedPreTokenizers()) {
    if (entry.name == gguf.pre) pre = &entry;
  }
  if (pre == nullptr) {
    return UnimplementedError("tokenizer.ggml.pre \"" + gguf.pre + "\" is not supported; supported are " +
                              Join(NamedPreTokenizers()));
  }
  const size_t count = gguf.tokens.size();
  if (count > kMaxVocabulary || (!gguf.token_types.empty() && gguf.token_types.size() != count)) {
    return InvalidArgumentError("tokenizer.ggml.token_type: " + std::to_string(gguf.token_types.size()) +
                                " entries for " + std::to_string(count) + " tokens (limit " +
                                std::to_string(kMaxVocabulary) + ")");
  }
  BpeVocabulary v;
  v.splits = pre->splits;
  v.whole_words_first = pre->whole_words_first;
  TokenTable by_text;
  by_text.Reserve(count);
  v.tokens.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const auto id = static_cast<TokenId>(i);
    const int32_t type = gguf.token_types.empty() ? 1 : gguf.token_types[i];
    by_text.Insert(gguf.tokens[i], id);
    if (type == 2 || type == 3 || type == 4) {
      const std::string text(gguf.tokens[i]);
      if (text.empty()) return InvalidArgumentError("tokenizer.ggml.tokens: token " + std::to_string(i) + " is empty");
      const bool special = type != 4;
      v.tokens.push_back(text);
      v.added.push_back({.id = id, .text = text, .special = special, .control = special || LooksLikeMarkup(text)});
    } else if (type == 1 || type == 6) {
      v.tokens.push_back(FromAlphabet(gguf.tokens[i]));
    } else if (type == 5) {
      v.tokens.emplace_back();
    } else {
      return InvalidArgumentError("tokenizer.ggml.token_type: token " + std::to_string(i) + " has type " +
                                  std::to_string(type) + "; 1 to 6 are known");
    }
  }
  v.merges.reserve(gguf.merges.size());
  for (size_t rank = 0; rank < gguf.merges.size(); ++rank) {
    BATON_ASSIGN_OR_RETURN(const auto cut, CutMerge(gguf.merges[rank], rank));
    BATON_ASSIGN_OR_RETURN(const auto pair, FindMerge(by_text, cut.first, cut.second, rank));
    v.merges.push_back(pair);
  }
  v.bos = gguf.bos;
  if (gguf.eos) v.eos.push_back(*gguf.eos);
  for (TokenId id : gguf.more_eos) AddOnce(id, &v.eos);
  if (gguf.add_bos.value_or(pre->add_bos) && v.bos) v.prefix.push_back(*v.bos);
  if (gguf.add_eos.value_or(false) && gguf.eos) v.suffix.push_back(*gguf.eos);
  return v;
}

}  // namespace baton

#include "text/vocabulary.h"

#include <gtest/gtest.h>

#include "text/bpe_tokenizer.h"

namespace baton {
namespace {

constexpr char kGood[] = R"({
  "added_tokens": [{"id": 3, "content": "<end>", "special": true, "normalized": false}],
  "normalizer": NORMALIZER, "pre_tokenizer": PRE, "post_processor": POST, "decoder": DECODER,
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]] MODEL}})";

std::string Json(std::map<std::string, std::string> parts) {
  parts.emplace("NORMALIZER", "null");
  parts.emplace("PRE", R"({"type": "ByteLevel", "add_prefix_space": false})");
  parts.emplace("POST", "null");
  parts.emplace("DECODER", R"({"type": "ByteLevel"})");
  parts.emplace("MODEL", "");
  std::string out = kGood;
  for (const auto& [name, text] : parts) out.replace(out.find(name), name.size(), text);
  return out;
}

std::string Refusal(std::map<std::string, std::string> parts) {
  const auto v = VocabularyFromHf({.tokenizer_json = Json(std::move(parts))});
  return v.ok() ? "accepted" : v.status().ToString();
}

TEST(VocabularyFromHf, ReadsWhatItKnows) {
  const auto v = VocabularyFromHf({.tokenizer_json = Json({{"NORMALIZER", R"({"type": "NFC"})"}}),
                                   .tokenizer_config_json = R"({"bos_token": null, "eos_token": {"content": "<end>"}})",
                                   .generation_config_json = R"({"eos_token_id": [3, 2]})"});
  ASSERT_TRUE(v.ok()) << v.status().ToString();
  EXPECT_TRUE(v->nfc);
  EXPECT_EQ(v->eos, (std::vector<TokenId>{3, 2}));
  EXPECT_EQ(v->tokens, (std::vector<std::string>{"a", "b", "ab", "<end>"}));
  EXPECT_TRUE(v->added[0].control);
}

// FF-072
TEST(VocabularyFromHf, RefusesEveryPartItDoesNotKnowByItsName) {
  EXPECT_EQ(Refusal({}), "accepted");
  EXPECT_EQ(Refusal({{"NORMALIZER", R"({"type": "Lowercase"})"}}),
            "UNIMPLEMENTED: tokenizer.json: normalizer \"Lowercase\" is not supported");
  EXPECT_EQ(Refusal({{"PRE", R"({"type": "Metaspace"})"}}),
            "UNIMPLEMENTED: tokenizer.json: pre_tokenizer \"Metaspace\" is not supported");
  EXPECT_EQ(Refusal({{"PRE", "null"}}), "UNIMPLEMENTED: tokenizer.json: pre_tokenizer \"null\" is not supported");
  EXPECT_EQ(Refusal({{"PRE", R"({"type": "ByteLevel", "add_prefix_space": true})"}}),
            "UNIMPLEMENTED: tokenizer.json: pre_tokenizer ByteLevel with \"add_prefix_space\" is not supported");
  EXPECT_EQ(Refusal({{"PRE", R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "MergedWithNext"})"}}),
            "UNIMPLEMENTED: tokenizer.json: pre_tokenizer Split with behavior \"MergedWithNext\" is not supported");
  EXPECT_EQ(Refusal({{"DECODER", R"({"type": "WordPiece"})"}}),
            "UNIMPLEMENTED: tokenizer.json: decoder \"WordPiece\" is not supported");
  EXPECT_EQ(Refusal({{"POST", R"({"type": "BertProcessing"})"}}),
            "UNIMPLEMENTED: tokenizer.json: post_processor \"BertProcessing\" is not supported");
  EXPECT_EQ(Refusal({{"MODEL", R"(, "byte_fallback": true)"}}),
            "UNIMPLEMENTED: tokenizer.json: model BPE with \"byte_fallback\" is not supported");
  EXPECT_EQ(Refusal({{"MODEL", R"(, "dropout": 0.1)"}}),
            "UNIMPLEMENTED: tokenizer.json: model BPE with \"dropout\" is not supported");
}

TEST(VocabularyFromHf, RefusesWhatIsBroken) {
  EXPECT_EQ(VocabularyFromHf({.tokenizer_json = "{"}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(VocabularyFromHf({.tokenizer_json = "[]"}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(VocabularyFromHf({.tokenizer_json = std::string(100000, '[')}).status().message(),
            "tokenizer.json: content: nested deeper than 64");
  EXPECT_EQ(VocabularyFromHf({.tokenizer_json = R"({"model": {"type": "Unigram"}})"}).status().message(),
            "tokenizer.json: model \"Unigram\" is not supported");
  EXPECT_EQ(VocabularyFromHf({.tokenizer_json = R"({"model": {"vocab": {"a": -1}, "merges": []}})"}).status().message(),
            "tokenizer.json: model.vocab: id -1 is not an integer from 0 to 4194303");
  EXPECT_EQ(
      VocabularyFromHf({.tokenizer_json = R"({"model": {"vocab": {"a": 0}, "merges": ["a b"]}})"}).status().message(),
      "tokenizer.json: merge 0: \"b\" is no token");
  EXPECT_EQ(VocabularyFromHf({.tokenizer_json = R"({"model": {"vocab": {"a": 0, "b": 0}, "merges": []}})"})
                .status()
                .message(),
            "tokenizer.json: id 0 is both \"a\" and \"b\"");
}

TEST(ChatTemplateFromHf, TakesTheFileThenTheStringThenTheOneNamedDefault) {
  EXPECT_EQ(*ChatTemplateFromHf({.tokenizer_config_json = R"({"chat_template": "B"})", .chat_template_jinja = "A"}),
            "A");
  EXPECT_EQ(*ChatTemplateFromHf({.tokenizer_config_json = R"({"chat_template": "B"})"}), "B");
  EXPECT_EQ(*ChatTemplateFromHf({.tokenizer_config_json = R"({"chat_template": [{"name": "tool_use", "template": "C"},
      {"name": "default", "template": "D"}]})"}),
            "D");
  EXPECT_EQ(ChatTemplateFromHf({}).status().code(), Code::kNotFound);
}

GgufVocabulary Gguf() {
  return {.model = "gpt2",
          .pre = "smollm",
          .tokens = {"<end>", "a", "b", "ab", "\u0120", "<think>", "pad"},
          .token_types = {3, 1, 1, 1, 1, 4, 5},
          .merges = {"a b"},
          .bos = 0,
          .eos = 0};
}

TEST(VocabularyFromGguf, ReadsTypesMergesAndEnds) {
  GgufVocabulary gguf = Gguf();
  gguf.add_bos = true;
  gguf.more_eos = {3, 0};
  const auto v = VocabularyFromGguf(gguf);
  ASSERT_TRUE(v.ok()) << v.status().ToString();
  EXPECT_EQ(v->tokens, (std::vector<std::string>{"<end>", "a", "b", "ab", " ", "<think>", ""}));
  EXPECT_EQ(v->prefix, std::vector<TokenId>{0});
  EXPECT_EQ(v->eos, (std::vector<TokenId>{0, 3}));
  ASSERT_EQ(v->added.size(), 2u);
  EXPECT_TRUE(v->added[0].special);
  EXPECT_FALSE(v->added[1].special);
  EXPECT_TRUE(v->added[1].control);
  EXPECT_EQ(v->splits.size(), 2u);
  EXPECT_TRUE(BpeTokenizer::Make(*v).ok());
}

// FF-072
TEST(VocabularyFromGguf, RefusesByName) {
  GgufVocabulary gguf = Gguf();
  gguf.model = "llama";
  EXPECT_EQ(VocabularyFromGguf(gguf).status().code(), Code::kUnimplemented);
  gguf = Gguf();
  gguf.pre = "deepseek-coder";
  const std::string message = VocabularyFromGguf(gguf).status().message();
  EXPECT_NE(message.find("\"deepseek-coder\" is not supported; supported are smollm"), std::string::npos) << message;
  gguf = Gguf();
  gguf.token_types.pop_back();
  EXPECT_EQ(VocabularyFromGguf(gguf).status().code(), Code::kInvalidArgument);
  gguf = Gguf();
  gguf.token_types[1] = 9;
  EXPECT_EQ(VocabularyFromGguf(gguf).status().code(), Code::kInvalidArgument);
  gguf = Gguf();
  gguf.merges = {"ab"};
  EXPECT_EQ(VocabularyFromGguf(gguf).status().message(), "merge 0: \"ab\" is not two tokens with a space between");
  gguf = Gguf();
  gguf.eos = 99;
  EXPECT_FALSE(BpeTokenizer::Make(*VocabularyFromGguf(gguf)).ok());
}

TEST(Alphabet, EveryByteHasACharacterOfItsOwn) {
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  EXPECT_EQ(FromAlphabet(ToAlphabet(all)), all);
  EXPECT_EQ(ToAlphabet(" \n"), "\u0120\u010A");
  EXPECT_EQ(FromAlphabet("<a b>"), "<a b>");
}

}  // namespace
}  // namespace baton

// The tokenizer against HF `tokenizers`: small committed tokenizers in the shapes of several families, and the
// default model's own, from its GGUF and (where it was written) from a tokenizer.json.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/gguf_vocabulary.h"
#include "text/bpe_tokenizer.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace baton {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<TokenId>;

Json ReadJson(const std::string& name) {
  std::ifstream in(std::string(BATON_SOURCE_DIR "/tests/golden/") + name);
  EXPECT_TRUE(in) << name;
  return Json::parse(in);
}

Ids Encode(const Tokenizer& t, const std::string& text, bool trusted, bool add_special) {
  Ids ids;
  t.Encode({{text, trusted}}, add_special, &ids);
  return ids;
}

std::unique_ptr<BpeTokenizer> Make(StatusOr<BpeVocabulary> vocabulary) {
  if (!vocabulary.ok()) {
    ADD_FAILURE() << vocabulary.status().ToString();
    return nullptr;
  }
  auto made = BpeTokenizer::Make(*std::move(vocabulary));
  if (!made.ok()) {
    ADD_FAILURE() << made.status().ToString();
    return nullptr;
  }
  return *std::move(made);
}

TEST(TokenizerOracle, SmallTokenizersOfEveryFamilyEncodeAndDecodeAsHfDoes) {
  const Json golden = ReadJson("text/tokenizers.json");
  ASSERT_GE(golden["tokenizers"].size(), 5u);
  for (const Json& family : golden["tokenizers"]) {
    SCOPED_TRACE(family["name"].get<std::string>());
    const auto t = Make(VocabularyFromHf({.tokenizer_json = family["tokenizer"]}));
    ASSERT_NE(t, nullptr);
    for (const Json& sample : family["encode"]) {
      const std::string text = sample[0];
      EXPECT_EQ(Encode(*t, text, true, false), sample[1].get<Ids>()) << text;
      EXPECT_EQ(Encode(*t, text, true, true), sample[2].get<Ids>()) << text;
    }
    for (const Json& sample : family["decode"]) {
      const Ids ids = sample[0];
      EXPECT_EQ(Decode(*t, ids, true), sample[1].get<std::string>()) << sample[0];
      EXPECT_EQ(Decode(*t, ids, false), sample[2].get<std::string>()) << sample[0];
    }
  }
}

TEST(TokenizerOracle, PatternsCutTextIntoHfsWords) {
  const Json golden = ReadJson("text/splits.json");
  const std::map<std::string, const char*> patterns = {
      {"gpt2", kGpt2Pattern}, {"llama3", kLlama3Pattern}, {"qwen2", kQwen2Pattern}};
  for (const Json& entry : golden["patterns"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    auto pre = PreTokenizer::Make({{patterns.at(entry["name"])}});
    ASSERT_TRUE(pre.ok()) << pre.status().ToString();
    for (const Json& sample : entry["words"]) {
      const std::string text = sample[0];
      std::vector<std::string_view> words;
      pre->Cut(text, &words);
      std::vector<size_t> sizes;
      for (std::string_view w : words) sizes.push_back(w.size());
      EXPECT_EQ(sizes, sample[1].get<std::vector<size_t>>()) << sample[0];
    }
  }
}

// splits.json's hash of how a short text around each character is cut.
TEST(TokenizerOracle, EveryCharacterOfUnicode14CutsTextWhereHfCutsIt) {
  const Json golden = ReadJson("text/splits.json");
  std::vector<bool> known(0x110000, true);
  for (const Json& range : golden["unknown"]) {
    for (uint32_t c = range[0]; c <= range[1]; ++c) known[c] = false;
  }
  const std::map<std::string, const char*> patterns = {
      {"gpt2", kGpt2Pattern}, {"llama3", kLlama3Pattern}, {"qwen2", kQwen2Pattern}};
  for (const Json& entry : golden["patterns"]) {
    auto pre = PreTokenizer::Make({{patterns.at(entry["name"])}});
    ASSERT_TRUE(pre.ok());
    std::vector<std::string_view> words;
    for (uint32_t block = 0; block < entry["sweep"].size(); ++block) {
      uint64_t hash = 0xcbf29ce484222325ull;
      for (uint32_t c = block * 4096; c < (block + 1) * 4096; ++c) {
        if (!known[c] || (c >= 0xD800 && c < 0xE000)) continue;
        std::string x;
        AppendUtf8(c, &x);
        const std::string text = "a" + x + "b '" + x + " " + x + x + "1!" + x + "\n";
        words.clear();
        pre->Cut(text, &words);
        for (std::string_view w : words) hash = (hash ^ w.size()) * 0x100000001b3ull;
      }
      char hex[17];
      std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash));
      EXPECT_EQ(hex, entry["sweep"][block].get<std::string>())
          << entry["name"] << ": a character from " << std::hex << block * 4096 << " on";
    }
  }
}

// The default model's file: $BATON_TEST_MODEL, else where scripts/fetch_model.sh puts it.
std::string ModelPath() {
  if (const char* named = std::getenv("BATON_TEST_MODEL")) return named;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = cache != nullptr ? cache : std::string(home == nullptr ? "" : home) + "/.cache";
  return base + "/baton/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

class DefaultModel : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = ModelPath();
    if (!std::ifstream(path)) GTEST_SKIP() << "NO MODEL FILE at " << path << ": run scripts/fetch_model.sh";
    ASSERT_TRUE(file_.Read(path)) << path;
    tokenizer_ = Make(VocabularyFromGguf(file_.vocabulary));
    ASSERT_NE(tokenizer_, nullptr);
  }
  testing_support::GgufTokenizerFile file_;
  std::unique_ptr<BpeTokenizer> tokenizer_;
};

TEST_F(DefaultModel, EncodesTheGoldenTextsAsHfDoes) {
  const Json golden = ReadJson("tokenizer_vectors.json");
  ASSERT_GT(golden["samples"].size(), 500u);
  for (const Json& sample : golden["samples"]) {
    EXPECT_EQ(Encode(*tokenizer_, sample["text"], true, true), sample["ids"].get<Ids>()) << sample["text"];
  }
}

TEST_F(DefaultModel, RendersAndEncodesTheGoldenConversationsAndKeepsUserTextPlain) {
  const Json golden = ReadJson("chatml.json");
  const auto parsed = ChatTemplate::Parse(file_.chat_template);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  for (const Json& c : golden["conversations"]) {
    std::vector<ChatMessage> messages;
    bool imitates = false;
    for (const Json& m : c["messages"]) {
      messages.push_back({m["role"], m["content"], ""});
      imitates |= messages.back().content.find('<') != std::string::npos;
    }
    const auto spans = parsed->Render(messages, {.add_generation_prompt = c["add_generation_prompt"]});
    ASSERT_TRUE(spans.ok()) << spans.status().ToString();
    Ids ids;
    tokenizer_->Encode(*spans, false, &ids);
    // HF tokenizes the rendered text as a whole, so it takes an imitated control token for a real one.
    if (!imitates) EXPECT_EQ(ids, c["ids"].get<Ids>()) << c["messages"];
    size_t starts = 0;
    for (TokenId id : ids) starts += id == 1;
    const bool default_system = messages.empty() || messages[0].role != "system";
    EXPECT_EQ(starts, messages.size() + (default_system && !messages.empty()) +
                          (c["add_generation_prompt"].get<bool>() ? 1 : 0))
        << c["messages"];
    EXPECT_EQ(Decode(*tokenizer_, ids, false), c["prompt"].get<std::string>());
  }
}

TEST_F(DefaultModel, ItsTokenizerJsonAndItsGgufTokenizeAlike) {
  const std::string folder = ModelPath().substr(0, ModelPath().rfind('/')) + "/SmolLM2-tokenizer";
  const auto files = ReadHfTokenizerFiles(folder);
  if (!files.ok())
    GTEST_SKIP() << "NO TOKENIZER FOLDER at " << folder << ": tests/golden/make_smollm2_folders.py writes it";
  const auto other = Make(VocabularyFromHf(*files));
  ASSERT_NE(other, nullptr);
  ASSERT_EQ(other->vocab_size(), tokenizer_->vocab_size());
  for (TokenId id = 0; id < static_cast<TokenId>(other->vocab_size()); ++id) {
    ASSERT_EQ(other->TokenBytes(id, true), tokenizer_->TokenBytes(id, true)) << id;
    ASSERT_EQ(other->IsSpecial(id), tokenizer_->IsSpecial(id)) << id;
  }
  EXPECT_EQ(other->eos_ids(), tokenizer_->eos_ids());
  EXPECT_EQ(other->bos_text(), tokenizer_->bos_text());
  for (const Json& sample : ReadJson("tokenizer_vectors.json")["samples"]) {
    EXPECT_EQ(Encode(*other, sample["text"], false, true), Encode(*tokenizer_, sample["text"], false, true));
  }
  const auto source = ChatTemplateFromHf(*files);
  ASSERT_TRUE(source.ok());
  EXPECT_EQ(*source, file_.chat_template);
}

TEST_F(DefaultModel, EveryScalarValueComesBackUnlessTheVocabularyLacksItsBytes) {
  bool has[256];
  for (int b = 0; b < 256; ++b) has[b] = tokenizer_->Find(std::string(1, static_cast<char>(b))).has_value();
  size_t whole = 0;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, &text);
    std::string expected;  // this vocabulary has no token for some bytes; they vanish, as in HF
    for (char byte : text) {
      if (has[static_cast<uint8_t>(byte)]) expected += byte;
    }
    whole += expected == text;
    const Ids ids = Encode(*tokenizer_, text, false, false);
    std::string bytes;
    for (TokenId id : ids) bytes += tokenizer_->TokenBytes(id, true);
    ASSERT_EQ(bytes, expected) << std::hex << c;
  }
  EXPECT_GT(whole, 500'000u);
}

}  // namespace
}  // namespace baton

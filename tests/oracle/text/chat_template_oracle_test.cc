// Chat templates against Jinja2: tests/golden/text/templates.json holds what it rendered or refused, and
// tests/golden/chatml.json what HF transformers made of conversations with the default model's own template.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/chat_template.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

Json ReadJson(const std::string& name) {
  std::ifstream in(std::string(BATON_SOURCE_DIR "/tests/golden/") + name);
  EXPECT_TRUE(in) << name;
  return Json::parse(in);
}

std::vector<ChatMessage> Messages(const Json& json) {
  std::vector<ChatMessage> messages;
  for (const Json& m : json) {
    ChatMessage message{.role = m["role"], .content = m["content"], .more_json = ""};
    Json more = m;
    more.erase("role");
    more.erase("content");
    if (!more.empty()) message.more_json = more.dump();
    messages.push_back(message);
  }
  return messages;
}

std::string Join(const std::vector<TextSpan>& spans) {
  std::string text;
  for (const TextSpan& s : spans) text += s.text;
  return text;
}

TEST(ChatTemplateOracle, EveryCaseGivesJinja2sTextOrIsRefusedWhereJinja2Refuses) {
  const Json golden = ReadJson("text/templates.json");
  ASSERT_GT(golden["cases"].size(), 100u);
  for (const Json& c : golden["cases"]) {
    const std::string source = c["source"];
    SCOPED_TRACE(source);
    RenderOptions options{.add_generation_prompt = c["add_generation_prompt"], .bos_token = "<s>", .eos_token = "</s>"};
    options.now = golden["now"].get<int64_t>();
    if (!c["tools"].is_null()) options.tools_json = c["tools"].dump();
    if (!c["kwargs"].is_null()) options.kwargs_json = c["kwargs"].dump();
    const auto parsed = ChatTemplate::Parse(source);
    if (!parsed.ok()) {
      EXPECT_TRUE(c.contains("refused")) << parsed.status().ToString();
      EXPECT_NE(parsed.status().message().find("chat template line "), std::string::npos);
      continue;
    }
    const auto spans = parsed->Render(Messages(c["messages"]), options);
    if (c.contains("refused")) {
      EXPECT_FALSE(spans.ok()) << "Jinja2 refused with " << c["refused"];
      continue;
    }
    ASSERT_TRUE(spans.ok()) << spans.status().ToString();
    EXPECT_EQ(Join(*spans), c["text"].get<std::string>());
  }
}

// U+E000 stands for a client's character: no template and no case mapping makes one.
TEST(ChatTemplateOracle, NoTemplateTurnsAClientsCharacterIntoATrustedOne) {
  const std::string mark = "\xEE\x80\x80";
  const Json golden = ReadJson("text/templates.json");
  size_t seen = 0;
  for (const Json& c : golden["cases"]) {
    const auto parsed = ChatTemplate::Parse(c["source"].get<std::string>());
    if (!parsed.ok()) continue;
    std::vector<ChatMessage> messages = Messages(c["messages"]);
    for (ChatMessage& m : messages) {
      std::string marked;
      for (char ch : m.content) marked += static_cast<uint8_t>(ch) < 0x80 ? mark + ch : std::string(1, ch);
      m.content = marked;
    }
    RenderOptions options{.add_generation_prompt = c["add_generation_prompt"]};
    options.tools_json = "[{\"" + mark + "\": [\"" + mark + "\"]}]";
    options.now = 0;
    const auto spans = parsed->Render(messages, options);
    if (!spans.ok()) continue;
    for (const TextSpan& span : *spans) {
      const bool marked = span.text.find(mark) != std::string::npos;
      EXPECT_FALSE(span.trusted && marked) << c["source"];
      seen += marked;
    }
  }
  EXPECT_GT(seen, 80u);
}

TEST(ChatTemplateOracle, TheDefaultModelsTemplateGivesHfsPrompts) {
  const Json golden = ReadJson("chatml.json");
  const auto parsed = ChatTemplate::Parse(golden["template"].get<std::string>());
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  ASSERT_GT(golden["conversations"].size(), 5u);
  for (const Json& c : golden["conversations"]) {
    RenderOptions options{.add_generation_prompt = c["add_generation_prompt"]};
    const auto spans = parsed->Render(Messages(c["messages"]), options);
    ASSERT_TRUE(spans.ok()) << spans.status().ToString();
    EXPECT_EQ(Join(*spans), c["prompt"].get<std::string>());
  }
}

}  // namespace
}  // namespace baton

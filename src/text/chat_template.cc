#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/jinja_evaluator.h"
#include "text/jinja_parser.h"

namespace baton {
namespace {

using jinja::Dict;
using jinja::List;
using jinja::Value;

// Roles that templates spell into their tags ("<|" ~ role ~ "|>"). Such a role is one of these constants, not a
// client's text.
constexpr std::array<std::string_view, 7> kKnownRoles = {"system",   "user",      "assistant", "tool",
                                                         "function", "developer", "ipython"};

StatusOr<Value> MessageValue(const ChatMessage& message, size_t index) {
  const bool known = std::find(kKnownRoles.begin(), kKnownRoles.end(), message.role) != kKnownRoles.end();
  Dict dict;
  dict.emplace_back(Value::Text("role", true), Value::Text(message.role, known));
  dict.emplace_back(Value::Text("content", true), Value::Text(message.content, false));
  if (message.more_json.empty()) return Value::MakeDict(std::move(dict));
  const std::string what = "messages[" + std::to_string(index) + "]";
  BATON_ASSIGN_OR_RETURN(const Value more, jinja::FromJson(message.more_json, what));
  if (!more.is(jinja::Kind::kDict)) return InvalidArgumentError(what + ": further members must be a JSON object");
  for (const auto& [key, value] : more.dict()) {
    if (key.text().text == "role") return InvalidArgumentError(what + ": role is given twice");
    const auto same = [&k = key](const auto& entry) { return entry.first.text().text == k.text().text; };
    const auto at = std::find_if(dict.begin(), dict.end(), same);
    if (at != dict.end()) {
      at->second = value;
    } else {
      dict.emplace_back(key, value);
    }
  }
  return Value::MakeDict(std::move(dict));
}

StatusOr<jinja::Evaluator::Variables> Globals(const std::vector<ChatMessage>& messages, const RenderOptions& options) {
  jinja::Evaluator::Variables globals;
  List list;
  for (size_t i = 0; i < messages.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(Value message, MessageValue(messages[i], i));
    list.push_back(std::move(message));
  }
  globals.emplace_back("messages", Value::MakeList(std::move(list)));
  globals.emplace_back("add_generation_prompt", Value::Bool(options.add_generation_prompt));
  globals.emplace_back("bos_token", Value::Text(options.bos_token, true));
  globals.emplace_back("eos_token", Value::Text(options.eos_token, true));
  Value tools = Value::None();
  if (!options.tools_json.empty()) {
    BATON_ASSIGN_OR_RETURN(tools, jinja::FromJson(options.tools_json, "tools"));
    if (!tools.is(jinja::Kind::kList)) return InvalidArgumentError("tools: must be a JSON array");
  }
  globals.emplace_back("tools", tools);
  globals.emplace_back("documents", Value::None());
  if (options.kwargs_json.empty()) return globals;
  BATON_ASSIGN_OR_RETURN(const Value kwargs, jinja::FromJson(options.kwargs_json, "chat_template_kwargs"));
  if (!kwargs.is(jinja::Kind::kDict)) return InvalidArgumentError("chat_template_kwargs: must be a JSON object");
  for (const auto& [key, value] : kwargs.dict()) {
    const std::string& name = key.text().text;
    const auto taken = std::find_if(globals.begin(), globals.end(), [&](const auto& g) { return g.first == name; });
    if (name == "documents") {
      taken->second = value;
    } else if (taken != globals.end()) {
      return InvalidArgumentError("chat_template_kwargs: \"" + name + "\" has a field of its own");
    } else {
      globals.emplace_back(name, value);
    }
  }
  return globals;
}

}  // namespace

StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  BATON_ASSIGN_OR_RETURN(jinja::Program program, jinja::ParseProgram(source));
  ChatTemplate parsed;
  parsed.program_ = std::make_shared<const jinja::Program>(std::move(program));
  return parsed;
}

StatusOr<std::vector<TextSpan>> ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                                     const RenderOptions& options) const {
  BATON_CHECK(program_ != nullptr, "a template is parsed before it renders");
  BATON_ASSIGN_OR_RETURN(jinja::Evaluator::Variables globals, Globals(messages, options));
  jinja::Evaluator evaluator(program_.get(), {options.max_steps, options.max_output_bytes, options.now});
  BATON_ASSIGN_OR_RETURN(const jinja::MarkedText text, evaluator.Run(std::move(globals)));
  std::vector<TextSpan> spans;
  size_t at = 0;
  for (const jinja::MarkedText::Run& run : text.runs) {
    spans.push_back({text.text.substr(at, run.end - at), run.trusted});
    at = run.end;
  }
  return spans;
}

}  // namespace baton

// A model's chat template: from messages to text for the tokenizer, with the template's own characters told
// apart from everyone else's. Parsed once at load, immutable, any thread renders.
//
// Always true: characters that came from messages, tools or kwargs are in untrusted spans, whatever the template
// did to them, so they never become control tokens; what is trusted was written in the template or is bos/eos.
// Rendering ends within its limits. Byte for byte the text is what Jinja2 gives with HF's settings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/status.h"
#include "baton/tokenizer.h"

namespace baton {

namespace jinja {
struct Program;
}

struct ChatMessage {
  std::string role;
  std::string content;
  // A JSON object with further members (name, tool_calls, or content as a list of parts), or "". Its members
  // win over `content`.
  std::string more_json;
};

struct RenderOptions {
  bool add_generation_prompt = true;
  std::string bos_token;       // trusted text
  std::string eos_token;       // trusted text
  std::string tools_json;      // a JSON array, or "": `tools` is none
  std::string kwargs_json;     // a JSON object of further variables, or ""; may not name messages, tools, bos_token ...
  std::optional<int64_t> now;  // seconds since 1970 UTC, for strftime_now; absent: a template that asks is refused
  uint64_t max_steps = 2'000'000;           // evaluated nodes plus 1 per 64 bytes or item made
  uint64_t max_output_bytes = 16ull << 20;  // also of any string made on the way
};

class ChatTemplate {
 public:
  // INVALID_ARGUMENT (syntax) or UNIMPLEMENTED (a tag, filter, test, function or method that is not known), with name
  // and line.
  static StatusOr<ChatTemplate> Parse(std::string_view source);

  // INVALID_ARGUMENT: the template raised, or the messages do not fit it, or JSON is broken; RESOURCE_EXHAUSTED: a
  // limit was passed. Neighbouring spans differ in trust; no span is empty.
  StatusOr<std::vector<TextSpan>> Render(const std::vector<ChatMessage>& messages, const RenderOptions& options) const;

 private:
  std::shared_ptr<const jinja::Program> program_;
};

}  // namespace baton

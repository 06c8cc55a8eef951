// A template's source cut into text and the tokens of its tags, with white space control applied as Jinja2 does
// with trim_blocks and lstrip_blocks on. Private to src/text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/status.h"

namespace baton::jinja {

struct Token {
  enum Type : uint8_t {
    kData,
    kBlockBegin,
    kBlockEnd,
    kOutputBegin,
    kOutputEnd,
    kName,
    kText,
    kInt,
    kFloat,
    kOperator,
    kEnd
  };
  Type type;
  std::string text;  // of kText: decoded
  int line;
};

// "chat template line 7: <what>"
Status SyntaxError(int line, std::string_view what);
Status Unsupported(int line, std::string_view kind, std::string_view name);

StatusOr<std::vector<Token>> Lex(std::string_view source);

}  // namespace baton::jinja

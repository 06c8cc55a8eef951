// From source to a Program. Private to src/text.
//
// Always true: nesting is at most kMaxNesting, so that neither parsing nor evaluation outgrows the stack, and
// every builtin was found.
#pragma once

#include <string_view>

#include "baton/status.h"
#include "text/jinja_ast.h"

namespace baton::jinja {

inline constexpr int kMaxNesting = 200;

StatusOr<Program> ParseProgram(std::string_view source);

}  // namespace baton::jinja

#include "text/json_nesting.h"

#include <cstddef>

namespace baton {

bool JsonNestedAtMost(std::string_view json, int depth) {
  int open = 0;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if ((c == '[' || c == '{') && ++open > depth) {
      return false;
    } else if (c == ']' || c == '}') {
      --open;
    }
  }
  return true;
}

}  // namespace baton

// How deep a JSON text nests, before anything recursive looks at it. Pure, any thread.
#pragma once

#include <string_view>

namespace baton {

// False: at some place more than `depth` arrays and objects are open. The text need not be valid.
bool JsonNestedAtMost(std::string_view json, int depth);

}  // namespace baton

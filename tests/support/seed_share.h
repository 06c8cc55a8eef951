// How many seeds a property runs. Instrumented code takes 10 to 20 times as long a seed and looks for another kind of
// fault, which few seeds reach as well as many: sanitizer builds run a fifth. BATON_SEED_SHARE comes from CMake.
#pragma once

#include <cstdint>

namespace baton {

constexpr uint64_t Seeds(uint64_t in_full) { return in_full / BATON_SEED_SHARE; }

}  // namespace baton

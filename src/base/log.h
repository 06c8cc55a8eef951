// Logging through spdlog's default logger, which app configures (text or JSON, level). A line about a
// request names it as ToString(child). Included by .cc files only: spdlog is a heavy header.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

#include "baton/ids.h"

namespace baton {

inline std::string ToString(const ChildId& c) {
  return fmt::format("{:08x}-{}{}", static_cast<uint32_t>(c.front), c.number,
                     c.choice == 0 ? std::string() : "." + std::to_string(c.choice));
}
inline std::string ToString(const Ticket& t) { return fmt::format("{}/{}", t.slot, t.generation); }
inline std::string ToString(const ProcessId& p) { return fmt::format("{}#{}", p.name, p.incarnation.counter); }

}  // namespace baton

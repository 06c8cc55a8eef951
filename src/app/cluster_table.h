// A cluster's snapshot as people read it (80 columns) and as programs do (JSON).
#pragma once

#include <string>

#include "rpc/inference_client.h"

namespace baton {

std::string ClusterTable(const ClusterDescription& cluster);
std::string ClusterJson(const ClusterDescription& cluster);  // one line
// "prefill", "decode", "unified".
std::string_view RoleWord(const RoleMask& roles);

}  // namespace baton

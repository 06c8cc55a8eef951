// Where a request's time went, in words for people.
#pragma once

#include <string>

#include "front/client_event.h"

namespace baton {

// Several lines, each ended.
std::string ReceiptText(const Usage& usage, const Timings& timings);

}  // namespace baton

// How the asking commands reach a server, and what they say when they do not.
#pragma once

#include <memory>
#include <string>

#include "app/settings.h"
#include "baton/status.h"
#include "rpc/inference_client.h"

namespace baton {

// With the TLS and the key of the settings. Connects at the first call.
StatusOr<std::unique_ptr<InferenceClient>> Connect(const Settings& settings);
// What to try after an UNAVAILABLE that no router gave.
std::string WhatToTry(const Settings& settings, const Status& status);

}  // namespace baton

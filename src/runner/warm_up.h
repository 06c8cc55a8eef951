// A worker's first steps, before anybody is told that it is there: pages come in, threads start, and weights that give
// no usable number are noticed.
#pragma once

#include "baton/kv_layout.h"
#include "baton/model_runner.h"
#include "baton/status.h"

namespace baton {

// Computes one prompt token and one decode on the first block of each group and waits for both. Leaves nothing that a
// later step reads: blocks are zeroed when they enter use. The caller's thread, before the engine's starts.
// The step's own status when it gives no token.
Status WarmUp(ModelRunner* runner, size_t num_groups);

}  // namespace baton
